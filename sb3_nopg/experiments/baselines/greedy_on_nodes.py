"""
NOPG's own model of the system without its policy: value iteration on the nodes, and at every state the action that looks best
one step ahead. There is no network, no gradient and no judge.
"""

from typing import Any

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_nopg.bellman.value_iteration import candidate_actions
from sb3_nopg.common.arrays import regular_array
from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.prediction.model_estimator import ModelEstimator


class GreedyOnNodes:
    """
    Solved on construction; acts at any state afterwards.

        model = GreedyOnNodes(dataset, initial_states=[[-1.0, 0.0, 0.0]], gamma=0.97)
        action, _ = model.predict(observation)

    What was done before the last step does not count: like NOPG's policy, this is a function of what is observed now.

    :param dataset: the data
    :param initial_states: where the task starts, (n₀, d_s)
    :param gamma: discount
    :param seed: of the nodes
    :param device: to iterate values on; it acts on the processor
    :param model_settings: of :meth:`sb3_nopg.DynamicsModel.fit`
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        initial_states: ArrayLike,
        gamma: float,
        seed: int = 0,
        device: str = "cpu",
        **model_settings: Any,
    ):
        starts = np.atleast_2d(regular_array("initial_states", initial_states)).astype(np.float64)
        estimator = ModelEstimator.fit(dataset, starts, gamma, device, seed=seed, **model_settings)
        self._values, worst = estimator.greedy.values.cpu(), estimator.equation.worst
        self._model, self._gamma, self._worst = estimator.dynamics.to("cpu"), gamma, worst
        self.action_space = spaces_of(dataset)[1]
        low, high = (end.numpy() for end in self._model.action_range)
        self._candidates = th.from_numpy(candidate_actions(low, high))
        self.estimated_return = float(estimator.equation.initial_weights.cpu() @ self._values)

    @th.no_grad()
    def action_values(self, observations: np.ndarray) -> np.ndarray:
        """
        r(s, a) + γ V(s'), where a state that is not known has the worst value.

        :param observations: (m, d_s)
        :return: of each candidate at each of them, (m, c)
        """
        model, n = self._model, len(self._candidates)
        seen = np.repeat(np.asarray(observations, dtype=np.float64), n, axis=0)
        asked = self._candidates.repeat(len(observations), 1)
        reached, rewards = model.predict(seen, asked.numpy())
        states = model.coordinates.encode(th.from_numpy(reached))
        between, crossing = model.nodes.interpolation, model.bounds.cross(states)
        ahead = between.weights(states, between.locate(states)).mean(self._values)
        values = th.from_numpy(rewards) + self._gamma * (crossing.goes_on * ahead + crossing.unknown * self._worst)
        return values.view(-1, n).numpy()

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        """As in SB3, for one observation (d_s,) or several (m, d_s); always deterministic."""
        observation = np.asarray(observation)
        best = self.action_values(np.atleast_2d(observation)).argmax(axis=1)
        actions = self._candidates.numpy()[best].astype(self.action_space.dtype)
        return (actions[0] if observation.ndim == 1 else actions), state
