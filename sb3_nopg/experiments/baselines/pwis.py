"""
Path-wise importance sampling: G(PO)MDP on trajectories of another policy.

The return of a policy π, from episodes of a behaviour β, is estimated by

    Ĵ = Σ_t γᵗ mean_e(ρ_et r_et),     ρ_et = Π_{z≤t} π(a_ez|s_ez) / β(a_ez|s_ez)

and, as ∇ρ_et = ρ_et Σ_{z≤t} ∇log π(a_ez|s_ez), its derivative is the importance-sampled G(PO)MDP estimate: the paper's
Σ_t ρ_t Q(s_t, a_t) ∇log π(a_t|s_t), where Q is what the rest of the path earned, importance-weighted in its turn, and with the
discount γᵗ that the print leaves out. Both are unbiased, and their variance grows with every step.

Self-normalised weights are divided by their mean over episodes at each step, ρ_et / mean_e(ρ_et): biased, consistent, and of
bounded size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_nopg.bellman.gradient import flat_gradient
from sb3_nopg.common.arrays import regular_array
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines.densities import policy_log_density
from sb3_nopg.experiments.baselines.gradient_method import GradientMethod
from sb3_nopg.experiments.baselines.trajectories import RecordedTrajectories, find_recorded_trajectories
from sb3_nopg.policies.nopg_policy import GaussianLinearPolicy, GaussianMlpPolicy, NOPGPolicy

LogDensity = Callable[[np.ndarray, np.ndarray], np.ndarray]


def importance_weights(
    log_ratios: th.Tensor, taken: th.Tensor, known: th.Tensor, self_normalized: bool
) -> tuple[th.Tensor, th.Tensor]:
    """
    Weight of each reward in the estimate of the return, before the discount.

    :param log_ratios: log π - log β of each step, (episodes, steps); anything where there is no step
    :param taken: which steps there are, (episodes, steps)
    :param known: which rewards are known, zeros after a true end included, (episodes, steps)
    :param self_normalized: whether weights sum to one at each step
    :return: weights, and the effective number of episodes (Σρ)²/Σρ² at each step; (episodes, steps) and (steps,)
    """
    # An episode that is over keeps its weight.
    log_rho = th.cumsum(log_ratios.masked_fill(~taken, 0.0), dim=1)
    # Softmax over episodes: right also where every ρ by itself would be zero or infinite in floating point.
    shares = th.softmax(log_rho.masked_fill(~known, -th.inf), dim=0)
    weights = shares if self_normalized else (log_rho.exp() / known.sum(dim=0)).masked_fill(~known, 0.0)
    return weights, 1.0 / shares.detach().square().sum(dim=0)


@dataclass(frozen=True, eq=False)
class PWISEstimate:
    """
    :param discounted_return: Ĵ
    :param gradient: ∇Ĵ in the order of ``torch.nn.utils.parameters_to_vector(policy.parameters())``
    :param effective_episodes: how many episodes of the policy's own the weighted ones are worth, at each step
    """

    discounted_return: float
    gradient: np.ndarray
    effective_episodes: np.ndarray


class PWIS(GradientMethod):
    """
    Learn a stochastic policy by the importance-sampled G(PO)MDP gradient.

        behavior = mixture_behavior(env.action_space, seed=0)
        model = PWIS("MlpPolicy", dataset, behavior.log_density, gamma=0.97).learn(2000)

    Draws of a policy past an end of the action space are clipped to it. An action of the data on an end therefore counts with
    the probability of all draws beyond it, where the data set says what its ``action_space`` is.

    :param policy: ``"MlpPolicy"`` or ``"LinearPolicy"``, both Gaussian; a policy, or any module with
        ``log_prob(observations, actions)``
    :param dataset: recorded in episodes that begin where the task does
    :param behavior_log_density: log β(a|s) of the policy that recorded the data: a function of states (n, d_s) and actions
        (n, d_a), or the number of each row, (n,); for an action clipped to an end, the log-probability of being clipped
    :param learning_rate: of Adam; the paper's is 10⁻² on the pendulum, 10⁻³ on the cart-pole and 2.5·10⁻⁴ on the LQR
    :param gamma: discount
    :param self_normalized: divide weights by their mean at each step
    :param policy_kwargs: further arguments of a policy that is made here
    :param normalize_observations: let the policy see observations normalised by the data's mean and standard deviation
    :param seed: of the policy's first parameters
    :param verbose: 1 for a table of progress
    """

    policies: ClassVar[dict[str, type[NOPGPolicy]]] = {"MlpPolicy": GaussianMlpPolicy, "LinearPolicy": GaussianLinearPolicy}

    def __init__(
        self,
        policy: str | type[NOPGPolicy] | th.nn.Module,
        dataset: TransitionDataset,
        behavior_log_density: LogDensity | ArrayLike | None,
        learning_rate: float = 1e-2,
        gamma: float = 0.99,
        self_normalized: bool = False,
        policy_kwargs: dict[str, Any] | None = None,
        normalize_observations: bool = True,
        seed: int | None = None,
        verbose: int = 0,
    ):
        # Before anything else: without these two the method does not apply.
        trajectories = find_recorded_trajectories(dataset)
        log_behavior = _behavior_density(behavior_log_density, dataset)
        super().__init__(policy, dataset, learning_rate, gamma, policy_kwargs, normalize_observations, seed, verbose)
        self.self_normalized = self_normalized
        self._observations, self._actions = self._tensor(dataset.observations), self._tensor(dataset.actions)
        self._bounds = None
        # The range of the actions seen is no bound that anything was clipped to.
        if dataset.action_space is not None:
            self._bounds = self._tensor(self.action_space.low), self._tensor(self.action_space.high)
        self._log_behavior = self._tensor(log_behavior)
        self._set_trajectories(trajectories)
        # A policy without density is noticed now and not in the first update.
        self._objective()

    def _set_trajectories(self, trajectories: RecordedTrajectories) -> None:
        self._rows, self._taken, self._known = (
            th.as_tensor(array, device=self.device) for array in (trajectories.rows, trajectories.taken, trajectories.known)
        )
        discounts = self.gamma ** np.arange(trajectories.rows.shape[1])
        rewards = np.where(trajectories.taken, self.dataset.rewards[trajectories.rows], 0.0)
        self._discounted_rewards = self._tensor(discounts * rewards)

    def _objective(self) -> tuple[th.Tensor, th.Tensor]:
        """:return: Ĵ, differentiable in the policy's parameters, and the effective number of episodes at each step"""
        log_policy = policy_log_density(self.policy, self._observations, self._actions, self._bounds)
        log_ratios = (log_policy - self._log_behavior)[self._rows]
        weights, effective = importance_weights(log_ratios, self._taken, self._known, self.self_normalized)
        return (weights * self._discounted_rewards).sum(), effective

    def estimate(self) -> PWISEstimate:
        """Return and gradient of the policy as it is."""
        objective, effective = self._objective()
        gradient = flat_gradient(objective, self.policy)
        return PWISEstimate(objective.item(), gradient.cpu().numpy(), effective.cpu().numpy())

    def _make_update(self, total_timesteps: int) -> None:
        objective, effective = self._objective()
        self.optimizer.zero_grad()
        (-objective).backward()
        gradients = [parameter.grad for parameter in self.policy.parameters() if parameter.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise SolverError(
                f"Importance weights overflowed in update {self.num_timesteps + 1}: the policy is too far from the behaviour. "
                "Use self_normalized=True, a lower learning rate, or shorter episodes."
            )
        self.optimizer.step()
        self.logger.record("train/return_estimate", objective.item())
        self.logger.record("train/effective_episodes", effective[-1].item())


def _behavior_density(given: LogDensity | ArrayLike | None, dataset: TransitionDataset) -> np.ndarray:
    """:return: log β(a|s) of each row, (n,)"""
    name = "behavior_log_density"
    if given is None:
        raise InputError(
            name,
            "is missing",
            "Importance weights need log β(a|s) of the policy that recorded the data, as a function or one number a row; "
            "where nobody knows it, as with a human's demonstrations, use NOPG",
        )
    density = regular_array(name, given(dataset.observations, dataset.actions) if callable(given) else given)
    if density.dtype.kind not in "fiu" or density.shape != (len(dataset),):
        raise InputError(
            name, f"dtype {density.dtype}, shape {density.shape}", f"Give one number for each row, ({len(dataset)},)"
        )
    impossible = ~np.isfinite(density)
    if impossible.any():
        first = int(impossible.argmax())
        raise InputError(
            name,
            f"{density[first]} at row {first}, {int(impossible.sum())} row(s) in all",
            "The behaviour took these actions, so its density there is neither zero nor infinite: check which policy it was",
        )
    return density.astype(np.float64)
