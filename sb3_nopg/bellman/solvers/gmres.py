"""Restarted GMRES (Saad and Schultz 1986): slower than BiCGSTAB, but its residual never grows."""

import torch as th

from sb3_nopg.bellman.solvers.solution import LinearMap, Solution, relative_residual

_BASIS_SIZE = 50


def gmres(
    operator: LinearMap, rhs: th.Tensor, initial_guess: th.Tensor | None, tolerance: float, max_iterations: int
) -> Solution:
    """
    Solve A x = b by minimising the residual over a Krylov space, again and again.

    :param operator: x ↦ A x
    :param rhs: b, (n,)
    :param initial_guess: where to start, zero if None, (n,)
    :param tolerance: on ‖b − A x‖ / ‖b‖
    :param max_iterations: products with A, over all restarts
    """
    rhs_norm = float(th.linalg.vector_norm(rhs))
    value = th.zeros_like(rhs) if initial_guess is None else initial_guess
    n_iterations, residual = 0, relative_residual(rhs - operator(value), rhs)
    while residual > tolerance and n_iterations < max_iterations:
        correction, n_made = _cycle(operator, rhs - operator(value), tolerance * rhs_norm)
        value, n_iterations = value + correction, n_iterations + n_made
        residual, before = relative_residual(rhs - operator(value), rhs), residual
        # Rounding, not the Krylov space, sets the limit once a whole cycle gains nothing.
        if residual > 0.9 * before:
            break
    return Solution(value, residual, n_iterations, "GMRES")


def _cycle(operator: LinearMap, residual: th.Tensor, target: float) -> tuple[th.Tensor, int]:
    """
    The correction within one Krylov space that leaves the smallest residual.

    :return: correction (n,) and the number of products it took
    """
    norm = th.linalg.vector_norm(residual)
    size = min(_BASIS_SIZE, len(residual))
    basis = residual.new_zeros(size + 1, len(residual))
    hessenberg = residual.new_zeros(size + 1, size)
    basis[0] = residual / norm
    n_made, coefficients = 0, residual.new_zeros(0)
    for column in range(size):
        image = operator(basis[column])
        # Gram-Schmidt twice: once is not enough for an orthogonal basis in floating point.
        for _ in range(2):
            overlap = basis[: column + 1] @ image
            image = image - overlap @ basis[: column + 1]
            hessenberg[: column + 1, column] += overlap
        length = th.linalg.vector_norm(image)
        hessenberg[column + 1, column] = length
        n_made = column + 1
        head = hessenberg[: n_made + 1, :n_made]
        wanted = residual.new_zeros(n_made + 1)
        wanted[0] = norm
        coefficients = th.linalg.lstsq(head, wanted[:, None]).solution[:, 0]
        if float(th.linalg.vector_norm(wanted - head @ coefficients)) <= target or float(length) == 0.0:
            break
        basis[column + 1] = image / length
    return coefficients @ basis[:n_made], n_made
