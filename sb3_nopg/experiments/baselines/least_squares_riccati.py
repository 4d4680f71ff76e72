"""What a control engineer would do in fifteen lines: a linear model by least squares, and the best controller for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_are

from sb3_nopg.common.errors import InputError

Arrays = dict[str, np.ndarray]
# A pole within 26° of where it is wanted is a linear system.
_NEAR_COSINE = 0.9


@dataclass(frozen=True)
class QuadraticCost:
    """
    :param columns: of observations that make the linear model's state, all of them zero where the system is wanted
    :param state_weights: of their squares
    :param action_weight: of squared actions
    :param cosine: column that is 1 where the system is wanted: only samples near to that are fitted. None to fit all
    :param remembers: whether the action before is part of the state, where the data know it
    """

    columns: tuple[int, ...]
    state_weights: tuple[float, ...]
    action_weight: float
    cosine: int | None = None
    remembers: bool = True


class ClippedLinearController:
    """
    u = −K (z, u₋₁), where u₋₁ is the action before: what a delay or a filter has not shown yet. Called as SB3's models are,
    its memory being their recurrent state. Without u₋₁ where the data do not know it.

    :param gain: K, (d_a, d_z + d_a) or (d_a, d_z)
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
        :param observation: (m, d_s) or (d_s,)
        :param state: the last actions, (m, d_a) or (d_a,); None at the start
        :return: actions, (m, d_a) or (d_a,), twice: they are the memory too
        """
        seen = np.asarray(observation, dtype=np.float64)[..., self.columns]
        before = np.zeros((*seen.shape[:-1], len(self.gain))) if state is None else state
        linear_state = np.concatenate([seen, before], axis=-1)[..., : self.gain.shape[1]]
        actions = np.clip(-linear_state @ self.gain.T, self.low, self.high)
        return actions, actions


def least_squares_riccati(
    data: Mapping[str, Any], cost: QuadraticCost, low: np.ndarray, high: np.ndarray
) -> ClippedLinearController:
    """
    :param data: transitions with ``observations``, ``actions``, ``next_observations`` and, where they follow each other,
        ``episode_ids``
    :param cost: what the controller is best for
    :param low: smallest actions, (d_a,)
    :param high: largest actions, (d_a,)
    :raises InputError: where the samples that are fitted are fewer than a row of the model has unknowns
    :raises numpy.linalg.LinAlgError: where the equation has no solution
    """
    columns, actions = list(cost.columns), np.asarray(data["actions"], dtype=np.float64)
    states, next_states = (np.asarray(data[name][:, columns], np.float64) for name in ("observations", "next_observations"))
    state_weights = list(cost.state_weights)
    if cost.remembers and data.get("episode_ids") is not None:
        before = np.vstack([np.zeros_like(actions[:1]), actions[:-1]])
        # Before the first command the motor had none.
        before[np.diff(data["episode_ids"], prepend=-1) != 0] = 0.0
        states, next_states = np.hstack([states, before]), np.hstack([next_states, actions])
        # The action before costs nothing by itself; a trace of weight keeps the equation regular.
        state_weights += [1e-9] * actions.shape[1]
    near = slice(None) if cost.cosine is None else data["observations"][:, cost.cosine] > _NEAR_COSINE
    known = np.hstack([states, actions])[near]
    if len(known) < known.shape[1]:
        # Least squares would take the smallest of many answers, of no samples a gain of zero.
        where = "" if cost.cosine is None else " near to where the system is wanted"
        problem = f"{len(known)} samples{where} are too few for a linear model with {known.shape[1]} unknowns"
        raise InputError("dataset", problem, f"Record more of them{where}")
    weights = np.linalg.lstsq(known, next_states[near], rcond=None)[0].T
    n_states, n_actions = states.shape[1], actions.shape[1]
    a, b = weights[:, :n_states], weights[:, n_states:]
    action_cost = cost.action_weight * np.eye(n_actions)
    value = solve_discrete_are(a, b, np.diag(state_weights), action_cost)
    gain = np.linalg.solve(action_cost + b.T @ value @ b, b.T @ value @ a)
    return ClippedLinearController(gain, cost.columns, low, high)
