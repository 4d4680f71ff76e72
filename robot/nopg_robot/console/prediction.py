"""The predicted band of a pre-flight report, as the console draws it: between which values a flight should stay, and when."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from nopg_envs.checks import is_finite_number

# A report has 60.
MOST_STEPS = 1000
# What the console draws.
_DRAWN = ("x", "theta", "voltage")


def drawn_band(band: Any, period_s: float, action_name: str = "voltage") -> dict[str, Any] | None:
    """
    :param band: from the figures of ``nopg report``, or anything else that stands in such a file
    :param period_s: time of a step
    :param action_name: what the policy calls the motor's voltage
    :return: ``time_s``, ``going`` (share of the predicted flights that still go on) and for each of x, theta and voltage
        that is predicted a pair of lists, lowest and highest; None if there is nothing to draw
    """
    try:
        steps, going = _numbers(band["steps"]), _numbers(band["going"])
        quantities = {str(entry["name"]): (_numbers(entry["low"]), _numbers(entry["high"])) for entry in band["quantities"]}
    except (TypeError, KeyError, ValueError):
        return None
    quantities["voltage"] = quantities.pop(action_name, ([], []))
    known = {name: quantities[name] for name in _DRAWN if name in quantities}
    ranges = {name: pair for name, pair in known.items() if len(steps) == len(pair[0]) == len(pair[1]) > 0}
    if not ranges or len(going) != len(steps) or any(after <= before for before, after in pairwise(steps)):
        return None
    return {"time_s": [step * period_s for step in steps], "going": going, "ranges": ranges, "level": _level(band)}


def _level(band: dict[str, Any]) -> float | None:
    level = band.get("level")
    return level if isinstance(level, float) and 0.0 < level < 1.0 else None


def _numbers(values: Sequence[Any]) -> list[float]:
    if not isinstance(values, list) or len(values) > MOST_STEPS:
        raise ValueError("no list, or one that is too long")
    if not all(is_finite_number(value) for value in values):
        raise ValueError("not all are finite numbers")
    return [float(value) for value in values]
