"""BiCGSTAB (van der Vorst 1992), restarted from the true residual when its own has drifted away."""

import math

import torch as th

from sb3_nopg.solvers.solution import LinearMap, Solution, read

_RESTARTS = 3
# A number that stays on the device, or a plain one.
Number = float | th.Tensor


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
    value = th.zeros_like(rhs) if initial_guess is None else initial_guess.clone()
    residual = rhs - operator(value)
    rhs_norm, residual_norm = read(th.linalg.vector_norm(rhs), th.linalg.vector_norm(residual))
    if not math.isfinite(residual_norm):
        value, residual, residual_norm = th.zeros_like(rhs), rhs.clone(), rhs_norm
    n_iterations = 0
    for _ in range(1 + _RESTARTS):
        if residual_norm <= tolerance * rhs_norm or n_iterations >= max_iterations:
            break
        budget = max_iterations - n_iterations
        n_iterations += _run(operator, preconditioner or _identity, residual, value, tolerance * rhs_norm, budget)
        residual = rhs - operator(value)
        (residual_norm,) = read(th.linalg.vector_norm(residual))
    relative = residual_norm / rhs_norm
    return Solution(value, relative if math.isfinite(relative) else math.inf, n_iterations, "BiCGSTAB")


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
    (rho,) = read(th.dot(shadow, residual))
    for iteration in range(1, max_iterations + 1):
        step = preconditioner(direction)
        image = operator(step)
        # Only at the end of an iteration do numbers come from the device.
        projection = _on_device(th.dot(shadow, image))
        alpha = _ratio(rho, projection)
        _add(residual, image, -alpha)  # residual is now the half step's
        half_step = preconditioner(residual)
        stabilizer = operator(half_step)
        squared = _on_device(th.dot(stabilizer, stabilizer))
        omega = _ratio(_on_device(th.dot(stabilizer, residual)), squared)
        _add(_add(value, step, alpha), half_step, omega)
        _add(residual, stabilizer, -omega)
        previous_rho = rho
        rho, norm, alpha, omega = read(th.dot(shadow, residual), th.linalg.vector_norm(residual), alpha, omega)
        # A vanishing rho, alpha or omega is a breakdown: return, and let the caller restart from the true residual.
        if not norm > target or rho == 0.0 or alpha == 0.0 or omega == 0.0:
            return iteration
        direction.sub_(image, alpha=omega).mul_(rho / previous_rho * alpha / omega).add_(residual)
    return max_iterations


def _on_device(number: th.Tensor) -> Number:
    # On the CPU plain numbers are the quicker ones.
    return number if number.is_cuda else float(number)


def _ratio(numerator: Number, denominator: Number) -> Number:
    """Zero where the denominator is."""
    if isinstance(denominator, th.Tensor):
        return th.where(denominator == 0.0, 0.0, numerator / denominator)
    return numerator / denominator if denominator != 0.0 else 0.0


def _add(x: th.Tensor, y: th.Tensor, factor: Number) -> th.Tensor:
    """x + factor · y in the place of x."""
    return x.addcmul_(y, factor) if isinstance(factor, th.Tensor) else x.add_(y, alpha=factor)
