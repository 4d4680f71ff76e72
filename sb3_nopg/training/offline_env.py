"""What stands where SB3 expects an environment and there is none, or where the real one must not be touched."""

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv


class OfflineEnv(gym.Env):
    """
    Spaces without dynamics: ``reset`` gives a state of the data set and ``step`` refuses.

    :param observation_space: Box
    :param action_space: Box
    :param observation: what ``reset`` returns
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, observation: np.ndarray):
        self.observation_space, self.action_space = observation_space, action_space
        self.observation = observation.astype(observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation.copy(), {}

    def step(self, action: Any) -> NoReturn:
        raise RuntimeError("This model learns from a fixed data set and has no environment. Use set_env() to give it one.")


class OfflineVecEnv(DummyVecEnv):
    """Stand-ins only: there is no environment behind them."""


def offline_vec_env(
    observation_space: spaces.Space, action_space: spaces.Space, observation: np.ndarray, n_envs: int = 1
) -> VecEnv:
    """
    :param observation_space: Box
    :param action_space: Box
    :param observation: what ``reset`` returns
    :param n_envs: how many environments to stand in for
    """
    # Wrapped like any environment SB3 makes itself, so that callbacks see the types they expect.
    return OfflineVecEnv([lambda: Monitor(OfflineEnv(observation_space, action_space, observation))] * n_envs)
