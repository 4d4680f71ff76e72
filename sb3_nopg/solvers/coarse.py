"""
A coarse model of the Bellman equation that speeds up the solution of the fine one.

What a Krylov method is slow at is moving value across the whole state space, a neighbourhood an iteration. A model with a
few hundred cells does that exactly and costs next to nothing: cells of nearby next states R, their average W, and

    M⁻¹ = I + R ((I − γ W P̂ R)⁻¹ − I) W

as preconditioner of Λ = I − γ P̂, and its transpose of Λᵀ. It decides only how many iterations a solve takes, never its
result, so it may lag behind the policy.
"""

import numpy as np
import torch as th

from sb3_nopg.transition import TransitionMatrix

_MAX_CELLS = 1024
# Policies change little from one update to the next: a model this many updates old still serves.
_UPDATES_BETWEEN_REFRESHES = 20


class CoarseModel:
    """
    :param next_states: s' of each transition, divided by the state bandwidth, (n, d_s)
    :param n_entries: entries of P̂, which one product with the coarse model should not outweigh
    """

    def __init__(self, next_states: th.Tensor, n_entries: int):
        n = len(next_states)
        n_levels = int(np.log2(max(1, min(_MAX_CELLS, n // 4, int(np.sqrt(n_entries))))))
        cells = _halve_repeatedly(next_states.detach().cpu().double().numpy(), n_levels)
        self._cell = th.from_numpy(cells).to(next_states.device)
        self._size = th.bincount(self._cell, minlength=2**n_levels).to(next_states.dtype)
        self._correction: th.Tensor | None = None
        self._age = 0

    def build(self, transition: TransitionMatrix, gamma: float) -> None:
        """Derive the coarse model from the current P̂, unless there is one that is recent enough."""
        if self._correction is not None:
            return
        coarse_transition = transition.aggregate(self._cell, len(self._size)) / self._size[:, None]
        identity = th.eye(len(self._size), dtype=self._size.dtype, device=self._size.device)
        # W is Rᵀ divided by the cells' sizes, so R (…) W = R S Rᵀ, and its transpose is R Sᵀ Rᵀ.
        self._correction = (th.linalg.inv(identity - gamma * coarse_transition) - identity) / self._size
        self._age = 0

    def grow_older(self) -> None:
        """Count a policy update; after some, the model is built anew."""
        self._age += 1
        if self._age >= _UPDATES_BETWEEN_REFRESHES:
            self._correction = None

    def precondition(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: (n,)
        :return: M⁻¹ x, (n,)
        """
        assert self._correction is not None
        return self._apply(self._correction, x)

    def precondition_transposed(self, y: th.Tensor) -> th.Tensor:
        """
        :param y: (n,)
        :return: M⁻ᵀ y, (n,)
        """
        assert self._correction is not None
        return self._apply(self._correction.T, y)

    def _apply(self, correction: th.Tensor, x: th.Tensor) -> th.Tensor:
        sums = th.zeros_like(self._size).index_add_(0, self._cell, x)
        return th.mv(correction, sums).index_select(0, self._cell).add_(x)


def _halve_repeatedly(points: np.ndarray, n_levels: int) -> np.ndarray:
    """
    Cells of equal size: halve every cell at the median of its widest dimension, level after level.

    :param points: (n, d)
    :param n_levels: how often to halve
    :return: the cell of each point, 0 … 2^n_levels − 1, (n,)
    """
    cells = [np.arange(len(points))]
    for _ in range(n_levels):
        halves = []
        for members in cells:
            widest = np.argmax(np.ptp(points[members], axis=0))
            order = members[np.argsort(points[members, widest], kind="stable")]
            halves += np.array_split(order, 2)
        cells = halves
    labels = np.empty(len(points), dtype=np.int64)
    for number, members in enumerate(cells):
        labels[members] = number
    return labels
