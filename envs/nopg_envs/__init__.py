"""
Simulators for learning and testing controllers offline. Needs neither torch nor Stable-Baselines3.

Importing the package makes its environments known to Gymnasium.
"""

import gymnasium as gym

from nopg_envs.collect import grid
from nopg_envs.pendulum import HangingPendulumEnv

__all__ = ["HangingPendulumEnv", "grid"]

gym.register("nopg/Pendulum-v0", entry_point="nopg_envs.pendulum:HangingPendulumEnv", max_episode_steps=500)
