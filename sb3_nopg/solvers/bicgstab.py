"""BiCGSTAB (van der Vorst 1992), restarted from the true residual when its own has drifted away."""

import torch as th

from sb3_nopg.solvers.solution import LinearMap, Solution, relative_residual

_RESTARTS = 3


def bicgstab(
    operator: LinearMap,
    rhs: th.Tensor,
    preconditioner: LinearMap | None,
    initial_guess: th.Tensor | None,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """
    Solve A x = b for a general matrix with two products an iteration and no memory that grows.

    :param operator: x ↦ A x
    :param rhs: b, (n,)
    :param preconditioner: x ↦ M⁻¹ x, an approximation of x ↦ A⁻¹ x; it acts from the right, so residuals stay the true ones
    :param initial_guess: where to start, zero if None, (n,)
    :param tolerance: on ‖b − A x‖ / ‖b‖
    :param max_iterations: over all restarts
    """
    rhs_norm = float(th.linalg.vector_norm(rhs))
    value = th.zeros_like(rhs) if initial_guess is None else initial_guess.clone()
    residual = rhs - operator(value)
    if not bool(residual.isfinite().all()):
        value, residual = th.zeros_like(rhs), rhs.clone()
    n_iterations = 0
    for _ in range(1 + _RESTARTS):
        if relative_residual(residual, rhs) <= tolerance or n_iterations >= max_iterations:
            break
        budget = max_iterations - n_iterations
        n_iterations += _run(operator, preconditioner or _identity, residual, value, tolerance * rhs_norm, budget)
        residual = rhs - operator(value)
    return Solution(value, relative_residual(residual, rhs), n_iterations, "BiCGSTAB")


def _identity(x: th.Tensor) -> th.Tensor:
    return x


def _run(
    operator: LinearMap, preconditioner: LinearMap, residual: th.Tensor, value: th.Tensor, target: float, max_iterations: int
) -> int:
    """
    Improve ``value`` in place until the recurrence's residual norm is below the target, or the recurrence breaks down. On
    return ``residual`` is the recurrence's, not to be trusted.

    :return: iterations made
    """
    shadow = residual.clone()
    direction = residual.clone()
    rho = float(th.dot(shadow, residual))
    for iteration in range(1, max_iterations + 1):
        step = preconditioner(direction)
        image = operator(step)
        projection = float(th.dot(shadow, image))
        if projection == 0.0:
            return iteration
        alpha = rho / projection
        residual.sub_(image, alpha=alpha)  # residual is now the half step's
        half_step = preconditioner(residual)
        stabilizer = operator(half_step)
        squared = float(th.dot(stabilizer, stabilizer))
        omega = float(th.dot(stabilizer, residual)) / squared if squared > 0.0 else 0.0
        value.add_(step, alpha=alpha).add_(half_step, alpha=omega)
        residual.sub_(stabilizer, alpha=omega)
        previous_rho, rho = rho, float(th.dot(shadow, residual))
        # A vanishing rho or omega is a breakdown: return, and let the caller restart from the true residual.
        if not float(th.linalg.vector_norm(residual)) > target or rho == 0.0 or omega == 0.0:
            return iteration
        direction.sub_(image, alpha=omega).mul_(rho / previous_rho * alpha / omega).add_(residual)
    return max_iterations
