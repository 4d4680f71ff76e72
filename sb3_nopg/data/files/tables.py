"""Tables with one row a step: which column is what, and how rows become transitions."""

import difflib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import labels_from_ends
from sb3_nopg.data.files.episodes import with_next_observations
from sb3_nopg.data.files.fields import (
    FORMAT_VERSION,
    SPACES,
    SYNTHETIC,
    check_recorded,
    describe_space,
    space_from_description,
)
from sb3_nopg.data.transitions import Transitions

_logger = logging.getLogger(__name__)
# A step that took half as long again as most is not the same step of the same process.
_LONGEST_STEPS = 1.5
_NO_COLUMN = "none"
# Field of the data set and the column, or the beginning of the columns' names, that `to_table` writes it to.
_VECTORS = {"observations": "obs_", "actions": "action_", "next_observations": "next_obs_"}
_SINGLE = {
    "rewards": "reward",
    "terminals": "terminal",
    "timeouts": "timeout",
    "episode_ids": "episode",
}


@dataclass(frozen=True)
class Columns:
    """
    Which columns of a table hold what; what is not given is looked for under the names that `to_table` writes.

    :param obs: state
    :param action: action
    :param next_obs: state that followed; without them, the state of the next row of the episode
    :param reward: ``"none"`` for a table without one, which is read as zeros
    :param terminal: whether the task truly ended with this step; without it, no step did
    :param timeout: whether a time limit cut the episode after this step
    :param episode: any number or name for each episode
    :param time: of the step; a gap in it, or a step back, begins a new episode
    :param gap: longest step that is no gap, in the unit of ``time``; without it, 1.5 times the median
    """

    obs: Sequence[str] | None = None
    action: Sequence[str] | None = None
    next_obs: Sequence[str] | None = None
    reward: str | None = None
    terminal: str | None = None
    timeout: str | None = None
    episode: str | None = None
    time: str | None = None
    gap: float | None = None


OPTIONS = tuple(field.name for field in fields(Columns))


@dataclass(frozen=True)
class Layout:
    """
    Columns that are there, by field of the data set.

    :param vectors: names for each of observations, actions and perhaps next_observations
    :param single: name for each of the other fields that the table has
    :param time: column
    :param gap: as in `Columns`
    """

    vectors: Mapping[str, tuple[str, ...]]
    single: Mapping[str, str]
    time: str | None
    gap: float | None

    @property
    def needed(self) -> list[str]:
        """All columns that must be read, each once."""
        names = [name for vector in self.vectors.values() for name in vector] + list(self.single.values())
        return list(dict.fromkeys(names + ([self.time] if self.time else [])))


def find_columns(path: str | os.PathLike[str], available: Sequence[str], columns: Columns) -> Layout:
    """
    :param path: of the table
    :param available: names of its columns
    :param columns: what the caller knows
    """
    if columns.gap is not None and (columns.time is None or not columns.gap > 0):
        raise InputError("gap", f"{columns.gap} without a time column, or not positive", "Give time= and a positive gap=")
    vectors: dict[str, tuple[str, ...]] = {}
    for field, prefix, option, asked in (
        ("observations", "obs_", "obs", columns.obs),
        ("actions", "action_", "action", columns.action),
        ("next_observations", "next_obs_", "next_obs", columns.next_obs),
    ):
        found = _numbered(available, prefix) if asked is None else _existing(path, option, asked, available)
        if found:
            vectors[field] = found
        elif field != "next_observations":
            raise InputError(
                str(path),
                f"no columns {prefix}0, {prefix}1, … among {_listed(available)}",
                f"Name them: {option}=[…] in Python, or nopg data convert FILE new.npz --{option} NAME,NAME …",
            )
    if "next_observations" in vectors and len(vectors["next_observations"]) != len(vectors["observations"]):
        raise InputError("next_obs", f"{len(vectors['next_observations'])} columns", "Give as many as obs has")
    # Not to be asked for: older files may hold it.
    single = {SYNTHETIC: SYNTHETIC} if SYNTHETIC in available else {}
    for field, name in _SINGLE.items():
        asked_name = getattr(columns, name)
        if asked_name is not None and not (field == "rewards" and asked_name == _NO_COLUMN):
            single[field] = _existing(path, name, [asked_name], available)[0]
        elif asked_name is None and name in available:
            single[field] = name
    if "rewards" not in single and columns.reward != _NO_COLUMN:
        raise InputError(
            str(path),
            f"no column reward among {_listed(available)}",
            'Name it with reward=… (--reward NAME), or reward="none" for zeros, to be set by an expression afterwards',
        )
    time = None if columns.time is None else _existing(path, "time", [columns.time], available)[0]
    return Layout(vectors, single, time, columns.gap)


def _numbered(available: Sequence[str], prefix: str) -> tuple[str, ...]:
    pattern = re.compile(re.escape(prefix) + r"(\d{1,9})")
    numbers = sorted(int(match[1]) for name in available if (match := pattern.fullmatch(name)))
    return tuple(f"{prefix}{number}" for number in numbers if f"{prefix}{number}" in available)


