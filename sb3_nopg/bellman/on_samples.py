"""
The nonparametric Bellman equation on a fixed data set, solved for one policy after another.

    q = r + γ P̂ q          values of the samples, q = Λ⁻¹ r with Λ = I − γ P̂
    μ = ε₀ + γ P̂ᵀ μ        how often the policy visits each sample, μ = Λ⁻ᵀ ε₀
    Ĵ = ε₀ᵀ q

The policy gradient that follows from the two is in gradient.py.

With pessimism κ a row of weights sums to its confidence c = M / (M + κ) only, M being the kernel mass of the samples there.
What it lacks goes to an end of the worst value w: V(s) = ε(s)ᵀ q + (1 − c) w, where ε sums to c. Rows stay substochastic, so
all of the above stays: q = Λ⁻¹ (r + γ (1 − c) w) and Ĵ = ε₀ᵀ q + (1 − c₀) w. No sample's value is below w, so that
Ĵ can only fall as κ rises.
"""

from dataclasses import dataclass, field

import torch as th

from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.solvers import Iteration, LinearMap, Solution, SolutionHistory, solve
from sb3_nopg.common.errors import SolverError
from sb3_nopg.kernels.support import KernelWeights


@dataclass(frozen=True)
class BellmanSolution:
    """
    The equation solved for one policy.

    :param kernel_weights: ε at every query and action
    :param estimated_return: Ĵ
    :param q_solve: q and how it was found
    :param visitation_solve: μ and how it was found
    """

    kernel_weights: KernelWeights
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


def solve_bellman(
    problem: BellmanProblem, kernel_weights: KernelWeights, warm_start: WarmStart | None = None, tolerance: float = 1e-8
) -> BellmanSolution:
    """
    Values and visitation of a policy, known by its weights at the queries.

    :param problem: the equation
    :param kernel_weights: ``problem.support.kernel_weights(problem.queries, actions)``
    :param warm_start: solutions for similar policies, to start the solvers from; left as it is
    :param tolerance: relative residual of both solves, where the precision allows it
    """
    warm_start, tolerance = warm_start or WarmStart(), _attainable(problem, tolerance)
    rhs, initial_weights, kernel_weights = _set_up(problem, kernel_weights)
    q_solve = _solve(problem, rhs, warm_start.q_history, tolerance)
    visitation_solve = _solve(problem, initial_weights, warm_start.visitation_history, tolerance, transposed=True)
    estimated_return = _estimated_return(problem, rhs, q_solve, initial_weights, tolerance)
    return BellmanSolution(kernel_weights, estimated_return, q_solve, visitation_solve)


def solve_values(
    problem: BellmanProblem, kernel_weights: KernelWeights, warm_start: WarmStart | None = None, tolerance: float = 1e-8
) -> tuple[float, Solution, th.Tensor]:
    """
    Half of :func:`solve_bellman`, for those who do not ask where the policy goes.

    :return: Ĵ; q and how it was found; ε₀, (n,)
    """
    warm_start, tolerance = warm_start or WarmStart(), _attainable(problem, tolerance)
    rhs, initial_weights, _ = _set_up(problem, kernel_weights)
    q_solve = _solve(problem, rhs, warm_start.q_history, tolerance)
    return _estimated_return(problem, rhs, q_solve, initial_weights, tolerance), q_solve, initial_weights


def _set_up(problem: BellmanProblem, kernel_weights: KernelWeights) -> tuple[th.Tensor, th.Tensor, KernelWeights]:
    """
    Fill P̂, and refresh the coarse model if it is time.

    :return: r with what the worst value adds to it, and ε₀, both (n,); the weights with what is known of them by then
    """
    weights, kernel_weights = problem.support.averaged(problem.queries, kernel_weights)
    if not bool(weights.isfinite().all()):
        raise SolverError("The kernels' weights are not finite. Try larger bandwidths, or rescale states and actions.")
    next_weights = weights[: problem.n_next_states]
    _fill_transition(problem, next_weights)
    rhs = _rewards_with_worst_value(problem, next_weights)
    problem.coarse_model.build(problem.transition, problem.gamma, rhs)
    return rhs, _initial_weights(problem, weights[problem.n_next_states :]), kernel_weights


