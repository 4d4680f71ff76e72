"""
NOPG as one would write it from the paper: dense matrices, a dense solve, automatic differentiation through all of it.

It is the opponent of ``update_time.py``: plain, correct (log-space weights, float64) and without tricks either way.
"""

import numpy as np
import torch as th


class DenseNOPG:
    """
    :param data: arrays by name, as ``TransitionDataset`` takes them
    :param initial_states: (n₀, d_s)
    :param state_bandwidth: (d_s,)
    :param action_bandwidth: (d_a,)
    :param gamma: discount
    :param max_action: actions are ± this
    :param n_action_samples: draws of a stochastic policy's action; None for a deterministic policy
    """

    def __init__(
        self,
        data: dict[str, np.ndarray],
        initial_states: np.ndarray,
        state_bandwidth: np.ndarray,
        action_bandwidth: np.ndarray,
        gamma: float,
        max_action: float,
        n_action_samples: int | None = None,
        seed: int = 0,
    ):
        th.manual_seed(seed)
        self.states, self.actions, self.rewards, self.next_states, self.initial_states, self.h_state, self.h_action = (
            th.as_tensor(np.array(array, dtype=np.float64))
            for array in (
                data["observations"],
                data["actions"],
                data["rewards"],
                data["next_observations"],
                initial_states,
                state_bandwidth,
                action_bandwidth,
            )
        )
        self.gamma, self.max_action, self.n_action_samples = gamma, max_action, n_action_samples
        n_outputs = self.actions.shape[1] * (1 if n_action_samples is None else 2)
        self.network = th.nn.Sequential(th.nn.Linear(self.states.shape[1], 50), th.nn.ReLU(), th.nn.Linear(50, n_outputs))
        self.network.double()
        self.mean, self.std = self.states.mean(0), self.states.std(0)
        self.optimizer = th.optim.Adam(self.network.parameters(), lr=1e-2)

    def sample_actions(self, states: th.Tensor) -> th.Tensor:
        """:return: (m, a, d_a)"""
        output = self.network((states - self.mean) / self.std)
        if self.n_action_samples is None:
            return self.max_action * th.tanh(output)[:, None]
        mean, raw_std = output.chunk(2, dim=1)
        noise = th.randn(len(states), self.n_action_samples, self.actions.shape[1], dtype=th.float64)
        return self.max_action * th.tanh(mean)[:, None] + th.sigmoid(raw_std)[:, None] * noise

    def responsibilities(self, states: th.Tensor) -> th.Tensor:
        """:return: ε_π(s), (m, n)"""
        state_kernel = -0.5 * (((states[:, None] - self.states[None]) / self.h_state) ** 2).sum(-1)
        actions = self.sample_actions(states)
        action_kernel = -0.5 * (((actions[:, :, None] - self.actions[None, None]) / self.h_action) ** 2).sum(-1)
        return th.softmax(state_kernel[:, None] + action_kernel, dim=-1).mean(dim=1)

    def update(self) -> float:
        """One step of gradient ascent on Ĵ, and its value before the step."""
        transition = self.responsibilities(self.next_states)
        initial_weights = self.responsibilities(self.initial_states).mean(0)
        bellman_operator = th.eye(len(self.rewards), dtype=th.float64) - self.gamma * transition
        estimated_return = initial_weights @ th.linalg.solve(bellman_operator, self.rewards)
        self.optimizer.zero_grad()
        (-estimated_return).backward()
        self.optimizer.step()
        return float(estimated_return.detach())
