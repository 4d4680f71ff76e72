"""The fixed data set that everything is learned from, checked once and then never changed."""

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.arrays import check_actions_inside, check_box, check_width, flags, labels, real_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import episode_labels

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_nopg.data.buffer import FixedReplayBuffer
    from sb3_nopg.data.files.transform import RewardFunction


@dataclass(frozen=True, eq=False, repr=False)
class TransitionDataset:
    """
    Transitions ``(s, a, r, s', terminal)`` in the environment's units, checked on construction, read-only afterwards.

    :param observations: states s, (n, d_s)
    :param actions: actions a, in the environment's units and not scaled to [-1, 1], (n, d_a)
    :param rewards: (n,)
    :param next_observations: states s' that followed, (n, d_s)
    :param terminals: whether the task truly ended with s'; a time limit is not an end, (n,)
    :param timeouts: whether a time limit cut the episode after s', (n,)
    :param episode_ids: any whole number for each episode, (n,), an episode's rows in the order of time; without it,
        ``timeouts`` tells where episodes end, and without either the transitions are taken as unordered one-step samples
    :param observation_space: Box that observations come from, for models built without an environment
    :param action_space: Box that actions come from; without it, the range of the actions seen
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray | None = None
    episode_ids: np.ndarray | None = None
    observation_space: spaces.Box | None = None
    action_space: spaces.Box | None = None

    def __post_init__(self) -> None:
        checked: dict[str, np.ndarray | None] = {
            "observations": real_array("observations", self.observations, ndim=2),
            "actions": real_array("actions", self.actions, ndim=2),
            "rewards": real_array("rewards", self.rewards, ndim=1),
            "next_observations": real_array("next_observations", self.next_observations, ndim=2),
            "terminals": flags("terminals", self.terminals),
            "timeouts": None if self.timeouts is None else flags("timeouts", self.timeouts),
            "episode_ids": None if self.episode_ids is None else labels("episode_ids", self.episode_ids),
        }
        for name, array in checked.items():
            object.__setattr__(self, name, array)
        self._check_lengths()
        self._check_spaces()
        for array in checked.values():
            if array is not None:
                array.setflags(write=False)

    def _check_lengths(self) -> None:
        n = len(self.observations)
        for field in fields(self):
            array = getattr(self, field.name)
            if isinstance(array, np.ndarray) and len(array) != n:
                raise InputError(
                    field.name, f"has {len(array)} rows where observations has {n}", "Give one row for each transition"
                )
        if n < 2:
            raise InputError("observations", f"{n} transition(s) given", "Kernel regression needs at least two")
        for name in ("observations", "actions"):
            if getattr(self, name).shape[1] == 0:
                raise InputError(name, "has no columns", "Give at least one dimension")
        if self.next_observations.shape != self.observations.shape:
            raise InputError(
                "next_observations",
                f"shape {self.next_observations.shape} differs from observations {self.observations.shape}",
                "Both must hold the same state variables",
            )
        if self.terminals.all():
            raise InputError(
                "terminals", "every transition is terminal", "Mark true ends of the task only; time limits go to `timeouts`"
            )

    def _check_spaces(self) -> None:
        for name, space, array_name in (
            ("observation_space", self.observation_space, "observations"),
            ("action_space", self.action_space, "actions"),
        ):
            if space is None:
                continue
            check_box(name, space)
            check_width(array_name, getattr(self, array_name), name, space)
        if self.action_space is not None:
            check_actions_inside(self.actions, self.action_space)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and unpickled data go through the constructor: NumPy forgets that an array was read-only.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def observation_dim(self) -> int:
        return self.observations.shape[1]

    @property
    def action_dim(self) -> int:
        return self.actions.shape[1]

    @property
    def episode_starts(self) -> np.ndarray | None:
        """Row of the first transition of each episode, or None where the data knows no episodes."""
        labels = episode_labels(self)
        return None if labels is None else np.sort(np.unique(labels, return_index=True)[1])

    def __repr__(self) -> str:
        def ranges(array: np.ndarray) -> str:
            return " ".join(f"[{low:.4g}, {high:.4g}]" for low, high in zip(array.min(0), array.max(0), strict=True))

        starts = self.episode_starts
        timeouts = "not recorded" if self.timeouts is None else str(int(self.timeouts.sum()))
        return "\n".join(
            [
                f"TransitionDataset({len(self)} transitions, {self.observation_dim} state and {self.action_dim} action dims)",
                f"  observations  {ranges(self.observations)}",
                f"  actions       {ranges(self.actions)}",
                f"  rewards       {ranges(self.rewards[:, None])}",
                f"  episodes      {'not recorded' if starts is None else len(starts)}",
                f"  terminals     {int(self.terminals.sum())}, timeouts {timeouts}",
            ]
        )

    @classmethod
    def from_replay_buffer(cls, buffer: "ReplayBuffer") -> "TransitionDataset":
        """
        Everything that an SB3 replay buffer holds, see :func:`sb3_nopg.data.buffer.dataset_from_replay_buffer`.

        :param buffer: filled by any off-policy algorithm
        """
        # Imported here because the buffer is built on the data set, not the other way round.
        from sb3_nopg.data.buffer import dataset_from_replay_buffer

        return dataset_from_replay_buffer(buffer)

    def to_replay_buffer(self, device: str = "auto") -> "FixedReplayBuffer":
        """
        A replay buffer with these transitions, for any SB3 off-policy algorithm. Spaces not given are taken from the data.

        :param device: where its samples go
        """
        from sb3_nopg.data.buffer import FixedReplayBuffer, spaces_of

        return FixedReplayBuffer(self, *spaces_of(self), device=device)

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> pathlib.Path:
        """
        Write the data so that :meth:`load` gives back the same bits. A failed write leaves no half-written file behind.

        :param path: file to write: ``.npz``, ``.h5``, ``.csv``, ``.parquet``, ``.pkl`` (an SB3 replay buffer), or
            ``minari:ID``; ``.npz`` is added where there is no suffix
        :param format: one of :data:`sb3_nopg.data.files.FORMATS` where the path does not tell
        :return: the file written
        """
        from sb3_nopg.data.files import write_dataset

        return write_dataset(self, path, format)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], format: str | None = None, *, trust: bool = False, **options: Any
    ) -> "TransitionDataset":
        """
        Read what :meth:`save` wrote, or what others did; see :func:`sb3_nopg.data.files.read_dataset`.

        :param path: file, folder of a Minari data set, or ``minari:ID``
        :param format: one of :data:`sb3_nopg.data.files.FORMATS` where the path does not tell
        :param trust: whether to read pickles (``.pkl``, ``.npy``), which can run any program; nothing is unpickled otherwise
        :param options: of tables: ``obs``, ``action``, … name their columns, see :class:`sb3_nopg.data.files.tables.Columns`
        """
        from sb3_nopg.data.files import read_dataset

        return read_dataset(path, format, trust, **options)

    @staticmethod
    def merge(*datasets: "TransitionDataset") -> "TransitionDataset":
        """
        Several data sets of one system as one. Episodes are numbered anew, so that none are taken for one.

        :param datasets: in the order wanted
        """
        from sb3_nopg.data.files import transform

        return transform.merge(datasets)

    def filter(
        self, where: str | np.ndarray, observation_names: Sequence[str] = (), action_names: Sequence[str] = ()
    ) -> "TransitionDataset":
        """
        :param where: true or false for each transition, (n,), or an expression as in :meth:`relabel`
        :param observation_names: names that the expression may use for the columns of the state
        :param action_names: and for those of the action
        """
        from sb3_nopg.data.files import transform

        return transform.select(self, where, observation_names, action_names)

    def split(self, fractions: Sequence[float], by: str = "episode", seed: int = 0) -> tuple["TransitionDataset", ...]:
        """
        :param fractions: positive, adding up to one, like ``(0.8, 0.2)``
        :param by: ``"episode"`` or ``"transition"``, what is never cut in two
        :param seed: of the choice
        """
        from sb3_nopg.data.files import transform

        return transform.split(self, fractions, by, seed)

    def subsample(self, n: int, by: str = "transition", seed: int = 0) -> "TransitionDataset":
        """
        :param n: how many to keep, in their order
        :param by: of what: ``"transition"`` or ``"episode"``
        :param seed: of the choice
        """
        from sb3_nopg.data.files import transform

        return transform.subsample(self, n, by, seed)

    def relabel(
        self, reward: "str | RewardFunction", observation_names: Sequence[str] = (), action_names: Sequence[str] = ()
    ) -> "TransitionDataset":
        """
        :param reward: function of states (n, d_s), actions (n, d_a) and next states (n, d_s), or an expression like
            ``"cos(s2[1]) - 0.1 * a[0]**2"`` over ``s``, ``a``, ``s2``, ``r``, ``terminal``, ``timeout`` and ``episode``
        :param observation_names: names that the expression may use for the columns of the state, ``next_…`` for the next one's
        :param action_names: and for those of the action
        """
        from sb3_nopg.data.files import transform

        return transform.relabel(self, reward, observation_names, action_names)

    def with_units(
        self, observation_scale: float | Sequence[float] = 1.0, action_scale: float | Sequence[float] = 1.0
    ) -> "TransitionDataset":
        """
        The same data, and spaces, in other units.

        :param observation_scale: positive factor for all states, or one for each dimension
        :param action_scale: and for actions
        """
        from sb3_nopg.data.files import transform

        return transform.with_units(self, observation_scale, action_scale)


def check_dataset(dataset: Any) -> None:
    """:raises InputError: unless it is a data set"""
    if not isinstance(dataset, TransitionDataset):
        raise InputError("dataset", f"a {type(dataset).__name__} is given", "Build a sb3_nopg.TransitionDataset from it")
