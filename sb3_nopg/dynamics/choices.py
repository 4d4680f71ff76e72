"""What the model is made of: the simplest choices that predict left-out episodes as well as the best."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.progress import Advance, nothing
from sb3_nopg.data.action_lag import actions_follow_from_states
from sb3_nopg.data.control import share_under_control
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.affine import spread_of
from sb3_nopg.dynamics.cross_validation import (
    BANDWIDTHS,
    NOT_WORTH_A_LOOK,
    ROWS_A_COEFFICIENT,
    LeftOut,
    errors_of_kernels,
    share_unexplained,
    unexplained,
    widest_good,
)
from sb3_nopg.dynamics.friction import Held
from sb3_nopg.dynamics.friction_choice import choose_friction, with_friction
from sb3_nopg.dynamics.kernel_choice import choose_kernels
from sb3_nopg.dynamics.past import MOST_EARLIER
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel
from sb3_nopg.dynamics.reward_choice import RewardChoice, choose_reward
from sb3_nopg.dynamics.several_steps import RIDGES, choose_by_several_steps
from sb3_nopg.dynamics.stop_choice import choose_stops
from sb3_nopg.dynamics.stops import Stop

_logger = logging.getLogger(__name__)
#: that choosing has: stops, earlier steps, ridge, friction and products, kernels, several steps, reward
N_PARTS = 7
# As few earlier steps as leave no more than this factor unexplained of what is left with the best number: after one step,
# after several, and where actions follow from states.
_EARLIER_COUNT, _COUNT_AHEAD, _COUNT_IF_PREDICTABLE = 1.2, 1.03, 1.5
# Share of the recorded actions that follow from the states: of voltages that were drawn and held it is less than 0.4.
_UNDER_CONTROL = 0.5
# The formula for such data leaves no more than this factor of what is unexplained without it: what predicts what was recorded
# need not know what actions do, but a formula that cannot even predict that is none.
_AS_GOOD_TURNING = 1.5
# With fewer episodes, earlier steps are not asked for.
_LEAST_EPISODES = 5
# By which factor a larger ridge may predict one step worse.
_AS_GOOD_WHEN_SHRUNK = 1.1
# Products of actions enter where they leave at most this share of what is unexplained without them.
_PRODUCTS_COUNT = 0.7
# One affine model that leaves no more than this share is no approximation: the system is affine, and stays so.
_EXACT = 1e-9
# Where less than this share is left, there is no noise for several steps to see through.
_NOISY = 1e-4


@dataclass(frozen=True)
class Choices:
    """
    What was chosen on left-out episodes.

    :param kernels: of the regression of each coordinate's change
    :param n_earlier_steps: that count beside the last state and action
    :param products: whether products of actions count too
    :param unexplained: share of the changes' variance that is left where the model has not seen them
    :param reward: the same share of the reward's variance
    :param held: coordinates that dry friction holds
    :param stops: where coordinates stop
    """

    kernels: tuple[Kernel, ...]
    n_earlier_steps: int
    products: bool
    unexplained: float
    reward: RewardChoice
    held: tuple[Held, ...] = ()
    stops: tuple[Stop, ...] = ()

    @property
    def is_affine(self) -> bool:
        """Whether there is one affine model of all states, but for friction."""
        return all(kernel.is_affine for kernel in self.kernels)

    @property
    def explained(self) -> bool:
        """Whether there is one affine model of all states that leaves next to nothing unexplained, not even noise."""
        return self.is_affine and self.unexplained < _NOISY

    @property
    def exact(self) -> bool:
        """
        Whether the system is affine and its reward quadratic, as far as left-out episodes can tell; such a model is believed
        beyond the data.
        """
        known = self.is_affine and self.reward.kernel is None
        return known and max(self.unexplained, self.reward.unexplained) < _EXACT


def choose(
    data: Prepared, bandwidth: float | None, n_earlier: int | None, reward_is_given: bool, *, advance: Advance = nothing
) -> Choices:
    """
    :param data: recorded transitions
    :param bandwidth: that a user wants
    :param n_earlier: that a user wants
    :param reward_is_given: whether there is nothing to choose about it
    :param advance: called after each of :data:`N_PARTS` parts
    """
    widths: tuple[float, ...] = BANDWIDTHS if bandwidth is None else (float(bandwidth),)
    data = replace(data, stops=choose_stops(data, widths))
    advance()
    numbers = _numbers_of_earlier(data, n_earlier)
    found = _choose_regressions(data, numbers, widths, RIDGES, Form(), advance)
    # An infinite width is asked for by who wants one affine model; and one that explains all knows what actions do.
    if not math.isinf(min(widths)) and not found.explained and _is_under_control(data):
        found = _with_a_formula(data, numbers, widths, found)
    if found.inputs.features.quadratic:
        _logger.info("The system is not affine in its actions: their products count too.")
    advance()
    reward = RewardChoice(None, 0.0)
    if not reward_is_given:
        reward = choose_reward(data, found.inputs)
    advance()
    inputs = found.inputs
    return Choices(
        found.kernels, inputs.n_earlier, inputs.features.quadratic, found.unexplained, reward, found.held, data.stops
    )


@dataclass(frozen=True)
class _Regressions:
    """
    What the changes are learned from, and how.

    :param inputs: beside the state
    :param held: coordinates that dry friction holds
    :param kernels: of each coordinate's change
    :param unexplained: share of the changes' variance, after one step
    """

    inputs: Inputs
    held: tuple[Held, ...]
    kernels: tuple[Kernel, ...]
    unexplained: float

    @property
    def explained(self) -> bool:
        """As in :class:`Choices`."""
        return all(kernel.is_affine for kernel in self.kernels) and self.unexplained < _NOISY


def _with_a_formula(data: Prepared, numbers: Sequence[int], widths: tuple[float, ...], local: _Regressions) -> _Regressions:
    """
    :param data: recorded under control
    :param numbers: of earlier steps, to choose from
    :param widths: to choose from
    :param local: what was chosen without a formula
    :return: what is chosen with one, if it predicts about as well
    """
    finite = tuple(width for width in widths if not math.isinf(width))
    # Products say nearly the same as each other, so they are shrunk, and neighbourhoods correct what that takes away.
    turning = _choose_regressions(data, numbers, finite, RIDGES[-1:], Form(turning=True))
    # Both on the same rows, or they could not be compared.
    rows = data.rows(max(local.inputs.n_earlier, turning.inputs.n_earlier))
    without, with_it = (_left(data, found.inputs, found.kernels, rows) for found in (local, turning))
    taken = with_it <= _AS_GOOD_TURNING * without
    _logger.info(
        "Actions follow from states. One formula with sines and cosines of angles is %s to tell what they do: it leaves "
        "%.2g of the changes' variance unexplained, local maps %.2g.",
        "taken" if taken else "not good enough",
        with_it,
        without,
    )
    return turning if taken else local


def _choose_regressions(
    data: Prepared,
    numbers: Sequence[int],
    widths: tuple[float, ...],
    ridges: Sequence[float],
    form: Form,
    advance: Advance = nothing,
) -> _Regressions:
    """
    :param data: recorded transitions
    :param numbers: of earlier steps, to choose from
    :param widths: to choose from
    :param ridges: to choose from
    :param form: of the regression over all samples, but for its ridge
    :param advance: called after each of four parts
    """
    n_actions, n_earlier = data.actions.shape[1], _choose_earlier(data, widths, numbers, form)
    advance()
    inputs = Inputs(ActionFeatures(n_actions), n_earlier)
    form, errors = _choose_ridge(data, inputs, widths, form, ridges)
    advance()
    held = choose_friction(data, inputs, widths, form, errors)
    if held:
        inputs = with_friction(data, inputs, held)
        errors = share_unexplained(data, inputs, widths, form=form)
    mean = errors.mean(dim=1)
    if float(mean[widest_good(mean, widths)]) > NOT_WORTH_A_LOOK:
        with_products = with_friction(data, Inputs(ActionFeatures(n_actions, True), n_earlier), held)
        squared = share_unexplained(data, with_products, widths, form=form)
        if float(squared.mean(dim=1).min()) < _PRODUCTS_COUNT * float(mean.min()):
            inputs, errors = with_products, squared
    advance()
    kernels = choose_kernels(data, inputs, widths, form, errors)
    left = _left(data, inputs, kernels)
    advance()
    if left > _NOISY:
        much = _COUNT_AHEAD if not actions_follow_from_states(data.dataset) else _COUNT_IF_PREDICTABLE
        more = [n for n in numbers if n >= n_earlier]
        inputs, kernels = choose_by_several_steps(data, inputs, held, kernels, more, much, ridges)
        left = _left(data, inputs, kernels)
    return _Regressions(inputs, held, kernels, left)


def _is_under_control(data: Prepared) -> bool:
    """
    Whether actions follow from states, and enough is known of angles that go far to tell nevertheless what they do. Local maps
    know it best where actions were free. Under a controller, or one signal again and again, they may take for an action's
    effect what the state did by itself.
    """
    n_bent, n_terms = int(data.coordinates.bent.sum()), _n_coefficients(data, MOST_EARLIER)
    # Without episodes, the states next to one are those before and after it.
    if not n_bent or data.labels is None or data.free_steps.sum() < ROWS_A_COEFFICIENT * (1 + 2 * n_bent) * n_terms:
        return False
    points = data.coordinates.embed(data.states, spread_of(data.states)).numpy()
    return share_under_control(data.dataset, points) > _UNDER_CONTROL


def _left(data: Prepared, inputs: Inputs, kernels: Sequence[Kernel], rows: th.Tensor | None = None) -> float:
    """Share of the changes' variance that is unexplained after one step, the mean of all coordinates."""
    rows = data.rows(inputs.n_earlier) if rows is None else rows
    samples = data.samples(inputs, rows)
    left_out = LeftOut.of(data.labels_of(rows), len(samples))
    return float(unexplained(errors_of_kernels(samples, left_out, kernels), samples.targets).mean())


