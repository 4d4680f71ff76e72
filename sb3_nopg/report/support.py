"""Where a policy is predicted to go, and on how many samples the estimates rest there."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch as th

from sb3_nopg.bellman.on_samples import WarmStart, solve_bellman
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.prediction.evaluation import PolicyEvaluation

# States that estimates are asked for; more only take longer.
_N_STATES = 20_000
# Samples below which an estimate is a guess.
THIN = 1.0
# And below which there is none: an estimate is all pessimism then, or the nearest sample's, however far away.
_NOTHING = 0.01
# Places outside of the data that a report names.
_N_WORST = 5


@dataclass(frozen=True)
class SupportSummary:
    """
    How many samples stand behind the estimates where the policy is predicted to go, see ``NOPG.support``.

    :param samples: at states that the policy is predicted to pass, (m,)
    :param weights: how much of its time the policy is predicted to be there, sums to one, (m,)
    """

    samples: np.ndarray
    weights: np.ndarray

    def quantile(self, share: float) -> float:
        """
        :param share: of the policy's time
        :return: samples that this share does not exceed
        """
        return weighted_quantile(self.samples, self.weights, share)

    @property
    def thin_share(self) -> float:
        """Of the policy's time, where less than one sample stands behind the estimates, which are guesses there."""
        return float(self.weights[self.samples < THIN].sum())

    def text(self) -> str:
        return (
            f"median {self.quantile(0.5):.3g}, lowest tenth {self.quantile(0.1):.3g}; "
            f"less than one for {100 * self.thin_share:.0f} % of the time"
        )


@dataclass(frozen=True)
class Visits:
    """
    :param states: that the policy is predicted to pass: start states, and what followed the transitions it uses, (m, d_s)
    :param support: behind the estimates there
    """

    states: np.ndarray
    support: SupportSummary

    def center(self) -> np.ndarray:
        """The state in the middle of where the policy spends its time, one that can be: not a mean of sines and cosines."""
        weights = self.support.weights
        median = np.array([weighted_quantile(column, weights, 0.5) for column in self.states.T])
        spread = np.maximum(self.states.std(axis=0), np.finfo(np.float64).tiny)
        distance = np.square((self.states - median) / spread).sum(axis=1)
        return self.states[np.where(weights > 0, distance, np.inf).argmin()]


@dataclass(frozen=True)
class WorstState:
    """
    :param state: (d_s,)
    :param share: of the policy's time that is spent in this one
    :param samples: behind the estimates there
    """

    state: tuple[float, ...]
    share: float
    samples: float


@dataclass(frozen=True)
class SupportFigures:
    """
    :param median_samples: behind the estimates, over the policy's time
    :param lowest_tenth_samples: for a tenth of the time there are no more than this
    :param thin_share: of the time, with less than one sample
    :param effective_samples: transitions that the estimated return rests on, see ``NOPG.effective_sample_size``
    :param effective_share: the same as a share of the data
    :param truncation: share of the weights, over the policy's time, that the neighbour lists may lack
    :param lost_starts: share of the start states with next to no sample behind the estimates
    :param worst_states: those without support where the policy spends most time
    """

    median_samples: float
    lowest_tenth_samples: float
    thin_share: float
    effective_samples: float
    effective_share: float
    truncation: float
    lost_starts: float
    worst_states: tuple[WorstState, ...]


def predicted_visitation(evaluation: PolicyEvaluation) -> np.ndarray:
    """
    μ by the data alone. With pessimism the model's own ends where support is thin, and would hide that the policy goes there.

    :param evaluation: of the policy
    :return: (n,)
    """
    if evaluation.settings.samples.pessimism == 0.0 or evaluation.settings.on_model:
        return evaluation.visitation()
    neutral = neutral_problem(evaluation)
    with th.no_grad():
        weights = neutral.support.kernel_weights(neutral.queries, evaluation.policy_actions())
        solution = solve_bellman(neutral, weights, WarmStart(), evaluation.settings.samples.solver_tolerance)
        return neutral.to_data_order(solution.visitation).cpu().numpy()


