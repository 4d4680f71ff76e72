"""What can be asked of a model: its :class:`.Estimator` knows the data, its :class:`.PolicyEvaluation` the policy."""

from abc import ABC, abstractmethod

import numpy as np

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.rollouts import Rollouts
from sb3_nopg.prediction.uncertainty import Region, ReturnInterval


class Questions(ABC):
    """For a model with a policy and data."""

    @property
    @abstractmethod
    def estimator(self) -> Estimator:
        """All that follows from data and settings, and nothing of the policy."""

    @property
    def training_data(self) -> TransitionDataset:
        """The data that the policy is optimised on: all that is attached, less what is held out."""
        return self.estimator.dataset

    @property
    def start_states(self) -> np.ndarray:
        """Where the task starts, (n₀, d_s)."""
        return self.estimator.start_states

    @property
    def dynamics(self) -> DynamicsModel:
        """The model of the system that the data make; fitted at the first call."""
        return self.estimator.dynamics

    @property
    @abstractmethod
    def evaluation(self) -> PolicyEvaluation:
        """Answers every question about the policy, at its current parameters."""

    def _evaluation_on(self, dataset: TransitionDataset | None) -> PolicyEvaluation:
        return self.evaluation if dataset is None else self.evaluation.on(dataset)

    def estimated_return(self, dataset: TransitionDataset | None = None) -> float:
        """Ĵ by the data, or by others: :meth:`.PolicyEvaluation.estimated_return`."""
        return self._evaluation_on(dataset).estimated_return()

    def return_interval(
        self, level: float = 0.95, n_resamples: int = 200, dataset: TransitionDataset | None = None, seed: int = 0
    ) -> ReturnInterval:
        """How much Ĵ depends on which episodes happened to be recorded: :meth:`.PolicyEvaluation.return_interval`."""
        return self._evaluation_on(dataset).return_interval(level, n_resamples, seed)

    def exit_probability(self, inside: Region, dataset: TransitionDataset | None = None) -> float:
        """Discounted probability that the policy leaves a region of states: :meth:`.PolicyEvaluation.exit_probability`."""
        return self._evaluation_on(dataset).exit_probability(inside)

    def trajectories(self, n_steps: int, starts: np.ndarray | None = None) -> Rollouts:
        """Where the policy will take the system step by step: :meth:`.PolicyEvaluation.trajectories`."""
        return self.evaluation.trajectories(n_steps, starts)

    def value(self, observations: np.ndarray) -> np.ndarray:
        """V̂(s), the discounted return expected from any state: :meth:`.PolicyEvaluation.value`."""
        return self.evaluation.value(observations)

    def state_distribution(self, observations: np.ndarray) -> np.ndarray:
        """The paper's picture of where the policy goes: :meth:`.PolicyEvaluation.state_distribution`."""
        return self.evaluation.state_distribution(observations)

    def support(self, observations: np.ndarray, action: np.ndarray | None = None) -> np.ndarray:
        """How many samples stand behind the estimates at a state and action: :meth:`.PolicyEvaluation.support`."""
        return self.evaluation.support(observations, action)

    def effective_sample_size(self) -> float:
        """On how many transitions the estimated return rests: :meth:`.PolicyEvaluation.effective_sample_size`."""
        return self.evaluation.effective_sample_size()

    def effective_sample_share(self) -> float:
        """:meth:`effective_sample_size` as a share of the data, between 0 and 1."""
        return self.evaluation.effective_sample_share()

    @property
    def q_values(self) -> np.ndarray:
        """q, the value of each transition of the data when the policy takes over after it, (n,)."""
        return self.evaluation.q_values()

    @property
    def visitation(self) -> np.ndarray:
        """μ, how often, discounted, the policy is expected to pass by each transition of the data, (n,)."""
        return self.evaluation.visitation()

    def policy_gradient(self) -> np.ndarray:
        """∇Ĵ with respect to the policy's parameters in the order of ``policy.parameters()``, flat, (p,)."""
        return self.evaluation.gradient()
