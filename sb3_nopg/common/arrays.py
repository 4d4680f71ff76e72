"""What an array or a space must be before anything is computed with it."""

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.errors import InputError


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
        raise InputError(
            name, f"{space} is not a one-dimensional Box", "Only continuous vectors are supported; flatten or encode"
        )


def check_width(array_name: str, array: np.ndarray, space_name: str, space: spaces.Box) -> None:
    """:raises InputError: when the rows of an array do not fit a space"""
    if array.shape[1:] != space.shape:
        raise InputError(
            array_name,
            f"rows of shape {array.shape[1:]} do not fit {space_name} {space.shape}",
            "Data and environment must describe the same system",
        )


def check_actions_inside(actions: np.ndarray, action_space: spaces.Box) -> None:
    """:raises InputError: when an action lies outside its space by more than rounding"""
    low, high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)
    # Data that went through float32 may miss the bound by a rounding error, which is no mistake of the user's.
    slack = 1e-5 * (high - low)
    outside = ((actions < low - slack) | (actions > high + slack)).any(axis=1)
    if outside.any():
        first = int(outside.argmax())
        raise InputError(
            "actions",
            f"{int(outside.sum())} row(s) outside the action space [{low}, {high}], first row {first}: {actions[first]}",
            "Give actions in the environment's units, not scaled; clip them with numpy.clip if they are a little off",
        )
