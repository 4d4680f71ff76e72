"""
Offline deterministic policy gradient with a quadratic Q-function: the semi-gradient baseline of the LQR experiment.

The critic follows its temporal-difference error with the targets held constant, the policy follows ∂Q/∂a at the data's states
as though the policy mattered neither for Q nor for where one goes. The two are what "semi-gradient" leaves out.

The paper's Q(x, u) = xᵀQx + uᵀRu has no term that joins x and u. The true Q-function of a linear system has one, 2γ xᵀAᵀPBu,
unless it forgets its state at once; so ∂Q/∂u at u = Kx is 2RKx, which never knows the sign that K should have. That is bias of
the function class on top of the semi-gradient's. ``cross_terms=True`` adds the missing term.
"""

import copy
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.utils import polyak_update

from sb3_nopg.bellman.gradient import flat_gradient
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines.gradient_method import GradientMethod
from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy, DeterministicMlpPolicy, NOPGPolicy


class QuadraticCritic(th.nn.Module):
    """
    Q(x, u) = zᵀWz with z = (x, u), in float64.

    :param observation_dim: d_s
    :param action_dim: d_a
    :param cross_terms: whether W joins x and u; without, it is block-diagonal as in the paper
    """

    mask: th.Tensor

    def __init__(self, observation_dim: int, action_dim: int, cross_terms: bool = False):
        super().__init__()
        size = observation_dim + action_dim
        mask = th.ones(size, size, dtype=th.float64)
        if not cross_terms:
            mask[:observation_dim, observation_dim:] = 0.0
            mask[observation_dim:, :observation_dim] = 0.0
        self.register_buffer("mask", mask)
        self.weight = th.nn.Parameter(th.zeros(size, size, dtype=th.float64))

    @property
    def matrix(self) -> th.Tensor:
        """W, symmetric, (d_s + d_a, d_s + d_a)."""
        return self.mask * (self.weight + self.weight.T) / 2

    def forward(self, observations: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param observations: (n, d_s)
        :param actions: (n, d_a)
        :return: (n,)
        """
        z = th.cat([observations.double(), actions.double()], dim=1)
        return th.einsum("ni,ij,nj->n", z, self.matrix, z)

    def features(self, observations: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """Products z_i z_j of the entries that W may have, i ≤ j, (n, features); Q is linear in them."""
        z = th.cat([observations.double(), actions.double()], dim=1)
        rows, columns = self._entries()
        return z[:, rows] * z[:, columns]

    def set_coefficients(self, coefficients: th.Tensor) -> None:
        """:param coefficients: of :meth:`features`, (features,)"""
        rows, columns = self._entries()
        with th.no_grad():
            self.weight.zero_()
            # z_i z_j appears twice in zᵀWz off the diagonal.
            shares = th.where(rows == columns, coefficients, coefficients / 2)
            self.weight[rows, columns] = shares
            self.weight[columns, rows] = shares

    def _entries(self) -> tuple[th.Tensor, th.Tensor]:
        rows, columns = th.nonzero(th.triu(self.mask), as_tuple=True)
        return rows, columns


class OfflineDPG(GradientMethod):
    """
    DPG on a fixed data set, all of it in every update, with target networks for policy and critic.

    The paper prints the policy's learning rate, γ and τ; that of the critic and its steps for each of the policy's are ours.

    :param policy: ``"LinearPolicy"`` or ``"MlpPolicy"``, both deterministic, or a policy
    :param dataset: transitions; trajectories are not needed
    :param learning_rate: of Adam for the policy
    :param critic_learning_rate: of Adam for the critic
    :param n_critic_updates: steps of the critic for each of the policy
    :param gamma: discount
    :param tau: how far the targets move to the learned ones with each step of the critic
    :param cross_terms: let Q join state and action, see above
    :param policy_kwargs: further arguments of a policy that is made here
    :param normalize_observations: let the policy see observations normalised by the data's mean and standard deviation
    :param seed: of the policy's first parameters
    :param verbose: 1 for a table of progress
    """

    policies: ClassVar[dict[str, type[NOPGPolicy]]] = {
        "LinearPolicy": DeterministicLinearPolicy,
        "MlpPolicy": DeterministicMlpPolicy,
    }

    def __init__(
        self,
        policy: str | type[NOPGPolicy] | th.nn.Module,
        dataset: TransitionDataset,
        learning_rate: float = 0.5,
        critic_learning_rate: float = 0.01,
        n_critic_updates: int = 1,
        gamma: float = 0.9,
        tau: float = 0.01,
        cross_terms: bool = False,
        policy_kwargs: dict[str, Any] | None = None,
        normalize_observations: bool = True,
        seed: int | None = None,
        verbose: int = 0,
    ):
        super().__init__(policy, dataset, learning_rate, gamma, policy_kwargs, normalize_observations, seed, verbose)
        check_number("critic_learning_rate", critic_learning_rate, 0.0, np.inf)
        check_number("tau", tau, 0.0, 1.0, low_included=True, high_included=True)
        check_count("n_critic_updates", n_critic_updates)
        if not isinstance(self.policy, NOPGPolicy) or self.policy.is_stochastic:
            raise InputError(
                "policy", f"{type(self.policy).__name__} is not deterministic", "Give DeterministicLinearPolicy or one like it"
            )
        self.tau, self.n_critic_updates = float(tau), int(n_critic_updates)
        self.critic = QuadraticCritic(dataset.observation_dim, dataset.action_dim, cross_terms).to(self.device)
        self.policy_target, self.critic_target = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        self.critic_optimizer = th.optim.Adam(self.critic.parameters(), lr=float(critic_learning_rate))
        self._observations, self._actions = self._tensor(dataset.observations), self._tensor(dataset.actions)
        self._next_observations, self._rewards = self._tensor(dataset.next_observations), self._tensor(dataset.rewards)
        self._discounts = self.gamma * (1.0 - self._tensor(dataset.terminals))

    def critic_loss(self) -> th.Tensor:
        """Mean squared temporal-difference error, the targets held constant."""
        with th.no_grad():
            next_actions, _ = self.policy_target.action_distribution(self._next_observations)
            targets = self._rewards + self._discounts * self.critic_target(self._next_observations, next_actions)
        return (self.critic(self._observations, self._actions) - targets).square().mean()

    def policy_objective(self) -> th.Tensor:
        """Mean of Q(s, π(s)) over the data's states; only π is differentiated."""
        actions, _ = self.policy.action_distribution(self._observations)
        return self.critic(self._observations, actions).mean()

    def semi_gradient(self) -> np.ndarray:
        """Derivative of :meth:`policy_objective` in the order of ``torch.nn.utils.parameters_to_vector``."""
        return flat_gradient(self.policy_objective(), self.policy).cpu().numpy()

    def fit_critic(self) -> None:
        """
        Put the critic and its target where the critic's learning would rest if the policy were held: at the fixed point
        Φᵀ(Φ - γΦ') w = Φᵀr of the temporal-difference step. For gradients that do not depend on how far the critic has come;
        far from the policy's own data learning runs away from this point instead of towards it.

        :raises SolverError: where there is no such point
        """
        with th.no_grad():
            features = self.critic.features(self._observations, self._actions)
            next_actions, _ = self.policy.action_distribution(self._next_observations)
            following = self._discounts[:, None] * self.critic.features(self._next_observations, next_actions)
            # Each feature in units of its own size: an unstable system's squares span many powers of ten.
            scale = features.square().mean(dim=0).sqrt()
            scale = th.where(scale > 0, scale, th.ones_like(scale))
            features, following = features / scale, following / scale
            n = len(features)
            matrix, right_side = features.T @ (features - following) / n, features.T @ self._rewards / n
            # Of least norm where data that never vary leave some coefficients open. Entries are of size one, hence atol.
            solution = th.linalg.pinv(matrix, atol=1e-10, rtol=0.0) @ right_side
            residual = float((matrix @ solution - right_side).norm() / right_side.norm().clamp_min(1e-300))
        if not residual <= 1e-6:
            raise SolverError(
                f"The critic has no fixed point on these data: relative residual {residual:.3g}. "
                "Collect data with more varied actions, or use another policy."
            )
        self.critic.set_coefficients(solution / scale)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.policy_target.load_state_dict(self.policy.state_dict())

    def _make_update(self, total_timesteps: int) -> None:
        for _ in range(self.n_critic_updates):
            loss = self.critic_loss()
            self.critic_optimizer.zero_grad()
            loss.backward()
            self.critic_optimizer.step()
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.policy.parameters(), self.policy_target.parameters(), self.tau)
        objective = self.policy_objective()
        if not bool(th.isfinite(objective)):
            raise SolverError(
                f"The critic diverged in update {self.num_timesteps + 1}. Use a smaller learning_rate or larger units."
            )
        self.optimizer.zero_grad()
        (-objective).backward()
        self.optimizer.step()
        self.logger.record("train/critic_loss", loss.item())
        self.logger.record("train/policy_objective", objective.item())
