"""
The nonparametric Bellman equation on a fixed data set: prepared once, solved for one policy after another.

    q = r + γ P̂ q          values of the samples, q = Λ⁻¹ r with Λ = I − γ P̂
    μ = ε₀ + γ P̂ᵀ μ        how often the policy visits each sample, μ = Λ⁻ᵀ ε₀
    Ĵ = ε₀ᵀ q

and the full policy gradient, equation (9) of the paper: what needs no automatic differentiation is done here
(:func:`return_derivative`), the rest is one backward pass through the policy network.
"""

from dataclasses import dataclass, field

import torch as th

from sb3_nopg.errors import SolverError
from sb3_nopg.solvers import Solution, SolutionHistory, solve
from sb3_nopg.solvers.coarse import CoarseModel
from sb3_nopg.support import Queries, Support
from sb3_nopg.transition import TransitionMatrix


@dataclass(frozen=True)
class BellmanProblem:
    """
    All of the equation that does not depend on the policy. Build it with :func:`prepare_problem`.

    :param support: the samples
    :param queries: states where the policy acts: N sampled next states of transition 0, of transition 1, …, then the n₀
        start states; m = n·N + n₀
    :param rewards: r, (n,)
    :param continues: zero for a terminal transition, one for any other, (n,)
    :param all_continue: whether no transition is terminal
    :param gamma: discount
    :param n_next_state_samples: N
    :param transition: structure of P̂, refilled for every policy
    :param coarse_model: what makes the solves fast, refreshed now and then
    """

    support: Support
    queries: Queries
    rewards: th.Tensor
    continues: th.Tensor
    all_continue: bool
    gamma: float
    n_next_state_samples: int
    transition: TransitionMatrix
    coarse_model: CoarseModel

    @property
    def n_next_states(self) -> int:
        return len(self.rewards) * self.n_next_state_samples

    @property
    def n_initial_states(self) -> int:
        return len(self.queries) - self.n_next_states


@dataclass(frozen=True)
class BellmanSolution:
    """
    The equation solved for one policy.

    :param kernel_weights: ε at every query and action, (m, a, k)
    :param estimated_return: Ĵ
    :param q_solve: q and how it was found
    :param visitation_solve: μ and how it was found
    """

    kernel_weights: th.Tensor
    estimated_return: float
    q_solve: Solution
    visitation_solve: Solution

    @property
    def q_values(self) -> th.Tensor:
        """q, (n,)."""
        return self.q_solve.value

    @property
    def visitation(self) -> th.Tensor:
        """μ, (n,)."""
        return self.visitation_solve.value


@dataclass(frozen=True)
class WarmStart:
    """What the solutions for past policies are good for: a close guess at the next one's."""

    q_history: SolutionHistory = field(default_factory=SolutionHistory)
    visitation_history: SolutionHistory = field(default_factory=SolutionHistory)

    def remember(self, solution: BellmanSolution) -> None:
        """
        :param solution: for a policy that the next one will resemble
        """
        self.q_history.add(solution.q_values)
        self.visitation_history.add(solution.visitation)


def prepare_problem(
    support: Support,
    rewards: th.Tensor,
    next_observations: th.Tensor,
    terminals: th.Tensor,
    initial_states: th.Tensor,
    gamma: float,
    next_state_bandwidth: th.Tensor,
    next_state_noise: th.Tensor | None = None,
) -> BellmanProblem:
    """
    Find the neighbour lists and lay out P̂. Dtype and device are those of the tensors given.

    :param support: the samples
    :param rewards: r, (n,)
    :param next_observations: s', (n, d_s)
    :param terminals: boolean, (n,)
    :param initial_states: (n₀, d_s)
    :param gamma: discount
    :param next_state_bandwidth: of the next-state kernel ϕ, (d_s,)
    :param next_state_noise: standard normal draws for the next states, (n, N, d_s); None: the kernel's mean, s' itself
    """
    if next_state_noise is None:
        n_next_state_samples, next_states = 1, next_observations
    else:
        n_next_state_samples = next_state_noise.shape[1]
        next_states = (next_observations[:, None, :] + next_state_bandwidth * next_state_noise).flatten(0, 1)
    queries = support.locate(th.cat([next_states, initial_states]))
    columns = None
    if queries.neighbors.indices is not None:
        columns = queries.neighbors.indices[: len(next_states)].reshape(len(rewards), -1)
    return BellmanProblem(
        support=support,
        queries=queries,
        rewards=rewards,
        continues=1.0 - terminals.to(rewards.dtype),
        all_continue=not bool(terminals.any()),
        gamma=gamma,
        n_next_state_samples=n_next_state_samples,
        transition=TransitionMatrix(columns, len(rewards), rewards.dtype, rewards.device),
        coarse_model=CoarseModel(next_observations / support.state_bandwidth),
    )


