"""The paper's bias bounds for a model, with constants that are estimated from its data."""

import math
from dataclasses import dataclass

import numpy as np
import scipy

from sb3_nopg.prediction.bias_bounds import bias_bound_regression, bias_bound_value
from sb3_nopg.prediction.evaluation import PolicyEvaluation

# Samples that constants are estimated at, and neighbours that each is compared with.
_N_POINTS, _N_COMPARED = 1_000, 30
# Two samples nearer than this, in bandwidths, tell the noise and not the function.
_LEAST_DISTANCE = 0.5
# A kernel without width: with one next-state sample, the kernel's mean stands for it.
_NO_WIDTH = 1e-12


@dataclass(frozen=True)
class BiasBounds:
    """
    Bounds on the systematic error that is left with infinitely many samples; in units of the reward. Lengths are in
    bandwidths.

    :param reward_bound: of the regression of the reward (theorem 2); None where it is too large for a number
    :param value_bound: of the value function (theorem 3); None where it is too large for a number
    :param value_range: all that values could differ by: a bound above it says nothing
    :param lipschitz_reward: largest change of the reward seen, per bandwidth
    :param lipschitz_value: of the estimated value
    :param lipschitz_transition: of the next state
    :param lipschitz_log_density: of the logarithm of the data's estimated density
    """

    reward_bound: float | None
    value_bound: float | None
    value_range: float
    lipschitz_reward: float
    lipschitz_value: float
    lipschitz_transition: float
    lipschitz_log_density: float

    @property
    def vacuous(self) -> bool:
        """Whether the bound of the value function says nothing."""
        return self.value_bound is None or self.value_bound > self.value_range

    def text(self) -> str:
        bound = "beyond any number" if self.value_bound is None else f"{self.value_bound:.3g}"
        if self.vacuous:
            return (
                f"Theorem 3 bounds the systematic error of the value by {bound}, and values cannot differ by more than "
                f"{self.value_range:.3g}: the bound is vacuous, it says nothing. It assumes the worst of every direction."
            )
        return (
            f"The value is off by no more than {bound} on account of the kernels' width, of {self.value_range:.3g} possible."
        )


def value_range(rewards: np.ndarray, terminals: np.ndarray, gamma: float) -> float:
    """
    :param rewards: (n,)
    :param terminals: (n,)
    :param gamma: discount
    :return: difference between the largest and the smallest value that such rewards can add up to
    """
    # After an end there is nothing, which may be more or less than any reward.
    seen = np.append(rewards, 0.0) if terminals.any() else rewards
    return float(np.ptp(seen)) / (1.0 - gamma)


def bias_bounds(evaluation: PolicyEvaluation) -> BiasBounds:
    """
    :param evaluation: of the policy
    """
    data, bandwidths = evaluation.data, evaluation.estimator.bandwidths
    assert bandwidths is not None
    # In units of the bandwidths, so that metres and radians can be added. The theorems hold in any units.
    states, next_states = data.observations / bandwidths.state, data.next_observations / bandwidths.state
    pairs = np.hstack([states, data.actions / bandwidths.action])
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(data))[:_N_POINTS])
    nearby = _Nearby(pairs, rows)
    reward, transition = nearby.steepest(data.rewards[:, None]), nearby.steepest(next_states)
    values = evaluation.value(data.observations[rows])
    value = _Nearby(states[rows], np.arange(len(rows))).steepest(values[:, None])
    density = nearby.steepest_log_density()
    n_states, n_actions = data.observation_dim, data.action_dim
    width = (
        bandwidths.next_state / bandwidths.state
        if evaluation.settings.samples.n_next_state_samples > 1
        else np.full(n_states, _NO_WIDTH)
    )
    reward_bound = bias_bound_regression(reward, density, np.ones(n_states + n_actions))
    value_bound = bias_bound_value(
        reward,
        value,
        density,
        np.ones(n_states),
        np.ones(n_actions),
        width,
        evaluation.gamma,
        lipschitz_transition=transition,
    )
    return BiasBounds(
        reward_bound if math.isfinite(reward_bound) else None,
        value_bound if math.isfinite(value_bound) else None,
        value_range(data.rewards, data.terminals, evaluation.gamma),
        reward,
        value,
        transition,
        density,
    )


class _Nearby:
    """
    Some points and their neighbours.

    :param points: in units of the bandwidth, (n, d)
    :param rows: of the points to look from, (m,)
    """

    def __init__(self, points: np.ndarray, rows: np.ndarray):
        self._points, self._rows = points, rows
        n_neighbors = min(len(points), _N_COMPARED)
        distances, neighbors = scipy.spatial.cKDTree(points).query(points[rows], n_neighbors)
        self._distances, self._neighbors = np.reshape(distances, (len(rows), -1)), np.reshape(neighbors, (len(rows), -1))

    def steepest(self, targets: np.ndarray) -> float:
        """
        Largest difference quotient of a function known at the points.

        :param targets: (n, t)
        """
        far = self._distances >= _LEAST_DISTANCE
        if not far.any():
            far = self._distances > 0
        if not far.any():
            return 0.0
        difference = np.linalg.norm(targets[self._neighbors] - targets[self._rows][:, None], axis=-1)
        return float((difference[far] / self._distances[far]).max())

    def steepest_log_density(self) -> float:
        """Largest gradient of the logarithm of the kernel density: the mean way to the neighbours, by their weights."""
        weights = scipy.special.softmax(-0.5 * self._distances**2, axis=1)
        ways = self._points[self._neighbors] - self._points[self._rows][:, None]
        return float(np.linalg.norm((weights[..., None] * ways).sum(axis=1), axis=1).max())
