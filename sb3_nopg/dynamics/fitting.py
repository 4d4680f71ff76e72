"""Parts that a model of the system is fitted from: regressions, noise, the usual past, ranges."""

from dataclasses import replace

import numpy as np
import torch as th

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.affine import Samples
from sb3_nopg.dynamics.choices import Choices
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.cross_validation import LeftOut, errors_of_kernels
from sb3_nopg.dynamics.past import UsualPast
from sb3_nopg.dynamics.prepared import Inputs, Prepared, float_tensor
from sb3_nopg.dynamics.regression import Regressions

# Residual noise is cut at so many standard deviations, as the median has them (a Gaussian's over its median deviation), and
# not within what this share of all errors reaches.
_MOST_NOISE, _FROM_MEDIAN, _USUAL = 5.0, 1.4826, 0.95
# First steps of episodes that are looked at.
_MOST_FIRST = 500


def noise_of(samples: Samples, choices: Choices, labels: np.ndarray | None) -> th.Tensor:
    """
    What predictions miss where they have not seen the episode, (q, d).

    :param samples: of the changes
    :param choices: kernels of the regressions
    :param labels: episode of each sample
    """
    left_out = LeftOut.of(labels, len(samples), seed=1)
    errors = errors_of_kernels(samples, left_out, choices.kernels)
    # One bump against a wall must not be felt everywhere: a policy would wait to be thrown to its goal.
    size = errors.abs()
    most = th.maximum(_MOST_NOISE * _FROM_MEDIAN * size.median(dim=0).values, size.quantile(_USUAL, dim=0))
    return th.minimum(th.maximum(errors, -most), most)


def regressions_of(data: Prepared, inputs: Inputs, choices: Choices, *, with_reward: bool) -> list[Regressions]:
    """
    Of the changes, and of the reward where nodes are to know it.

    :param data: recorded transitions
    :param inputs: beside the state
    :param choices: kernels
    :param with_reward: whether nodes are to know it
    """
    found = [Regressions(data.samples(inputs, data.rows(inputs.n_earlier)), choices.kernels)]
    if with_reward:
        assert choices.reward.kernel is not None
        found.append(Regressions(data.reward_samples(inputs), [choices.reward.kernel]))
    return found


def usual_past_of(
    data: Prepared, inputs: Inputs, choices: Choices, changes: Regressions, action_range: tuple[th.Tensor, th.Tensor]
) -> UsualPast:
    """
    What the steps before a state did where nobody knows.

    :param data: recorded transitions
    :param inputs: beside the state, but for friction
    :param choices: kernels, and what friction holds
    :param changes: regressions of the changes
    :param action_range: smallest and largest actions
    """
    n_earlier = inputs.n_earlier
    past = data.past(n_earlier)[data.rows(n_earlier)]
    found = UsualPast(changes.samples, past, n_earlier, th.zeros_like(action_range[0]).clamp(*action_range))
    if n_earlier:
        if choices.held:
            # First steps are fitted by maps that are affine in the past, which friction is not.
            changes = regressions_of(data, inputs, choices, with_reward=False)[0]
        rows = data.first_rows[:_MOST_FIRST]
        first = data.samples(replace(inputs, n_earlier=0), rows)
        found.fit_first_steps(first, changes.maps_at(data.states[rows]), inputs.features.size, data.states[data.first_rows])
    return found


def action_range_of(dataset: TransitionDataset) -> tuple[th.Tensor, th.Tensor]:
    """What an action can be: what its space says, or what was seen."""
    seen = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
    space = dataset.action_space
    if space is None:
        return float_tensor(seen[0]), float_tensor(seen[1])
    low, high = (np.where(np.isfinite(b), b, s) for b, s in zip((space.low, space.high), seen, strict=True))
    return float_tensor(low), float_tensor(high)


def span_of_starts(dataset: TransitionDataset, coordinates: Coordinates, given: np.ndarray | None) -> th.Tensor:
    """Between the outermost start states, those of the episodes where none are given, (d,)."""
    rows = dataset.episode_starts
    starts = given if given is not None else dataset.observations[rows if rows is not None else slice(0)]
    if len(np.atleast_2d(starts)) < 2:
        return th.zeros(coordinates.dim, dtype=th.float64)
    encoded = coordinates.encode(float_tensor(np.atleast_2d(starts)))
    return encoded.max(dim=0).values - encoded.min(dim=0).values
