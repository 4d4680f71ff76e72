"""Between our data sets, in the environment's units, and SB3's replay buffers, with actions scaled to [-1, 1]."""

import dataclasses
import io
import pathlib
import pickle
import warnings
from contextlib import nullcontext
from functools import partial
from typing import IO, Any, NoReturn

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import open_path

from sb3_nopg.common.arrays import check_actions_inside, check_inside, check_width, flat_box
from sb3_nopg.common.checks import check_spaces
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import labels_from_ends
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.data.recorded import check_recorded
from sb3_nopg.data.transitions import Transitions

# Fields that data sets of all versions have, the spaces last.
_N_FIRST_FIELDS = 9
# Where earlier versions had what a pickle may name.
_MOVED = {"sb3_nopg.dataset": "sb3_nopg.data.dataset", "sb3_nopg.buffer": "sb3_nopg.data.buffer"}


class FixedReplayBuffer(ReplayBuffer):
    """
    A replay buffer that holds a data set and never changes: it samples like any other and refuses ``add``.

    :param dataset: the data
    :param observation_space: Box that fits the observations
    :param action_space: Box that contains the actions
    :param device: where samples go
    """

    def __init__(
        self,
        dataset: Transitions,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        device: th.device | str = "auto",
    ):
        check_fits_spaces(dataset, observation_space, action_space)
        super().__init__(len(dataset), observation_space, action_space, device=device, n_envs=1)
        self.dataset = dataset
        low, high = action_space.low.ravel(), action_space.high.ravel()
        self.observations[:, 0] = dataset.observations
        self.next_observations[:, 0] = dataset.next_observations
        self.actions[:, 0] = np.clip(2.0 * (dataset.actions - low) / (high - low) - 1.0, -1.0, 1.0)
        self.rewards[:, 0] = dataset.rewards
        timeouts = np.zeros(len(dataset), dtype=bool) if dataset.timeouts is None else dataset.timeouts
        self.dones[:, 0] = dataset.terminals | timeouts
        # SB3 computes terminal = done * (1 - timeout): a true end that meets the time limit stays an end.
        self.timeouts[:, 0] = timeouts & ~dataset.terminals
        self.full = True

    def add(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError("add", "the replay buffer is fixed", "Build a new TransitionDataset and call model.set_dataset()")

    def reset(self) -> NoReturn:
        raise InputError("reset", "the replay buffer is fixed", "Build a new TransitionDataset and call model.set_dataset()")


def check_fits_spaces(dataset: Transitions, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """:raises InputError: unless the data could come from an environment with these spaces"""
    check_spaces(observation_space, action_space)
    assert isinstance(observation_space, spaces.Box)
    actions = flat_box("action_space", action_space)
    check_width("observations", dataset.observations, "observation_space", observation_space)
    check_width("actions", dataset.actions, "action_space", actions)
    check_actions_inside(dataset.actions, actions, dataset.columns.action_labels)


def check_observations_inside(dataset: Transitions, observation_space: spaces.Box) -> None:
    """:raises InputError: when a state lies beyond its bounds; the last one of a task that ended may"""
    fix = "Look for wrong units, swapped columns or a broken sensor; where the bounds are wrong, give the environment others"
    labels, whose = dataset.columns.observation_labels, "the observation space"
    check_inside("observations", dataset.observations, whose, observation_space, labels, fix)
    check_inside("next_observations", dataset.next_observations, whose, observation_space, labels, fix, dataset.terminals)


def spaces_of(dataset: Transitions) -> tuple[spaces.Box, spaces.Box]:
    """
    The spaces a data set was given, or the widest that make sense of it: any state, and the range of actions seen.

    :return: observation space, action space
    """
    observation_space, action_space = dataset.observation_space, dataset.action_space
    if observation_space is None:
        observation_space = spaces.Box(-np.inf, np.inf, (dataset.observation_dim,), dtype=np.float32)
    if action_space is None:
        low, high = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
        if (low == high).any():
            raise InputError(
                "actions", "one dimension never changes, so its range is unknown", "Give the data set an action_space"
            )
        # Outwards to the next float32, so that the data lie inside.
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
        low32 = np.where(low32 > low, np.nextafter(low32, np.float32(-np.inf)), low32)
        high32 = np.where(high32 < high, np.nextafter(high32, np.float32(np.inf)), high32)
        action_space = spaces.Box(low32, high32, dtype=np.float32)
    return observation_space, action_space


def fields_of_replay_buffer(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Everything a replay buffer holds, in the environment's units and in the order it happened, environment by environment.

    :param buffer: filled by any SB3 off-policy algorithm, with one or several environments
    :return: arguments of :class:`sb3_nopg.TransitionDataset`
    """
    if isinstance(buffer, FixedReplayBuffer):
        return {field.name: getattr(buffer.dataset, field.name) for field in dataclasses.fields(Transitions)}
    if not isinstance(buffer, ReplayBuffer) or isinstance(buffer, DictReplayBuffer | NStepReplayBuffer):
        raise InputError("replay_buffer", f"{type(buffer).__name__} is not supported", "Use a plain ReplayBuffer")
    if buffer.size() == 0 or (buffer.full and buffer.optimize_memory_usage and buffer.buffer_size == 1):
        raise InputError("replay_buffer", "is empty", "Fill it before learning from it")
    check_spaces(buffer.observation_space, buffer.action_space)
    assert isinstance(buffer.observation_space, spaces.Box)
    action_space = flat_box("action_space", buffer.action_space)

    if not buffer.handle_timeout_termination and buffer.dones.any():
        warnings.warn(
            "This replay buffer did not record time limits: episodes that one of them cut will count as truly ended. "
            "Set `terminals` and `timeouts` yourself if there was one.",
            stacklevel=2,
        )
    if buffer.full and buffer.pos > 0:
        warnings.warn(
            "This replay buffer has overwritten its oldest transitions: the first one left of each environment counts as an "
            "episode's start but may lie in the middle of one. Pass initial_states to say where the task starts.",
            stacklevel=2,
        )
    # Oldest first. With optimize_memory_usage a full buffer has overwritten the state at `pos`, so that row is lost.
    rows = np.arange(buffer.size())
    if buffer.full:
        rows = np.roll(rows, -buffer.pos)[1 if buffer.optimize_memory_usage else 0 :]
    if buffer.optimize_memory_usage:
        next_observations = buffer.observations[(rows + 1) % buffer.buffer_size]
    else:
        next_observations = buffer.next_observations[rows]

    def by_environment(array: np.ndarray) -> np.ndarray:
        """(steps, environments, ...) -> (environments * steps, ...)"""
        return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])

    dones = by_environment(buffer.dones[rows]) > 0.5
    timeouts = dones & (by_environment(buffer.timeouts[rows]) > 0.5)
    # An episode ends with `done`, and where one environment's record stops and the next one's begins.
    ends = dones.copy()
    ends[len(rows) - 1 :: len(rows)] = True
    low, high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)
    return dict(
        observations=by_environment(buffer.observations[rows]),
        actions=low + 0.5 * (by_environment(buffer.actions[rows]) + 1.0) * (high - low),
        rewards=by_environment(buffer.rewards[rows]),
        next_observations=by_environment(next_observations),
        terminals=dones & ~timeouts,
        timeouts=timeouts,
        episode_ids=labels_from_ends(ends),
        observation_space=buffer.observation_space,
        action_space=action_space,
    )


def read_replay_buffer(path: str | pathlib.Path | io.BufferedIOBase, verbose: int = 0) -> ReplayBuffer:
    """
    :param path: file that ``save_replay_buffer`` of any SB3 algorithm wrote, or the open file, which stays open
    :param verbose: for SB3, which says what it opens
    """
    try:
        # Opened here, because SB3 leaves a file that it cannot read open.
        opened = open_path(path, "r", verbose, suffix="pkl")
        with nullcontext(opened) if opened is path else opened as file:
            buffer = _Unpickler(file, path).load()
    except InputError:
        raise
    # What a damaged or foreign pickle raises depends on the byte it breaks at.
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            str(path), f"not a readable pickle ({error})", "It may be truncated; give a file that save_replay_buffer wrote"
        ) from error
    if not isinstance(buffer, ReplayBuffer):
        raise InputError(str(path), f"holds a {type(buffer).__name__}", "Give a file that save_replay_buffer wrote")
    return buffer


class _Unpickler(pickle.Unpickler):
    """
    Also reads data sets of older versions, which say of each transition whether a model made it.

    :param file: to read
    :param path: of it, for errors
    """

    def __init__(self, file: IO[bytes], path: Any):
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(_MOVED.get(module, module), name)
        return partial(self._recorded, found) if isinstance(found, type) and issubclass(found, Transitions) else found

    def _recorded(self, kind: type[Transitions], *fields: Any) -> Transitions:
        # Where older versions had these, names of columns are now.
        for synthetic in (field for field in fields[_N_FIRST_FIELDS:] if isinstance(field, np.ndarray)):
            check_recorded(self._path, synthetic)
        return kind(*fields[:_N_FIRST_FIELDS], *(field for field in fields[_N_FIRST_FIELDS:] if isinstance(field, Quantities)))
