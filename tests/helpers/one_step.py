"""A task that is over after one step, as an environment and as data."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_nopg import TransitionDataset

ACTIONS = spaces.Box(-2.0, 2.0, (1,), np.float32)
STATES = spaces.Box(-5.0, 5.0, (1,), np.float32)


class Untouchable(gym.Env):
    """Fails whoever tries it out."""

    observation_space, action_space = STATES, ACTIONS

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("somebody reset the environment")

    def step(self, action):
        raise RuntimeError("somebody stepped the environment")


class OneStep(Untouchable):
    """Every episode one step long; the best action is the state."""

    def reset(self, *, seed=None, options=None):
        super(Untouchable, self).reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.state, {}

    def step(self, action):
        return self.state, -float((action[0] - self.state[0]) ** 2), True, False, {}


def one_step_data(n: int = 400) -> TransitionDataset:
    """r = -(a - s)², and it is over: the best action is the state."""
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1.0, 1.0, (n, 1)), rng.uniform(-2.0, 2.0, (n, 1))
    terminals = np.ones(n, dtype=bool)
    terminals[0] = False
    return TransitionDataset(states, actions, -((actions - states) ** 2)[:, 0], states, terminals, action_space=ACTIONS)
