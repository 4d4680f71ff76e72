"""
How many earlier steps count, and how much a regression is shrunk: as predictions over several steps say.

One step hides it. Encoders count in steps and velocities are filtered, so most of what one prediction misses is noise, and a
slope that noise in the state has flattened predicts one step about as well as the true one. Over several steps the noise of
one step stays what it is, and what a wrong slope adds grows with every step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch as th

from sb3_nopg.dynamics.affine import LEAST_RIDGE
from sb3_nopg.dynamics.coordinates import ANYWHERE
from sb3_nopg.dynamics.cross_validation import LeftOut, unexplained
from sb3_nopg.dynamics.friction import Held
from sb3_nopg.dynamics.friction_choice import with_friction
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Kernel, Regressions

#: steps that are predicted one after another
AHEAD = 8
# Places to predict from, at most: with one affine model, and with local ones, which take longer. With fewer than the last
# nothing can be said.
_MOST_PLACES, _MOST_PLACES_IF_LOCAL, _LEAST_PLACES = 1000, 200, 50
# What is explained to this share counts as explained.
_EXPLAINED = 1e-6
#: of the regression over all samples, to choose from
RIDGES = (LEAST_RIDGE, 1e-5, 1e-4)
# By which factor a larger one may predict worse.
_AS_GOOD = 1.01


def choose_by_several_steps(
    data: Prepared,
    inputs: Inputs,
    held: Sequence[Held],
    kernels: Sequence[Kernel],
    numbers: Sequence[int],
    much: float,
    ridges: Sequence[float] = RIDGES,
) -> tuple[Inputs, tuple[Kernel, ...]]:
    """
    :param data: recorded transitions
    :param inputs: of the regression, as one step chose them
    :param held: coordinates that friction holds
    :param kernels: of each coordinate's change, as one step chose them
    :param numbers: of earlier steps, to choose from
    :param much: as few of them as leave no more than this factor of what the best number leaves
    :param ridges: to choose from
    :return: the same with another number of earlier steps, and another ridge
    """
    is_affine = all(kernel.is_affine for kernel in kernels)
    places = places_to_start(data, max(numbers), _MOST_PLACES if is_affine else _MOST_PLACES_IF_LOCAL)
    if not len(places):
        return inputs, tuple(kernels)
    of_number = {n: with_friction(data, Inputs(inputs.features, n), held) for n in numbers}
    of_ridge = {ridge: tuple(_shrunk(kernel, ridge) for kernel in kernels) for ridge in ridges}
    left = {
        (n, ridge): share_unexplained_ahead(data, of_number[n], of_ridge[ridge], places) for n in numbers for ridge in ridges
    }
    least = {n: min(left[n, ridge] for ridge in ridges) for n in numbers}
    n = min(n for n in numbers if least[n] <= much * min(least.values()))
    ridge = max(ridge for ridge in ridges if left[n, ridge] <= _AS_GOOD * least[n])
    return of_number[n], of_ridge[ridge]


def _shrunk(kernel: Kernel, ridge: float) -> Kernel:
    return replace(kernel, form=replace(kernel.form, ridge=ridge))


def places_to_start(data: Prepared, n_earlier: int, n_most: int = _MOST_PLACES) -> th.Tensor:
    """
    Rows that several recorded steps of the same episode follow, and that know their past, (m,).

    :param data: recorded transitions
    :param n_earlier: steps that must be known
    :param n_most: as many of the rows, evenly spread
    """
    if data.labels is None:
        return th.zeros(0, dtype=th.int64)
    rows = np.flatnonzero((data.n_past >= n_earlier) & _go_on(data))
    if len(rows) < _LEAST_PLACES:
        return th.zeros(0, dtype=th.int64)
    return th.from_numpy(rows[np.unique(np.linspace(0, len(rows) - 1, n_most).astype(int))])


def _go_on(data: Prepared) -> np.ndarray:
    """Which rows begin :data:`AHEAD` steps that follow one another, none of which is cut short, (n,)."""
    n, whole, follows = len(data.states), data.free_steps, data.n_past > 0
    found = np.zeros(n, dtype=bool)
    found[: max(0, n - AHEAD + 1)] = True
    for ahead in range(AHEAD):
        at = np.flatnonzero(found)
        found[at] = whole[at + ahead] & ((ahead == 0) | follows[at + ahead])
    return found


def share_unexplained_ahead(data: Prepared, inputs: Inputs, kernels: Sequence[Kernel], places: th.Tensor) -> float:
    """
    Share of the variance that is left after several steps under the recorded actions, where the episode was left out: the
    geometric mean of all coordinates, for what is measured badly must not drown what is measured well.

    :param data: recorded transitions
    :param inputs: of the regression
    :param kernels: of each coordinate's change
    :param places: rows to predict from
    """
    rows = data.rows(inputs.n_earlier)
    samples = data.samples(inputs, rows)
    left_out = LeftOut.of(data.labels_of(rows), len(samples))
    fold_of_place = left_out.fold[th.searchsorted(rows, places)]
    errors = data.states.new_zeros(len(places), data.coordinates.dim)
    for fold in fold_of_place.unique().tolist():
        chosen = fold_of_place == fold
        regressions = Regressions(samples.rows(left_out.seen_without(fold)), kernels)
        reached = _follow(data, inputs, regressions, places[chosen])
        if not bool(reached.isfinite().all()):
            return math.inf
        errors[chosen] = data.coordinates.difference(data.next_states[places[chosen] + AHEAD - 1], reached)
    changes = data.coordinates.difference(data.next_states[places + AHEAD - 1], data.states[places])
    return float(unexplained(errors, changes).clamp_min(_EXPLAINED).log().mean().exp())


def _follow(data: Prepared, inputs: Inputs, regressions: Regressions, rows: th.Tensor) -> th.Tensor:
    """States after the steps that follow rows, as predicted, (m, d)."""
    states, earlier = data.states[rows], data.past(inputs.n_earlier)[rows]
    for ahead in range(AHEAD):
        actions = data.actions[rows + ahead]
        change = regressions.maps_at(states).at_own_states(inputs(states, actions, earlier))
        states = states + change
        if not bool((states.abs() < ANYWHERE).all()):
            return states.new_full(states.shape, math.inf)
        earlier = th.cat([actions, change, earlier], dim=1)[:, : earlier.shape[1]]
    return states
