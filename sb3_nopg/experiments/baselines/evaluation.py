"""Evaluations during training, every one kept: some methods are judged by their best, others by their last."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count


@dataclass(frozen=True)
class Evaluation:
    """
    :param n_updates: of the policy before it was evaluated
    :param value: what the evaluation gave, a return usually
    """

    n_updates: int
    value: float


class BestEvaluation(BaseCallback):
    """
    Evaluate before the first update, after every so many, and after the last.

    The paper reports the last evaluation of NOPG, and the best one of offline DDPG and of PWIS since their learning is
    unstable. The best of many looks at the simulator while it learns: it flatters, and is no measure of what a user without
    a simulator gets.

    :param evaluate: takes the model, which has ``predict``, and returns a number, larger is better
    :param every: updates between two evaluations
    """

    def __init__(self, evaluate: Callable[[Any], float], every: int = 100):
        super().__init__()
        check_count("every", every)
        self.evaluate, self.every = evaluate, int(every)
        self.evaluations: list[Evaluation] = []
        self._best_parameters: dict[str, th.Tensor] = {}

    @property
    def best(self) -> Evaluation:
        """The first of the best after an update, where there was one: chance is no merit. NaN is never the best."""
        self._check_any()
        learned = [evaluation for evaluation in self.evaluations if evaluation.n_updates > 0] or self.evaluations
        return max(learned, key=lambda evaluation: (not np.isnan(evaluation.value), evaluation.value))

    @property
    def last(self) -> Evaluation:
        self._check_any()
        return self.evaluations[-1]

    def restore_best(self) -> None:
        """Give the model the policy that was evaluated best."""
        self._check_any()
        self.model.policy.load_state_dict(self._best_parameters)

    def _check_any(self) -> None:
        if not self.evaluations:
            raise InputError("callback", "nothing was evaluated yet", "Pass it to learn() first")

    def _on_training_start(self) -> None:
        self._evaluate_once()

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self._evaluate_once()
        return True

    def _on_training_end(self) -> None:
        self._evaluate_once()

    def _evaluate_once(self) -> None:
        n_updates = int(self.model.num_timesteps)
        if self.evaluations and self.evaluations[-1].n_updates == n_updates:
            return
        evaluation = Evaluation(n_updates, float(self.evaluate(self.model)))
        self.evaluations.append(evaluation)
        if self.best is evaluation:
            state = self.model.policy.state_dict()
            self._best_parameters = {name: tensor.detach().clone() for name, tensor in state.items()}