def solve_bellman(
    problem: BellmanProblem, kernel_weights: th.Tensor, warm_start: WarmStart | None = None, tolerance: float = 1e-8
) -> BellmanSolution:
    """
    Values and visitation of a policy, known by its weights at the queries.

    :param problem: the equation
    :param kernel_weights: ``problem.support.kernel_weights(problem.queries, actions)``, (m, a, k)
    :param warm_start: solutions for similar policies, to start the solvers from; left as it is
    :param tolerance: relative residual of both solves, where the precision allows it
    """
    if not bool(kernel_weights.isfinite().all()):
        raise SolverError("The kernels' weights are not finite. Try larger bandwidths, or states and actions of sane size.")
    weights = problem.support.corrected(problem.queries, kernel_weights)
    # The stochastic policy's average, of normalised weights: (m, a, k) -> (m, k)
    weights = weights[:, 0] if weights.shape[1] == 1 else weights.mean(dim=1)
    _fill_transition(problem, weights[: problem.n_next_states])
    initial_weights = _initial_weights(problem, weights[problem.n_next_states :])

    transition, gamma = problem.transition, problem.gamma
    coarse_model = problem.coarse_model
    coarse_model.build(transition, gamma, problem.rewards)
    # Rounding alone leaves a residual of about this size: asking for less would only wake the fallbacks.
    tolerance = max(tolerance, 4.0 * th.finfo(problem.rewards.dtype).eps / (1.0 - gamma))
    warm_start = warm_start or WarmStart()

    def operator(x: th.Tensor) -> th.Tensor:
        return transition.bellman_operator(x, gamma)

    def transposed(y: th.Tensor) -> th.Tensor:
        return transition.bellman_operator_transposed(y, gamma)

    q_solve = solve(
        operator,
        problem.rewards,
        lambda: transition.dense_bellman_operator(gamma),
        coarse_model.precondition if coarse_model.pays else None,
        warm_start.q_history.guess(operator, problem.rewards),
        tolerance,
    )
    visitation_solve = solve(
        transposed,
        initial_weights,
        lambda: transition.dense_bellman_operator(gamma).T,
        coarse_model.precondition_transposed if coarse_model.pays else None,
        warm_start.visitation_history.guess(transposed, initial_weights),
        tolerance,
    )
    _check_value_bound(problem, q_solve.value, tolerance)
    return BellmanSolution(kernel_weights, float(th.dot(initial_weights, q_solve.value)), q_solve, visitation_solve)


def return_derivative(problem: BellmanProblem, solution: BellmanSolution) -> th.Tensor:
    """
    ∂Ĵ/∂a for the policy's action at every query: all of the policy gradient but the policy's own ∂a/∂θ.

        ∇Ĵ = Σ_i w_i (∂v_i/∂a_i)ᵀ ∂π_θ(s_i)/∂θ,    w_i = γ μ_i / N at next states, 1/n₀ at start states

    Both terms of equation (9) are in it: the start states' is (∂ε₀ᵀ/∂θ) q, the next states' γ μᵀ (∂P̂/∂θ) q. Solutions q and
    μ are held constant, as the equation has them; that is exact, not an approximation.

    :return: (m, a, d_a)
    """
    visits = problem.gamma * problem.continues * solution.visitation / problem.n_next_state_samples
    starts = visits.new_full((problem.n_initial_states,), 1.0 / problem.n_initial_states)
    query_weights = th.cat([visits.repeat_interleave(problem.n_next_state_samples), starts])
    derivative = problem.support.action_derivative(problem.queries, solution.kernel_weights, solution.q_values)
    n_actions = derivative.shape[1]
    return derivative * (query_weights / n_actions)[:, None, None] / problem.support.action_bandwidth


def _fill_transition(problem: BellmanProblem, weights: th.Tensor) -> None:
    """
    Put the next states' weights into P̂, with zero rows for terminal transitions.

    :param weights: (n·N, k)
    """
    n, n_samples = len(problem.rewards), problem.n_next_state_samples
    if problem.queries.neighbors.indices is None:
        rows = weights.view(n, n_samples, n).mean(dim=1)  # all samples of a row share their columns
    else:
        rows = weights.view(n, -1) if n_samples == 1 else weights.view(n, -1) / n_samples
    problem.transition.fill(rows if problem.all_continue else rows * problem.continues[:, None])


def _initial_weights(problem: BellmanProblem, weights: th.Tensor) -> th.Tensor:
    """ε₀, the start states' mean weights, brought to the samples: (n₀, k) -> (n,)."""
    mean_weights = weights / len(weights)
    indices = problem.queries.neighbors.indices
    if indices is None:
        return mean_weights.sum(dim=0)
    columns = indices[problem.n_next_states :]
    return th.zeros_like(problem.rewards).index_add_(0, columns.reshape(-1), mean_weights.reshape(-1))


def _check_value_bound(problem: BellmanProblem, q_values: th.Tensor, tolerance: float) -> None:
    """Rows of P̂ sum to one at most, so no value can exceed R_max / (1 − γ) by more than the solve's own error."""
    slack = tolerance * float(th.linalg.vector_norm(problem.rewards))
    bound = (float(problem.rewards.abs().max()) * (1.0 + 1e-6) + slack) / (1.0 - problem.gamma)
    largest = float(q_values.abs().max())
    if not largest <= bound:
        raise SolverError(
            f"A value of {largest:.3g} exceeds R_max / (1 - gamma) = {bound:.3g}, which no solution can. "
            "Try precision='float64' or a smaller solver_tolerance."
        )
