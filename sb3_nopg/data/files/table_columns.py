"""Which column of a table is what."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.column_heads import parsed, parsed_together
from sb3_nopg.data.files.fields import SYNTHETIC

_NO_COLUMN = "none"
# A column of this name that is nothing else is the time.
_TIMES = ("t", "time", "timestamp")
# Field of the data set and the column, or the beginning of the columns' names, that it is written to where it has no names.
VECTORS = {"observations": "obs_", "actions": "action_", "next_observations": "next_obs_"}
SINGLE = {
    "rewards": "reward",
    "terminals": "terminal",
    "timeouts": "timeout",
    "episode_ids": "episode",
}


@dataclass(frozen=True)
class Columns:
    """
    Which columns of a table hold what; what is not given is looked for under the names that `tables.to_table` writes. A column
    ``position [m]`` may be called ``position``.

    :param obs: state
    :param action: action
    :param next_obs: state that followed; without them, the state of the next row of the episode
    :param reward: ``"none"`` for a table without one, which is read as zeros
    :param terminal: whether the task truly ended with this step; without it, no step did
    :param timeout: whether a time limit cut the episode after this step
    :param episode: any number or name for each episode
    :param time: of the step; a gap in it, or a step back, begins a new episode. Without it, a column ``t``, ``time`` or
        ``timestamp`` that is nothing else, if it holds numbers; ``"none"`` for no such column
    :param gap: longest step that is no gap, in the unit of ``time``; without it, 1.5 times the median
    :param keep_jumps: without ``next_obs``, whether rows that cannot follow from the one before them do all the same
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
    keep_jumps: bool = False


OPTIONS = tuple(field.name for field in fields(Columns))


@dataclass(frozen=True)
class Layout:
    """
    Columns that are there, by field of the data set.

    :param vectors: names for each of observations, actions and perhaps next_observations
    :param single: name for each of the other fields that the table has
    :param time: column
    :param time_is_guess: whether nobody has asked for it
    :param heads: name and unit of each column, as its head tells
    :param gap: as in `Columns`
    :param keep_jumps: as in `Columns`
    """

    vectors: Mapping[str, tuple[str, ...]]
    single: Mapping[str, str]
    time: str | None
    gap: float | None
    keep_jumps: bool
    time_is_guess: bool
    heads: Mapping[str, tuple[str, str]]

    @property
    def needed(self) -> list[str]:
        """All columns that must be read, each once."""
        names = [name for vector in self.vectors.values() for name in vector] + list(self.single.values())
        return list(dict.fromkeys(names + ([self.time] if self.time else [])))


def find_columns(
    path: str | os.PathLike[str], available: Sequence[str], columns: Columns, description: Mapping[str, Any]
) -> Layout:
    """
    :param path: of the table
    :param available: names of its columns
    :param columns: what the caller knows
    :param description: that `tables.to_table` made, empty for a table from elsewhere
    """
    written: Mapping[str, Any] = description.get("columns") or {}
    vectors: dict[str, tuple[str, ...]] = {}
    for field, prefix, option, asked in (
        ("observations", "obs_", "obs", columns.obs),
        ("actions", "action_", "action", columns.action),
        ("next_observations", "next_obs_", "next_obs", columns.next_obs),
    ):
        asked = written.get(field) if asked is None else asked
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
    for field, name in SINGLE.items():
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
    time = _time(path, available, columns, vectors, single)
    if columns.gap is not None and (time is None or not columns.gap > 0):
        raise InputError("gap", f"{columns.gap} without a time column, or not positive", "Give time= and a positive gap=")
    # Whoever gives a gap means the column.
    guess = columns.time is None and columns.gap is None
    return Layout(vectors, single, time, columns.gap, columns.keep_jumps, guess, parsed_together(available))


def _time(
    path: str | os.PathLike[str],
    available: Sequence[str],
    columns: Columns,
    vectors: Mapping[str, tuple[str, ...]],
    single: Mapping[str, str],
) -> str | None:
    if columns.time is not None:
        return None if columns.time == _NO_COLUMN else _existing(path, "time", [columns.time], available)[0]
    if "next_observations" in vectors or "episode_ids" in single:
        return None
    taken = {*single.values(), *(name for names in vectors.values() for name in names)}
    return next((name for name in available if name not in taken and parsed(name)[0].lower() in _TIMES), None)


def _numbered(available: Sequence[str], prefix: str) -> tuple[str, ...]:
    pattern = re.compile(re.escape(prefix) + r"(\d{1,9})")
    numbers = sorted(int(match[1]) for name in available if (match := pattern.fullmatch(name)))
    return tuple(f"{prefix}{number}" for number in numbers if f"{prefix}{number}" in available)


def _existing(path: str | os.PathLike[str], option: str, asked: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    if isinstance(asked, str):
        raise InputError(option, f"{asked!r} is one text", f"Give a list of column names, [{asked!r}] for one column")
    without_units: dict[str, list[str]] = {}
    for head, (name, _) in parsed_together(available).items():
        without_units.setdefault(name, []).append(head)
    heads = {name: found[0] for name, found in without_units.items() if len(found) == 1}
    asked = [name if name in available else heads.get(name, name) for name in asked]
    for name in asked:
        if name not in available:
            similar = difflib.get_close_matches(str(name), [*available, *heads], n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "Name columns as the file does"
            raise InputError(str(path), f"no column {name!r} (asked for by {option}) among {_listed(available)}", hint)
    if not asked or len(set(asked)) < len(asked):
        raise InputError(option, f"{list(asked)} is empty or names a column twice", "Name each column once")
    return tuple(asked)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f", … ({len(names)} in all)" if len(names) > 12 else "") if names else "no columns at all"
