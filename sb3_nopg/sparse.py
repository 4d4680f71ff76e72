"""Sparse matrices as torch's libraries want them."""

import warnings

import torch as th


def csr(starts: th.Tensor, columns: th.Tensor, values: th.Tensor, n_columns: int) -> th.Tensor:
    """
    :param starts: of each row among the entries, and at the end their number, (rows + 1,)
    :param columns: of each entry
    :param values: likewise
    :param n_columns: of the matrix
    """
    with warnings.catch_warnings():
        # torch announces that its CSR tensors are in beta; the products used here are tested against dense ones.
        warnings.simplefilter("ignore", UserWarning)
        # 32-bit numbers are what the sparse libraries compute with; wider ones would be converted at every product.
        starts, columns = starts.int(), columns.int()
        return th.sparse_csr_tensor(starts, columns, values, size=(len(starts) - 1, n_columns), check_invariants=False)


def in_single_precision(matrix: th.Tensor) -> th.Tensor:
    """A matrix of the same structure, with its values in float32."""
    return csr(matrix.crow_indices(), matrix.col_indices(), matrix.values().float(), matrix.shape[1])
