"""Tables with one row a step: how rows become transitions, and the other way round."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.files.episodes import with_next_observations
from sb3_nopg.data.files.fields import (
    FORMAT_VERSION,
    SPACES,
    SYNTHETIC,
    check_recorded,
    describe_space,
    quantities_from,
    space_from_description,
)
from sb3_nopg.data.files.table_columns import SINGLE, VECTORS, Layout
from sb3_nopg.data.files.time_steps import split_at_gaps
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.data.transitions import Transitions

_logger = logging.getLogger(__name__)
# Units of a column of times.
_SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}


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
    period_s = None
    if layout.time is not None and (times := _times(path, layout.time, table, layout.time_is_guess)) is not None:
        values["episode_ids"], step = split_at_gaps(path, layout.time, times, values.get("episode_ids"), layout.gap)
        period_s = _seconds(path, layout, step)
    for name, field in zip(SPACES, ("observations", "actions"), strict=True):
        space = space_from_description(path, name, description.get(name))
        values[name] = _chosen_part(path, name, space, layout.vectors[field], _written(field, description, space))
    values["quantities"] = quantities = _quantities(path, layout, description)
    if quantities is not None and period_s is not None:
        values["quantities"] = replace(quantities, control_period_s=period_s)
    if "next_observations" in values:
        return values
    return with_next_observations(str(path), values, keep_jumps=layout.keep_jumps)


def _written(field: str, description: Mapping[str, Any], space: spaces.Box | None = None) -> tuple[str, ...]:
    """Heads of the columns that `to_table` wrote; where they have no names, as many as the space has dimensions."""
    n = 0 if space is None else int(np.prod(space.shape))
    return tuple((description.get("columns") or {}).get(field) or (f"{VECTORS[field]}{number}" for number in range(n)))


def _chosen_part(
    path: str | os.PathLike[str], name: str, space: spaces.Box | None, chosen: tuple[str, ...], written: tuple[str, ...]
) -> spaces.Box | None:
    """A space of the columns that were chosen, of those that were written; bounds go with their column."""
    if space is None or chosen == written or len(written) != np.prod(space.shape):
        return space
    if not set(chosen) <= set(written):
        _logger.warning("%s: its %s is left out: it is not of the columns that were asked for.", path, name)
        return None
    numbers = [written.index(head) for head in chosen]
    return spaces.Box(space.low.ravel()[numbers], space.high.ravel()[numbers], dtype=space.low.dtype.type)


def _quantities(path: str | os.PathLike[str], layout: Layout, description: Mapping[str, Any]) -> Quantities | None:
    names = states, actions = layout.vectors["observations"], layout.vectors["actions"]
    if description:
        own = quantities_from(path, description.get("quantities"))
        written = _written("observations", description), _written("actions", description)
        if own is None or not any(written) or names == written:
            return own
        # Others than were written, or in another order: each keeps its name.
        texts = [(own.observation_names, own.observation_units), (own.action_names, own.action_units)]
        told = {
            head: (name, unit)
            for heads, pair in zip(written, texts, strict=True)
            for head, name, unit in zip(heads, *pair, strict=False)
        }
        chosen = Quantities.of(states, actions, {**layout.heads, **told})
        return replace(chosen, control_period_s=own.control_period_s)
    # Numbers tell nothing.
    numbered = all(name.startswith(prefix) for found, prefix in zip(names, ("obs_", "action_"), strict=True) for name in found)
    return None if numbered else Quantities.of(states, actions, layout.heads)


def _seconds(path: str | os.PathLike[str], layout: Layout, step: float | None) -> float | None:
    """Of a step, where the head of the column says what its numbers are."""
    assert layout.time is not None
    unit = layout.heads[layout.time][1]
    if step is None or unit not in _SECONDS:
        _logger.info("%s: column %r does not say that it is in seconds, so that nobody knows how long a step is; %r does.",
                     path, layout.time, "t [s]")  # fmt: skip
        return None
    return step * _SECONDS[unit]


def _times(path: str | os.PathLike[str], name: str, table: Mapping[str, np.ndarray], is_guess: bool) -> np.ndarray | None:
    """None for text in a column that only its name says is the time; the reader of CSV has left it out."""
    column = table.get(name)
    if is_guess and (column is None or not (column.dtype.kind in "biuf" or any(map(_is_number, column.tolist())))):
        _logger.warning("%s: column %r holds no numbers, so it is not used as the time.", path, name)
        return None
    return _numbers(path, name, table[name])


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


def to_table(dataset: Transitions) -> tuple[dict[str, np.ndarray], str]:
    """
    :param dataset: the data
    :return: columns, and as JSON what they cannot say
    """
    table: dict[str, np.ndarray] = {}
    heads = _heads(dataset)
    for field, names in heads.items():
        array = getattr(dataset, field)
        table.update({name: array[:, number] for number, name in enumerate(names)})
    for field, name in SINGLE.items():
        if (array := getattr(dataset, field)) is not None:
            table[name] = array
    description: dict[str, Any] = {name: describe_space(getattr(dataset, name)) for name in SPACES}
    description["dtypes"] = {field: str(getattr(dataset, field).dtype) for field in (*VECTORS, "rewards")}
    if dataset.quantities is not None:
        description["quantities"], description["columns"] = dataset.quantities.described(), heads
    return table, json.dumps({"version": FORMAT_VERSION, **description})


def _heads(dataset: Transitions) -> dict[str, list[str]]:
    """Of the columns of each field: its names and units, or numbers where it has none or they are not enough."""
    named = dataset.quantities
    if named is not None:
        states, actions = named.observation_labels, named.action_labels
        heads = {"observations": states, "actions": actions, "next_observations": [f"next {text}" for text in states]}
        every = [head for found in heads.values() for head in found]
        if len({*every, *SINGLE.values()}) == len(every) + len(SINGLE):
            return heads
    return {
        field: [f"{prefix}{number}" for number in range(getattr(dataset, field).shape[1])] for field, prefix in VECTORS.items()
    }


def parse_description(path: str | os.PathLike[str], text: str | bytes) -> dict[str, Any]:
    """
    :param path: the text was read from
    :param text: that `to_table` made
    """
    try:
        description = json.loads(text)
        newer = description["version"] > FORMAT_VERSION
        described = all(
            isinstance(description.get(name, {}), dict | None) for name in ("dtypes", "quantities", "columns", *SPACES)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(str(path), f"its description is damaged ({error})", "Save the data set again") from error
    if newer or not described:
        raise InputError(str(path), "written by a newer version of sb3-nopg", "Upgrade sb3-nopg to read it")
    return description
