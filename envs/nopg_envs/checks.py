"""Checks of what callers pass in; every error names the field."""

import math
from numbers import Real
from typing import Any

import numpy as np


def real_number(name: str, given: Any) -> float:
    """
    :param name: of the field, for the error
    :param given: any real number, NumPy's scalars among them; may be infinite
    :return: the same as a float
    """
    try:
        if isinstance(given, Real) and not isinstance(given, bool) and not math.isnan(given):
            return float(given)
    except OverflowError:
        pass
    raise ValueError(f"{name}: must be a number, got {given!r}")


def is_count(given: Any, least: int = 1) -> bool:
    """
    :param given: whatever a caller passed
    :param least: that it may be
    :return: whether it is a whole number, Python's or NumPy's; True and False are none
    """
    return isinstance(given, int | np.integer) and not isinstance(given, bool) and int(given) >= least


def is_finite_number(given: Any) -> bool:
    """
    :param given: whatever a file held or a caller passed
    :return: whether it is a number that a double can hold, Python's or NumPy's; True and False are none
    """
    try:
        return isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given)
    # JSON may hold whole numbers that no double can.
    except OverflowError:
        return False


def flag(name: str, given: Any) -> bool:
    """
    :param name: of the field, for the error
    :param given: True or False; a word such as "no" would count as True
    :return: the same as a bool
    """
    if not isinstance(given, bool | np.bool_):
        raise ValueError(f"{name}: must be True or False, got {given!r}")
    return bool(given)


def real_array(name: str, given: Any) -> np.ndarray:
    """
    :param name: of the field, for the error
    :param given: numbers in an array or in nested sequences
    :return: the same as an array of doubles, of whatever shape
    """
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: must be real numbers, got {given!r}") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: must be real numbers, got {given!r}")
    return array.astype(np.float64)


def one_number(name: str, given: Any) -> float:
    """
    :param name: of the field, for the error
    :param given: one finite number in an array of shape (1,)
    :return: that number
    """
    array = real_array(name, given)
    if array.shape != (1,):
        raise ValueError(f"{name}: must have shape (1,), got {array.shape}")
    number = float(array[0])
    if not math.isfinite(number):
        raise ValueError(f"{name}: must be finite, got {number}")
    return number
