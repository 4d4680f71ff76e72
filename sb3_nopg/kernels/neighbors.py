"""
Which samples matter to which query, found once for a whole run.

The state kernel ψ does not depend on the policy. Between fixed queries and fixed samples it is computed here, kept where
it matters, and the rest is accounted for: every list knows how much of its kernel mass was left out.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch as th

from sb3_nopg.common.numbers import check_count
from sb3_nopg.kernels.block_search import BlockSearch

NeighborCount = int | Literal["auto"] | None

# Up to this many pairs a dense search takes about a second on one core and gives the dropped mass exactly.
_BRUTE_FORCE_PAIRS = 2**26
# Distances held at one time: 32 MB in float64 on the CPU; a GPU has room for 2 GB, and little to do with less.
_BLOCK_PAIRS = {"cpu": 2**22, "gpu": 2**28}
# How many times the neighbours asked for a search that does not look at all samples looks at, to account for the rest.
_LOOK_AHEAD = 4
# k-d trees lose to brute force in high dimensions.
_KD_TREE_DIMENSIONS = 12
# "auto" stops growing here: about 1 GB of lists for one action dimension in float64.
_AUTO_PAIRS = 2**25


@dataclass(frozen=True)
class NeighborLists:
    """
    Neighbours of each query and the state kernel there.

    :param indices: sample numbers, nearest first, (m, k); None when every sample is a neighbour of every query
    :param log_state_kernel: log ψ without its constant, (m, k)
    :param log_dropped_mass: log of an upper bound on Σ ψ over the samples left out, (m,)
    """

    indices: th.Tensor | None
    log_state_kernel: th.Tensor
    log_dropped_mass: th.Tensor

    @property
    def n_neighbors(self) -> int:
        return self.log_state_kernel.shape[1]

    @property
    def truncation_error(self) -> float:
        """Largest share of a query's state-kernel mass that was left out."""
        return float(_relative_mass(self.log_dropped_mass, th.logsumexp(self.log_state_kernel, dim=1)).max())

    def gather(self, values: th.Tensor) -> th.Tensor:
        """
        :param values: one number a sample, (n,)
        :return: the numbers of each query's neighbours, (m, k)
        """
        if self.indices is None:
            return values.expand(len(self.log_state_kernel), -1)
        return values.index_select(0, self.indices.reshape(-1)).view(self.indices.shape)


