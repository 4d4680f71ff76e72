"""Past solutions as a first guess for the next system."""

from collections import deque

import torch as th

from sb3_nopg.bellman.solvers.solution import LinearMap

_N_KEPT = 4


class SolutionHistory:
    """
    The last few solutions of systems that change slowly.

    The guess is the latest solution plus the combination of past changes that leaves the smallest residual. An optimiser
    moves steadily, so tomorrow's change resembles today's: three products buy a guess ten to thirty times closer.
    """

    def __init__(self) -> None:
        self._values: deque[th.Tensor] = deque(maxlen=_N_KEPT)

    @property
    def values(self) -> list[th.Tensor]:
        """What is remembered, the latest last."""
        return list(self._values)

    def add(self, value: th.Tensor) -> None:
        """
        :param value: a solution, (n,)
        """
        self._values.append(value)

    def guess(self, operator: LinearMap, rhs: th.Tensor, in_single_precision: bool = False) -> th.Tensor | None:
        """
        :param operator: x ↦ A x of the next system
        :param rhs: its right-hand side, (n,)
        :param in_single_precision: whether the operator takes float32 too, which is good enough for the changes' images
        :return: (n,), None where there is no past
        """
        if not self._values:
            return None
        latest = self._values[-1]
        if len(self._values) == 1:
            return latest
        changes = th.stack([latest - value for value in list(self._values)[:-1]])  # (h, n)
        images = th.stack([operator(change) for change in (changes.float() if in_single_precision else changes)]).to(rhs.dtype)
        # Scaled to unit length, with a little ridge: changes may be nearly parallel, or zero once training has converged.
        lengths = th.linalg.vector_norm(images, dim=1).clamp_min(th.finfo(rhs.dtype).tiny)
        images = images / lengths[:, None]
        gram = images @ images.T
        gram.diagonal().add_(1e-10 if rhs.dtype == th.float64 else 1e-5)
        # Without the look at whether it succeeded, which a GPU would stop for: the ridge makes sure of it.
        combination = th.linalg.solve_ex(gram, images @ (rhs - operator(latest))).result / lengths
        return latest + combination @ changes
