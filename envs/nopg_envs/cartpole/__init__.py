"""The Quanser IP02 cart with a pole: parameters, physics, what a rig adds, and environments for one cart or many."""

import gymnasium as gym

from nopg_envs.cartpole.dynamics import linearize
from nopg_envs.cartpole.env import QuanserCartPoleBalanceEnv, QuanserCartPoleSwingUpEnv
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.cartpole.vector import CartPoleVectorEnv

__all__ = [
    "PARAMETER_SETS",
    "CartPoleParameters",
    "CartPoleVectorEnv",
    "QuanserCartPoleBalanceEnv",
    "QuanserCartPoleSwingUpEnv",
    "linearize",
    "register",
]


def register() -> None:
    """Make the environments known to Gymnasium."""
    gym.register(
        "nopg/QuanserCartPoleBalance-v0",
        entry_point="nopg_envs.cartpole.env:QuanserCartPoleBalanceEnv",
        vector_entry_point="nopg_envs.cartpole.vector:BalanceVectorEnv",
        max_episode_steps=10_000,
    )
    gym.register(
        "nopg/QuanserCartPoleSwingUp-v1",
        entry_point="nopg_envs.cartpole.env:QuanserCartPoleSwingUpEnv",
        vector_entry_point="nopg_envs.cartpole.vector:SwingUpVectorEnv",
        max_episode_steps=500,
    )
