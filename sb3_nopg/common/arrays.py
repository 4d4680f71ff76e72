"""What an array or a space must be before anything is computed with it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.errors import InputError, SpaceError


def regular_array(name: str, value: Any) -> np.ndarray:
    """:raises InputError: where rows differ in length"""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(name, f"not a regular array ({error})", "All rows must have the same length") from error


def real_array(name: str, value: Any, ndim: int) -> np.ndarray:
    """A copy with real, finite entries: float32 stays float32, everything else becomes float64."""
    array = regular_array(name, value)
    if array.dtype.kind not in "fiu":
        raise InputError(name, f"dtype {array.dtype} is not numeric", "Convert it to floating-point numbers")
    if array.ndim != ndim:
        wanted = "(n, dimensions)" if ndim == 2 else "(n,)"
        hint = "Use array.reshape(-1, 1)" if ndim == 2 and array.ndim == 1 else "Give one row for each transition"
        raise InputError(name, f"shape {array.shape} where {wanted} is expected", hint)
    array = array.astype(np.float32 if array.dtype == np.float32 else np.float64)
    check_finite(name, array)
    return array


def one_row_each(value: Any) -> Any:
    """Actions of whatever shape as one vector each; what is none of them is left to be refused."""
    return value.reshape(len(value), -1) if isinstance(value, np.ndarray) and value.ndim > 2 else value


def check_finite(name: str, array: np.ndarray) -> None:
    """:raises InputError: naming the first row that holds NaN or infinity"""
    bad = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if bad.any():
        raise InputError(
            name,
            f"{int(bad.sum())} row(s) with NaN or infinity, the first is row {int(bad.argmax())}",
            "Remove or repair them",
        )


def flags(name: str, value: Any) -> np.ndarray:
    array = regular_array(name, value)
    if array.ndim != 1:
        raise InputError(name, f"shape {array.shape} where (n,) is expected", "Give one flag for each transition")
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(name, "holds something other than true/false or 0/1", "Give one flag for each transition")
    return array.astype(bool)


def labels(name: str, value: Any) -> np.ndarray:
    array = regular_array(name, value)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(name, f"dtype {array.dtype}, shape {array.shape}", "Give one whole number for each transition")
    return array.astype(np.int64)


def check_box(name: str, space: spaces.Space | None) -> None:
    """:raises InputError: unless the space is a Box of vectors"""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise SpaceError(
            name, f"{space} is not a one-dimensional Box", "Only continuous vectors are supported; flatten or encode"
        )


def flat_box(name: str, space: spaces.Space | None) -> spaces.Box:
    """
    :return: the Box as one of vectors, which is all that is computed with
    :raises InputError: unless it is a Box, of whatever shape
    """
    if not isinstance(space, spaces.Box):
        raise SpaceError(name, f"{space} is not a Box", "Only continuous numbers are supported; encode the others")
    if len(space.shape) == 1:
        return space
    return spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.low.dtype.type)


def check_width(array_name: str, array: np.ndarray, space_name: str, space: spaces.Box) -> None:
    """:raises InputError: when the rows of an array do not fit a space"""
    if array.shape[1:] != space.shape:
        raise InputError(
            array_name,
            f"rows of shape {array.shape[1:]} do not fit {space_name} {space.shape}",
            "Data and environment must describe the same system",
        )


def check_actions_inside(actions: np.ndarray, action_space: spaces.Box, labels: Sequence[str]) -> None:
    """:raises InputError: when an action lies outside its space by more than rounding"""
    fix = "Give actions in the environment's units, not scaled; clip them with numpy.clip if they are a little off"
    check_inside("actions", actions, "the action space", action_space, labels, fix)


def check_inside(
    field: str, array: np.ndarray, whose: str, space: spaces.Box, labels: Sequence[str], fix: str, exempt: Any = False
) -> None:
    """
    :param field: that holds the array
    :param array: (n, d)
    :param whose: name of the space
    :param space: of vectors of length d
    :param labels: of the columns
    :param fix: advice
    :param exempt: rows that may lie anywhere, (n,)
    :raises InputError: naming the first value that lies outside by more than rounding
    """
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    # Data that went through float32 may miss the bound by a rounding error, which is no mistake of the user's.
    width = high - low
    slacks = [1e-5 * np.where(np.isfinite(width), width, np.abs(bound)) for bound in (low, high)]
    below, above = array < low - slacks[0], array > high + slacks[1]
    outside = (below | above) & ~np.broadcast_to(exempt, (len(array),))[:, None]
    if not outside.any():
        return
    row = int(outside.any(axis=1).argmax())
    column = int(outside[row].argmax())
    side, bound = ("below", low[column]) if below[row, column] else ("above", high[column])
    n_rows = int(outside.any(axis=1).sum())
    raise InputError(
        field,
        f"{n_rows} row(s) outside {whose}; the first is row {row}, where {labels[column]} is {array[row, column]:.6g}, "
        f"{side} {bound:.6g}",
        fix,
    )