def find_neighbors(
    queries: th.Tensor,
    samples: th.Tensor,
    bandwidth: th.Tensor,
    n_neighbors: NeighborCount = "auto",
    tolerance: float = 1e-3,
) -> NeighborLists:
    """
    Neighbour lists for a set of queries, nearest in the metric scaled by the bandwidth.

    :param queries: (m, d_s)
    :param samples: (n, d_s)
    :param bandwidth: of the state kernel, (d_s,)
    :param n_neighbors: how many to keep; ``"auto"``: as few as leave out no more than ``tolerance`` of any query's kernel
        mass; None: all, the exact form
    :param tolerance: for ``"auto"``
    """
    scaled_queries, scaled_samples = queries / bandwidth, samples / bandwidth
    n = len(samples)
    if n_neighbors is None:
        log_kernel = -0.5 * _squared_distances(scaled_queries, scaled_samples)
        return NeighborLists(None, log_kernel, th.full_like(log_kernel[:, 0], -th.inf))
    search = _search_for(scaled_queries, scaled_samples)
    if n_neighbors != "auto":
        return _keep(*search(min(n_neighbors, n)), min(n_neighbors, n))

    limit = max(1, min(n, _AUTO_PAIRS // len(queries)))
    count = min(32, limit)
    while True:
        squared, indices, log_rest = search(count)
        needed = _smallest_sufficient_count(squared, log_rest, tolerance)
        if count == limit or needed is not None:
            lists = _keep(squared, indices, log_rest, count if needed is None else needed)
            if lists.truncation_error > tolerance * (1 + 1e-6):
                warnings.warn(
                    f"The memory limit of n_neighbors='auto' is reached at {count} neighbours, which leave out up to "
                    f"{lists.truncation_error:.1e} of a state's kernel mass. Narrow the state bandwidth, raise "
                    "truncation_tolerance, or give n_neighbors as a number.",
                    stacklevel=2,
                )
            return lists
        count = min(2 * count, limit)


class _BruteForceSearch:
    """All distances, block by block; the mass left out is exact."""

    def __init__(self, queries: th.Tensor, samples: th.Tensor):
        self.queries, self.samples = queries, samples

    def __call__(self, count: int) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param count: neighbours to find
        :return: squared distances (m, count), sample numbers (m, count), log Σ ψ over all other samples (m,)
        """
        n_rows = max(1, _BLOCK_PAIRS["gpu" if self.queries.is_cuda else "cpu"] // len(self.samples))
        blocks = [self._search_block(block, count) for block in self.queries.split(n_rows)]
        squared, indices, log_rest = zip(*blocks, strict=True)
        return th.cat(squared), th.cat(indices), th.cat(log_rest)

    def _search_block(self, queries: th.Tensor, count: int) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        squared = _squared_distances(queries, self.samples)
        nearest, indices = th.topk(squared, count, dim=1, largest=False, sorted=True)
        log_rest = th.logsumexp(squared.mul_(-0.5).scatter_(1, indices, -th.inf), dim=1)
        return nearest, indices, log_rest


class _KDTreeSearch:
    """
    A k-d tree on the CPU. It looks further than asked, sums what it sees there, and bounds what lies beyond: no sample it did
    not see is nearer than the last one it did.
    """

    def __init__(self, queries: th.Tensor, samples: th.Tensor):
        self.tree = scipy.spatial.KDTree(samples.double().numpy())
        self.queries = queries.double().numpy()
        self.dtype = queries.dtype

    def __call__(self, count: int) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param count: neighbours to find
        :return: squared distances (m, count), sample numbers (m, count), log of a bound on Σ ψ over all other samples (m,)
        """
        n_seen = min(_LOOK_AHEAD * count, self.tree.n)
        squared, indices, log_rest = [], [], []
        n_blocks = -(-len(self.queries) * n_seen // _BLOCK_PAIRS["cpu"])
        for block in np.array_split(self.queries, n_blocks):
            # A range instead of a number asks for two-dimensional arrays, also for a single neighbour.
            distances, rows = map(np.asarray, self.tree.query(block, k=np.arange(1, n_seen + 1), workers=-1))
            seen = th.from_numpy(distances).square_()
            squared.append(seen[:, :count].to(self.dtype))
            indices.append(th.from_numpy(rows[:, :count]))
            log_rest.append(_log_mass_beyond(seen, count, self.tree.n).to(self.dtype))
        return th.cat(squared), th.cat(indices), th.cat(log_rest)


class _BlockedSearch:
    """:class:`sb3_nopg.kernels.block_search.BlockSearch` on a GPU, with the same account of the rest as a k-d tree's."""

    def __init__(self, queries: th.Tensor, samples: th.Tensor):
        self.queries, self.n_samples = queries, len(samples)
        self.blocks = BlockSearch(queries, samples)

    def __call__(self, count: int) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param count: neighbours to find
        :return: squared distances (m, count), sample numbers (m, count), log of a bound on Σ ψ over all other samples (m,)
        """
        squared = self.queries.new_empty(len(self.queries), count)
        indices = th.empty(squared.shape, dtype=th.int64, device=squared.device)
        log_rest = self.queries.new_empty(len(self.queries))
        for rows, seen, numbers in self.blocks.nearest(min(_LOOK_AHEAD * count, self.n_samples)):
            squared[rows], indices[rows] = seen[:, :count], numbers[:, :count]
            log_rest[rows] = _log_mass_beyond(seen, count, self.n_samples)
        return squared, indices, log_rest


def _log_mass_beyond(seen: th.Tensor, count: int, n_samples: int) -> th.Tensor:
    """
    :param seen: squared distances of the nearest samples, (m, seen)
    :param count: how many of them are kept
    :param n_samples: of which none that was not seen is nearer than the last one seen
    :return: log of a bound on Σ ψ over the samples not kept, (m,)
    """
    n_unseen = n_samples - seen.shape[1]
    log_unseen = -0.5 * seen[:, -1:] + (np.log(n_unseen) if n_unseen else -np.inf)
    return th.logsumexp(th.cat([-0.5 * seen[:, count:], log_unseen], dim=1), dim=1)


def _search_for(queries: th.Tensor, samples: th.Tensor) -> _BruteForceSearch | _KDTreeSearch | _BlockedSearch:
    if len(queries) * len(samples) <= _BRUTE_FORCE_PAIRS:
        return _BruteForceSearch(queries, samples)
    if queries.is_cuda:
        return _BlockedSearch(queries, samples)
    if queries.shape[1] > _KD_TREE_DIMENSIONS:
        return _BruteForceSearch(queries, samples)
    return _KDTreeSearch(queries, samples)


def _squared_distances(queries: th.Tensor, samples: th.Tensor) -> th.Tensor:
    # Differences first: the expanded square ‖x‖² − 2xy + ‖y‖² loses the small distances, which are the ones that count.
    return th.cdist(queries, samples, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _relative_mass(log_dropped: th.Tensor, log_kept: th.Tensor) -> th.Tensor:
    return th.sigmoid(log_dropped - log_kept)


def _smallest_sufficient_count(squared: th.Tensor, log_rest: th.Tensor, tolerance: float) -> int | None:
    """The fewest neighbours that leave out no more than the tolerance at any query, None where all found are too few."""
    # Relative to the nearest neighbour, so that a far query, whose kernels all underflow, is judged by the same measure.
    kernel = th.exp(-0.5 * (squared - squared[:, :1]))
    rest = th.exp(log_rest + 0.5 * squared[:, 0])
    kept = th.cumsum(kernel, dim=1)
    dropped = (kept[:, -1:] - kept).clamp_min_(0.0) + rest[:, None]
    sufficient = (dropped <= tolerance * (kept + dropped)).all(dim=0)
    return int(sufficient.int().argmax()) + 1 if bool(sufficient.any()) else None


def _keep(squared: th.Tensor, indices: th.Tensor, log_rest: th.Tensor, count: int) -> NeighborLists:
    log_kernel = -0.5 * squared
    if count < log_kernel.shape[1]:
        log_rest = th.logaddexp(log_rest, th.logsumexp(log_kernel[:, count:], dim=1))
    return NeighborLists(indices[:, :count].contiguous(), log_kernel[:, :count].contiguous(), log_rest)


def check_neighbor_count(n_neighbors: NeighborCount) -> None:
    """:raises InputError: unless it is a positive count, ``"auto"`` or None"""
    if not (isinstance(n_neighbors, str) and n_neighbors == "auto"):
        check_count("n_neighbors", n_neighbors, optional=True, fix='Give a count, "auto" or None for all')
