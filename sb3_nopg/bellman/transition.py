"""The transition matrix P̂ and its transpose as products, with a sparse structure that is built once and refilled."""

import warnings

import scipy
import torch as th

from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes

# What the 32-bit numbers of the sparse libraries can count.
_MAX_ENTRIES = 2**31 - 1
# A matrix with more entries than this does not fit a processor's cache, so that products take as long as it takes to read it:
# in float32 half as long. Smaller ones are not worth a second copy.
_WORTH_SINGLE_PRECISION = 2**20
# The paper's sparsifications leave a handful of entries in a row of hundreds. Where no more than this share is left, products
# with those alone are worth laying them out again for every policy: in matrices of more than a few entries, and not of so many
# that it takes much memory.
_FEW, _WORTH_LAYING_OUT_ANEW = 1.0 / 8.0, range(2**17, 2**23)
# Entries summed by cell at one time: 2 GB of numbers at the most.
_AGGREGATED_AT_ONCE = 2**26


class TransitionMatrix:
    """
    P̂ in the paper: row i leads from s'_i to the support points.

    Which entries can differ from zero never changes during a run, only their values do. So both orders, by rows for P̂x
    and by columns for P̂ᵀy, are laid out once, together with the permutation that carries values from one to the other.

    A large matrix in float64 keeps its entries in float32 too. Products are computed in the precision of the vector. On the
    CPU they pass over zeros where nearly all entries of the lists are zero.

    :param indices: column of each entry, (n, k); columns may repeat within a row; None for a dense matrix
    :param n: number of rows and columns
    :param dtype: of the values
    :param device: of the values
    """

    def __init__(self, indices: th.Tensor | None, n: int, dtype: th.dtype, device: th.device):
        self.n = self._n_rows_of_each = n
        self._lay_out(indices, n, dtype, device)

    @property
    def in_single_precision(self) -> bool:
        """Whether products with vectors in float32 are there, and pay."""
        return self._single_by_row is not None

    def _lay_out(self, indices: th.Tensor | None, n_rows: int, dtype: th.dtype, device: th.device) -> None:
        self._single_by_row: th.Tensor | None = None
        self._single_by_column: th.Tensor | None = None
        # By rows and by columns, in each precision.
        self._few: dict[th.dtype, tuple[th.Tensor, th.Tensor]] = {}
        if indices is None:
            self._dense: th.Tensor | None = th.zeros(n_rows, self.n, dtype=dtype, device=device)
            return
        self._dense = None
        columns = indices.reshape(-1)
        self._by_row = _csr(th.arange(n_rows + 1, device=device) * indices.shape[1], columns, self.n, dtype)
        # Entries can be counted with 32 bits, and there is one of these numbers for each.
        self._to_columns = th.argsort(columns, stable=True).int()
        column_ends = th.cumsum(th.bincount(columns, minlength=self.n), dim=0)
        column_starts = th.cat([column_ends.new_zeros(1), column_ends])
        rows = self._to_columns.div(indices.shape[1], rounding_mode="floor")
        self._by_column = _csr(column_starts, rows, n_rows, dtype)
        if dtype == th.float64 and self._n_rows_of_each * indices.shape[1] >= _WORTH_SINGLE_PRECISION:
            self._single_by_row, self._single_by_column = _single(self._by_row), _single(self._by_column)

    def fill(self, values: th.Tensor) -> None:
        """
        :param values: entries in the order of ``indices``, (n, k)
        """
        if self._dense is not None:
            self._dense.copy_(values)
            return
        self._by_row.values().copy_(values.reshape(-1))
        th.index_select(values.reshape(-1), 0, self._to_columns, out=self._by_column.values())
        self._few = {}
        if _has_few_entries(values):
            self._few[values.dtype] = _without_zeros(self._by_row), _without_zeros(self._by_column)
        if self._single_by_row is None or self._single_by_column is None:
            return
        if self._few:
            by_row, by_column = self._few[values.dtype]
            self._few[th.float32] = _single(by_row), _single(by_column)
        else:
            self._single_by_row.values().copy_(self._by_row.values())
            self._single_by_column.values().copy_(self._by_column.values())

    def bellman_operator(self, x: th.Tensor, gamma: float) -> th.Tensor:
        """
        :param x: (n,)
        :param gamma: discount
        :return: Λx = x − γ P̂ x, (n,)
        """
        rows = self._rows_for(x)
        if x.dtype == th.float32 and self._dense is None and fused.usable(x, len(rows.values()) // self.n):
            return fused.bellman_rows(rows.values().view(self.n, -1), rows.col_indices().view(self.n, -1), x, gamma)
        return th.addmv(x, rows, x, alpha=-gamma)

    def bellman_operator_transposed(self, y: th.Tensor, gamma: float) -> th.Tensor:
        """
        :param y: (n,)
        :param gamma: discount
        :return: Λᵀy = y − γ P̂ᵀ y, (n,)
        """
        return th.addmv(y, self._columns_for(y), y, alpha=-gamma)

    def _rows_for(self, x: th.Tensor) -> th.Tensor:
        if self._dense is not None:
            return self._dense
        if self._few:
            return self._few[x.dtype][0]
        return self._by_row if self._single_by_row is None or x.dtype == th.float64 else self._single_by_row

    def _columns_for(self, y: th.Tensor) -> th.Tensor:
        if self._dense is not None:
            return self._dense.T
        if self._few:
            return self._few[y.dtype][1]
        return self._by_column if self._single_by_column is None or y.dtype == th.float64 else self._single_by_column

    def aggregate(self, cell: th.Tensor, n_cells: int) -> th.Tensor:
        """
        Sum of the entries between each two cells of a partition of the samples.

        :param cell: the cell of each sample, (n,)
        :return: (n_cells, n_cells)
        """
        if self._dense is not None:
            by_cell = th.zeros(n_cells, self.n, dtype=self._dense.dtype, device=cell.device)
            by_cell.index_add_(0, self._own_rows(cell), self._dense)
            return th.zeros(n_cells, n_cells, dtype=self._dense.dtype, device=cell.device).index_add_(1, cell, by_cell)
        own, total = self._own_rows(cell), th.zeros(n_cells**2, dtype=self._by_row.dtype, device=cell.device)
        n_rows = max(1, _AGGREGATED_AT_ONCE // max(1, len(self._by_row.values()) // len(own)))
        # Some rows at a time: numbers of pairs of cells take more memory than the matrix.
        for start in range(0, len(own), n_rows):
            row_cell, column_cell, values = self._entries_by_cell(cell, slice(start, start + n_rows))
            total += th.bincount(row_cell * n_cells + column_cell, values, n_cells**2)
        return total.view(n_cells, n_cells)

    def aggregate_sparse(self, cell: th.Tensor, n_cells: int) -> "scipy.sparse.csc_array":
        """
        The same as a sparse matrix, for more cells than a dense one has room for. On the CPU only.

        :param cell: the cell of each sample, (n,)
        :return: (n_cells, n_cells)
        """
        if self._dense is not None:
            return scipy.sparse.csc_array(self.aggregate(cell, n_cells).double().numpy())
        row_cell, column_cell, values = self._entries_by_cell(cell, slice(None))
        return scipy.sparse.csc_array(
            (values.double().numpy(), (row_cell.numpy(), column_cell.numpy())), shape=(n_cells, n_cells)
        )

    def _entries_by_cell(self, cell: th.Tensor, rows: slice) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Of some rows: each entry's row and column by cell, and its value."""
        own = self._own_rows(cell)
        columns, values = (part.view(len(own), -1)[rows] for part in (self._by_row.col_indices(), self._by_row.values()))
        return own[rows].repeat_interleave(columns.shape[1]), cell.index_select(0, columns.reshape(-1)), values.reshape(-1)

    def _own_rows(self, x: th.Tensor) -> th.Tensor:
        """Of something with an entry for each sample, those of the rows laid out here."""
        return x

    def to_dense(self) -> th.Tensor:
        """P̂ as an ordinary matrix, (n, n)."""
        return self._dense.clone() if self._dense is not None else self._by_row.to_dense()

    def dense_bellman_operator(self, gamma: float) -> th.Tensor:
        """Λ = I − γ P̂ as an ordinary matrix, (n, n)."""
        operator = self.to_dense().mul_(-gamma)
        operator.diagonal().add_(1.0)
        return operator


class SharedTransitionMatrix(TransitionMatrix):
    """
    P̂ with its rows shared among processes. Each lays out its own rows; products are exchanged, so that x, P̂x and P̂ᵀy are
    whole vectors in every process, the same everywhere.

    :param indices: column of each entry of this process's rows, (n_i, k); None for a dense matrix
    :param n: number of rows of all processes, and of columns
    :param dtype: of the values
    :param device: of the values
    :param processes: that share the rows
    """

    def __init__(self, indices: th.Tensor | None, n: int, dtype: th.dtype, device: th.device, processes: Processes):
        self.n = n
        self._processes = processes
        # Of all but the last, which has fewer: what is decided by it is decided alike everywhere.
        self._n_rows_of_each = processes.block_size(n)
        self._rows = processes.own_rows(n)
        self._lay_out(indices, self._rows.stop - self._rows.start, dtype, device)

    def bellman_operator(self, x: th.Tensor, gamma: float) -> th.Tensor:
        own = th.addmv(x[self._rows], self._rows_for(x), x, alpha=-gamma)
        return self._processes.gather(own, self.n)

    def bellman_operator_transposed(self, y: th.Tensor, gamma: float) -> th.Tensor:
        # The identity's part comes from the process that owns the row, once.
        part = th.zeros_like(y)
        part[self._rows] = y[self._rows]
        return self._processes.sum(th.addmv(part, self._columns_for(y), y[self._rows], alpha=-gamma))

    def aggregate(self, cell: th.Tensor, n_cells: int) -> th.Tensor:
        return self._processes.sum(super().aggregate(cell, n_cells))

    def aggregate_sparse(self, cell: th.Tensor, n_cells: int) -> "scipy.sparse.csc_array":
        if self._dense is not None:
            return super().aggregate_sparse(cell, n_cells)
        # Each process has summed its entries by then: there are far fewer pairs of cells than of samples.
        first, *others = self._processes.gather_objects(super().aggregate_sparse(cell, n_cells))
        return sum(others, start=first)

    def to_dense(self) -> th.Tensor:
        return self._processes.gather(super().to_dense(), self.n)

    def _own_rows(self, x: th.Tensor) -> th.Tensor:
        return x[self._rows]


def _csr(starts: th.Tensor, columns: th.Tensor, n_columns: int, dtype: th.dtype) -> th.Tensor:
    if len(columns) > _MAX_ENTRIES:
        raise InputError(
            "n_neighbors",
            f"{len(columns)} entries of the transition matrix in one process, which can count {_MAX_ENTRIES}",
            "Keep fewer neighbours, or share the rows among more processes (distributed=True)",
        )
    # 32-bit numbers are what the sparse libraries compute with; wider ones would be converted at every product.
    return _sparse(starts.int(), columns.int(), th.zeros(len(columns), dtype=dtype, device=columns.device), n_columns)


def _single(matrix: th.Tensor) -> th.Tensor:
    """A matrix of the same structure in float32."""
    return _sparse(matrix.crow_indices(), matrix.col_indices(), matrix.values().float(), matrix.shape[1])


def _has_few_entries(values: th.Tensor) -> bool:
    """Whether it pays to lay out again those that are not zero."""
    if values.is_cuda or values.numel() not in _WORTH_LAYING_OUT_ANEW:
        return False
    return int(th.count_nonzero(values)) <= _FEW * values.numel()


def _without_zeros(matrix: th.Tensor) -> th.Tensor:
    """The entries of a matrix that are not zero."""
    there = matrix.values() != 0.0
    n_before = th.cat([there.new_zeros(1, dtype=th.int32), th.cumsum(there, 0, dtype=th.int32)])
    starts = n_before.index_select(0, matrix.crow_indices())
    return _sparse(starts, matrix.col_indices()[there], matrix.values()[there], matrix.shape[1])


def _sparse(starts: th.Tensor, columns: th.Tensor, values: th.Tensor, n_columns: int) -> th.Tensor:
    with warnings.catch_warnings():
        # torch announces that its CSR tensors are in beta; the products used here are tested against dense ones.
        warnings.simplefilter("ignore", UserWarning)
        return th.sparse_csr_tensor(starts, columns, values, size=(len(starts) - 1, n_columns), check_invariants=False)
