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


def relative_residual(operator: LinearMap, rhs: th.Tensor, value: th.Tensor) -> float:
    """‖b − A x‖ / ‖b‖, infinite where x is not finite."""
    residual = float(th.linalg.vector_norm(rhs - operator(value)) / th.linalg.vector_norm(rhs))
    return residual if residual == residual else float("inf")
