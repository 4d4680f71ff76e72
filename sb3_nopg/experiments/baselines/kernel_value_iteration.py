"""
Kernel value iteration: NOPG's kernels and Bellman equation, and at every state the best of a handful of actions (kernel-based
reinforcement learning; Ormoneit and Sen, 2002). There is no policy to parametrise and nothing to get stuck in.
"""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike
from stable_baselines3.common.type_aliases import GymEnv

from sb3_nopg.bellman.settings import grouped
from sb3_nopg.bellman.value_iteration import candidate_actions
from sb3_nopg.common.arrays import regular_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines.value_iteration import iterate_candidate_values
from sb3_nopg.nopg import NOPG


class KernelValueIteration:
    """
    Solved on construction; acts greedily afterwards, at any state.

        model = KernelValueIteration(dataset, env, gamma=0.97, initial_states=[-1.0, 0.0, 0.0])
        action, _ = model.predict(observation)

    :param dataset: the data
    :param env: for its spaces; None to take them from the data
    :param candidates: actions to choose among, (c, d_a); None for a grid over the action space
    :param settings: what concerns the kernels and the equation, as of :class:`sb3_nopg.NOPG`: ``gamma``, ``initial_states``,
        ``weights``, ``pessimism``, bandwidths and their rules, neighbours, precision, device, seed
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        env: GymEnv | str | None = None,
        *,
        candidates: ArrayLike | None = None,
        **settings: Any,
    ):
        # Its policy is never asked: it holds the data, chooses the bandwidths and prepares the equation.
        self._model = NOPG("MlpPolicy", env, dataset=dataset, **grouped(settings))
        self.action_space: spaces.Box = self._model.action_space
        self._problem = self._model.estimator.problem
        ends = self.action_space.low.astype(np.float64), self.action_space.high.astype(np.float64)
        actions = candidate_actions(*ends) if candidates is None else _check(candidates, self.action_space)
        choice = iterate_candidate_values(self._problem, th.as_tensor(actions).to(self._problem.rewards))
        self.candidates = actions
        self.estimated_return, self.n_rounds = choice.estimated_return, choice.n_rounds
        self.q_values: np.ndarray = self._problem.to_data_order(choice.q_values).cpu().numpy()
        self._tensors = choice.candidates, choice.q_values

    @th.no_grad()
    def action_values(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: (m, d_s)
        :return: value of each candidate at each of them, (m, c)
        """
        problem, (candidates, q_values) = self._problem, self._tensors
        queries = problem.support.locate(th.tensor(np.asarray(observations)).to(problem.rewards), problem.queries.neighbors)
        weights = problem.support.weights(queries, candidates.expand(len(queries), -1, -1))
        worst = problem.worst_value
        values = worst + th.einsum("mck,mk->mc", weights, queries.neighbors.gather(q_values - worst))
        return values.cpu().numpy()

    def predict(
        self,
        observation: np.ndarray,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in SB3, for one observation (d_s,) or several (m, d_s); always deterministic."""
        observation = np.asarray(observation)
        best = self.action_values(np.atleast_2d(observation)).argmax(axis=1)
        actions = self.candidates[best].astype(self.action_space.dtype)
        return (actions[0] if observation.ndim == 1 else actions), state


def _check(candidates: ArrayLike, action_space: spaces.Box) -> np.ndarray:
    actions = regular_array("candidates", candidates)
    if actions.ndim != 2 or actions.shape[1:] != action_space.shape or len(actions) == 0:
        raise InputError("candidates", f"shape {actions.shape}", f"Give one action a row, (c, {action_space.shape[0]})")
    if not ((actions >= action_space.low) & (actions <= action_space.high)).all():
        raise InputError("candidates", f"some lie outside of {action_space}", "Give actions that the system takes")
    return actions.astype(np.float64)
