"""
A coarse model of the Bellman equation that speeds up the solution of the fine one.

What a Krylov method is slow at is moving value across the whole state space, a neighbourhood an iteration. A model with a
few hundred or thousand cells does that exactly and at little cost: cells of nearby next states R, their average W, and

    M⁻¹ = I + R ((I − γ W P̂ R)⁻¹ − I) W

as preconditioner of Λ = I − γ P̂, and its transpose of Λᵀ. It decides only how many iterations a solve takes, never its
result, so it may lag behind the policy. Where P̂ is nearly a table of nearest samples, averages over cells say nothing about
it and the model does harm: so now and then a new one is tried against none on the system it is for.
"""

from typing import Any, Literal

import numpy as np
import scipy
import torch as th

from sb3_nopg.bellman.solvers.bicgstab import bicgstab
from sb3_nopg.bellman.solvers.solution import LinearMap
from sb3_nopg.bellman.transition import TransitionMatrix
from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.kernels.partition import Partition, halve_repeatedly, sum_members

# More cells save iterations until they cost more than they save: as many as the dense inverse takes, at four samples each, and
# beyond that at eight.
_MAX_CELLS = {"cpu": 8192, "gpu": 4096}
# Up to so many cells a product with the dense inverse is quicker than a solve with sparse factors; on a GPU, always.
_MAX_DENSE_CELLS = {"cpu": 256, "gpu": 4096}
# Factors of a matrix with more entries a row than this fill up: fewer, larger cells and a dense inverse serve better then, of
# so many samples a cell that its product takes a small part of the time that one with the fine matrix does.
_MAX_ENTRIES_A_ROW = 32
_MAX_DENSE_CELLS_IF_FULL, _SAMPLES_A_DENSE_CELL = 2048, 24
# Policies change little from one update to the next: a model this many updates old still serves.
_UPDATES_BETWEEN_REFRESHES = 40
# A trial costs as much as some updates do, and its verdict holds for longer than a model.
_BUILDS_BETWEEN_TRIALS = 5
# An iteration with the model costs up to twice one without, so it must save this share of them.
_TRIAL_SHARE, _TRIAL_TOLERANCE, _TRIAL_ITERATIONS = 0.6, 1e-4, 300


