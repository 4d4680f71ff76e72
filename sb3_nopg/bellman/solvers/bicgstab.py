"""BiCGSTAB (van der Vorst 1992), restarted from the true residual when its own has drifted away."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch as th

from sb3_nopg.bellman.solvers.solution import LinearMap, Solution, read

_RESTARTS = 3
# Where numbers are dear to read, so many iterations at the most are made between two looks.
_MOST_UNSEEN = 16
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

    def step(self, n_times: int = 1) -> list[float]:
        """
        :param n_times: how many iterations to make before the numbers are read
        :return: norm of the recurrence's residual after the last, and numbers of which one is zero where that one broke down
        """
        ...

    @property
    def is_dear_to_read(self) -> bool:
        """Whether reading a number makes the program wait for the device."""
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
    :return: the guess itself where nothing had to be done
    """
    iteration = iteration or PlainIteration(operator, preconditioner)
    if initial_guess is None:
        value, residual = th.zeros_like(rhs), rhs
    else:
        value, residual = initial_guess, rhs - operator(initial_guess)
    rhs_norm, residual_norm = read(th.linalg.vector_norm(rhs), th.linalg.vector_norm(residual))
    if not math.isfinite(residual_norm):
        value, residual, residual_norm = th.zeros_like(rhs), rhs, rhs_norm
    n_iterations = 0
    for _ in range(1 + _RESTARTS):
        if residual_norm <= tolerance * rhs_norm or n_iterations >= max_iterations:
            break
        budget = max_iterations - n_iterations
        n_made, value = run(iteration, value, residual, residual_norm, tolerance * rhs_norm, budget)
        n_iterations += n_made
        residual = rhs - operator(value)
        (residual_norm,) = read(th.linalg.vector_norm(residual))
    relative = residual_norm / rhs_norm
    return Solution(value, relative if math.isfinite(relative) else math.inf, n_iterations, "BiCGSTAB")


def run(
    iteration: Iteration, value: th.Tensor, residual: th.Tensor, norm: float, target: float, max_iterations: int
) -> tuple[int, th.Tensor]:
    """
    Iterate until the recurrence's residual norm, which is not to be trusted, is below the target, or the recurrence breaks
    down: then the caller goes on from the true residual.

    :param iteration: of the system
    :param value: where to start, left as it is, (n,)
    :param residual: there, left as it is, (n,)
    :param norm: of that residual
    :param target: norm to come below
    :param max_iterations: after which it ends all the same
    :return: iterations made, and a better value
    """
    iteration.begin(value, residual)
    n_made, n_unseen, first_norm = 0, 1, norm
    while n_made < max_iterations:
        n_unseen = min(n_unseen, max_iterations - n_made)
        norm, *vital = iteration.step(n_unseen)
        n_made += n_unseen
        if not norm > target or 0.0 in vital:
            break
        n_unseen = _until_next_look(n_made, first_norm, norm, target) if iteration.is_dear_to_read else 1
    return n_made, iteration.value


def _until_next_look(n_made: int, first_norm: float, norm: float, target: float) -> int:
    """Half of the iterations that are left at the pace so far: the norm falls by fits and starts."""
    if not 0.0 < target < norm < first_norm:
        return 1
    n_left = n_made * math.log(norm / target) / math.log(first_norm / norm)
    return int(min(max(n_left / 2.0, 1.0), _MOST_UNSEEN))


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

    def step(self, n_times: int = 1) -> list[float]:
        for _ in range(n_times):
            self._rho, *numbers = iterate(self._operator, self._preconditioner, self._vectors, self._rho)
        # Only at the end do numbers come from the device.
        return read(*numbers, self._rho)

    @property
    def is_dear_to_read(self) -> bool:
        return self._vectors.value.is_cuda

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
    # Zero where the method breaks down: the caller sees that by the numbers and starts over.
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
