"""Between which values predicted trajectories stay, step by step: what a flight is compared with while it lasts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sb3_nopg.data.column_heads import angle_of, is_sine
from sb3_nopg.prediction.rollouts import Rollouts

# Share of the trajectories that lie inside.
LEVEL = 0.9
# Steps that are told, close together at the beginning, where a flight settles.
_MOST_STEPS = 60
# Of fewer trajectories than this share, those that are left tell nothing of the others.
_LEAST_GOING = 0.1
_DIGITS = 5


@dataclass(frozen=True)
class BandRange:
    """
    :param name: of a dimension of the state or the action; ``theta`` where there are ``sin_theta`` and ``cos_theta``, in
        radians and beyond ±π where the band lies across it
    :param low: at each of the band's steps
    :param high: at each of them
    """

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class PredictedBand:
    """
    :param level: share of the trajectories that lie inside, of those that still go on
    :param steps: at which it is told
    :param going: share of all trajectories that still go on there
    :param quantities: one for each dimension
    """

    level: float
    steps: tuple[int, ...]
    going: tuple[float, ...]
    quantities: tuple[BandRange, ...]


def predicted_band(rollouts: Rollouts, names: Sequence[str], action_names: Sequence[str]) -> PredictedBand | None:
    """
    :param rollouts: of one policy
    :param names: of the state's dimensions
    :param action_names: of the action's
    :return: None where no trajectory makes a step
    """
    going = (~np.isnan(rollouts.actions).any(axis=-1)).mean(axis=1)
    n_known = int(np.argmin(going >= _LEAST_GOING)) if (going < _LEAST_GOING).any() else len(going)
    if n_known == 0:
        return None
    steps = np.unique(np.round(np.geomspace(1, n_known, min(_MOST_STEPS, n_known))).astype(int) - 1)
    quantities = []
    for name, values in _quantities(rollouts, names, action_names):
        low, high = (_rounded(ends) for ends in _ends(values[steps], is_angle=name not in (*names, *action_names)))
        quantities.append(BandRange(name, low, high))
    return PredictedBand(LEVEL, tuple(int(step) for step in steps), _rounded(going[steps]), tuple(quantities))


def _quantities(rollouts: Rollouts, names: Sequence[str], action_names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Name and values, (T, m), of everything that has a band."""
    states = dict(zip(names, np.moveaxis(rollouts.states[:-1], -1, 0), strict=True))
    yield from states.items()
    for first, second in combinations(states, 2):
        angle = angle_of(first, second)
        if angle is not None and angle not in states:
            sine, cosine = (first, second) if is_sine(first) else (second, first)
            yield angle, np.arctan2(states[sine], states[cosine])
    yield from zip(action_names, np.moveaxis(rollouts.actions, -1, 0), strict=True)


def _ends(values: np.ndarray, *, is_angle: bool) -> np.ndarray:
    """
    :param values: of those that go on, the others NaN, (steps, m)
    :return: lower and upper ends, (2, steps)
    """
    shares = ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0)
    if not is_angle:
        return np.nanquantile(values, shares, axis=1)
    # Around the mean direction: between 179° and −179° there are two degrees.
    middle = np.arctan2(np.nansum(np.sin(values), axis=1), np.nansum(np.cos(values), axis=1))
    away = (values - middle[:, None] + np.pi) % (2.0 * np.pi) - np.pi
    return middle + np.nanquantile(away, shares, axis=1)


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