def _existing(path: str | os.PathLike[str], option: str, asked: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    if isinstance(asked, str):
        raise InputError(option, f"{asked!r} is one text", f"Give a list of column names, [{asked!r}] for one column")
    for name in asked:
        if name not in available:
            similar = difflib.get_close_matches(str(name), available, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "Name columns as the file does"
            raise InputError(str(path), f"no column {name!r} (asked for by {option}) among {_listed(available)}", hint)
    if not asked or len(set(asked)) < len(asked):
        raise InputError(option, f"{list(asked)} is empty or names a column twice", "Name each column once")
    return tuple(asked)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f", … ({len(names)} in all)" if len(names) > 12 else "") if names else "no columns at all"


def from_table(
    path: str | os.PathLike[str], table: Mapping[str, np.ndarray], layout: Layout, description: Mapping[str, Any]
) -> dict[str, Any]:
    """
    :param path: of the table
    :param table: its needed columns
    :param layout: what they are
    :param description: that `to_table` made, empty for a table from elsewhere
    :return: arguments of `TransitionDataset`
    """
    dtypes = description.get("dtypes", {})
    values: dict[str, Any] = {
        field: _typed(field, np.stack([_numbers(path, name, table[name]) for name in names], axis=1), dtypes)
        for field, names in layout.vectors.items()
    }
    n = len(values["observations"])
    readers: dict[str, Callable[..., np.ndarray]] = {
        "rewards": _numbers,
        "terminals": _numbers,
        "timeouts": _numbers,
        "episode_ids": _episodes,
        SYNTHETIC: _numbers,
    }
    for field, name in layout.single.items():
        values[field] = _typed(field, readers[field](path, name, table[name]), dtypes)
    check_recorded(path, values.pop(SYNTHETIC, None))
    values.setdefault("rewards", np.zeros(n))
    if "terminals" not in values:
        _logger.warning("%s: no column says where the task truly ended, so no step is taken as terminal.", path)
        values["terminals"] = np.zeros(n, dtype=bool)
    if layout.time is not None:
        values["episode_ids"] = _split_at_gaps(path, layout, table, values.get("episode_ids"))
    for name in SPACES:
        values[name] = space_from_description(path, name, description.get(name))
    return values if "next_observations" in values else with_next_observations(str(path), values)


def _typed(field: str, array: np.ndarray, dtypes: Mapping[str, str]) -> np.ndarray:
    # Text does not say how precise a number was; only that much is taken from the description.
    return array.astype(np.float32) if dtypes.get(field) == "float32" else array


def _numbers(path: str | os.PathLike[str], name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        # A column with one text in it is all text.
        for row, value in enumerate(column.tolist()):
            if not _is_number(value):
                raise InputError(
                    str(path), f"column {name!r} holds {value!r} where a number should be, in row {row}", "Repair or remove it"
                )
        column = np.array([float(value) for value in column.tolist()])
    bad = ~np.isfinite(column)
    if bad.any():
        raise InputError(
            str(path),
            f"column {name!r} has {int(bad.sum())} row(s) empty, NaN or infinite, the first is row {int(bad.argmax())}",
            "Repair or remove them",
        )
    return column if column.dtype.kind == "f" and column.dtype.itemsize >= 4 else column.astype(np.float64)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _episodes(path: str | os.PathLike[str], name: str, column: np.ndarray) -> np.ndarray:
    """Whole numbers as they are; anything else is numbered in the order of first appearance."""
    if column.dtype.kind in "iu":
        return column.astype(np.int64)
    numbers: dict[Any, int] = {}
    values = column.tolist()
    for row, value in enumerate(values):
        if value is None or value != value:
            raise InputError(str(path), f"column {name!r} names no episode in row {row}", "Name one in every row")
        numbers.setdefault(value, len(numbers))
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _split_at_gaps(
    path: str | os.PathLike[str], layout: Layout, table: Mapping[str, np.ndarray], ids: np.ndarray | None
) -> np.ndarray:
    """Episodes that also end where time jumps ahead or back."""
    assert layout.time is not None
    steps = np.diff(_numbers(path, layout.time, table[layout.time]))
    same = np.ones(len(steps), dtype=bool) if ids is None else ids[1:] == ids[:-1]
    forward = steps[same & (steps > 0)]
    longest = layout.gap
    if longest is None:
        longest = _LONGEST_STEPS * float(np.median(forward)) if len(forward) else np.inf
    gaps = same & ((steps > longest) | (steps <= 0))
    _logger.warning("%s: %d gap(s) in %r longer than %.4g or backwards; each begins a new episode.", path, int(gaps.sum()),
                    layout.time, longest)  # fmt: skip
    return labels_from_ends(np.append(gaps | ~same, True))


def to_table(dataset: Transitions) -> tuple[dict[str, np.ndarray], str]:
    """
    :param dataset: the data
    :return: columns, and as JSON what they cannot say
    """
    table: dict[str, np.ndarray] = {}
    for field, prefix in _VECTORS.items():
        array = getattr(dataset, field)
        table.update({f"{prefix}{number}": array[:, number] for number in range(array.shape[1])})
    for field, name in _SINGLE.items():
        if (array := getattr(dataset, field)) is not None:
            table[name] = array
    description: dict[str, Any] = {name: describe_space(getattr(dataset, name)) for name in SPACES}
    description["dtypes"] = {field: str(getattr(dataset, field).dtype) for field in (*_VECTORS, "rewards")}
    return table, json.dumps({"version": FORMAT_VERSION, **description})


def parse_description(path: str | os.PathLike[str], text: str | bytes) -> dict[str, Any]:
    """
    :param path: the text was read from
    :param text: that `to_table` made
    """
    try:
        description = json.loads(text)
        newer = description["version"] > FORMAT_VERSION
        described = all(isinstance(description.get(name, {}), dict | None) for name in ("dtypes", *SPACES))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(str(path), f"its description is damaged ({error})", "Save the data set again") from error
    if newer or not described:
        raise InputError(str(path), "written by a newer version of sb3-nopg", "Upgrade sb3-nopg to read it")
    return description
