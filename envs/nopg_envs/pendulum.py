"""Gymnasium's pendulum, started where a swing-up starts."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class HangingPendulumEnv(PendulumEnv):
    """
    The under-powered pendulum of Gymnasium's ``Pendulum-v1``, hanging still at the start. θ = 0 is upright.

    ## Action space

    | index | action | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | torque | -2 | 2 | N m |

    ## Observation space

    | index | observation | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | cos θ | -1 | 1 | |
    | 1 | sin θ | -1 | 1 | |
    | 2 | θ̇ | -8 | 8 | rad/s |

    ## Reward

    ``-(θ² + 0.1 θ̇² + 0.001 u²)`` with θ in [-π, π); never terminal, truncated after 500 steps when made by its id.

    ## Start

    Hanging still, or anywhere: ``reset(options={"state": (theta, theta_dot)})``. ``state_space`` holds the ranges that a
    grid of queries covers.

    ## Version history

    * v0: first version
    """

    def __init__(self, render_mode: str | None = None, g: float = 10.0):
        super().__init__(render_mode=render_mode, g=g)
        high = np.array([np.pi, self.max_speed])
        self.state_space = spaces.Box(-high, high, dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        # The parent seeds the generator; what it draws is replaced.
        super().reset(seed=seed)
        unknown = set(options or {}) - {"state"}
        if unknown:
            raise ValueError(f"Unknown reset option {sorted(unknown)}: only 'state' is understood")
        state = np.array((options or {}).get("state", (np.pi, 0.0)), dtype=np.float64)
        if state.shape != (2,) or not np.all(np.isfinite(state)):
            raise ValueError(f"options['state'] must be two finite numbers (theta, theta_dot), got {state!r}")
        if abs(state[1]) > self.max_speed:
            raise ValueError(f"options['state']: theta_dot must lie within ±{self.max_speed} rad/s, got {state[1]}")
        self.state = state
        if self.render_mode == "human":
            self.render()
        return self._get_obs(), {}


def register() -> None:
    """Make the environment known to Gymnasium."""
    gym.register("nopg/Pendulum-v0", entry_point="nopg_envs.pendulum:HangingPendulumEnv", max_episode_steps=500)
