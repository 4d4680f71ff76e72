"""What a user can ask of a model with its data attached: where its policy will take the system, and on what evidence."""

from typing import TYPE_CHECKING

import numpy as np
import torch as th

from sb3_nopg.arrays import check_finite
from sb3_nopg.bellman import BellmanProblem, BellmanSolution, WarmStart, return_derivative, solve_bellman
from sb3_nopg.checks import check_states
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.policies import NOPGPolicy
from sb3_nopg.support import Queries

# Answers are given more exactly than training needs them; float32 allows no better than this.
_TOLERANCE = {th.float64: 1e-10, th.float32: 1e-6}


class PolicyQueries:
    """The estimates behind the policy, at its current parameters. All answers are NumPy arrays."""

    if TYPE_CHECKING:
        policy: NOPGPolicy
        _warm_start: WarmStart

        def _policy_actions(self, problem: BellmanProblem) -> th.Tensor: ...
        def prepared_problem(self) -> BellmanProblem: ...
        def problem_on(self, dataset: TransitionDataset) -> BellmanProblem: ...
        def action_noise_for(self, n_queries: int) -> th.Tensor | None: ...

    def _solution(self) -> tuple[BellmanProblem, BellmanSolution, th.Tensor]:
        """The equation, its solution, and the policy's actions at the queries, which carry the graph to the parameters."""
        problem = self.prepared_problem()
        actions = self._policy_actions(problem)
        tolerance = _TOLERANCE[problem.rewards.dtype]
        with th.no_grad():
            solution = solve_bellman(
                problem, problem.support.kernel_weights(problem.queries, actions), self._warm_start, tolerance
            )
        return problem, solution, actions

    def estimated_return(self, dataset: TransitionDataset | None = None) -> float:
        """
        Ĵ, the discounted return that the data predicts for the policy from the start states.

        On the data that it was optimised on, a policy has found every accident that flatters it. Data that were held out
        (``dataset.split``) know better.

        :param dataset: to predict from; None for the data that the model learns from
        """
        if dataset is None:
            return self._solution()[1].estimated_return
        problem = self.problem_on(dataset)
        with th.no_grad():
            weights = problem.support.kernel_weights(problem.queries, self._own_actions(problem.queries))
            return solve_bellman(problem, weights, tolerance=_TOLERANCE[problem.rewards.dtype]).estimated_return

    @property
    def q_values(self) -> np.ndarray:
        """q, the value of each transition of the data when the policy takes over after it, (n,)."""
        return self._solution()[1].q_values.cpu().numpy()

    @property
    def visitation(self) -> np.ndarray:
        """μ, how often, discounted, the policy is expected to pass by each transition of the data, (n,)."""
        return self._solution()[1].visitation.cpu().numpy()

    def policy_gradient(self) -> np.ndarray:
        """∇Ĵ with respect to the policy's parameters in the order of ``policy.parameters()``, flat, (p,)."""
        problem, solution, actions = self._solution()
        parameters = list(self.policy.parameters())
        gradients = th.autograd.grad(actions, parameters, return_derivative(problem, solution), allow_unused=True)
        flat = [th.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        return th.cat([gradient.reshape(-1) for gradient in flat]).cpu().numpy()

    def value(self, observations: np.ndarray) -> np.ndarray:
        """
        V̂(s) = ε(s)ᵀ q, the discounted return expected from any state.

        :param observations: (m, d_s), or one state (d_s,)
        :return: (m,)
        """
        return self._regress(observations, self._solution()[1].q_values)

    def state_distribution(self, observations: np.ndarray) -> np.ndarray:
        """
        ε(s)ᵀ μ, the paper's picture of where the policy goes: large where it will often be, not normalised.

        :param observations: (m, d_s), or one state (d_s,)
        :return: (m,)
        """
        return self._regress(observations, self._solution()[1].visitation)

    def support(self, observations: np.ndarray, action: np.ndarray | None = None) -> np.ndarray:
        """
        How many samples stand behind the estimates at a state and action: Σ_j ψ_j φ_j, where a sample at the very place
        counts as one and a sample some bandwidths away as little. Far below one, an estimate there is a guess.

        :param observations: (m, d_s), or one state (d_s,)
        :param action: in the environment's units, (m, d_a), or one (d_a,); the policy's own if None
        :return: (m,)
        """
        problem, queries = self._locate(observations)
        if action is None:
            actions = self._own_actions(queries)
        else:
            given = np.array(action, dtype=np.float64, ndmin=2)
            if given.shape != (len(queries), problem.support.actions.shape[1]):
                raise InputError("action", f"shape {given.shape}", f"Give one action for each of {len(queries)} states")
            check_finite("action", given)
            actions = th.as_tensor(given).to(problem.rewards)[:, None, :]
        with th.no_grad():
            return problem.support.kernel_mass(queries, actions).exp().mean(dim=1).cpu().numpy()

    def _regress(self, observations: np.ndarray, values: th.Tensor) -> np.ndarray:
        """Kernel regression of a number known at the samples, under the policy's actions: (n,) -> (m,)."""
        problem, queries = self._locate(observations)
        with th.no_grad():
            weights = problem.support.weights(queries, self._own_actions(queries)).mean(dim=1)
            return (weights * queries.neighbors.gather(values)).sum(dim=1).cpu().numpy()

    def _locate(self, observations: np.ndarray) -> tuple[BellmanProblem, Queries]:
        problem = self.prepared_problem()
        states = check_states("observations", observations, problem.queries.states.shape[1])
        # As many neighbours as training uses: what is asked together must not change the answers.
        return problem, problem.support.locate(th.as_tensor(states).to(problem.rewards), problem.queries.neighbors)

    def _own_actions(self, queries: Queries) -> th.Tensor:
        with th.no_grad():
            noise = self.action_noise_for(len(queries))
            return self.policy.sample_actions(queries.states, noise).to(queries.states.dtype)
