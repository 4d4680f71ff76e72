"""
The nonparametric Bellman equation on a fixed data set: prepared once, solved for one policy after another.

    q = r + γ P̂ q          values of the samples, q = Λ⁻¹ r with Λ = I − γ P̂
    μ = ε₀ + γ P̂ᵀ μ        how often the policy visits each sample, μ = Λ⁻ᵀ ε₀
    Ĵ = ε₀ᵀ q

and the full policy gradient, equation (9) of the paper, with everything that needs no automatic differentiation done here
(:func:`return_derivative`) and the rest left to one backward pass through the policy network.
"""

from dataclasses import dataclass

import torch as th

from sb3_nopg.errors import SolverError
from sb3_nopg.kernels import action_derivative, largest_weights, log_action_kernel, responsibilities
from sb3_nopg.neighbors import NeighborCount, NeighborLists, find_neighbors
from sb3_nopg.solvers import Solution, solve
from sb3_nopg.solvers.coarse import CoarseModel
from sb3_nopg.transition import TransitionMatrix


@dataclass(frozen=True)
class BellmanProblem:
    """
    All of the equation that does not depend on the policy.

    Queries are the states whose neighbours matter: N sampled next states of transition 0, of transition 1, …, then the
    start states. Build it with :func:`prepare_problem`.

    :param queries: (m, d_s) with m = n·N + n₀
    :param neighbors: neighbour lists of the queries, (m, k)
    :param neighbor_actions: actions of each query's neighbours, divided by the bandwidth, (d_a, m, k)
    :param action_bandwidth: (d_a,)
    :param rewards: (n,)
    :param continues: zero for a terminal transition, one for any other, (n,)
    :param gamma: discount
    :param n_next_state_samples: N
    :param keep_largest: entries kept in each row of P̂, see :func:`sb3_nopg.kernels.largest_weights`
    :param kl_bound: divergence allowed to each row of P̂, likewise
    :param transition: structure of P̂, refilled for every policy
    :param coarse_model: what makes the solves fast, refreshed now and then
    """

    queries: th.Tensor
    neighbors: NeighborLists
    neighbor_actions: th.Tensor
    action_bandwidth: th.Tensor
    rewards: th.Tensor
    continues: th.Tensor
    gamma: float
    n_next_state_samples: int
    keep_largest: int | None
    kl_bound: float | None
    transition: TransitionMatrix
    coarse_model: CoarseModel

    @property
    def n_samples(self) -> int:
        return len(self.rewards)

    @property
    def n_next_state_queries(self) -> int:
        return self.n_samples * self.n_next_state_samples

    @property
    def n_initial_states(self) -> int:
        return len(self.queries) - self.n_next_state_queries


@dataclass(frozen=True)
class BellmanSolution:
    """
    The equation solved for one policy.

    :param responsibilities: ε at every query and action, (m, a, k)
    :param q_values: q, (n,)
    :param visitation: μ, (n,)
    :param estimated_return: Ĵ
    :param q_solve: how q was found
    :param visitation_solve: how μ was found
    :param truncation_error: largest share of a query's weights, under this policy, that the neighbour lists may lack
    """

    responsibilities: th.Tensor
    q_values: th.Tensor
    visitation: th.Tensor
    estimated_return: float
    q_solve: Solution
    visitation_solve: Solution
    truncation_error: float


