"""What every solver takes and returns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch as th

LinearMap = Callable[[th.Tensor], th.Tensor]


@dataclass(frozen=True)
class Solution:
    """
    :param value: x, (n,)
    :param residual: ‖b − A x‖ / ‖b‖, recomputed from x and not carried along by the method
    :param n_iterations: iterations it took
    :param method: which solver it came from
    """

    value: th.Tensor
    residual: float
    n_iterations: int
    method: str


def relative_residual(residual: th.Tensor, rhs: th.Tensor) -> float:
    """
    :param residual: b − A x, (n,)
    :param rhs: b, (n,)
    :return: ‖b − A x‖ / ‖b‖, infinite where x is not finite
    """
    residual_norm, rhs_norm = read(th.linalg.vector_norm(residual), th.linalg.vector_norm(rhs))
    relative = residual_norm / rhs_norm
    return relative if relative == relative else float("inf")


def read(*numbers: "float | th.Tensor") -> list[float]:
    """
    Bring numbers from the device, all at once: a GPU stops each time until the number asked for is known.

    :param numbers: tensors without dimensions, all on one device, or plain numbers
    """
    if isinstance(numbers[0], th.Tensor) and numbers[0].is_cuda:
        return th.stack([th.as_tensor(number) for number in numbers]).tolist()
    return [float(number) for number in numbers]
