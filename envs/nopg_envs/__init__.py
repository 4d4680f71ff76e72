"""
Simulators for learning and testing controllers offline. Needs neither torch nor Stable-Baselines3.

Importing the package makes its environments known to Gymnasium, and so does naming it: ``gym.make("nopg_envs:nopg/LQR-v0")``.
"""

import gymnasium as gym

from nopg_envs import cartpole, lqr, pendulum
from nopg_envs.cartpole import CartPoleParameters, CartPoleVectorEnv, QuanserCartPoleBalanceEnv, QuanserCartPoleSwingUpEnv
from nopg_envs.collect import grid, rollouts
from nopg_envs.lqr import LQREnv
from nopg_envs.pendulum import HangingPendulumEnv

__all__ = [
    "CartPoleParameters",
    "CartPoleVectorEnv",
    "HangingPendulumEnv",
    "LQREnv",
    "QuanserCartPoleBalanceEnv",
    "QuanserCartPoleSwingUpEnv",
    "grid",
    "register_envs",
    "rollouts",
]


def register_envs() -> None:
    """Make the environments known to Gymnasium, once."""
    if "nopg/Pendulum-v0" not in gym.registry:
        pendulum.register()
        lqr.register()
        cartpole.register()


register_envs()
