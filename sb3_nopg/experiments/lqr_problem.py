"""The linear quadratic regulator of the paper's gradient experiment, in two versions: their data and their true gradients."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from nopg_envs.lqr import LQREnv
from sb3_nopg.data.dataset import TransitionDataset

# What an unstable trajectory of thirty steps asks for at most, and then some: no input is ever clipped.
_ACTION_BOUND = 1e9
# Standard deviation of each entry of the deterministic behaviour's K, drawn once a trajectory.
GAIN_SPREAD = 1.0
N_STEPS = 30
# State, action, reward and next state.
Row = tuple[np.ndarray, np.ndarray, float, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """
    :param input_reward: R's diagonal
    :param deterministic_gains: k₁ and k₂ about which deterministic data are recorded
    :param stochastic_gains: k₁ and k₂ of the stochastic behaviour
    :param input_std: noise of stochastic behaviour and stochastic policies, on each input at every step
    :param horizon: steps that the true return counts; None for all of them
    :param offsets: gains where gradients are asked for, from those of the behaviour: of k₁, of k₂
    :param quick_offsets: the same for a quick run, fewer
    """

    input_reward: float
    deterministic_gains: tuple[float, float]
    stochastic_gains: tuple[float, float]
    input_std: float
    horizon: int | None
    offsets: tuple[tuple[float, ...], tuple[float, ...]]
    quick_offsets: tuple[tuple[float, ...], tuple[float, ...]]

    def behavior_gains(self, kind: str) -> np.ndarray:
        """:param kind: ``"deterministic"`` or ``"stochastic"``"""
        return np.array(self.deterministic_gains if kind == "deterministic" else self.stochastic_gains)

    def policy_std(self, kind: str) -> float:
        """Noise of policies of this kind."""
        return self.input_std if kind == "stochastic" else 0.0

    def field_gains(self, kind: str, quick: bool) -> np.ndarray:
        """Gains k₁ and k₂ of the field, (g, 2)."""
        first, second = np.meshgrid(*(self.quick_offsets if quick else self.offsets), indexing="ij")
        return self.behavior_gains(kind) + np.stack([first.ravel(), second.ravel()], axis=1)


SETTINGS = {
    # As printed. These gains are not discounted-stable: over an infinite horizon every return is -∞ and has no gradient, so
    # the truth is that of the thirty steps that trajectories have.
    "paper": Setting(
        0.01,
        (0.7, -0.7),
        (0.35, -0.35),
        0.1,
        N_STEPS,
        ((-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0), (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0)),
        ((-3.0, -1.0, 0.0, 0.5), (-2.0, -0.5, 0.0, 0.5)),
    ),
    # Inputs cost something and the behaviour is stable: the infinite horizon's closed forms hold, and there is an optimum.
    # With the paper's noise of 0.1 the actions of such data hardly differ from K x, and tell nothing about other gains.
    "regulator": Setting(
        -0.01,
        (-4.0, -2.0),
        (-4.0, -2.0),
        1.0,
        None,
        ((-4.0, -2.5, -1.0, -0.5, 0.0, 0.5, 2.0), (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.5)),
        ((-4.0, -1.0, 0.0, 0.5), (-3.0, -0.5, 0.0, 0.5)),
    ),
}


def make_env(setting: str) -> LQREnv:
    """:param setting: a key of :data:`SETTINGS`"""
    return LQREnv(R=SETTINGS[setting].input_reward * np.eye(2), action_bound=_ACTION_BOUND)


def input_space(setting: str) -> spaces.Box:
    """Of the environment of a setting, with bounds that nothing reaches."""
    space = make_env(setting).action_space
    assert isinstance(space, spaces.Box)
    return space


def collect(setting: str, kind: str, n_trajectories: int, seed: int) -> TransitionDataset:
    """
    Thirty steps each from the start: deterministic with a gain matrix drawn for every trajectory, all four entries, or
    stochastic with diagonal gains and noise at every step.

    :param setting: a key of :data:`SETTINGS`
    :param kind: ``"deterministic"`` or ``"stochastic"``
    :param n_trajectories: 100 in the paper
    :param seed: of the draws
    """
    env, rng = make_env(setting), np.random.default_rng(seed)
    gain = np.diag(SETTINGS[setting].behavior_gains(kind))
    rows: list[Row] = []
    for _ in range(n_trajectories):
        trajectory_gain = gain + GAIN_SPREAD * rng.standard_normal((2, 2)) if kind == "deterministic" else gain
        state, _ = env.reset()
        for _ in range(N_STEPS):
            action = trajectory_gain @ state
            if kind == "stochastic":
                action = action + SETTINGS[setting].input_std * rng.standard_normal(2)
            next_state, reward, *_ = env.step(action)
            rows.append((state, action, reward, next_state))
            state = next_state
    return as_dataset(rows, np.repeat(np.arange(n_trajectories), N_STEPS))


def as_dataset(rows: list[Row], episode_ids: np.ndarray | None) -> TransitionDataset:
    """
    Without an action space, because nothing is clipped.

    :param rows: state, action, reward and next state of each transition
    :param episode_ids: None for one-step samples
    """
    states, actions, rewards, next_states = (np.array(column) for column in zip(*rows, strict=True))
    terminals = np.zeros(len(rows), dtype=bool)
    return TransitionDataset(states, actions, rewards, next_states, terminals, episode_ids=episode_ids)


def true_gradient(setting: str, kind: str, gains: ArrayLike) -> np.ndarray:
    """
    ∂J/∂k₁ and ∂J/∂k₂ of u = diag(k) x, or of u = diag(k) x + ε with the setting's noise.

    :param setting: a key of :data:`SETTINGS`
    :param kind: of the policy, ``"deterministic"`` or ``"stochastic"``
    :param gains: k₁ and k₂
    :return: (2,); NaN where the horizon is infinite and the return is too
    """
    env, horizon = make_env(setting), SETTINGS[setting].horizon
    gain, covariance = np.diag(np.asarray(gains, dtype=np.float64)), SETTINGS[setting].policy_std(kind) ** 2 * np.eye(2)
    if horizon is not None:
        return np.diag(finite_horizon_gradient(env, gain, horizon, covariance))
    if np.sqrt(env.gamma) * np.abs(np.linalg.eigvals(env.A + env.B @ gain)).max() >= 1.0:
        return np.full(2, np.nan)
    return np.diag(env.true_gradient(gain, covariance))


def finite_horizon_gradient(env: LQREnv, gain: np.ndarray, horizon: int, covariance: np.ndarray) -> np.ndarray:
    """
    Gradient of the return of the first ``horizon`` steps, for any gain, stable or not.

    With P_T = 0 and P_t = Q + KᵀRK + γ MᵀP_{t+1}M it is Σ_t γᵗ (RK + γ BᵀP_{t+1}M) X_t, where X_t = E[x_t x_tᵀ].

    :param env: linear, with a start that does not vary
    :param gain: K, (m, d)
    :param horizon: T
    :param covariance: of the policy's noise, (m, m)
    :return: (m, d)
    """
    gamma, closed_loop = env.gamma, env.A + env.B @ gain
    values = [np.zeros_like(env.Q)]
    for _ in range(horizon):
        values.append(env.Q + gain.T @ env.R @ gain + gamma * closed_loop.T @ values[-1] @ closed_loop)
    moment, gradient = np.outer(env.x0, env.x0), np.zeros_like(gain)
    for t in range(horizon):
        next_value = values[horizon - 1 - t]
        gradient += gamma**t * (env.R @ gain + gamma * env.B.T @ next_value @ closed_loop) @ moment
        moment = closed_loop @ moment @ closed_loop.T + env.B @ covariance @ env.B.T
    return gradient
