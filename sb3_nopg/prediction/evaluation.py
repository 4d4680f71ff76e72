"""What a user can ask of a policy: where it will take the system, and on what evidence."""

import numpy as np
import torch as th

from sb3_nopg.bellman.gradient import derivative_on_samples, flat_gradient, policy_actions
from sb3_nopg.bellman.on_samples import BellmanSolution, WarmStart, solve_bellman, solve_values
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.settings import EstimatorSettings
from sb3_nopg.common.arrays import check_finite
from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.kernels.queries import Queries
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.model_evaluation import ModelEvaluation
from sb3_nopg.prediction.rollouts import Rollouts, roll_out
from sb3_nopg.prediction.uncertainty import (
    Region,
    ReturnInterval,
    checked_region,
    effective_sample_size,
    exit_probability,
    return_interval,
    units_of,
)

# Answers are given more exactly than training needs them; float32 allows no better than this.
_TOLERANCE = {th.float64: 1e-10, th.float32: 1e-6}


class PolicyEvaluation:
    """
    The estimates behind a policy, at its current parameters, whatever these are when a question is asked. All answers are
    NumPy arrays.

    :param estimator: data, settings and all that follows from them
    :param policy: asked about
    :param warm_start: solutions for similar policies, to start the solvers from; left as it is
    """

    def __init__(self, estimator: Estimator, policy: NOPGPolicy, warm_start: WarmStart | None = None):
        self.estimator, self.policy = estimator, policy
        self._warm_start = warm_start or WarmStart()

    @property
    def data(self) -> TransitionDataset:
        """What is estimated from."""
        return self.estimator.dataset

    @property
    def on_model(self) -> "ModelEvaluation":
        """The policy by a model of the system."""
        return ModelEvaluation(self.estimator.model, self.policy, self.estimator.settings.seed)

    @property
    def settings(self) -> EstimatorSettings:
        """Of the estimate."""
        return self.estimator.settings

    @property
    def gamma(self) -> float:
        """Discount."""
        return float(self.settings.gamma)

    def on(self, dataset: TransitionDataset) -> "PolicyEvaluation":
        """
        :param dataset: other data to estimate from, by the same rules
        """
        return PolicyEvaluation(self.estimator.on(dataset), self.policy)

    def policy_actions(self) -> th.Tensor:
        """The policy's actions at the queries of the equation on samples, with the graph to the parameters, (m, a, d_a)."""
        return policy_actions(self.policy, self.estimator.problem, self.estimator.action_noise)

    def _solution(self) -> tuple[BellmanProblem, BellmanSolution, th.Tensor]:
        """The equation, its solution, and the policy's actions at the queries."""
        problem, actions = self.estimator.problem, self.policy_actions()
        with th.no_grad():
            weights = problem.support.kernel_weights(problem.queries, actions)
            solution = solve_bellman(problem, weights, self._warm_start, _TOLERANCE[problem.rewards.dtype])
        return problem, solution, actions

    def estimated_return(self) -> float:
        """
        Ĵ, the discounted return that the data predicts for the policy from the start states.

        On the data that it was optimised on, a policy has found every accident that flatters it. Data that were held out
        (``dataset.split``) know better.
        """
        if self.settings.on_model:
            return self.on_model.estimated_return()
        if self.estimator.first is None:
            return self._solution()[1].estimated_return
        # Nobody asks where the policy goes on other data: half of the work is enough.
        problem, actions = self.estimator.problem, self.policy_actions().detach()
        with th.no_grad():
            weights = problem.support.kernel_weights(problem.queries, actions)
            return solve_values(problem, weights, tolerance=_TOLERANCE[problem.rewards.dtype])[0]

    def return_interval(self, level: float = 0.95, n_resamples: int = 200, seed: int = 0) -> ReturnInterval:
        """
        How much Ĵ depends on which episodes happened to be recorded: a Bayesian bootstrap over episodes, or over
        transitions where the data knows no episodes.

        Each resample gives the episodes other weights, and the start states where these are the episodes' own. It predicts the
        return of the same policy. The interval holds the middle ``level`` of those returns.

        All of it is by the samples' kernels, whose estimate is in the answer, also where a model of the system makes another
        one; for that one ask ``on_model``.

        It covers the sampling of the data, and nothing else: not the bias of kernels of this width, for the
        bandwidths stay as they are, and not the optimisation. A policy that was optimised on the data has found every accident
        that flatters it, and so do all resamples of that data: for a sober interval give data that were held out. A
        handful of episodes makes a rough interval, one episode none.

        :param level: share of the resamples within the interval
        :param n_resamples: each costs about as much as ``estimated_return``
        :param seed: of the weights; the same seed gives the same interval
        """
        problem, actions = self._evidence()
        starts = self.estimator.starts
        n_drawn = problem.n_initial_states if starts.are_those_of_episodes else None
        units = units_of(self.data, n_drawn, starts_are_its_own=self.data is starts.data)
        with th.no_grad():
            return return_interval(problem, actions, units, level, n_resamples, seed, _TOLERANCE[problem.rewards.dtype])

    def act(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d_s)
        :return: the policy's mean actions there, in the action space, (m, d_a)
        """
        # Flat, whatever shape the action space has.
        return self.policy.predict(states.astype(np.float32), deterministic=True)[0].reshape(len(states), -1)

    def trajectories(self, n_steps: int, starts: np.ndarray | None = None) -> Rollouts:
        """
        Where the policy will take the system step by step, through a model of it (:mod:`sb3_nopg.dynamics`).

        :param n_steps: how far to follow it
        :param starts: where from, (m, d_s); None for the start states
        :return: what becomes of each
        :raises InputError: where the data are too few to predict from
        """
        check_count("n_steps", n_steps)
        states = self.estimator.start_states if starts is None else self._states("starts", starts)
        return roll_out(self.estimator.dynamics.to("cpu"), [self.act], states, int(n_steps))[0]

    def effective_sample_size(self) -> float:
        """
        (Σ μ)² / Σ μ²: on how many transitions of the data the estimated return rests, were all visited alike. A few only, and
        it is their accidents that it tells.

        μ is that of the equation on samples, also where a model evaluates the policy: along trajectories, a policy that comes
        to rest passes one sample for ever, and still rests on all that the model was fitted to.
        """
        return effective_sample_size(self._kernel_visitation())

    def effective_sample_share(self) -> float:
        """:meth:`effective_sample_size` as a share of the data, between 0 and 1."""
        return self.effective_sample_size() / len(self.data)

    def _kernel_visitation(self) -> np.ndarray:
        """μ of the equation on samples, (n,)."""
        problem, solution, _ = self._solution()
        return problem.to_data_order(solution.visitation).cpu().numpy()

    def exit_probability(self, inside: Region) -> float:
        """
        The predicted discounted probability that the policy leaves a region of states.

        With T the first step after which the state lies outside, s₀ … s_{T−1} inside and s_T outside, this is E[γ^(T−1)] over
        the start states and the chain of the Bellman equation. A start state that lies outside counts as 1, a task that ends
        inside as 0. Whether a transition leaves is told by its next state in the data.

        One reading: it is the probability of leaving within a random number of steps, geometric with mean 1 / (1 − γ); what
        happens long after that time constant hardly counts. Another: were the risk the same at every step, a probability p
        would mean a risk of λ = p (1 − γ) / (1 − γ p) a step, hence 1 / λ steps inside on average.

        A region that the data never leaves has probability 0, whatever the policy. With ``pessimism`` the share
        of the estimate without support counts as leaving.

        :param inside: takes observations (m, d_s), returns booleans (m,)
        """
        problem, actions = self._evidence()
        remains = checked_region(inside, self.data.next_observations)
        with th.no_grad():
            return exit_probability(problem, actions, remains, inside, _TOLERANCE[problem.rewards.dtype])

    def _evidence(self) -> tuple[BellmanProblem, th.Tensor]:
        """The equation on samples, and the policy's actions at its queries."""
        if self.estimator.starts.processes.several:
            raise InputError("distributed", "this works in one process only", "Ask a model that was loaded in one process")
        return self.estimator.problem, self.policy_actions().detach()

    def q_values(self) -> np.ndarray:
        """q, the value of each transition of the data when the policy takes over after it, (n,)."""
        problem, solution, _ = self._solution()
        return problem.to_data_order(solution.q_values).cpu().numpy()

    def visitation(self) -> np.ndarray:
        """μ, how often, discounted, the policy is expected to pass by each transition of the data, (n,)."""
        return self.on_model.visitation() if self.settings.on_model else self._kernel_visitation()

    def gradient(self) -> np.ndarray:
        """∇Ĵ with respect to the policy's parameters in the order of ``policy.parameters()``, flat, (p,)."""
        if self.settings.on_model:
            return self.on_model.gradient()
        problem, solution, actions = self._solution()
        flat = flat_gradient(actions, self.policy, derivative_on_samples(problem, solution))
        return problem.processes.sum(flat).cpu().numpy()

    def value(self, observations: np.ndarray) -> np.ndarray:
        """
        V̂(s) = ε(s)ᵀ q, the discounted return expected from any state; with pessimism, nearer to the worst where support is
        thin.

        :param observations: (m, d_s), or one state (d_s,)
        :return: (m,)
        """
        states = self._states("observations", observations)
        if self.settings.on_model:
            return self.on_model.value(states)
        problem, solution, _ = self._solution()
        return self._regress(states, solution.q_values, problem.worst_value)

    def state_distribution(self, observations: np.ndarray) -> np.ndarray:
        """
        ε(s)ᵀ μ, the paper's picture of where the policy goes: large where it will often be, not normalised.

        :param observations: (m, d_s), or one state (d_s,)
        :return: (m,)
        """
        return self._regress(self._states("observations", observations), self._solution()[1].visitation)

    def support(self, observations: np.ndarray, action: np.ndarray | None = None) -> np.ndarray:
        """
        How many samples stand behind the estimates at a state and action: Σ_j ψ_j φ_j, where a sample at the very place
        counts as one and a sample some bandwidths away as little. Far below one, an estimate there is a guess.

        :param observations: (m, d_s), or one state (d_s,)
        :param action: in the environment's units, (m, d_a), or one (d_a,); the policy's own if None
        :return: (m,)
        """
        problem, queries = self._locate(self._states("observations", observations))
        if action is None:
            actions = self._actions_at(queries)
        else:
            given = np.array(action, dtype=np.float64, ndmin=2)
            if given.shape != (len(queries), problem.support.actions.shape[1]):
                raise InputError("action", f"shape {given.shape}", f"Give one action for each of {len(queries)} states")
            check_finite("action", given)
            actions = th.as_tensor(given).to(problem.rewards)[:, None, :]
        with th.no_grad():
            return problem.support.kernel_mass(queries, actions).exp().mean(dim=1).cpu().numpy()

    def _regress(self, states: np.ndarray, values: th.Tensor, missing_value: float = 0.0) -> np.ndarray:
        """Kernel regression of a number known at the samples, under the policy's actions: (n,) -> (m,)."""
        problem, queries = self._locate(states)
        with th.no_grad():
            weights = problem.support.weights(queries, self._actions_at(queries)).mean(dim=1)
            regression = (weights * queries.neighbors.gather(values)).sum(dim=1)
            if missing_value != 0.0:
                regression += (1.0 - weights.sum(dim=1)) * missing_value
            return regression.cpu().numpy()

    def _states(self, name: str, given: np.ndarray) -> np.ndarray:
        return check_states(name, given, self.data.observation_dim)

    def _locate(self, states: np.ndarray) -> tuple[BellmanProblem, Queries]:
        problem = self.estimator.problem
        # As many neighbours as training uses: what is asked together must not change the answers.
        return problem, problem.support.locate(th.as_tensor(states).to(problem.rewards), problem.queries.neighbors)

    def _actions_at(self, queries: Queries) -> th.Tensor:
        """The policy's actions at states that are not the equation's own, the same draws at each, (m, a, d_a)."""
        with th.no_grad():
            noise = self.estimator.noise_for(len(queries))
            return self.policy.sample_actions(queries.states, noise).to(queries.states.dtype)
