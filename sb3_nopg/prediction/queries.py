"""What a user can ask of a model with its data attached: where its policy will take the system, and on what evidence."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.bellman.on_samples import BellmanSolution, WarmStart, return_derivative, solve_bellman, solve_values
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.common.arrays import check_finite
from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.kernels.support import Queries
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import ModelEstimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.rollouts import Rollouts, roll_out
from sb3_nopg.prediction.uncertainty import (
    Region,
    ReturnInterval,
    check_inside,
    effective_sample_size,
    exit_probability,
    return_interval,
    units_of,
)
from sb3_nopg.training.attached_data import check_dataset

if TYPE_CHECKING:
    from sb3_nopg.nopg import NOPG
    from sb3_nopg.report.summary import ReportSummary

# Answers are given more exactly than training needs them; float32 allows no better than this.
_TOLERANCE = {th.float64: 1e-10, th.float32: 1e-6}


class PolicyQueries:
    """The estimates behind the policy, at its current parameters. All answers are NumPy arrays."""

    if TYPE_CHECKING:
        policy: NOPGPolicy
        dataset: TransitionDataset | None
        initial_states: np.ndarray | None
        processes: Processes
        transitions: str
        observation_space: spaces.Box
        action_space: spaces.Box
        _noise_seed: int
        _warm_start: WarmStart

        @property
        def estimator(self) -> ModelEstimator: ...
        def _estimator_on(self, dataset: TransitionDataset, like: DynamicsModel | None = None) -> ModelEstimator: ...

        _training_data: TransitionDataset | None

        @property
        def start_states(self) -> np.ndarray: ...
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
        if self.transitions == "model":
            return self.evaluation(dataset).estimated_return()
        if dataset is None:
            return self._solution()[1].estimated_return
        return self.return_on(self.problem_on(dataset))

    def evaluation(self, dataset: TransitionDataset | None = None) -> PolicyEvaluation:
        """
        The policy, by a model of the system.

        :param dataset: to make the model of; None for the data that the policy learns from
        """
        if dataset is None:
            return PolicyEvaluation(self.estimator, self.policy, self._noise_seed)
        check_dataset(dataset)
        own = (self.observation_space.shape[0], self.action_space.shape[0])
        if (dataset.observation_dim, dataset.action_dim) != own:
            raise InputError("dataset", f"not of the model's {own} state and action dimensions", "Give fitting data")
        # Another model of the same system: its own choices, in the same coordinates.
        return PolicyEvaluation(self._estimator_on(dataset, self.estimator.dynamics), self.policy, self._noise_seed)

    def return_on(self, problem: BellmanProblem) -> float:
        """
        Ĵ by another Bellman equation than training's.

        :param problem: from :meth:`problem_on`
        """
        with th.no_grad():
            weights = problem.support.kernel_weights(problem.queries, self._own_actions(problem.queries))
            return solve_values(problem, weights, tolerance=_TOLERANCE[problem.rewards.dtype])[0]

    def return_interval(
        self, level: float = 0.95, n_resamples: int = 200, dataset: TransitionDataset | None = None, seed: int = 0
    ) -> ReturnInterval:
        """
        How much Ĵ depends on which episodes happened to be recorded: a Bayesian bootstrap over episodes, or over
        transitions where the data knows no episodes.

        Each resample weighs the episodes anew, with them the start states where these are the episodes' own, and predicts
        the return of the same policy. The interval holds the middle ``level`` of those returns.

        It covers the sampling of the data, and nothing else: not the bias of kernels of this width, for the
        bandwidths stay as they are, and not the optimisation. A policy that was optimised on the data has found every accident
        that flatters it, and so do all resamples of that data: for a sober interval give data that were held out. A
        handful of episodes makes a rough interval, one episode none.

        :param level: share of the resamples within the interval
        :param n_resamples: each costs about as much as ``estimated_return``
        :param dataset: to predict from; None for the data that the model learns from
        :param seed: of the weights; the same seed gives the same interval
        """
        problem, actions, data = self._evidence(dataset)
        drawn = self.initial_states is None and self.dataset is not None and self.dataset.episode_starts is not None
        units = units_of(data, problem.n_initial_states if drawn else None, starts_are_its_own=data is self.dataset)
        with th.no_grad():
            return return_interval(problem, actions, units, level, n_resamples, seed, _TOLERANCE[problem.rewards.dtype])

    def act(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d_s)
        :return: the policy's mean actions there, in the action space, (m, d_a)
        """
        return self.predict(states.astype(np.float32), deterministic=True)[0]  # type: ignore[attr-defined]

    def trajectories(self, n_steps: int, starts: np.ndarray | None = None) -> Rollouts:
        """
        Where the policy will take the system step by step, through a model of it (:mod:`sb3_nopg.dynamics`).

        :param n_steps: how far to follow it
        :param starts: where from, (m, d_s); None for the start states
        :return: what becomes of each
        :raises InputError: where the data are too few to predict from
        """
        if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or n_steps < 1:
            raise InputError("n_steps", f"{n_steps!r} steps", "Give a positive whole number")
        starts = self.start_states if starts is None else check_states("starts", starts, self.training_data.observation_dim)
        return roll_out(self.estimator.dynamics.to("cpu"), [self.act], starts, int(n_steps))[0]

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
        return self.effective_sample_size() / len(self.training_data)

    def _kernel_visitation(self) -> np.ndarray:
        """μ of the equation on samples, (n,)."""
        problem, solution, _ = self._solution()
        return problem.to_data_order(solution.visitation).cpu().numpy()

    def exit_probability(self, inside: Region, dataset: TransitionDataset | None = None) -> float:
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
        :param dataset: to predict from; None for the data that the model learns from
        """
        problem, actions, data = self._evidence(dataset)
        remains = check_inside(inside, data.next_observations)
        with th.no_grad():
            return exit_probability(problem, actions, remains, inside, _TOLERANCE[problem.rewards.dtype])

    @property
    def training_data(self) -> TransitionDataset:
        """The data that the policy is optimised on: all that is attached, less what is held out."""
        if self._training_data is None:
            raise InputError("dataset", "there is no data to learn from", "Call set_dataset() or load_replay_buffer() first")
        return self._training_data

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        limits: Sequence[str] = (),
        held_out: TransitionDataset | None = None,
        names: Sequence[str] | None = None,
        trajectories: bool = True,
    ) -> "ReportSummary":
        """
        Write a page that a person can judge the policy by before it moves anything, and its figures (JSON) beside it.

        :param path: of the page, ``.html``, which needs no other file, or ``.png`` for one picture
        :param limits: regions that shall not be left, as formulas that are true inside: ``"abs(x) < 0.35"``, or over ``s[0]``,
            ``s[1]``, …
        :param held_out: data that the policy was not optimised on; None for those that the model held out itself, if any
        :param names: of the state's dimensions; None for those that the environment knows
        :param trajectories: whether to predict where the policy goes step by step, which takes some seconds
        :return: verdict and figures
        """
        # Only now: drawing takes long to import, and a report is made of the model, not the other way round.
        from sb3_nopg.report.making import make_report
        from sb3_nopg.report.page import write_report

        report = make_report(cast("NOPG", self), limits=limits, held_out=held_out, names=names, trajectories=trajectories)
        write_report(report, path)
        return report.summary

    def _evidence(self, dataset: TransitionDataset | None) -> tuple[BellmanProblem, th.Tensor, TransitionDataset]:
        """The equation on some data, or on the model's own, the policy's actions at its queries, and the data."""
        if self.processes.several:
            raise InputError("distributed", "this works in one process only", "Ask a model that was loaded in one process")
        if dataset is None:
            problem = self.prepared_problem()
            return problem, self._policy_actions(problem).detach(), self.training_data
        problem = self.problem_on(dataset)
        return problem, self._own_actions(problem.queries), dataset

    @property
    def q_values(self) -> np.ndarray:
        """q, the value of each of :attr:`transitions` when the policy takes over after it, (n,)."""
        problem, solution, _ = self._solution()
        return problem.to_data_order(solution.q_values).cpu().numpy()

    @property
    def visitation(self) -> np.ndarray:
        """μ, how often, discounted, the policy is expected to pass by each of :attr:`transitions`, (n,)."""
        if self.transitions == "model":
            return self.evaluation().visitation()
        return self._kernel_visitation()

    def policy_gradient(self) -> np.ndarray:
        """∇Ĵ with respect to the policy's parameters in the order of ``policy.parameters()``, flat, (p,)."""
        if self.transitions == "model":
            return self.evaluation().gradient()
        problem, solution, actions = self._solution()
        parameters = list(self.policy.parameters())
        gradients = th.autograd.grad(actions, parameters, return_derivative(problem, solution), allow_unused=True)
        flat = [th.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        return problem.processes.sum(th.cat([gradient.reshape(-1) for gradient in flat])).cpu().numpy()

    def value(self, observations: np.ndarray) -> np.ndarray:
        """
        V̂(s) = ε(s)ᵀ q, the discounted return expected from any state; with pessimism, nearer to the worst where support is
        thin.

        :param observations: (m, d_s), or one state (d_s,)
        :return: (m,)
        """
        if self.transitions == "model":
            return self.evaluation().value(check_states("observations", observations, self.training_data.observation_dim))
        problem, solution, _ = self._solution()
        return self._regress(observations, solution.q_values, problem.worst_value)

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

    def _regress(self, observations: np.ndarray, values: th.Tensor, missing_value: float = 0.0) -> np.ndarray:
        """Kernel regression of a number known at the samples, under the policy's actions: (n,) -> (m,)."""
        problem, queries = self._locate(observations)
        with th.no_grad():
            weights = problem.support.weights(queries, self._own_actions(queries)).mean(dim=1)
            regression = (weights * queries.neighbors.gather(values)).sum(dim=1)
            if missing_value != 0.0:
                regression += (1.0 - weights.sum(dim=1)) * missing_value
            return regression.cpu().numpy()

    def _locate(self, observations: np.ndarray) -> tuple[BellmanProblem, Queries]:
        problem = self.prepared_problem()
        states = check_states("observations", observations, problem.queries.states.shape[1])
        # As many neighbours as training uses: what is asked together must not change the answers.
        return problem, problem.support.locate(th.as_tensor(states).to(problem.rewards), problem.queries.neighbors)

    def _own_actions(self, queries: Queries) -> th.Tensor:
        with th.no_grad():
            noise = self.action_noise_for(len(queries))
            return self.policy.sample_actions(queries.states, noise).to(queries.states.dtype)
