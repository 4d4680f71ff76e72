"""The fixed data set that everything is learned from, checked once and then never changed."""

import os
import pathlib
import zipfile
import zlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.arrays import check_actions_inside, check_box, check_width, flags, labels, real_array
from sb3_nopg.errors import InputError

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_nopg.buffer import FixedReplayBuffer

_FORMAT_VERSION = 1
_REQUIRED = ("observations", "actions", "rewards", "next_observations", "terminals")
_SPACES = ("observation_space", "action_space")


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
        if self.episode_ids is not None:
            return np.sort(np.unique(self.episode_ids, return_index=True)[1])
        if self.timeouts is not None and (self.timeouts | self.terminals).any():
            ends = self.timeouts | self.terminals
            return np.flatnonzero(np.concatenate([[True], ends[:-1]]))
        return None

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
        Everything that an SB3 replay buffer holds, see :func:`sb3_nopg.buffer.dataset_from_replay_buffer`.

        :param buffer: filled by any off-policy algorithm
        """
        # Imported here because the buffer is built on the data set, not the other way round.
        from sb3_nopg.buffer import dataset_from_replay_buffer

        return dataset_from_replay_buffer(buffer)

    def to_replay_buffer(self, device: str = "auto") -> "FixedReplayBuffer":
        """
        A replay buffer with these transitions, for any SB3 off-policy algorithm. Spaces not given are taken from the data.

        :param device: where its samples go
        """
        from sb3_nopg.buffer import FixedReplayBuffer, spaces_of

        return FixedReplayBuffer(self, *spaces_of(self), device=device)

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """
        Write the data as a compressed ``.npz`` of plain arrays. A failed write leaves no half-written file behind.

        :param path: file to write; ``.npz`` is added where it is missing
        :return: the file written
        """
        target = _with_suffix(path)
        arrays: dict[str, Any] = {"format_version": np.array(_FORMAT_VERSION)}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, spaces.Box):
                arrays[f"{field.name}_low"], arrays[f"{field.name}_high"] = value.low, value.high
            elif value is not None:
                arrays[field.name] = value
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        try:
            with open(partial, "wb") as file:
                np.savez_compressed(file, **arrays)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TransitionDataset":
        """
        Read what :meth:`save` wrote, or any ``.npz`` whose arrays carry our names. Nothing in it is ever unpickled.

        :param path: file to read
        """
        source = pathlib.Path(path)
        if not source.is_file() and _with_suffix(path).is_file():
            source = _with_suffix(path)
        if not source.exists():
            raise FileNotFoundError(f"No data set at {path}")
        try:
            # Opened here, because np.load leaves a file that it cannot read open.
            with open(source, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (
            OSError,
            ValueError,
            EOFError,
            AttributeError,
            TypeError,
            KeyError,
            NotImplementedError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise InputError(
                str(path), f"not a readable .npz ({error})", "The file may be truncated or of another kind"
            ) from error
        missing = [name for name in _REQUIRED if name not in arrays]
        if missing:
            raise InputError(
                str(path), f"not a transition data set, without {', '.join(missing)}", f"It needs {', '.join(_REQUIRED)}"
            )
        version = arrays.get("format_version", np.array(0))
        if version.shape != () or version.dtype.kind not in "iu" or version > _FORMAT_VERSION:
            raise InputError(str(path), "written by a newer version of sb3-nopg", "Upgrade sb3-nopg to read it")
        values: dict[str, Any] = {field.name: arrays.get(field.name) for field in fields(cls) if field.name not in _SPACES}
        for name in _SPACES:
            if not {f"{name}_low", f"{name}_high"} & set(arrays):
                continue
            try:
                low, high = arrays[f"{name}_low"], arrays[f"{name}_high"]
                values[name] = spaces.Box(low, high, dtype=low.dtype.type)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(name, f"makes no sense in {path} ({error})", "Save the data set again") from error
        return cls(**values)


def _with_suffix(path: str | os.PathLike[str]) -> pathlib.Path:
    target = pathlib.Path(path)
    return target if target.suffix == ".npz" else target.with_name(target.name + ".npz")
