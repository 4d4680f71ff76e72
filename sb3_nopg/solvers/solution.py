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
    relative = float(th.linalg.vector_norm(residual)) / float(th.linalg.vector_norm(rhs))
    return relative if relative == relative else float("inf")
