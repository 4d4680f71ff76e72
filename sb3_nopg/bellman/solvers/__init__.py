"""Linear systems: an iterative method first, announced fallbacks after it, never an unconverged answer."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch as th

from sb3_nopg.bellman.solvers.bicgstab import Iteration, bicgstab
from sb3_nopg.bellman.solvers.dense import dense_lu
from sb3_nopg.bellman.solvers.gmres import gmres
from sb3_nopg.bellman.solvers.history import SolutionHistory
from sb3_nopg.bellman.solvers.refinement import refined
from sb3_nopg.bellman.solvers.solution import LinearMap, Solution
from sb3_nopg.common.errors import SolverError

__all__ = ["Iteration", "LinearMap", "Solution", "SolutionHistory", "bicgstab", "dense_lu", "gmres", "refined", "solve"]

_logger = logging.getLogger(__name__)
# A dense factorisation of this size takes 2 GB and about a minute on one core.
_DENSE_LIMIT = 16_000


def solve(
    operator: LinearMap,
    rhs: th.Tensor,
    to_dense: Callable[[], th.Tensor],
    preconditioner: LinearMap | None = None,
    initial_guess: th.Tensor | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
    in_single_precision: bool = False,
    iteration: Iteration | None = None,
) -> Solution:
    """
    Solve A x = b: BiCGSTAB, then GMRES, then LU where the size allows. Each fallback is said in the log, at debug level: it
    costs time, and the answer is as good.

    :param operator: x ↦ A x
    :param rhs: b, (n,)
    :param to_dense: gives A as a matrix, for the last resort
    :param preconditioner: x ↦ M⁻¹ x, an approximation of x ↦ A⁻¹ x, for BiCGSTAB
    :param initial_guess: where to start, (n,)
    :param tolerance: largest ‖b − A x‖ / ‖b‖ accepted, recomputed from x itself
    :param max_iterations: for each iterative method
    :param in_single_precision: whether operator and preconditioner take float32 too, and it pays to try it first: the
        tolerance holds in the precision of ``rhs`` all the same
    :param iteration: a faster way through one iteration of BiCGSTAB, in float32 if ``in_single_precision``
    :raises SolverError: when no method reaches the tolerance
    """
    # Norms of very large or very small numbers leave the range of floating point, so all is done at size one.
    scale = float(rhs.abs().max())
    if scale == 0.0:
        return Solution(th.zeros_like(rhs), 0.0, 0, "none needed")
    rhs, guess = rhs / scale, None if initial_guess is None else initial_guess / scale
    if in_single_precision:
        solution = refined(operator, rhs, preconditioner, guess, tolerance, max_iterations, iteration)
        if solution.residual <= tolerance:
            return replace(solution, value=solution.value * scale)
        _logger.debug("float32 stopped at residual %.1e, wanted %.1e: going on in float64", solution.residual, tolerance)
        guess, iteration = solution.value, None
    solution = _solve_scaled(operator, rhs, to_dense, preconditioner, guess, tolerance, max_iterations, iteration)
    return replace(solution, value=solution.value * scale)


def _solve_scaled(
    operator: LinearMap,
    rhs: th.Tensor,
    to_dense: Callable[[], th.Tensor],
    preconditioner: LinearMap | None,
    initial_guess: th.Tensor | None,
    tolerance: float,
    max_iterations: int,
    iteration: Iteration | None,
) -> Solution:
    # Cheapest first, and each starts where the one before stopped.
    solution = bicgstab(operator, rhs, preconditioner, initial_guess, tolerance, max_iterations, iteration)
    if solution.residual <= tolerance:
        return solution
    _logger.debug("BiCGSTAB stopped at residual %.1e, wanted %.1e: trying GMRES", solution.residual, tolerance)
    start = solution.value if solution.residual < 1.0 else None
    solution = gmres(operator, rhs, start, tolerance, max_iterations)
    if solution.residual <= tolerance:
        return solution
    if len(rhs) <= _DENSE_LIMIT:
        _logger.debug("GMRES stopped at residual %.1e, wanted %.1e: trying dense LU", solution.residual, tolerance)
        solution = dense_lu(operator, rhs, to_dense(), tolerance)
        if solution.residual <= tolerance:
            return solution
    raise SolverError(
        f"{solution.method} left a relative residual of {solution.residual:.1e} where {tolerance:.1e} was asked for. "
        "Try a larger solver_tolerance, a smaller gamma, or precision='float64'."
    )
