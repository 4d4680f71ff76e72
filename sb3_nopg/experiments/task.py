"""What is learned, from which data, and how it is judged."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost
from sb3_nopg.experiments.experiment import Result

Judged = TypeVar("Judged")


@dataclass(frozen=True)
class Task:
    """
    What is learned and how it is judged.

    :param make_env: for online learning, and for the spaces
    :param evaluate: return of anything that has ``predict``
    :param gamma: discount
    :param initial_states: where the task starts, (n₀, d_s)
    :param paper_name: of the task in :data:`sb3_nopg.experiments.baselines.PAPER_SETTINGS`;
        None where it has none
    :param paper_nopg: NOPG's settings in the paper's appendix that differ from task to task
    :param max_std: the paper's σ ≤ 1 in the environment's units, as a share of half the action range
    :param cost: for least squares and a Riccati equation; None where the system is not linear anywhere that matters
    :param model_settings: of NOPG's model, what a user would tell it of this task
    :param also: what else is looked at of the policy that a method ends with
    """

    make_env: Callable[[], gym.Env]
    evaluate: Callable[[Any], float]
    gamma: float
    initial_states: list[list[float]]
    paper_name: str | None = None
    paper_nopg: Mapping[str, Any] = field(default_factory=dict)
    max_std: float = 0.5
    cost: QuadraticCost | None = None
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    also: Callable[[Any], Result] | None = None

    def judge(self, model: Any) -> Result:
        """
        :param model: has ``predict``
        :return: ``return``, and what else is looked at
        """
        return {"return": self.evaluate(model), **self.look(model)}

    def look(self, model: Any) -> Result:
        """
        :param model: has ``predict``
        :return: what is looked at beside the return
        """
        return {} if self.also is None else self.also(model)


class Stopwatch:
    """What judging policies takes, which is no part of learning them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = time.perf_counter()

    def over(self, task: Task) -> Task:
        """
        :param task: to be timed
        :return: the same, whose judging is not counted
        """
        return replace(task, evaluate=self._timed(task.evaluate), also=None if task.also is None else self._timed(task.also))

    def learning_seconds(self) -> float:
        """Since it was made, without what was spent on judging."""
        return time.perf_counter() - self._began - self.seconds

    def _timed(self, judge: Callable[[Any], Judged]) -> Callable[[Any], Judged]:
        def timed(model: Any) -> Judged:
            began = time.perf_counter()
            try:
                return judge(model)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def total_reward(model: Any, env: gym.Env, *, n_steps: int | None = None, seed: int = 0) -> float:
    """
    Undiscounted return of one episode.

    :param model: has ``predict``
    :param env: to act in
    :param n_steps: after which it is cut; None for the environment's own limit
    :param seed: of the environment
    """
    observation, _ = env.reset(seed=seed)
    total, step, over, memory = 0.0, 0, False, None
    while not over:
        action, memory = model.predict(observation, state=memory, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, step = total + float(reward), step + 1
        over = terminated or truncated or step == n_steps
    return total


def dataset_of(arrays: dict[str, np.ndarray], env: gym.Env) -> TransitionDataset:
    """
    :param arrays: as ``nopg_envs`` collects them
    :param env: that they come from
    """
    content: dict[str, Any] = {**arrays, "observation_space": env.observation_space, "action_space": env.action_space}
    return TransitionDataset(**content)