class CoarseModel:
    """
    :param next_states: s' of each transition, divided by the state bandwidth, (n, d_s)
    :param shared: whether several processes must get the same numbers: then no kernels are used that one of them may lack
    """

    def __init__(self, next_states: th.Tensor, shared: bool = False):
        self._device, self._shared = next_states.device, shared
        n = len(next_states)
        self._kind = "cpu" if self._device.type == "cpu" else "gpu"
        n_cells = max(1, min(n // 4, _MAX_DENSE_CELLS["cpu"]), min(n // 8, _MAX_CELLS[self._kind]))
        n_levels = int(np.log2(n_cells))
        self._dtype = next_states.dtype
        self._set_cells(halve_repeatedly(next_states.detach(), n_levels).labels, 2**n_levels)
        self._inverse: _DenseInverse | _SparseFactors | None = None
        self._age, self._n_builds = 0, 0
        self.pays = False

    def _set_cells(self, cell: th.Tensor, n_cells: int) -> None:
        self._cell, self._n_cells = cell, n_cells
        counts = th.bincount(cell, minlength=n_cells)
        self._size = counts.to(self._dtype)
        if cell.is_cuda:
            partition = Partition(th.argsort(cell, stable=True), th.cat([counts.new_zeros(1), counts.cumsum(0)]))
            members, self._is_member = partition.table()
            # Half as wide, which is half as much to read in every iteration.
            self._members, self._narrow_cell = members.int(), cell.int()

    def build(self, transition: TransitionMatrix, gamma: float, rhs: th.Tensor) -> None:
        """
        Derive the coarse model from the current P̂ and find out whether it helps, unless there is one that is recent enough.

        :param transition: P̂
        :param gamma: discount
        :param rhs: right-hand side of the system to try it on, (n,)
        """
        if self._inverse is not None:
            return
        if self._n_cells <= _MAX_DENSE_CELLS[self._kind]:
            self._inverse = self._invert(transition.aggregate(self._cell, self._n_cells), gamma)
        else:
            coarse = self._sparse_aggregate(transition)
            if _fills_up(coarse):
                self._inverse = self._invert(th.from_numpy(coarse.toarray()).to(self._size), gamma)
            else:
                self._inverse = _SparseFactors(coarse, self._size, gamma)
        self._age = 0

        def operator(x: th.Tensor) -> th.Tensor:
            return transition.bellman_operator(x, gamma)

        if self._n_builds % _BUILDS_BETWEEN_TRIALS == 0:
            self.pays = bool(rhs.any()) and self._wins(operator, rhs)
        self._n_builds += 1

    def _invert(self, sums: th.Tensor, gamma: float) -> "_DenseInverse":
        """
        :param sums: Rᵀ P̂ R, (c, c)
        :param gamma: discount
        """
        identity = th.eye(len(sums), dtype=sums.dtype, device=sums.device)
        inverse = th.linalg.inv(identity - gamma * sums / self._size[:, None])
        return _DenseInverse((inverse - identity) / self._size, self._shared)

    def _wins(self, operator: LinearMap, rhs: th.Tensor) -> bool:
        without = bicgstab(operator, rhs, None, None, _TRIAL_TOLERANCE, _TRIAL_ITERATIONS)
        budget = int(_TRIAL_SHARE * without.n_iterations)
        return bicgstab(operator, rhs, self.precondition, None, _TRIAL_TOLERANCE, budget).residual <= _TRIAL_TOLERANCE

    def _sparse_aggregate(self, transition: TransitionMatrix) -> "scipy.sparse.csc_array":
        few_enough = max(512, min(_MAX_DENSE_CELLS_IF_FULL, len(self._cell) // _SAMPLES_A_DENSE_CELL))
        while True:
            coarse = transition.aggregate_sparse(self._cell, self._n_cells)
            if not _fills_up(coarse) or self._n_cells <= few_enough:
                return coarse
            self._merge_halves()

    def _merge_halves(self) -> None:
        # Numbers of halves that came from one cell differ in the last bit only.
        self._set_cells(self._cell // 2, self._n_cells // 2)

    @property
    def matrix_in_use(self) -> object:
        """What the preconditioner reads: another object after every build. None where there is no preconditioner."""
        return self._inverse if self.pays else None

    def grow_older(self) -> None:
        """Count a policy update; after some, the model is built again."""
        self._age += 1
        if self._age >= _UPDATES_BETWEEN_REFRESHES:
            self._inverse = None

    def state(self) -> dict[str, Any]:
        """What a model of the same next states needs to go on in the same way, as tensors and numbers."""
        kind = None if self._inverse is None else type(self._inverse).__name__
        matrix = {} if self._inverse is None else self._inverse.matrix()
        counts = {"n_cells": self._n_cells, "age": self._age, "n_builds": self._n_builds}
        return {**counts, "pays": self.pays, "kind": kind, "matrix": matrix}

    def restore(self, state: dict[str, Any], gamma: float) -> None:
        """
        :param state: of a model of the same next states
        :param gamma: discount
        """
        while self._n_cells > state["n_cells"]:
            self._merge_halves()
        self._age, self._n_builds, self.pays = state["age"], state["n_builds"], state["pays"]
        if state["kind"] is None:
            self._inverse = None
        elif state["kind"] == _DenseInverse.__name__:
            self._inverse = _DenseInverse(state["matrix"]["correction"].to(self._device), self._shared)
        else:
            self._inverse = _SparseFactors.restored(state["matrix"], self._size, gamma)

    def precondition(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: (n,)
        :return: M⁻¹ x, (n,)
        """
        assert self._inverse is not None
        return self._add_by_cell(x, self._inverse.correction(self._sum_by_cell(x)))

    def precondition_transposed(self, y: th.Tensor) -> th.Tensor:
        """
        :param y: (n,)
        :return: M⁻ᵀ y, (n,)
        """
        assert self._inverse is not None
        return self._add_by_cell(y, self._inverse.correction_transposed(self._sum_by_cell(y)))

    def _sum_by_cell(self, x: th.Tensor) -> th.Tensor:
        if not x.is_cuda:
            return x.new_zeros(self._n_cells).index_add_(0, self._cell, x)
        # On a GPU threads would wait for each other to add to the same few cells.
        sums = fused.sum_members if not self._shared and fused.usable(x, self._members.shape[1]) else sum_members
        return sums(x, self._members, self._is_member)

    def _add_by_cell(self, x: th.Tensor, correction: th.Tensor) -> th.Tensor:
        if not self._shared and fused.usable(x, 1):
            return fused.add_by_cell(x, correction, self._narrow_cell)
        return correction.index_select(0, self._cell).add_(x)


class _DenseInverse:
    """
    :param correction: ((I − γ W P̂ R)⁻¹ − I) S⁻¹, where S⁻¹ makes averages W of sums Rᵀ, (c, c)
    :param shared: as of :class:`CoarseModel`
    """

    def __init__(self, correction: th.Tensor, shared: bool):
        self._correction, self._shared = correction, shared
        self._by_dtype = {correction.dtype: correction, th.float32: correction.float()}
        if correction.is_cuda:
            # Two or three digits are enough for a preconditioner, and half as much to read.
            self._rough, self._rough_transposed = correction.bfloat16().contiguous(), correction.T.bfloat16().contiguous()

    def matrix(self) -> dict[str, th.Tensor]:
        return {"correction": self._correction}

    def correction(self, sums: th.Tensor) -> th.Tensor:
        """
        :param sums: Rᵀ x, (c,)
        :return: ((I − γ W P̂ R)⁻¹ − I) W x, (c,)
        """
        if self._roughly(sums):
            return fused.multiply(self._rough, sums)
        return th.mv(self._by_dtype[sums.dtype], sums)

    def correction_transposed(self, sums: th.Tensor) -> th.Tensor:
        if self._roughly(sums):
            return fused.multiply(self._rough_transposed, sums)
        return th.mv(self._by_dtype[sums.dtype].T, sums)

    def _roughly(self, sums: th.Tensor) -> bool:
        return not self._shared and sums.dtype == th.float32 and fused.usable(sums, 1)


class _SparseFactors:
    """
    :param sums: Rᵀ P̂ R, (c, c)
    :param size: samples of each cell, (c,)
    :param gamma: discount
    """

    def __init__(self, sums: "scipy.sparse.csc_array", size: th.Tensor, gamma: float):
        self._sums, self._size = sums, size
        averages = sums.multiply(1.0 / size.double().numpy()[:, None])
        self._factors = scipy.sparse.linalg.splu((scipy.sparse.eye_array(len(size)) - gamma * averages).tocsc())

    def matrix(self) -> dict[str, th.Tensor]:
        # The factors themselves cannot be written to a file; the same matrix gives the same ones.
        sums = self._sums
        return {name: th.from_numpy(getattr(sums, name)) for name in ("data", "indices", "indptr")}

    @classmethod
    def restored(cls, matrix: dict[str, th.Tensor], size: th.Tensor, gamma: float) -> "_SparseFactors":
        parts = (matrix["data"].numpy(), matrix["indices"].numpy(), matrix["indptr"].numpy())
        return cls(scipy.sparse.csc_array(parts, shape=(len(size), len(size))), size, gamma)

    def correction(self, sums: th.Tensor) -> th.Tensor:
        """
        :param sums: Rᵀ x, (c,)
        :return: ((I − γ W P̂ R)⁻¹ − I) W x, (c,)
        """
        averages = sums / self._size.to(sums.dtype)
        return self._solve(averages, "N") - averages

    def correction_transposed(self, sums: th.Tensor) -> th.Tensor:
        return (self._solve(sums, "T") - sums) / self._size.to(sums.dtype)

    def _solve(self, x: th.Tensor, transposition: Literal["N", "T"]) -> th.Tensor:
        # SciPy's type stubs do not know the second argument.
        solution = self._factors.solve(x.double().numpy(), transposition)  # type: ignore[call-overload]
        return th.from_numpy(solution).to(x.dtype)


def _fills_up(coarse: "scipy.sparse.csc_array") -> bool:
    return coarse.nnz > _MAX_ENTRIES_A_ROW * coarse.shape[0]
