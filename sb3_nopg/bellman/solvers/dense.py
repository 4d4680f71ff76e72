"""LU factorisation: the last resort, cubic in time and quadratic in memory."""

import torch as th

from sb3_nopg.bellman.solvers.solution import LinearMap, Solution, relative_residual


def dense_lu(operator: LinearMap, rhs: th.Tensor, matrix: th.Tensor, tolerance: float) -> Solution:
    """
    Solve A x = b by factorisation, with refinement steps while they are needed.

    :param operator: x ↦ A x, which the residual is recomputed with
    :param rhs: b, (n,)
    :param matrix: A, (n, n)
    :param tolerance: on ‖b − A x‖ / ‖b‖
    """
    factors, pivots = th.linalg.lu_factor(matrix)

    def apply_inverse(x: th.Tensor) -> th.Tensor:
        return th.linalg.lu_solve(factors, pivots, x[:, None])[:, 0]

    value, n_iterations = apply_inverse(rhs), 1
    residual = relative_residual(rhs - operator(value), rhs)
    while residual > tolerance and n_iterations < 4:
        value, n_iterations = value + apply_inverse(rhs - operator(value)), n_iterations + 1
        residual = relative_residual(rhs - operator(value), rhs)
    return Solution(value, residual, n_iterations, "dense LU")
