"""What another draw of the data would have made of an estimate, and how likely a policy leaves a region."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch as th

from sb3_nopg.bellman.on_samples import WarmStart, solve_values
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.common.progress import phase
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import units_of_each

Region = Callable[[np.ndarray], np.ndarray]

_SINGLE_EPISODE = "a single episode does not show how episodes differ"


@dataclass(frozen=True, eq=False)
class ReturnInterval:
    """
    :param estimate: Ĵ on the data as it is
    :param low: lower end
    :param high: upper end
    :param level: share of the resamples that lies between
    :param resamples: Ĵ on reweighted data, (n_resamples,)
    """

    estimate: float
    low: float
    high: float
    level: float
    resamples: np.ndarray


@dataclass(frozen=True)
class Units:
    """
    What was drawn independently, and hence is reweighted as a whole.

    :param of_transitions: number of each transition's unit, an episode or the transition itself, (n,)
    :param of_starts: number of each start state's unit, (n₀,); None where start states are given and not drawn
    """

    of_transitions: np.ndarray
    of_starts: np.ndarray | None

    @property
    def count(self) -> int:
        largest = self.of_transitions.max() if self.of_starts is None else max(self.of_transitions.max(), self.of_starts.max())
        return int(largest) + 1


def units_of(data: TransitionDataset, n_drawn_starts: int | None, starts_are_its_own: bool) -> Units:
    """
    :param data: the transitions
    :param n_drawn_starts: number of start states, where they are those of recorded episodes; None where they are not
    :param starts_are_its_own: whether those episodes are the data's own
    :raises InputError: where the data is a single episode, which says nothing about how episodes differ
    """
    starts, of_transitions = data.episode_starts, units_of_each(data)
    n_units = int(of_transitions.max()) + 1
    if n_units < 2:
        raise InputError("dataset", _SINGLE_EPISODE, "Give data of several episodes for an interval")
    if n_drawn_starts is None:
        return Units(of_transitions, None)
    if starts_are_its_own and starts is not None:
        return Units(of_transitions, of_transitions[starts])
    return Units(of_transitions, n_units + np.arange(n_drawn_starts))


def return_interval(
    problem: BellmanProblem, actions: th.Tensor, units: Units, level: float, n_resamples: int, seed: int, tolerance: float
) -> ReturnInterval:
    """
    Percentiles of Ĵ under the Bayesian bootstrap (Rubin 1981): what another draw of the same kind of data would have given.

    Each resample gives every unit a weight of its own, exponentially distributed. Unlike the bootstrap that draws with
    replacement, no sample ever vanishes: the neighbour lists stay valid, and the weights enter as one more factor of
    the state kernel.

    :param problem: the equation
    :param actions: the policy's at the queries, (m, a, d_a)
    :param units: of the data
    :param level: between 0 and 1
    :param n_resamples: how many
    :param seed: of the weights
    :param tolerance: of the solves
    """
    check_number("level", level, 0.0, 1.0, fix="Give a share between 0 and 1, like 0.95")
    check_count("n_resamples", n_resamples, 2)
    check_count("seed", seed, 0)
    problem = _apart(problem)
    weights = problem.support.kernel_weights(problem.queries, actions)
    estimate, q_solve, _ = solve_values(problem, weights, tolerance=tolerance)
    del weights  # as large as all else together
    warm_start = WarmStart()
    warm_start.q_history.add(q_solve.value)
    resamples = []
    with phase("resamples", n_resamples) as advance:
        for drawn in _reweighted(problem, units, n_resamples, seed):
            weights = drawn.support.kernel_weights(drawn.queries, actions)
            resamples.append(solve_values(drawn, weights, warm_start, tolerance)[0])
            del weights  # before the next ones are made
            advance()
    low, high = np.quantile(resamples, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return ReturnInterval(estimate, float(low), float(high), float(level), np.array(resamples))


def _reweighted(problem: BellmanProblem, units: Units, n_resamples: int, seed: int) -> Iterator[BellmanProblem]:
    """The equation with other weights of the data, one after the other: only one of them exists at a time."""
    rng = np.random.default_rng(seed)
    neighbors = problem.queries.neighbors
    for _ in range(n_resamples):
        drawn = rng.exponential(size=units.count)
        # A mean of one: pessimism compares the samples' weights with its own.
        of_data = drawn[units.of_transitions] / drawn[np.unique(units.of_transitions)].mean()
        log_weights = problem.from_data_order(th.as_tensor(np.log(of_data)).to(problem.rewards))
        reweighted = replace(neighbors, log_state_kernel=neighbors.log_state_kernel + neighbors.gather(log_weights))
        starts = None
        if units.of_starts is not None:
            starts = th.as_tensor(drawn[units.of_starts] / drawn[units.of_starts].sum()).to(problem.rewards)
        yield replace(problem, queries=replace(problem.queries, neighbors=reweighted), start_weights=starts)


def effective_sample_size(visitation: np.ndarray) -> float:
    """
    (Σ μ)² / Σ μ², between one and the number of samples; zero where no sample is ever visited.

    :param visitation: μ, (n,)
    """
    largest = np.abs(visitation).max()
    if largest == 0.0:
        return 0.0
    # Pessimism can make μ so small that its square is no number any more.
    share = visitation.astype(np.float64) / largest
    return float(share.sum() ** 2 / np.square(share).sum())


def exit_probability(
    problem: BellmanProblem, actions: th.Tensor, remains: np.ndarray, inside: Region, tolerance: float
) -> float:
    """
    E[γ^(T−1)] for the first step T after which the state lies outside a region; see ``NOPG.exit_probability``.

    :param problem: the equation
    :param actions: the policy's at the queries, (m, a, d_a)
    :param remains: whether each transition of the data stays inside, (n,)
    :param inside: whether states (m, d_s) lie inside, (m,)
    :param tolerance: of the solve
    """
    starts = problem.queries.states[problem.n_next_states :].cpu().numpy()
    starts_inside = th.as_tensor(checked_region(inside, starts)).to(problem.rewards)
    exits = 1.0 - problem.from_data_order(th.as_tensor(remains).to(problem.rewards))
    # Another reward on the same chain: one for leaving, which is an end.
    leaving = replace(
        _apart(problem),
        rewards=exits,
        continues=problem.continues * (1.0 - exits),
        all_continue=problem.all_continue and not bool(exits.any()),
        # Where nothing is known, pessimism expects the worst.
        worst_value=1.0 if problem.support.pessimism > 0.0 else 0.0,
        start_weights=starts_inside / len(starts_inside),
    )
    weights = problem.support.kernel_weights(problem.queries, actions)
    left_at_once = 1.0 - float(starts_inside.mean())
    probability = left_at_once + solve_values(leaving, weights, tolerance=tolerance)[0]
    return min(max(probability, 0.0), 1.0)


def _apart(problem: BellmanProblem) -> BellmanProblem:
    """The same with a coarse model of its own: training's must not depend on what is asked in between."""
    return replace(problem, coarse_model=copy.copy(problem.coarse_model))


def checked_region(inside: Region, states: np.ndarray) -> np.ndarray:
    """
    :return: the answer, checked: booleans, (m,)
    """
    answer = np.asarray(inside(states))
    if answer.shape != (len(states),) or answer.dtype != np.bool_:
        raise InputError(
            "inside",
            f"answers with {answer.dtype} of shape {answer.shape} for {len(states)} states",
            "Let it return one boolean for each row of the states it is given",
        )
    return answer
