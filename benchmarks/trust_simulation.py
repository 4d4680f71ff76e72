"""What many policies really get, all of them and all starts simulated at once."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs.cartpole import CartPoleVectorEnv
from robustness_evaluation import BALANCE_LIMIT_RAD, BALANCE_STEPS
from sb3_nopg.experiments.cartpole_evaluation import EVALUATION_SEED, N_STARTS, UPRIGHT_COSINE, UPRIGHT_STEPS
from trust_policies import Controller

PENDULUM_UPRIGHT_STEPS = 100


@dataclass(frozen=True)
class Outcome:
    """
    :param total: return, mean over starts
    :param success: whether the policy does what it is for
    """

    total: float
    success: bool


def pendulum_outcomes(policies: list[Controller], n_steps: int) -> list[Outcome]:
    """From hanging; success is to stay upright for the last hundred steps."""
    env = gym.make_vec("nopg/Pendulum-v0", num_envs=len(policies), vectorization_mode="sync", max_episode_steps=n_steps + 1)
    observations, _ = env.reset(seed=EVALUATION_SEED)
    totals, upright = np.zeros(len(policies)), np.zeros(len(policies))
    for step in range(n_steps):
        observations, rewards, _, _, _ = env.step(_act(policies, observations, 1).astype(np.float32))
        totals += rewards
        if step >= n_steps - PENDULUM_UPRIGHT_STEPS:
            upright += observations[:, 0] > UPRIGHT_COSINE
    return _outcomes(totals, upright >= PENDULUM_UPRIGHT_STEPS)


def balance_outcomes(policies: list[Controller], n_steps: int) -> list[Outcome]:
    """From the operator's starts; success is to last 10,000 steps from each."""
    totals, alive, _ = _drive(policies, n_steps, BALANCE_STEPS, theta_limit_rad=BALANCE_LIMIT_RAD)
    return _outcomes(totals.mean(axis=1), alive.all(axis=1))


def swing_up_outcomes(policies: list[Controller], n_steps: int) -> list[Outcome]:
    """From where an operator lets the pole hang, at 8 V; success is to be upright at the end from half of the starts."""
    totals, alive, upright = _drive(policies, n_steps, n_steps, task="swing_up", voltage_limit_volt=8.0)
    full = alive & (upright >= UPRIGHT_STEPS)
    return _outcomes(totals.mean(axis=1), full.mean(axis=1) >= 0.5)


def swing_up_starts() -> np.ndarray:
    """Observations of other hanging starts than those of the simulation, for a judge, (n, 5)."""
    env = CartPoleVectorEnv(num_envs=N_STARTS, start="operator", task="swing_up")
    return env.reset(seed=2 * EVALUATION_SEED)[0]


def _drive(
    policies: list[Controller], n_counted: int, n_steps: int, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param policies: each from all starts
    :param n_counted: steps whose rewards count
    :param n_steps: steps in all
    :param options: of the cart-pole
    :return: returns, whether the cart is still going, and steps upright of the last 250, (policies, starts) each
    """
    shape = (len(policies), N_STARTS)
    env = CartPoleVectorEnv(num_envs=len(policies) * N_STARTS, start="operator", **options)
    observations, _ = env.reset(seed=[EVALUATION_SEED + start for start in range(N_STARTS)] * len(policies))
    totals, upright, alive = np.zeros(shape), np.zeros(shape), np.ones(shape, dtype=bool)
    for step in range(n_steps):
        observations, rewards, terminated, _, infos = env.step(_act(policies, observations, N_STARTS))
        if step < n_counted:
            # The step that ends an episode is paid for too, what comes after it is another episode's.
            totals += np.where(alive, rewards.reshape(shape), 0.0)
        alive &= ~terminated.reshape(shape)
        if step >= n_steps - UPRIGHT_STEPS:
            upright += np.cos(infos["state"][:, 1]).reshape(shape) > UPRIGHT_COSINE
        if not alive.any():
            break
    return totals, alive, upright


def _act(policies: list[Controller], observations: np.ndarray, n_starts: int) -> np.ndarray:
    """Each policy acts on its own starts, (policies · starts, d_s) -> (policies · starts, d_a)."""
    parts = np.split(np.asarray(observations, dtype=np.float64), len(policies))
    return np.concatenate([policy(part) for policy, part in zip(policies, parts, strict=True)])


def _outcomes(totals: np.ndarray, success: np.ndarray) -> list[Outcome]:
    return [Outcome(float(total), bool(good)) for total, good in zip(totals, success, strict=True)]
