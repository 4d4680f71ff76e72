"""
Rows that cannot follow from one another: a restart, a stretch that was cut out, a sensor that slipped, shuffled rows.

A step is a jump where a coordinate changes far more than in the steps around it and in most others, and one affine model of
all steps does not explain it by state and action. Velocities may jump, at an impact: a coordinate that is the rate of another
one is no witness. Neither is one that stays where it is and now and then moves, like a set point.
"""

from dataclasses import dataclass

import numpy as np

# Of fewer steps than this nobody can say what is usual.
_LEAST_STEPS = 30
# The squares of larger numbers are none.
_LARGEST = 1e100
# A jump changes a coordinate by so many times as much as the steps around it and as most steps, ...
_FAR = 3.0
# ... and is so many times as far from the affine model.
_UNEXPLAINED = 8.0
_USUAL = 0.75
# Steps on either side that a step is compared with.
_AROUND = 5
# In floating-point numbers of a column's size, or in its smallest changes: less is rounding, or the counts of an encoder.
_ROUNDING, _COUNTS = 1e-9, 4.0
# A circle in radians and in degrees, and how much of it a column must cover to be known as an angle that wraps.
_CIRCLES, _COVERED = (2.0 * np.pi, 360.0), 0.9
_ON_CIRCLE = 1e-3
# How closely the changes of one coordinate must follow another one for that to be its rate.
_IS_RATE = 0.8
_OPPOSITE = 0.85
# Jumps in more than this share of the steps are no accidents.
MOST_JUMPS = 0.1
# Where the affine model explains less than this of every next state, rows do not follow from one another at all.
_NOTHING = 0.1
_ENOUGH_TO_SAY_SO = 100


@dataclass(frozen=True)
class Jumps:
    """
    :param steps: which steps are jumps, (n,)
    :param columns: of the state that jump in any of them
    :param wrapped: columns that are angles which wrap, and where, in the column's unit: 2π or 360
    :param unrelated: whether no next state follows from its state and action
    """

    steps: np.ndarray
    columns: tuple[int, ...]
    wrapped: dict[int, float]
    unrelated: bool


def find_jumps(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray, episodes: np.ndarray) -> Jumps:
    """
    :param states: of steps, those of an episode together and in the order of time, (n, d_s)
    :param actions: (n, d_a)
    :param next_states: (n, d_s)
    :param episodes: a number for each step's episode, (n,)
    """
    states, actions, next_states = (np.asarray(part, dtype=np.float64) for part in (states, actions, next_states))
    nothing = np.zeros(len(states), dtype=bool)
    moves = np.ptp(np.concatenate([states, next_states]), axis=0) > 0 if len(states) else np.zeros(0)
    too_large = any(np.abs(part).max(initial=0.0) > _LARGEST for part in (states, actions, next_states))
    if (episodes[1:] == episodes[:-1]).sum() < _LEAST_STEPS or not moves.any() or too_large:
        return Jumps(nothing, (), {}, False)
    with np.errstate(all="ignore"):
        wrapped = _wrapped(states, next_states)
        changes, values, of_columns = _coordinates(states, next_states, wrapped, moves)
        residuals = _residuals(changes, values, actions)
        far = np.stack([_far(*pair, episodes) for pair in zip(changes.T, residuals.T, values.T, strict=True)], axis=1)
        witnesses = _witnesses(changes, values, episodes, far)
        # Where many coordinates are watched, one of them alone is a glitch of its own.
        enough = max(1, -(-len(witnesses) // 3))
        steps = far[:, witnesses].sum(axis=1) >= enough if len(witnesses) else nothing
        explained = 1.0 - residuals.var(axis=0) / np.var(values + changes, axis=0)
    columns = sorted({column for number in witnesses if far[steps, number].any() for column in of_columns[number]})
    unrelated = len(states) >= _ENOUGH_TO_SAY_SO and bool((explained < _NOTHING).all())
    return Jumps(steps, tuple(columns), wrapped, unrelated)


def _wrapped(states: np.ndarray, next_states: np.ndarray) -> dict[int, float]:
    """Columns that go from one end of a circle to the other in one step, and the circle."""
    found = {}
    for column in range(states.shape[1]):
        both = np.concatenate([states[:, column], next_states[:, column]])
        change = np.abs(next_states[:, column] - states[:, column])
        for circle in _CIRCLES:
            fits = _COVERED * circle <= np.ptp(both) <= (1.0 + _ON_CIRCLE) * circle
            if fits and (change > _COVERED * circle).any():
                found[column] = circle
    return found


def _coordinates(
    states: np.ndarray, next_states: np.ndarray, wrapped: dict[int, float], moves: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, ...]]]:
    """
    :return: changes (n, d), the shorter way around circles; values (n, d); columns of each coordinate. Columns that never
        change are left out, two on the unit circle are one angle
    """
    n_columns = states.shape[1]
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i in range(n_columns):
        for j in range(i + 1, n_columns):
            if not {i, j} & taken and moves[i] and moves[j] and _on_circle(states, i, j) and _on_circle(next_states, i, j):
                pairs.append((i, j))
                taken |= {i, j}
    changes: list[np.ndarray] = []
    values: list[np.ndarray] = []
    of_columns: list[tuple[int, ...]] = []
    for column in range(n_columns):
        if column in taken or not moves[column]:
            continue
        change = next_states[:, column] - states[:, column]
        if column in wrapped:
            change = _shorter_way(change, wrapped[column])
        changes.append(change)
        values.append(states[:, column])
        of_columns.append((column,))
    for i, j in pairs:
        before, after = (np.arctan2(part[:, j], part[:, i]) for part in (states, next_states))
        changes.append(_shorter_way(after - before, 2.0 * np.pi))
        values.append(before)
        of_columns.append((i, j))
    return np.stack(changes, axis=1), np.stack(values, axis=1), of_columns


