"""The transition matrix P̂ and its transpose as products, with a sparse structure that is built once and refilled."""

import warnings

import torch as th
from scipy.sparse import csc_array


class TransitionMatrix:
    """
    P̂ in the paper: row i leads from s'_i to the support points.

    Which entries can differ from zero never changes during a run, only their values do. So both orders, by rows for P̂x
    and by columns for P̂ᵀy, are laid out once, together with the permutation that carries values from one to the other.

    :param indices: column of each entry, (n, k); columns may repeat within a row; None for a dense matrix
    :param n: number of rows and columns
    :param dtype: of the values
    :param device: of the values
    """

    def __init__(self, indices: th.Tensor | None, n: int, dtype: th.dtype, device: th.device):
        self.n = n
        if indices is None:
            self._dense: th.Tensor | None = th.zeros(n, n, dtype=dtype, device=device)
            return
        self._dense = None
        columns = indices.reshape(-1)
        rows = th.arange(n, device=device).repeat_interleave(indices.shape[1])
        self._by_row = _csr(th.arange(n + 1, device=device) * indices.shape[1], columns, n, dtype)
        self._to_columns = th.argsort(columns, stable=True)
        column_ends = th.cumsum(th.bincount(columns, minlength=n), dim=0)
        column_starts = th.cat([column_ends.new_zeros(1), column_ends])
        self._by_column = _csr(column_starts, rows[self._to_columns], n, dtype)

    def fill(self, values: th.Tensor) -> None:
        """
        :param values: entries in the order of ``indices``, (n, k)
        """
        if self._dense is not None:
            self._dense.copy_(values)
            return
        self._by_row.values().copy_(values.reshape(-1))
        th.index_select(values.reshape(-1), 0, self._to_columns, out=self._by_column.values())

    def bellman_operator(self, x: th.Tensor, gamma: float) -> th.Tensor:
        """
        :param x: (n,)
        :param gamma: discount
        :return: Λx = x − γ P̂ x, (n,)
        """
        return th.addmv(x, self._by_row if self._dense is None else self._dense, x, alpha=-gamma)

    def bellman_operator_transposed(self, y: th.Tensor, gamma: float) -> th.Tensor:
        """
        :param y: (n,)
        :param gamma: discount
        :return: Λᵀy = y − γ P̂ᵀ y, (n,)
        """
        return th.addmv(y, self._by_column if self._dense is None else self._dense.T, y, alpha=-gamma)

    def aggregate(self, cell: th.Tensor, n_cells: int) -> th.Tensor:
        """
        Sum of the entries between each two cells of a partition of the samples.

        :param cell: the cell of each sample, (n,)
        :return: (n_cells, n_cells)
        """
        if self._dense is not None:
            by_cell = th.zeros(n_cells, self.n, dtype=self._dense.dtype, device=cell.device).index_add_(0, cell, self._dense)
            return th.zeros(n_cells, n_cells, dtype=self._dense.dtype, device=cell.device).index_add_(1, cell, by_cell)
        row_cell, column_cell, values = self._entries_by_cell(cell)
        return th.bincount(row_cell * n_cells + column_cell, values, n_cells**2).view(n_cells, n_cells)

    def aggregate_sparse(self, cell: th.Tensor, n_cells: int) -> csc_array:
        """
        The same as a sparse matrix, for more cells than a dense one has room for. On the CPU only.

        :param cell: the cell of each sample, (n,)
        :return: (n_cells, n_cells)
        """
        if self._dense is not None:
            return csc_array(self.aggregate(cell, n_cells).double().numpy())
        row_cell, column_cell, values = self._entries_by_cell(cell)
        return csc_array((values.double().numpy(), (row_cell.numpy(), column_cell.numpy())), shape=(n_cells, n_cells))

    def _entries_by_cell(self, cell: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        columns = self._by_row.col_indices()
        row_cell = cell.repeat_interleave(len(columns) // self.n)
        return row_cell, cell.index_select(0, columns), self._by_row.values()

    def to_dense(self) -> th.Tensor:
        """P̂ as an ordinary matrix, (n, n)."""
        return self._dense.clone() if self._dense is not None else self._by_row.to_dense()

    def dense_bellman_operator(self, gamma: float) -> th.Tensor:
        """Λ = I − γ P̂ as an ordinary matrix, (n, n)."""
        operator = self.to_dense().mul_(-gamma)
        operator.diagonal().add_(1.0)
        return operator


def _csr(starts: th.Tensor, columns: th.Tensor, n: int, dtype: th.dtype) -> th.Tensor:
    values = th.zeros(len(columns), dtype=dtype, device=columns.device)
    with warnings.catch_warnings():
        # torch announces that its CSR tensors are in beta; the products used here are tested against dense ones.
        warnings.simplefilter("ignore", UserWarning)
        # 32-bit numbers are what the sparse libraries compute with; wider ones would be converted at every product.
        return th.sparse_csr_tensor(starts.int(), columns.int(), values, size=(n, n), check_invariants=False)
