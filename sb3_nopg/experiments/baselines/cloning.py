"""Do what was recorded: regression of actions on states, and doing nothing at all."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import ConstantSchedule, set_random_seed

from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy
from sb3_nopg.training.imitation import imitate


def clone_behavior(dataset: TransitionDataset, seed: int) -> DeterministicMlpPolicy:
    """
    Behaviour cloning with NOPG's own default network.

    :param dataset: what was done
    :param seed: of the network's first parameters
    :return: that does the mean of what was done near a state
    """
    set_random_seed(seed)
    # The schedule is for an optimiser that is never asked.
    policy = DeterministicMlpPolicy(
        *spaces_of(dataset), ConstantSchedule(1e-2), net_arch=[64, 64], activation_fn=th.nn.Tanh
    ).double()
    policy.fit_normalization(dataset.observations)
    imitate(policy, *(th.tensor(np.asarray(part), dtype=th.float64) for part in (dataset.observations, dataset.actions)))
    return policy


class Nothing:
    """
    The action zero, or the one next to it that there is; with SB3's ``predict``.

    :param action_space: Box
    """

    def __init__(self, action_space: spaces.Box):
        self._action = np.clip(np.zeros(action_space.shape, action_space.dtype), action_space.low, action_space.high)

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        """As in SB3, for one observation (d_s,) or several (m, d_s)."""
        return np.broadcast_to(self._action, (*np.shape(observation)[:-1], *self._action.shape)).copy(), state
