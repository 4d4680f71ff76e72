"""What a control engineer would do in fifteen lines: a linear model by least squares, and the best controller for it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_are

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class QuadraticCost:
    """
    :param columns: of observations that make the linear model's state, all of them zero where the system is wanted
    :param state_weights: of their squares
    :param action_weight: of squared actions
    """

    columns: tuple[int, ...]
    state_weights: tuple[float, ...]
    action_weight: float


class LinearController:
    """
    u = −K (z, u₋₁), where u₋₁ is the action before: what a delay or a filter has not shown yet. Called as SB3's models are,
    its memory being their recurrent state.

    :param gain: K, (d_a, d_z + d_a)
    :param columns: of observations that are z
    :param low: smallest actions, (d_a,)
    :param high: largest actions, (d_a,)
    """

    def __init__(self, gain: np.ndarray, columns: tuple[int, ...], low: np.ndarray, high: np.ndarray):
        self.gain, self.columns, self.low, self.high = gain, list(columns), low, high

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        :param observation: (m, d_s)
        :param state: the last actions, (m, d_a); None at the start
        :return: actions, (m, d_a), twice: they are the memory too
        """
        before = np.zeros((len(observation), len(self.gain))) if state is None else state
        linear_state = np.hstack([np.asarray(observation, dtype=np.float64)[:, self.columns], before])
        actions = np.clip(-linear_state @ self.gain.T, self.low, self.high)
        return actions, actions


def least_squares_riccati(data: Arrays, cost: QuadraticCost, low: np.ndarray, high: np.ndarray) -> LinearController:
    """
    :param data: transitions with ``observations``, ``actions``, ``next_observations`` and ``episode_ids``
    :param cost: what the controller is best for
    :param low: smallest actions, (d_a,)
    :param high: largest actions, (d_a,)
    """
    columns, actions = list(cost.columns), np.asarray(data["actions"], dtype=np.float64)
    before = np.vstack([np.zeros_like(actions[:1]), actions[:-1]])
    # Before the first command the motor had none.
    before[np.diff(data["episode_ids"], prepend=-1) != 0] = 0.0
    states = np.hstack([data["observations"][:, columns], before]).astype(np.float64)
    next_states = np.hstack([data["next_observations"][:, columns], actions]).astype(np.float64)
    weights = np.linalg.lstsq(np.hstack([states, actions]), next_states, rcond=None)[0].T
    n_states, n_actions = states.shape[1], actions.shape[1]
    a, b = weights[:, :n_states], weights[:, n_states:]
    # The action before costs nothing by itself; a trace of weight keeps the equation regular.
    state_cost = np.diag([*cost.state_weights, *[1e-9] * n_actions])
    action_cost = cost.action_weight * np.eye(n_actions)
    value = solve_discrete_are(a, b, state_cost, action_cost)
    gain = np.linalg.solve(action_cost + b.T @ value @ b, b.T @ value @ a)
    return LinearController(gain, cost.columns, low, high)