def _numbers_of_earlier(data: Prepared, wanted: int | None) -> list[int]:
    """How many earlier steps may count, as far as the data can tell."""
    numbers: Sequence[int] = range(MOST_EARLIER + 1) if wanted is None else (wanted,)
    enough = [
        n
        for n in numbers
        if n == 0 or len(data.rows(n)) >= max(0.5 * data.free_steps.sum(), ROWS_A_COEFFICIENT * _n_coefficients(data, n))
    ]
    if wanted is not None and not enough:
        raise InputError("n_earlier_steps", f"too few rows know {wanted} earlier steps", "Give longer episodes, or fewer")
    if wanted is None and (data.labels is None or len(np.unique(data.labels)) < _LEAST_EPISODES):
        # Within an episode the last change tells the next, whatever the system: only other episodes show what it is worth.
        enough = [0]
    return enough


def _choose_earlier(data: Prepared, widths: tuple[float, ...], numbers: Sequence[int], form: Form) -> int:
    """How many earlier steps count at least, by what one step shows."""
    if len(numbers) == 1:
        return numbers[0]
    # All on the rows of the last, or they could not be compared.
    rows, features = data.rows(numbers[-1]), ActionFeatures(data.actions.shape[1])
    errors = {n: share_unexplained(data, Inputs(features, n), widths, rows, form) for n in numbers}
    least = min(float(error.mean(dim=1).min()) for error in errors.values())
    # Where actions follow from states, earlier steps may stand for what the model cannot say of states.
    much = _EARLIER_COUNT if not actions_follow_from_states(data.dataset) else _COUNT_IF_PREDICTABLE
    return next(n for n in numbers if float(errors[n].mean(dim=1).min()) <= much * least + NOT_WORTH_A_LOOK)


def _choose_ridge(
    data: Prepared, inputs: Inputs, widths: tuple[float, ...], form: Form, ridges: Sequence[float]
) -> tuple[Form, th.Tensor]:
    """The form with the largest ridge that predicts nearly as well as the best, and what it leaves at each width."""
    errors = {ridge: share_unexplained(data, inputs, widths, form=replace(form, ridge=ridge)) for ridge in ridges}
    least = {ridge: float(error.mean(dim=1).min()) for ridge, error in errors.items()}
    enough = _AS_GOOD_WHEN_SHRUNK * min(least.values())
    # What it shrinks, noise would move.
    ridge = max(ridge for ridge, error in least.items() if error <= enough)
    return replace(form, ridge=ridge), errors[ridge]


def _n_coefficients(data: Prepared, n_earlier: int) -> int:
    d = data.coordinates.dim
    return 1 + d + Inputs(ActionFeatures(data.actions.shape[1]), n_earlier).size(d)
