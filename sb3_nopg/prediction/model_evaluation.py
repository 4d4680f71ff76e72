"""What a policy is worth by a model of the system: it is followed from where it is asked about, until little counts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch as th
from scipy.special import stdtrit

from sb3_nopg.bellman.bundle import Bundle, follow_policy
from sb3_nopg.bellman.gradient import gradient_along_trajectories
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import draw_noise
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.prediction.uncertainty import ReturnInterval

# Trajectories that a return is the mean of, and states that are followed at one time.
_LEAST_TRAJECTORIES, _MOST_STARTS, _CHUNK = 64, 512, 1024
# Draws of the noise that the value of any state is the mean of.
_N_DRAWS = 4


class ModelEvaluation:
    """
    :param estimator: data, model and start states
    :param policy: at its current parameters, whatever these are when a question is asked
    :param seed: of the noise, so that all policies meet the same
    """

    def __init__(self, estimator: ModelEstimator, policy: NOPGPolicy, seed: int):
        self.estimator, self.policy, self.seed = estimator, policy, seed

    def estimated_return(self) -> float:
        """Ĵ, discounted, the mean over start states and noise."""
        bundle = self._bundle(self._starts())
        return float(follow_policy(self.estimator.dynamics, self.policy, bundle).returns.mean())

    def return_interval(self, halves: Sequence[DynamicsModel], level: float = 0.95) -> ReturnInterval:
        """
        How much Ĵ depends on which episodes happened to be recorded, by half-sample replication (McCarthy 1969): a model of
        half of the episodes differs from the model of all about as much as that one differs from the model of many more.

        :param halves: models of one half of the episodes each, two that share none after the other
        :param level: how sure
        """
        estimate, device = self.estimated_return(), self.estimator.dynamics.noise.device
        parts = (replace(self.estimator, dynamics=half.to(device)) for half in halves)
        found = np.array([ModelEvaluation(part, self.policy, self.seed).estimated_return() for part in parts])
        # Two that share none err to opposite sides: only pairs are independent of each other.
        quantile = float(stdtrit(max(len(halves) // 2, 1), 0.5 + 0.5 * level))
        reach = quantile * float(np.sqrt(np.square(found - estimate).mean()))
        return ReturnInterval(estimate, estimate - reach, estimate + reach, level, found)

    def value(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: (m, d_s)
        :return: discounted return from each, (m,)
        """
        dynamics = self.estimator.dynamics
        states = dynamics.coordinates.encode(th.from_numpy(np.array(observations, dtype=np.float64)).to(dynamics.noise.device))
        chunks = [self._mean_return(chunk) for chunk in states.split(_CHUNK)]
        return th.cat(chunks).cpu().numpy()

    def _mean_return(self, states: th.Tensor) -> th.Tensor:
        """Of each state over a few draws of the noise, the same for all, so that results do not depend on batching, (m,)."""
        drawn, m = self._bundle(states[:1].expand(_N_DRAWS, -1)), len(states)

        def for_all(noise: th.Tensor | None) -> th.Tensor | None:
            return None if noise is None else noise.repeat_interleave(m, dim=1)

        bundle = replace(
            drawn, starts=states.repeat(_N_DRAWS, 1), noise=for_all(drawn.noise), action_noise=for_all(drawn.action_noise)
        )
        return follow_policy(self.estimator.dynamics, self.policy, bundle).returns.view(_N_DRAWS, m).mean(dim=0)

    def gradient(self) -> np.ndarray:
        """∇Ĵ with respect to the policy's parameters in the order of ``policy.parameters()``, flat, (p,)."""
        parameters = list(self.policy.parameters())
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        gradient_along_trajectories(self.estimator.dynamics, self.policy, self._bundle(self._starts()))
        found = [th.zeros_like(p) if p.grad is None else -p.grad for p in parameters]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return th.cat([gradient.reshape(-1) for gradient in found]).cpu().numpy()

    def visitation(self) -> np.ndarray:
        """How often, discounted, trajectories pass each recorded transition: each counts for the nearest one, (n,)."""
        estimator, starts = self.estimator, self._starts()
        trajectories = follow_policy(estimator.dynamics, self.policy, self._bundle(starts))
        n_steps, m = trajectories.rewards.shape
        discounts = estimator.gamma ** th.arange(n_steps, dtype=th.float64, device=starts.device)[:, None]
        weights = (discounts * trajectories.survival[:-1] / m).flatten().cpu().numpy()
        nearest = estimator.nearest_samples(trajectories.states[:-1].flatten(0, 1))
        return np.bincount(nearest, weights, minlength=len(estimator.dataset))

    def _starts(self) -> th.Tensor:
        """Start states, several times where there are few."""
        starts = self.estimator.starts[:_MOST_STARTS]
        return starts.repeat(-(-_LEAST_TRAJECTORIES // len(starts)), 1)

    def _bundle(self, starts: th.Tensor) -> Bundle:
        estimator, generator = self.estimator, th.Generator().manual_seed(self.seed % 2**63)
        n_steps = estimator.steps_to_the_end
        noise = draw_noise(estimator.dynamics, n_steps, len(starts), generator)
        drawn = None
        if self.policy.is_stochastic:
            shape = (n_steps, len(starts), self.policy.n_actions)
            drawn = th.randn(shape, generator=generator, dtype=th.float64).to(starts.device)
        return Bundle(starts, n_steps, estimator.gamma, noise, drawn)
