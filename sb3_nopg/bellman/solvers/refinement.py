"""Solve in float32, check and correct in float64: half the memory to read, and the same answer."""

import torch as th

from sb3_nopg.bellman.solvers.bicgstab import Iteration, PlainIteration, run
from sb3_nopg.bellman.solvers.solution import LinearMap, Solution, read

# float32 has about seven digits, of which the system's condition takes two or three: more cannot be gained in one round.
_BEST_GAIN = 1e-4
# Each goes on from the true residual, so that it is a restart too where float32 has broken down.
_ROUNDS = 8


def refined(
    operator: LinearMap,
    rhs: th.Tensor,
    preconditioner: LinearMap | None,
    initial_guess: th.Tensor | None,
    tolerance: float,
    max_iterations: int,
    iteration: Iteration | None = None,
) -> Solution:
    """
    Solve A x = b in rounds: the residual in float64, the correction that it asks for by BiCGSTAB in float32.

    :param operator: x ↦ A x, for x in float64 and in float32
    :param rhs: b in float64, (n,)
    :param preconditioner: x ↦ M⁻¹ x, an approximation of x ↦ A⁻¹ x, for both too
    :param initial_guess: where to start, zero if None, (n,)
    :param tolerance: on ‖b − A x‖ / ‖b‖
    :param max_iterations: over all rounds
    :param iteration: a faster way through one in float32
    :return: the best value that was found, whether or not it reaches the tolerance
    """
    if initial_guess is None:
        value, residual = th.zeros_like(rhs), rhs
    else:
        value, residual = initial_guess, rhs - operator(initial_guess)
    rhs_norm, norm = read(th.linalg.vector_norm(rhs), th.linalg.vector_norm(residual))
    if not norm < rhs_norm:
        # Also where it is not finite.
        value, residual, norm = th.zeros_like(rhs), rhs, rhs_norm
    iteration, zero, n_iterations = iteration or PlainIteration(operator, preconditioner), th.zeros_like(rhs).float(), 0
    for _ in range(_ROUNDS):
        if norm <= tolerance * rhs_norm or n_iterations >= max_iterations:
            break
        # A little more than needed, because rounding takes some of it.
        gain = max(0.9 * tolerance * rhs_norm / norm, _BEST_GAIN)
        n_made, correction = run(iteration, zero, (residual / norm).float(), 1.0, gain, max_iterations - n_iterations)
        n_iterations += n_made
        better = value + norm * correction.to(rhs.dtype)
        better_residual = rhs - operator(better)
        (better_norm,) = read(th.linalg.vector_norm(better_residual))
        if not better_norm < norm:
            break
        value, residual, norm = better, better_residual, better_norm
    return Solution(value, norm / rhs_norm, n_iterations, "BiCGSTAB in float32, refined")
