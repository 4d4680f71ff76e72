"""The fixed data set that everything is learned from, checked once and then never changed."""

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_nopg.common.errors import InputError
from sb3_nopg.data import transform
from sb3_nopg.data.breaks import tell_breaks
from sb3_nopg.data.buffer import FixedReplayBuffer, fields_of_replay_buffer, spaces_of
from sb3_nopg.data.files import read_fields, write_dataset
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.data.transform import RewardFunction
from sb3_nopg.data.transitions import Transitions


@dataclass(frozen=True, eq=False, repr=False)
class TransitionDataset(Transitions):
    """
    Transitions ``(s, a, r, s', terminal)`` in the environment's units, checked on construction, read-only afterwards.

    :param observations: states s, (n, d_s)
    :param actions: actions a, in the environment's units and not scaled to [-1, 1], (n, d_a); those of another shape are
        flattened, and so is their space
    :param rewards: (n,)
    :param next_observations: states s' that followed, (n, d_s)
    :param terminals: whether the task truly ended with s'; a time limit is not an end, (n,)
    :param timeouts: whether a time limit cut the episode after s', (n,)
    :param episode_ids: any whole number for each episode, (n,), an episode's rows in the order of time; without it,
        ``timeouts`` tells where episodes end, and without either the transitions are taken as unordered one-step samples
    :param observation_space: Box that observations come from, for models built without an environment
    :param action_space: Box that actions come from; without it, the range of the actions seen
    :param quantities: names and units of the columns, see :meth:`named`
    """

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer) -> "TransitionDataset":
        """
        Everything that an SB3 replay buffer holds, in the environment's units, in the order it happened.

        :param buffer: filled by any off-policy algorithm
        """
        if isinstance(buffer, FixedReplayBuffer) and isinstance(buffer.dataset, TransitionDataset):
            return buffer.dataset
        return cls(**fields_of_replay_buffer(buffer))

    def to_replay_buffer(self, device: str = "auto") -> FixedReplayBuffer:
        """
        A replay buffer with these transitions, for any SB3 off-policy algorithm. Spaces not given are taken from the data.

        :param device: where its samples go
        """
        return FixedReplayBuffer(self, *spaces_of(self), device=device)

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> pathlib.Path:
        """
        Write the data so that :meth:`load` gives back the same bits. A failed write leaves no half-written file behind.

        :param path: file to write: ``.npz``, ``.h5``, ``.csv``, ``.parquet``, ``.pkl`` (an SB3 replay buffer), or
            ``minari:ID``; ``.npz`` is added where there is no suffix
        :param format: one of :data:`sb3_nopg.data.files.FORMATS` where the path does not tell
        :return: the file written
        """
        return write_dataset(self, path, format)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], format: str | None = None, *, trust: bool = False, **options: Any
    ) -> "TransitionDataset":
        """
        Read what :meth:`save` wrote, or what others did; see :func:`sb3_nopg.data.files.read_fields`.

        :param path: file, folder of a Minari data set, or ``minari:ID``
        :param format: one of :data:`sb3_nopg.data.files.FORMATS` where the path does not tell
        :param trust: whether to read pickles (``.pkl``, ``.npy``), which can run any program; nothing is unpickled otherwise
        :param options: of tables: ``obs``, ``action``, … name their columns, see
            :class:`sb3_nopg.data.files.table_columns.Columns`; of all: ``observation_names`` and ``action_names``, as in
            :meth:`named`
        """
        names = {field: options.pop(field, None) for field in ("observation_names", "action_names")}
        loaded = cls(**read_fields(path, format, trust, **options)).named(**names)
        tell_breaks(path, loaded)
        return loaded

    def named(
        self, observation_names: Sequence[str] | None = None, action_names: Sequence[str] | None = None
    ) -> "TransitionDataset":
        """
        The same data with names and units for their columns. Plots, reports, models, formulas and exported policies use them.

        :param observation_names: one for each column of the state, with its unit: ``["position [m]", "theta [rad]"]``; None to
            leave them as they are
        :param action_names: and of the action, ``["u [V]"]``
        """
        if observation_names is None and action_names is None:
            return self
        own = self.columns
        given = Quantities.of(
            () if observation_names is None else observation_names, () if action_names is None else action_names
        )
        if observation_names is None:
            given = replace(given, observation_names=own.observation_names, observation_units=own.observation_units)
        if action_names is None:
            given = replace(given, action_names=own.action_names, action_units=own.action_units)
        return replace(self, quantities=replace(given, control_period_s=own.control_period_s))

    @staticmethod
    def merge(*datasets: "TransitionDataset") -> "TransitionDataset":
        """
        Several data sets of one system as one. Episodes get new numbers, so that none are taken for one.

        :param datasets: in the order wanted
        """
        return transform.merge(datasets)

    def filter(
        self, where: str | np.ndarray, observation_names: Sequence[str] = (), action_names: Sequence[str] = ()
    ) -> "TransitionDataset":
        """
        :param where: true or false for each transition, (n,), or an expression as in :meth:`relabel`
        :param observation_names: names that the expression may use for the columns of the state, beside the data's own
        :param action_names: and for those of the action
        """
        return transform.select(self, where, observation_names, action_names)

    def split(self, fractions: Sequence[float], by: str = "episode", seed: int = 0) -> tuple["TransitionDataset", ...]:
        """
        :param fractions: positive, adding up to one, like ``(0.8, 0.2)``
        :param by: ``"episode"`` or ``"transition"``, what is never cut in two
        :param seed: of the choice
        """
        return transform.split(self, fractions, by, seed)

    def subsample(self, n: int, by: str = "transition", seed: int = 0) -> "TransitionDataset":
        """
        :param n: how many to keep, in their order
        :param by: of what: ``"transition"`` or ``"episode"``
        :param seed: of the choice
        """
        return transform.subsample(self, n, by, seed)

    def relabel(
        self, reward: str | RewardFunction, observation_names: Sequence[str] = (), action_names: Sequence[str] = ()
    ) -> "TransitionDataset":
        """
        :param reward: function of states (n, d_s), actions (n, d_a) and next states (n, d_s), or an expression like
            ``"cos(s2[1]) - 0.1 * a[0]**2"`` over ``s``, ``a``, ``s2``, ``r``, ``terminal``, ``timeout`` and ``episode``
        :param observation_names: names that the expression may use for the columns of the state, beside the data's own;
            ``next_…`` for the next one's
        :param action_names: and for those of the action
        """
        return transform.relabel(self, reward, observation_names, action_names)

    def with_units(
        self, observation_scale: float | Sequence[float] = 1.0, action_scale: float | Sequence[float] = 1.0
    ) -> "TransitionDataset":
        """
        The same data, and spaces, in other units. What the new units are called is for :meth:`named` to say.

        :param observation_scale: positive factor for all states, or one for each dimension
        :param action_scale: and for actions
        """
        return transform.with_units(self, observation_scale, action_scale)


def check_dataset(dataset: Any) -> None:
    """:raises InputError: unless it is a data set"""
    if not isinstance(dataset, TransitionDataset):
        raise InputError("dataset", f"a {type(dataset).__name__} is given", "Build a sb3_nopg.TransitionDataset from it")
