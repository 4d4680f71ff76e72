"""Transitions as arrays: what all of this package's parts agree on, and files and buffers are made of."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.arrays import (
    check_actions_inside,
    check_box,
    check_width,
    flags,
    flat_box,
    labels,
    one_row_each,
    real_array,
)
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import episode_labels
from sb3_nopg.data.quantities import Quantities


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """
    The arrays of a data set, checked on construction, read-only afterwards. :class:`sb3_nopg.TransitionDataset` adds where
    they come from and what can be made of them, and says what each array is.
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
    quantities: Quantities | None = None

    def __post_init__(self) -> None:
        if self.action_space is not None:
            object.__setattr__(self, "action_space", flat_box("action_space", self.action_space))
        checked: dict[str, np.ndarray | None] = {
            "observations": real_array("observations", self.observations, ndim=2),
            "actions": real_array("actions", one_row_each(self.actions), ndim=2),
            "rewards": real_array("rewards", self.rewards, ndim=1),
            "next_observations": real_array("next_observations", self.next_observations, ndim=2),
            "terminals": flags("terminals", self.terminals),
            "timeouts": None if self.timeouts is None else flags("timeouts", self.timeouts),
            "episode_ids": None if self.episode_ids is None else labels("episode_ids", self.episode_ids),
        }
        for name, array in checked.items():
            object.__setattr__(self, name, array)
        self._check_lengths()
        self._check_quantities()
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

    def _check_quantities(self) -> None:
        if self.quantities is None:
            return
        if not isinstance(self.quantities, Quantities):
            raise InputError("quantities", f"a {type(self.quantities).__name__}", 'Give Quantities.of(["x [m]"], ["u [V]"])')
        for kind, width in (("observation", self.observation_dim), ("action", self.action_dim)):
            names = getattr(self.quantities, f"{kind}_names")
            if len(names) != width:
                raise InputError(f"{kind}_names", f"{len(names)} name(s) for {width} column(s)", "Give one name for each")

    @property
    def columns(self) -> Quantities:
        """Names and units of the columns; neutral names, ``s[0]`` and the like, where nobody has given any."""
        return self.quantities or Quantities.neutral(self.observation_dim, self.action_dim)

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
            check_actions_inside(self.actions, self.action_space, self.columns.action_labels)

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
        def ranges(array: np.ndarray, labels: list[str] | None = None) -> str:
            ends = list(zip(array.min(0), array.max(0), strict=True))
            if labels is None:
                return " ".join(f"[{low:.4g}, {high:.4g}]" for low, high in ends)
            return ", ".join(f"{label} {low:.4g} to {high:.4g}" for label, (low, high) in zip(labels, ends, strict=True))

        named = self.quantities

        starts = self.episode_starts
        timeouts = "not recorded" if self.timeouts is None else str(int(self.timeouts.sum()))
        return "\n".join(
            [
                f"{type(self).__name__}({len(self)} transitions, "
                f"{self.observation_dim} state and {self.action_dim} action dims)",
                f"  observations  {ranges(self.observations, None if named is None else named.observation_labels)}",
                f"  actions       {ranges(self.actions, None if named is None else named.action_labels)}",
                f"  rewards       {ranges(self.rewards[:, None])}",
                f"  episodes      {'not recorded' if starts is None else len(starts)}",
                f"  terminals     {int(self.terminals.sum())}, timeouts {timeouts}",
            ]
        )