def _on_circle(states: np.ndarray, i: int, j: int) -> bool:
    return bool(np.abs(states[:, i] ** 2 + states[:, j] ** 2 - 1.0).max() < _ON_CIRCLE)


def _shorter_way(change: np.ndarray, circle: float) -> np.ndarray:
    return change - circle * np.round(change / circle)


def _residuals(changes: np.ndarray, values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """What one affine model of all steps leaves of the changes, (n, d); fitted twice, without the worst steps."""
    inputs = np.concatenate([values, actions], axis=1)
    spread = inputs.std(axis=0)
    inputs = (inputs - inputs.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    inputs = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
    kept = np.ones(changes.shape, dtype=bool)
    residuals = changes
    for _ in range(2):
        fits = [
            np.linalg.lstsq(inputs[rows], change[rows], rcond=None)[0] for rows, change in zip(kept.T, changes.T, strict=True)
        ]
        residuals = changes - inputs @ np.stack(fits, axis=1)
        kept = np.abs(residuals) <= np.quantile(np.abs(residuals), 1.0 - MOST_JUMPS, axis=0)
    return residuals


def _far(change: np.ndarray, residual: np.ndarray, value: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Which steps change a coordinate as no other step does, (n,)."""
    size, unexplained = np.abs(change), np.abs(residual)
    moving = size[size > _ROUNDING * np.abs(value).max()]
    smallest = moving.min() if len(moving) else np.inf
    return (
        (size > _COUNTS * smallest)
        & (size > _FAR * np.maximum(np.quantile(size, _USUAL), _around(size, episodes)))
        & (unexplained > _UNEXPLAINED * np.maximum(np.quantile(unexplained, _USUAL), _around(unexplained, episodes)))
    )


def _around(size: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """
    The second largest of the steps around each: a glitch has two large steps, away and back. Infinite where a step has no
    neighbour on one of its sides, (n,).
    """
    n = len(size)
    around = np.full((2 * _AROUND, n), -np.inf)
    for number, shift in enumerate(shift for shift in range(-_AROUND, _AROUND + 1) if shift):
        rows = np.arange(max(0, -shift), min(n, n - shift))
        same = episodes[rows] == episodes[rows + shift]
        around[number, rows[same]] = size[rows[same] + shift]
    lonely = ~np.isfinite(around[_AROUND - 1]) | ~np.isfinite(around[_AROUND])
    return np.where(lonely, np.inf, np.partition(around, -2, axis=0)[-2])


def _witnesses(changes: np.ndarray, values: np.ndarray, episodes: np.ndarray, far: np.ndarray) -> list[int]:
    """Coordinates whose jumps count."""
    usual = np.asarray(~far.any(axis=1))
    follows = np.flatnonzero(usual[:-1] & usual[1:] & (episodes[:-1] == episodes[1:]))
    if not len(follows):
        return []
    # How closely the changes of the second coordinate follow the first, taken in the middle of the step.
    middles = values[follows] + changes[follows] / 2.0
    rates = np.array([[_likeness(rate, change) for change in changes[follows].T] for rate in middles.T])
    np.fill_diagonal(rates, 0.0)
    found = []
    for number in range(changes.shape[1]):
        # Of a swing, each of position and speed follows the changes of the other.
        is_rate = ((rates[number] > _IS_RATE) & (rates[number] > rates[:, number])).any()
        moved = changes[:, number] != 0
        alone = moved[1:-1] & ~moved[:-2] & ~moved[2:]
        is_set = 2 * alone.sum() > moved.sum()
        if not is_rate and not is_set:
            found.append(number)
    return found


def _likeness(rate: np.ndarray, change: np.ndarray) -> float:
    """Correlation of two columns; less where the signs are opposite: a speed has that of its changes."""
    rate, change = rate - rate.mean(), change - change.mean()
    scale = np.sqrt((rate**2).sum() * (change**2).sum())
    if not scale > 0:
        return 0.0
    found = float((rate * change).sum() / scale)
    return found if found > 0 else _OPPOSITE * -found
