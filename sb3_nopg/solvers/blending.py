"""Numbers of cells brought to samples that lie between them."""

import torch as th

from sb3_nopg.neighbors import find_neighbors
from sb3_nopg.sparse import csr, in_single_precision

# Each sample lies between so many cells.
_N_NEAREST = 4
# Width of the kernel between a sample and the cells' centres, as a share of the distance to the middle one of the nearest.
_WIDTH = 0.7


class Blend:
    """
    A matrix with rows that sum to one: each sample has a share in the few cells whose centres are nearest.

    :param states: of the samples, (n, d)
    :param labels: the cell that each belongs to, (n,)
    :param n_cells: c
    """

    def __init__(self, states: th.Tensor, labels: th.Tensor, n_cells: int):
        counts = th.bincount(labels, minlength=n_cells).to(states.dtype)
        centers = states.new_zeros(n_cells, states.shape[1]).index_add_(0, labels, states) / counts[:, None]
        nearest = find_neighbors(states, centers, th.ones_like(states[0]), _N_NEAREST)
        assert nearest.indices is not None
        log_kernel = nearest.log_state_kernel
        middle = (-2.0 * log_kernel[:, log_kernel.shape[1] // 2]).median()
        # Where samples coincide with their cells' centres there is no width to speak of.
        width = (_WIDTH**2 * middle).clamp_min(th.finfo(states.dtype).tiny)
        shares = th.softmax(log_kernel / width, dim=1).reshape(-1)

        n, j = log_kernel.shape
        cells = nearest.indices.reshape(-1)
        by_cell = th.argsort(cells, stable=True)
        starts = th.cat([cells.new_zeros(1), th.bincount(cells, minlength=n_cells).cumsum(0)])
        self._by_sample = _by_dtype(csr(th.arange(n + 1, device=cells.device) * j, cells, shares, n_cells))
        self._by_cell = _by_dtype(csr(starts, by_cell.div(j, rounding_mode="floor"), shares[by_cell], n))

    def to_samples(self, x: th.Tensor) -> th.Tensor:
        """(c,) -> (n,)."""
        return th.mv(self._by_sample[x.dtype], x)

    def to_cells(self, y: th.Tensor) -> th.Tensor:
        """The transpose: (n,) -> (c,)."""
        return th.mv(self._by_cell[y.dtype], y)


def _by_dtype(matrix: th.Tensor) -> dict[th.dtype, th.Tensor]:
    return {matrix.dtype: matrix, th.float32: in_single_precision(matrix)}
