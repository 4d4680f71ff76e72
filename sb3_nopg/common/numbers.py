"""Whether what a user passes is a count, or a number in its range."""

from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError


def is_count(value: Any, at_least: int = 1, at_most: int | None = None) -> bool:
    """
    :param value: of any kind; true and false are no numbers
    :param at_least: smallest that will do
    :param at_most: largest that will do; None for any
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return at_least <= int(value) and (at_most is None or int(value) <= at_most)


def is_number(value: Any) -> bool:
    """:param value: of any kind; true and false are no numbers"""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_count(
    name: str, value: Any, at_least: int = 1, at_most: int | None = None, *, optional: bool = False, fix: str | None = None
) -> None:
    """
    :param name: of the argument
    :param value: as it was given
    :param at_least: smallest that will do
    :param at_most: largest that will do; None for any
    :param optional: whether None will do as well
    :param fix: what to do about a wrong one, where there is more to say than the range
    :raises InputError: unless it is a whole number in that range
    """
    if (optional and value is None) or is_count(value, at_least, at_most):
        return
    if at_most is not None:
        wanted, advice = f"whole number from {at_least} to {at_most}", f"Give a number from {at_least} to {at_most}"
    elif at_least == 1:
        wanted, advice = "positive whole number", "Give 1 or more"
    else:
        wanted, advice = f"whole number from {at_least} on", f"Give {at_least} or more"
    raise InputError(name, f"{value!r} is not a {wanted}", fix or advice)


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    low_included: bool = False,
    high_included: bool = False,
    optional: bool = False,
    fix: str | None = None,
) -> None:
    """
    :param name: of the argument
    :param value: as it was given
    :param low: end of its range
    :param high: the other end
    :param low_included: whether the end itself will do
    :param high_included: whether the other one will
    :param optional: whether None will do as well
    :param fix: what to do about a wrong one, where there is more to say than the range
    :raises InputError: unless it is a number in that range
    """
    if optional and value is None:
        return
    fix = fix or f"Give a number in {'[' if low_included else '('}{low:g}, {high:g}{']' if high_included else ')'}"
    if not is_number(value):
        raise InputError(name, f"{value!r} is not a number", fix)
    if not (low < value < high or (low_included and value == low) or (high_included and value == high)):
        raise InputError(name, f"{value} is out of range", fix)