def prepare_problem(
    observations: th.Tensor,
    actions: th.Tensor,
    rewards: th.Tensor,
    next_observations: th.Tensor,
    terminals: th.Tensor,
    initial_states: th.Tensor,
    *,
    state_bandwidth: th.Tensor,
    action_bandwidth: th.Tensor,
    next_state_bandwidth: th.Tensor,
    gamma: float,
    next_state_noise: th.Tensor | None = None,
    n_neighbors: NeighborCount = "auto",
    truncation_tolerance: float = 1e-3,
    keep_largest: int | None = None,
    kl_bound: float | None = None,
) -> BellmanProblem:
    """
    Find the neighbour lists and lay out P̂. Dtype and device are those of the tensors given.

    :param observations: s, (n, d_s)
    :param actions: a, (n, d_a)
    :param rewards: r, (n,)
    :param next_observations: s', (n, d_s)
    :param terminals: boolean, (n,)
    :param initial_states: (n₀, d_s)
    :param state_bandwidth: of ψ, (d_s,)
    :param action_bandwidth: of φ, (d_a,)
    :param next_state_bandwidth: of ϕ, (d_s,)
    :param gamma: discount
    :param next_state_noise: standard normal draws for the next states, (n, N, d_s); None: the kernel's mean, s' itself
    :param n_neighbors: see :func:`sb3_nopg.neighbors.find_neighbors`
    :param truncation_tolerance: likewise
    :param keep_largest: see :func:`sb3_nopg.kernels.largest_weights`
    :param kl_bound: likewise
    """
    if next_state_noise is None:
        n_next_state_samples, next_states = 1, next_observations
    else:
        n_next_state_samples = next_state_noise.shape[1]
        next_states = (next_observations[:, None, :] + next_state_bandwidth * next_state_noise).flatten(0, 1)
    queries = th.cat([next_states, initial_states])
    neighbors = find_neighbors(queries, observations, state_bandwidth, n_neighbors, truncation_tolerance)
    columns = None
    if neighbors.indices is not None:
        columns = neighbors.indices[: len(next_states)].reshape(len(rewards), -1)
    return BellmanProblem(
        queries=queries,
        neighbors=neighbors,
        neighbor_actions=th.stack([neighbors.gather(column) for column in (actions / action_bandwidth).T]),
        action_bandwidth=action_bandwidth,
        rewards=rewards,
        continues=1.0 - terminals.to(rewards.dtype),
        gamma=gamma,
        n_next_state_samples=n_next_state_samples,
        keep_largest=keep_largest,
        kl_bound=kl_bound,
        transition=TransitionMatrix(columns, len(rewards), rewards.dtype, rewards.device),
        coarse_model=CoarseModel(next_observations / state_bandwidth, len(rewards) * neighbors.n_neighbors),
    )


def weights_at(problem: BellmanProblem, actions: th.Tensor) -> tuple[th.Tensor, float]:
    """
    ε at every query for each of the policy's actions there.

    :param problem: the equation
    :param actions: the policy's actions at the queries, in the environment's units, (m, a, d_a)
    :return: rows that sum to one, (m, a, k), and the largest share of a row that the neighbour lists may lack
    """
    lists = problem.neighbors
    log_kernel = log_action_kernel(actions / problem.action_bandwidth, problem.neighbor_actions)
    weights = responsibilities(lists.log_state_kernel, log_kernel)
    truncation_error = 0.0
    if lists.indices is not None:
        # What the lists leave out weighs at most its state kernel, as φ ≤ 1. Σψφ over the list follows from any one entry:
        # its kernel divided by its weight; the largest entry's is the most exact.
        log_weight, position = weights.max(dim=-1)
        log_entry = lists.log_state_kernel.gather(1, position) + log_kernel.gather(2, position[..., None])[..., 0]
        log_kept = log_entry - log_weight.log()
        truncation_error = float(th.sigmoid(lists.log_dropped_mass[:, None] - log_kept).max())
    if problem.keep_largest is not None or problem.kl_bound is not None:
        keep = largest_weights(weights.mean(dim=1), problem.keep_largest, problem.kl_bound)
        log_kernel.masked_fill_(~keep[:, None, :], -th.inf)
        weights = responsibilities(lists.log_state_kernel, log_kernel)
    return weights, truncation_error


