"""
What a control engineer would do in fifteen lines: one affine model of the system, a Riccati equation, a linear controller.

Costs by Bryson's rule: a state is as bad as an action when both are at the ends of what was recorded. Where the reward is
known to be quadratic, it is the cost itself.
"""

from dataclasses import dataclass

import numpy as np
import scipy
import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.rewards import QuadraticReward


@dataclass(frozen=True)
class LinearController:
    """
    a = a₀ − K (x − x₀), within the actions' range.

    :param state: x₀, (d,)
    :param action: a₀, (d_a,)
    :param gain: K, (d_a, d)
    """

    state: np.ndarray
    action: np.ndarray
    gain: np.ndarray

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: in coordinates, (m, d)
        """
        return self.action - (states - self.state) @ self.gain.T


def riccati_controller(
    coordinates: Coordinates,
    states: np.ndarray,
    actions: np.ndarray,
    changes: np.ndarray,
    rewards: np.ndarray,
    half_range: np.ndarray,
) -> LinearController | None:
    """
    :param coordinates: of the states
    :param states: x, (n, d)
    :param actions: (n, d_a)
    :param changes: x' − x, (n, d)
    :param rewards: (n,)
    :param half_range: of the actions, (d_a,)
    :return: None where the equation has no solution
    """
    d = states.shape[1]
    # The system around where it earns most: half of the data where it is not one linear system.
    center, weights = _around_the_best(coordinates, states, rewards)
    away = _difference(coordinates, states, center)
    inputs = np.concatenate([away, actions, np.ones((len(states), 1))], axis=1) * weights[:, None]
    fit = np.linalg.lstsq(inputs, changes * weights[:, None], rcond=None)[0].T
    slope, effect, drift = np.eye(d) + fit[:, :d], fit[:, d:-1], fit[:, -1]
    spread = np.sqrt(np.average(np.square(away), axis=0, weights=np.square(weights)))
    state_cost = np.diag(1.0 / np.maximum(2.0 * spread, 1e-9) ** 2)
    action_cost = np.diag(1.0 / np.maximum(half_range, 1e-9) ** 2)
    try:
        cost_to_go = scipy.linalg.solve_discrete_are(slope, effect, state_cost, action_cost)
        gain = np.linalg.solve(action_cost + effect.T @ cost_to_go @ effect, effect.T @ cost_to_go @ slope)
    except (np.linalg.LinAlgError, ValueError):
        return None
    # Where it rests: x₀ near the centre and a₀ with no drift, the smallest change that does it.
    scale = np.concatenate([spread, half_range])
    system = np.concatenate([fit[:, :d], effect], axis=1) * scale
    rest = -np.linalg.pinv(system, rcond=1e-3) @ drift * scale
    if not (np.isfinite(gain).all() and np.isfinite(rest).all()):
        return None
    return LinearController(center + rest[:d], rest[d:], gain)


def best_controller(
    states: np.ndarray, actions: np.ndarray, changes: np.ndarray, reward: QuadraticReward, gamma: float
) -> LinearController | None:
    """
    The best policy of an affine system with a quadratic reward, by the Riccati equation of (1, x) with the discount in it.

    :param states: x, no angles among them, (n, d)
    :param actions: (n, d_a)
    :param changes: x' − x, (n, d)
    :param reward: of state and action
    :param gamma: discount
    :return: None where the equation has no solution: the more of some action, the better
    """
    n, d = states.shape
    inputs = np.concatenate([np.ones((n, 1)), states, actions], axis=1)
    fit = np.linalg.lstsq(inputs, changes, rcond=None)[0].T
    fit[:, 1 : 1 + d] += np.eye(d)
    system = np.sqrt(gamma) * np.concatenate([np.eye(1, inputs.shape[1]), fit])
    slope, effect = system[:, : 1 + d], system[:, 1 + d :]
    cost = -reward.of_plain_inputs()
    state_cost, both, action_cost = cost[: 1 + d, : 1 + d], cost[: 1 + d, 1 + d :], cost[1 + d :, 1 + d :]
    try:
        cost_to_go = scipy.linalg.solve_discrete_are(slope, effect, state_cost, action_cost, s=both)
        bend = action_cost + effect.T @ cost_to_go @ effect
        # Where what follows does not bend downwards in every action, the equation's solution is not the best policy.
        np.linalg.cholesky(bend)
        gain = np.linalg.solve(bend, effect.T @ cost_to_go @ slope + both.T)
    except (np.linalg.LinAlgError, ValueError):
        return None
    return LinearController(np.zeros(d), -gain[:, 0], gain[:, 1:]) if np.isfinite(gain).all() else None


def _around_the_best(coordinates: Coordinates, states: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rewards are highest, and weights of the samples around it, (d,) and (n,)."""
    best = rewards >= np.quantile(rewards, 0.9)
    center = states[best].mean(axis=0)
    angular = coordinates.angular.cpu().numpy()
    center[angular] = np.arctan2(np.sin(states[best][:, angular]).mean(axis=0), np.cos(states[best][:, angular]).mean(axis=0))
    if not bool(coordinates.bent.any()):
        return center, np.ones(len(states))
    distance = np.square(_difference(coordinates, states, center) / states.std(axis=0)).sum(axis=1)
    return center, np.exp(-0.25 * distance / max(np.quantile(distance, 0.1), 1e-12))


def _difference(coordinates: Coordinates, states: np.ndarray, center: np.ndarray) -> np.ndarray:
    here = coordinates.to(th.device("cpu"))
    return here.difference(th.from_numpy(states), th.from_numpy(center)).numpy()