def _solve(
    problem: BellmanProblem, rhs: th.Tensor, history: SolutionHistory, tolerance: float, *, transposed: bool = False
) -> Solution:
    """q = Λ⁻¹ r, or transposed μ = Λ⁻ᵀ ε₀."""
    transition, coarse_model, gamma = problem.transition, problem.coarse_model, problem.gamma
    product = transition.bellman_operator_transposed if transposed else transition.bellman_operator
    precondition = coarse_model.precondition_transposed if transposed else coarse_model.precondition
    preconditioner = precondition if coarse_model.pays else None

    def operator(x: th.Tensor) -> th.Tensor:
        return product(x, gamma)

    def to_dense() -> th.Tensor:
        matrix = transition.dense_bellman_operator(gamma)
        return matrix.T if transposed else matrix

    return solve(
        operator,
        rhs,
        to_dense,
        preconditioner,
        history.guess(operator, rhs, transition.in_single_precision),
        tolerance,
        in_single_precision=transition.in_single_precision,
        iteration=_recorded(problem, "columns" if transposed else "rows", operator, preconditioner, rhs),
    )


def _recorded(
    problem: BellmanProblem, name: str, operator: LinearMap, preconditioner: LinearMap | None, rhs: th.Tensor
) -> Iteration | None:
    if problem.processes.several:
        return None
    like = rhs.float() if problem.transition.in_single_precision else rhs
    made_of = (problem.transition, problem.gamma, problem.coarse_model.matrix_in_use)
    return problem.recordings.iteration(name, operator, preconditioner, made_of, like)


def _estimated_return(
    problem: BellmanProblem, rhs: th.Tensor, q_solve: Solution, initial_weights: th.Tensor, tolerance: float
) -> float:
    _check_value_bound(problem, q_solve.value, tolerance * float(th.linalg.vector_norm(rhs)))
    estimated_return = float(th.dot(initial_weights, q_solve.value))
    if problem.worst_value != 0.0:
        n_starts = 1.0 if problem.start_weights is None else float(problem.start_weights.sum())
        estimated_return += (n_starts - float(initial_weights.sum())) * problem.worst_value
    return estimated_return


def _attainable(problem: BellmanProblem, tolerance: float) -> float:
    # Rounding alone leaves a residual of about this size: asking for less would only wake the fallbacks.
    return max(tolerance, 4.0 * th.finfo(problem.rewards.dtype).eps / (1.0 - problem.gamma))


def _fill_transition(problem: BellmanProblem, weights: th.Tensor) -> None:
    """
    Put the next states' weights into P̂, with zero rows for terminal transitions.

    :param weights: (n·N, k)
    """
    n, n_samples = len(problem.continues), problem.n_next_state_samples
    if problem.queries.neighbors.indices is None:
        rows = weights.view(n, n_samples, -1).mean(dim=1)  # all samples of a row share their columns
    else:
        rows = weights.view(n, -1) if n_samples == 1 else weights.view(n, -1) / n_samples
    problem.transition.fill(rows if problem.all_continue else rows * problem.continues[:, None])


def _initial_weights(problem: BellmanProblem, weights: th.Tensor) -> th.Tensor:
    """ε₀, the start states' mean weights, brought to the samples: (n₀, k) -> (n,)."""
    starts = problem.start_weights
    mean_weights = weights / problem.n_initial_states if starts is None else weights * starts[:, None]
    indices = problem.queries.neighbors.indices
    if indices is None:
        return problem.processes.sum(mean_weights.sum(dim=0))
    columns = indices[problem.n_next_states :]
    own = th.zeros_like(problem.rewards).index_add_(0, columns.reshape(-1), mean_weights.reshape(-1))
    return problem.processes.sum(own)


def _rewards_with_worst_value(problem: BellmanProblem, weights: th.Tensor) -> th.Tensor:
    """r + γ (1 − c) w, what a transition brings at once and in the worst end: (n·N, k) -> (n,)."""
    if problem.worst_value == 0.0:
        return problem.rewards
    missing = 1.0 - weights.sum(dim=1).view(len(problem.continues), -1).mean(dim=1)
    return problem.rewards + problem.processes.gather(
        problem.gamma * problem.worst_value * problem.continues * missing, len(problem.rewards)
    )


def _check_value_bound(problem: BellmanProblem, q_values: th.Tensor, slack: float) -> None:
    """Rows of P̂ sum to one at most: no value exceeds R_max / (1 − γ), or the worst value, by more than the solve's error."""
    bound = (float(problem.rewards.abs().max()) * (1.0 + 1e-6) + slack) / (1.0 - problem.gamma)
    bound = max(bound, abs(problem.worst_value) * (1.0 + 1e-6) + slack / (1.0 - problem.gamma))
    largest = float(q_values.abs().max())
    if not largest <= bound:
        raise SolverError(
            f"A value of {largest:.3g} exceeds R_max / (1 - gamma) = {bound:.3g}, which no solution can. "
            "Try precision='float64' or a smaller solver_tolerance."
        )