def solve_bellman(
    problem: BellmanProblem,
    actions: th.Tensor,
    warm_start: BellmanSolution | None = None,
    tolerance: float = 1e-8,
) -> BellmanSolution:
    """
    Values and visitation of a policy, known by its actions at the queries.

    :param problem: the equation
    :param actions: in the environment's units, (m, a, d_a); for a stochastic policy, a draws at each query
    :param warm_start: a solution for a similar policy, to start the solvers from
    :param tolerance: relative residual of both solves
    """
    weights, truncation_error = weights_at(problem, actions)
    mean_weights = weights.mean(dim=1)  # the average over actions, of normalised weights: (m, a, k) -> (m, k)
    n, n_next = problem.n_samples, problem.n_next_state_queries
    rows = mean_weights[:n_next].view(n, -1) / problem.n_next_state_samples
    if problem.neighbors.indices is None:
        # Dense: the N samples of a row share their columns. (n·N, n) -> (n, n)
        rows = mean_weights[:n_next].view(n, problem.n_next_state_samples, n).mean(dim=1)
    transition, gamma = problem.transition, problem.gamma
    transition.fill(rows * problem.continues[:, None])
    initial_weights = _initial_weights(problem, mean_weights[n_next:])

    problem.coarse_model.refresh_if_old(transition, gamma)
    q_solve = solve(
        lambda x: transition.bellman_operator(x, gamma),
        problem.rewards,
        lambda: _identity(problem) - gamma * transition.to_dense(),
        problem.coarse_model.precondition,
        None if warm_start is None else warm_start.q_values,
        tolerance,
    )
    visitation_solve = solve(
        lambda y: transition.bellman_operator_transposed(y, gamma),
        initial_weights,
        lambda: (_identity(problem) - gamma * transition.to_dense()).T,
        problem.coarse_model.precondition_transposed,
        None if warm_start is None else warm_start.visitation,
        tolerance,
    )
    _check_value_bound(problem, q_solve, tolerance)
    return BellmanSolution(
        responsibilities=weights,
        q_values=q_solve.value,
        visitation=visitation_solve.value,
        estimated_return=float(th.dot(initial_weights, q_solve.value)),
        q_solve=q_solve,
        visitation_solve=visitation_solve,
        truncation_error=truncation_error,
    )


def return_derivative(problem: BellmanProblem, solution: BellmanSolution) -> th.Tensor:
    """
    ∂Ĵ/∂a for the policy's action at every query: all of the policy gradient but the policy's own ∂a/∂θ.

        ∇J = Σ_i w_i (∂v_i/∂a_i)ᵀ ∂π_θ(s_i)/∂θ,    w_i = γ μ_i / N for next states, 1/n₀ for start states

    :return: (m, a, d_a)
    """
    visits = problem.gamma * problem.continues * solution.visitation / problem.n_next_state_samples
    query_weights = th.cat(
        [
            visits.repeat_interleave(problem.n_next_state_samples),
            visits.new_full((problem.n_initial_states,), 1.0 / problem.n_initial_states),
        ]
    )
    derivative = action_derivative(
        solution.responsibilities, problem.neighbors.gather(solution.q_values), problem.neighbor_actions
    )
    n_actions = derivative.shape[1]
    return derivative * (query_weights / n_actions)[:, None, None] / problem.action_bandwidth


def _initial_weights(problem: BellmanProblem, weights: th.Tensor) -> th.Tensor:
    """ε₀, the start states' mean weights, scattered to the samples: (n₀, k) -> (n,)."""
    mean_weights = weights / len(weights)
    if problem.neighbors.indices is None:
        return mean_weights.sum(dim=0)
    columns = problem.neighbors.indices[problem.n_next_state_queries :]
    return th.zeros_like(problem.rewards).index_add_(0, columns.reshape(-1), mean_weights.reshape(-1))


def _identity(problem: BellmanProblem) -> th.Tensor:
    return th.eye(problem.n_samples, dtype=problem.rewards.dtype, device=problem.rewards.device)


def _check_value_bound(problem: BellmanProblem, q_solve: Solution, tolerance: float) -> None:
    """Rows of P̂ sum to one at most, so no value can exceed R_max / (1 − γ) by more than the solve's own error."""
    largest = float(problem.rewards.abs().max())
    slack = tolerance * float(th.linalg.vector_norm(problem.rewards))
    bound = (largest * (1.0 + 1e-6) + slack) / (1.0 - problem.gamma)
    if not float(q_solve.value.abs().max()) <= bound:
        raise SolverError(
            f"A value of {float(q_solve.value.abs().max()):.3g} exceeds R_max / (1 - gamma) = {bound:.3g}, which no solution "
            "can. Try precision='float64' or a smaller solver_tolerance."
        )
