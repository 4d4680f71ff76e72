"""Do what was recorded: regression of actions on states, and doing nothing at all."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import ConstantSchedule, set_random_seed

from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy

_N_UPDATES, _BATCH, _LEARNING_RATE = 5000, 256, 2e-3


def clone_behavior(dataset: TransitionDataset, seed: int) -> DeterministicMlpPolicy:
    """
    Behaviour cloning, trained for as long as it takes to do what a controller did that holds up a pole: with a tenth of the
    updates nothing that was cloned does.

    :param dataset: what was done
    :param seed: of the network's first parameters, and of batches
    :return: that does the mean of what was done near a state
    """
    set_random_seed(seed)
    # The schedule is for an optimiser that is never asked.
    policy = DeterministicMlpPolicy(
        *spaces_of(dataset), ConstantSchedule(_LEARNING_RATE), net_arch=[128, 128], activation_fn=th.nn.ReLU
    )
    policy.fit_normalization(dataset.observations)
    observations, actions = (th.tensor(np.asarray(part), dtype=th.float32) for part in (dataset.observations, dataset.actions))
    optimizer = th.optim.Adam(policy.parameters(), lr=_LEARNING_RATE)
    slower = th.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=_N_UPDATES)
    generator = th.Generator().manual_seed(seed)
    for _ in range(_N_UPDATES):
        rows = th.randint(len(actions), (_BATCH,), generator=generator)
        missed = (policy.action_distribution(observations[rows])[0] - actions[rows]) / policy.action_half_range
        optimizer.zero_grad()
        missed.square().sum(dim=1).mean().backward()
        optimizer.step()
        slower.step()
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
