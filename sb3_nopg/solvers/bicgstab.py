"""BiCGSTAB (van der Vorst 1992), restarted from the true residual when its own has drifted away."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch as th

from sb3_nopg.solvers.solution import LinearMap, Solution, read

_RESTARTS = 3
# A number that stays on the device, or a plain one.
Number = float | th.Tensor


@dataclass(frozen=True)
class Vectors:
    """
    What an iteration works on, in place.

    :param value: x so far, (n,)
    :param residual: of it, by the recurrence, (n,)
    :param shadow: the residual at the start, (n,)
    :param direction: to search in next, (n,)
    """

    value: th.Tensor
    residual: th.Tensor
    shadow: th.Tensor
    direction: th.Tensor


class Iteration(Protocol):
    """One iteration after another on the same vectors."""

    def begin(self, value: th.Tensor, residual: th.Tensor) -> None:
        """
        :param value: x, left as it is
        :param residual: b − A x, left as it is
        """

    def step(self) -> list[float]:
        """:return: norm of the recurrence's residual, and numbers of which one is zero where the method breaks down"""
        ...

    @property
    def value(self) -> th.Tensor:
        """x as it is now; the next start may overwrite it."""
        ...


def bicgstab(
    operator: LinearMap,
    rhs: th.Tensor,
    preconditioner: LinearMap | None,
    initial_guess: th.Tensor | None,
    tolerance: float,
    max_iterations: int,
    iteration: Iteration | None = None,
) -> Solution:
    """
    Solve A x = b for a general matrix with two products an iteration and no memory that grows.

    :param operator: x ↦ A x
    :param rhs: b, (n,)
    :param preconditioner: x ↦ M⁻¹ x, an approximation of x ↦ A⁻¹ x; it acts from the right, so residuals stay the true ones
    :param initial_guess: where to start, zero if None, (n,)
    :param tolerance: on ‖b − A x‖ / ‖b‖
    :param max_iterations: over all restarts
    :param iteration: for this operator and preconditioner, where it is known how to go through it faster
    """
    iteration = iteration or PlainIteration(operator, preconditioner)
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
        n_made, value = _run(iteration, value, residual, tolerance * rhs_norm, budget)
        n_iterations += n_made
        residual = rhs - operator(value)
        (residual_norm,) = read(th.linalg.vector_norm(residual))
    relative = residual_norm / rhs_norm
    return Solution(value, relative if math.isfinite(relative) else math.inf, n_iterations, "BiCGSTAB")


def _run(
    iteration: Iteration, value: th.Tensor, residual: th.Tensor, target: float, max_iterations: int
) -> tuple[int, th.Tensor]:
    """
    Iterate until the recurrence's residual norm, which is not to be trusted, is below the target, or the recurrence breaks
    down: then the caller restarts from the true residual.

    :return: iterations made, and a better value
    """
    iteration.begin(value, residual)
    for n_made in range(1, max_iterations + 1):
        norm, *vital = iteration.step()
        if not norm > target or 0.0 in vital:
            return n_made, iteration.value
    return max_iterations, iteration.value


class PlainIteration:
    """
    :param operator: x ↦ A x
    :param preconditioner: x ↦ M⁻¹ x; None for x itself
    """

    def __init__(self, operator: LinearMap, preconditioner: LinearMap | None):
        self._operator, self._preconditioner = operator, preconditioner

    def begin(self, value: th.Tensor, residual: th.Tensor) -> None:
        self._vectors = Vectors(value.clone(), residual.clone(), residual.clone(), residual.clone())
        self._rho = _on_device(th.dot(residual, residual))

    def step(self) -> list[float]:
        self._rho, *numbers = iterate(self._operator, self._preconditioner, self._vectors, self._rho)
        # Only at the end of an iteration do numbers come from the device.
        return read(*numbers, self._rho)

    @property
    def value(self) -> th.Tensor:
        return self._vectors.value


def iterate(
    operator: LinearMap, preconditioner: LinearMap | None, vectors: Vectors, rho: Number
) -> tuple[Number, Number, Number, Number]:
    """
    One iteration. On a GPU no number comes to the processor on the way.

    :param operator: x ↦ A x
    :param preconditioner: x ↦ M⁻¹ x; None for x itself
    :param vectors: changed in place
    :param rho: product of shadow and residual
    :return: the next rho, norm of the residual, and two step lengths
    """
    residual, shadow, direction = vectors.residual, vectors.shadow, vectors.direction
    step = direction if preconditioner is None else preconditioner(direction)
    image = operator(step)
    alpha = _ratio(rho, _on_device(th.dot(shadow, image)))
    _add(residual, image, -alpha)  # residual is now the half step's
    half_step = residual if preconditioner is None else preconditioner(residual)
    stabilizer = operator(half_step)
    squared = _on_device(th.dot(stabilizer, stabilizer))
    omega = _ratio(_on_device(th.dot(stabilizer, residual)), squared)
    _add(_add(vectors.value, step, alpha), half_step, omega)
    _add(residual, stabilizer, -omega)
    next_rho = _on_device(th.dot(shadow, residual))
    # Zero where the method breaks down: the caller sees that by the numbers and begins anew.
    growth = _ratio(_ratio(next_rho, rho) * alpha, omega)
    _add(direction, image, -omega).mul_(growth).add_(residual)
    return next_rho, _on_device(th.linalg.vector_norm(residual)), alpha, omega


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