def neutral_problem(evaluation: PolicyEvaluation) -> BellmanProblem:
    """
    The equation on the data without pessimism.

    :param evaluation: of the policy
    """
    problem = evaluation.estimator.problem
    return replace(
        problem,
        support=replace(problem.support, pessimism=0.0),
        worst_value=0.0,
        # Training's must not depend on what is asked in between.
        coarse_model=copy.copy(problem.coarse_model),
    )


def visits_of(evaluation: PolicyEvaluation, visitation: np.ndarray) -> Visits:
    """
    :param evaluation: of the policy
    :param visitation: predicted, (n,)
    """
    data, starts = evaluation.data, _start_states(evaluation)
    states = np.concatenate([data.next_observations, starts]).astype(np.float64)
    weights = _query_weights(visitation, data.terminals, len(starts), evaluation.gamma)
    # Where the task has ended, the policy is nowhere.
    rows = np.flatnonzero(weights > 0)
    if len(rows) > _N_STATES:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:_N_STATES])
    states, weights = states[rows], weights[rows]
    return Visits(states, SupportSummary(evaluation.support(states), weights / weights.sum()))


def support_along_the_way(evaluation: PolicyEvaluation) -> SupportSummary:
    """
    :param evaluation: of the policy
    """
    return visits_of(evaluation, predicted_visitation(evaluation)).support


def support_figures(evaluation: PolicyEvaluation, visitation: np.ndarray, visits: Visits) -> SupportFigures:
    """
    :param evaluation: of the policy
    :param visitation: predicted, (n,)
    :param visits: predicted
    """
    # The estimated return is the model's own, and so are the samples that it rests on.
    support, effective = visits.support, evaluation.effective_sample_size()
    lack = support.weights * np.clip(1.0 - support.samples / THIN, 0.0, None)
    worst = [row for row in np.argsort(-lack, kind="stable")[:_N_WORST] if lack[row] > 0]
    return SupportFigures(
        median_samples=support.quantile(0.5),
        lowest_tenth_samples=support.quantile(0.1),
        thin_share=support.thin_share,
        effective_samples=effective,
        effective_share=effective / len(visitation),
        truncation=_truncation(evaluation, visitation),
        lost_starts=float((evaluation.support(_start_states(evaluation)) < _NOTHING).mean()),
        worst_states=tuple(
            WorstState(tuple(float(x) for x in visits.states[row]), float(support.weights[row]), float(support.samples[row]))
            for row in worst
        ),
    )


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """
    :param values: (m,)
    :param weights: not negative, sum to one, (m,)
    :param share: of the weight
    :return: the value that this share does not exceed
    """
    order = np.argsort(values, kind="stable")
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), share).clip(max=len(order) - 1)])


def _start_states(evaluation: PolicyEvaluation) -> np.ndarray:
    problem = evaluation.estimator.problem
    return problem.queries.states[problem.n_next_states :].cpu().numpy()


def _query_weights(visitation: np.ndarray, terminals: np.ndarray, n_starts: int, gamma: float) -> np.ndarray:
    """How much of its time the policy spends at each next state, then at each start state, (n + n₀,)."""
    # Corrected weights may be negative here and there, and with them μ.
    after = gamma * np.clip(visitation, 0.0, None) * ~terminals
    return np.concatenate([after, np.full(n_starts, 1.0 / n_starts)])


def _truncation(evaluation: PolicyEvaluation, visitation: np.ndarray) -> float:
    """Mean over the policy's time of the share of weights that may be missing, see ``Support.truncation_error``."""
    problem = evaluation.estimator.problem
    weights = _query_weights(visitation, evaluation.data.terminals, problem.n_initial_states, evaluation.gamma)
    n = len(visitation)
    after = problem.from_data_order(th.as_tensor(weights[:n]).to(problem.rewards.device)).cpu().numpy()
    repeated = np.concatenate([np.repeat(after / problem.n_next_state_samples, problem.n_next_state_samples), weights[n:]])
    with th.no_grad():
        mass = problem.support.kernel_mass(problem.queries, evaluation.policy_actions())
        missing = th.sigmoid(problem.queries.neighbors.log_dropped_mass[:, None] - mass).mean(dim=1).cpu().numpy()
    return float(repeated @ missing / repeated.sum())
