"""Gymnasium's pendulum, started where a swing-up starts."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from nopg_envs.checks import one_number, real_array

HANGING, UPRIGHT = (np.pi, 0.0), (0.0, 0.0)


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

    Hanging still. For one episode: ``reset(options={"start": "paper"})``, upright and still, where the paper's random agent
    starts; or anywhere, ``reset(options={"state": (theta, theta_dot)})``. ``state_space`` holds the ranges that a grid of
    queries covers.

    ## Version history

    * v0: first version
    """

    metadata = {  # noqa: RUF012 (Gymnasium declares it so)
        **PendulumEnv.metadata,
        # As of the cart-pole: data with other names in this order, or with other units, are refused.
        "observation_names": ("cos_theta", "sin_theta", "theta_dot"),
        "observation_units": ("1", "1", "rad/s"),
        "action_names": ("torque",),
        "action_units": ("N m",),
        # What is wanted in the end, as reports ask it of predicted trajectories: within 18° of upright.
        "goal": "cos_theta > 0.95",
    }

    def __init__(self, render_mode: str | None = None, g: float = 10.0):
        known = self.metadata["render_modes"]
        if render_mode not in (None, *known):
            raise ValueError(f"render_mode: unknown {render_mode!r}; known are {', '.join(known)}")
        super().__init__(render_mode=render_mode, g=g)
        high = np.array([np.pi, self.max_speed])
        self.state_space = spaces.Box(-high, high, dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        state = self._start(options or {})
        # The parent seeds the generator; what it draws is replaced.
        super().reset(seed=seed)
        self.state = state
        if self.render_mode == "human":
            self.render()
        return self._get_obs(), {}

    def step(self, u: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        one_number("action", u)
        return super().step(np.asarray(u))

    def _start(self, options: dict[str, Any]) -> np.ndarray:
        unknown = set(options) - {"state", "start"}
        if unknown:
            raise ValueError(f"Unknown reset option {sorted(unknown)}: 'state' and 'start' are understood")
        if len(options) == 2:
            raise ValueError("options: give 'state' or 'start', not both")
        if "start" in options and options["start"] != "paper":
            raise ValueError(f"options['start']: unknown {options['start']!r}; known is paper")
        state = real_array("options['state']", options.get("state", UPRIGHT if "start" in options else HANGING))
        if state.shape != (2,) or not np.all(np.isfinite(state)):
            raise ValueError(f"options['state'] must be two finite numbers (theta, theta_dot), got {state!r}")
        if abs(state[1]) > self.max_speed:
            raise ValueError(f"options['state']: theta_dot must lie within ±{self.max_speed} rad/s, got {state[1]}")
        return state


def register() -> None:
    """Make the environment known to Gymnasium."""
    gym.register("nopg/Pendulum-v0", entry_point="nopg_envs.pendulum:HangingPendulumEnv", max_episode_steps=500)
