"""
Nearest samples by whole blocks at a time: the search that a GPU is good at, and exact.

Samples are sorted into blocks of neighbours, and so are queries. A few near blocks of samples give every query of a block
its first list, and the last distance on it. A block of samples whose box is farther from the queries' box than the largest of
those distances has nothing for any of the lists and is never looked at. All others are compared with the queries in full.
"""

import math
from collections.abc import Iterator

import torch as th

from sb3_nopg.kernels.partition import Partition, bounding_boxes, halve_repeatedly

# Points in a block. Smaller ones fit the nearest samples more closely, larger ones keep a GPU busy.
_BLOCK_SIZE = 64
# Pairs of points compared at one time: 1 GB of distances in float64 on a GPU, 32 MB on the CPU.
_PAIRS = {"cpu": 2**22, "gpu": 2**27}
# The first lists are chosen from so many times the samples that they need.
_FIRST_LOOK = 4
# Blocks of queries at one time: all of them wait for the one that needs the most samples.
_LARGEST_GROUP = 256


class BlockSearch:
    """
    :param queries: divided by the bandwidth, (m, d)
    :param samples: divided by the bandwidth, (n, d)
    """

    def __init__(self, queries: th.Tensor, samples: th.Tensor):
        self._pairs = _PAIRS["gpu" if queries.is_cuda else "cpu"]
        self._queries, self._n_samples = queries, len(samples)
        self._query_table, self._query_is_real = _blocks(queries).table()
        self._query_boxes = bounding_boxes(queries, self._query_table)
        self._sample_table, is_real = _blocks(samples).table()
        self._sample_boxes = bounding_boxes(samples, self._sample_table)
        # One block more, of samples infinitely far away, fills up where one block of queries needs fewer than another.
        self._sample_table = th.nn.functional.pad(self._sample_table, (0, 0, 0, 1))
        is_real = th.nn.functional.pad(is_real, (0, 0, 0, 1))
        self._sample_columns = [column[self._sample_table].masked_fill_(~is_real, th.inf) for column in samples.T]

    def nearest(self, count: int) -> Iterator[tuple[th.Tensor, th.Tensor, th.Tensor]]:
        """
        :param count: how many, n at most
        :return: for one group of queries after another: their numbers, (g,), squared distances, the least first, and sample
            numbers, both (g, count)
        """
        n_blocks, size = self._query_table.shape
        n_first = min(self._n_blocks, math.ceil(_FIRST_LOOK * count / self._block_size))
        group = max(1, min(_LARGEST_GROUP, self._pairs // (size * n_first * self._block_size)))
        for chosen in th.arange(n_blocks, device=self._queries.device).split(group):
            rows, real = self._query_table[chosen], self._query_is_real[chosen]
            squared, indices = self._search_group(chosen, self._queries[rows], count, n_first)
            yield rows[real], squared[real], indices[real]

    @property
    def _n_blocks(self) -> int:
        return len(self._sample_table) - 1

    @property
    def _block_size(self) -> int:
        return self._sample_table.shape[1]

    def _search_group(self, chosen: th.Tensor, queries: th.Tensor, count: int, n_first: int) -> tuple[th.Tensor, th.Tensor]:
        """
        :param chosen: blocks of queries, (g,)
        :param queries: theirs, (g, q, d)
        :param count: neighbours of each query
        :param n_first: blocks of samples for the first lists
        :return: squared distances and sample numbers, (g, q, count)
        """
        gaps, between_centers = self._box_distances(chosen)
        first = between_centers.topk(n_first, largest=False).indices
        distances = self._distances(queries, first)
        enough = min(count, distances.shape[2])
        near, places = distances.topk(enough, largest=False)
        numbers = self._numbers(first, places)
        if enough < count:
            near = th.nn.functional.pad(near, (0, count - enough), value=th.inf)
            numbers = th.nn.functional.pad(numbers, (0, count - enough))
        # Rounding of the boxes' distance, which is a sum of other differences, must not hide a block.
        reach = near[..., -1].amax(dim=1, keepdim=True) * (1.0 + 1e-5)
        wanted = (gaps <= reach).scatter_(1, first, False)
        for blocks in self._listed(wanted, len(chosen) * queries.shape[1]):
            near, numbers = self._improve(near, numbers, queries, blocks)
        return near, numbers

    def _box_distances(self, chosen: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Squared distances from blocks of queries to all blocks of samples: between boxes, and between centres, (g, c)."""
        gaps, between_centers = None, None
        boxes = zip(*(edge[chosen].T for edge in self._query_boxes), *(edge.T for edge in self._sample_boxes), strict=True)
        for query_low, query_high, low, high in boxes:
            gap = th.maximum(low - query_high[:, None], query_low[:, None] - high).clamp_(min=0.0).square_()
            offset = (0.5 * (low + high) - 0.5 * (query_low + query_high)[:, None]).square_()
            gaps = gap if gaps is None else gaps.add_(gap)
            between_centers = offset if between_centers is None else between_centers.add_(offset)
        assert gaps is not None
        assert between_centers is not None
        return gaps, between_centers

    def _distances(self, queries: th.Tensor, blocks: th.Tensor) -> th.Tensor:
        """
        :param queries: (g, q, d)
        :param blocks: of samples, (g, b)
        :return: squared distances from queries to the members of the blocks, (g, q, b·size)
        """
        total = None
        for dimension, column in enumerate(self._sample_columns):
            # Differences first: the expanded square loses the small distances, which are the ones that count.
            difference = queries[:, :, dimension, None] - column[blocks].flatten(1)[:, None, :]
            total = difference.square_() if total is None else total.addcmul_(difference, difference)
        assert total is not None
        return total

    def _numbers(self, blocks: th.Tensor, places: th.Tensor) -> th.Tensor:
        """
        :param blocks: of samples, (g, b)
        :param places: among their members, one after the other, (g, q, count)
        :return: sample numbers, (g, q, count)
        """
        members = self._sample_table[blocks].flatten(1)
        return members.gather(1, places.flatten(1)).view(places.shape)

    def _listed(self, wanted: th.Tensor, n_queries: int) -> tuple[th.Tensor, ...]:
        """
        :param wanted: blocks of samples that matter to each block of queries, (g, c)
        :param n_queries: in the blocks of queries
        :return: their numbers, filled up with the block of far samples, in pieces of no more than so many pairs, (g, b) each
        """
        group, block = wanted.nonzero(as_tuple=True)
        counts = wanted.sum(dim=1)
        place = th.arange(len(block), device=block.device) - (counts.cumsum(0) - counts)[group]
        listed = block.new_full((len(wanted), int(counts.max())), self._n_blocks)
        listed[group, place] = block
        return listed.split(max(1, self._pairs // (n_queries * self._block_size)), dim=1)

    def _improve(
        self, near: th.Tensor, numbers: th.Tensor, queries: th.Tensor, blocks: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param near: squared distances so far, (g, q, count)
        :param numbers: of those samples, (g, q, count)
        :param queries: (g, q, d)
        :param blocks: of samples not seen yet, (g, b)
        :return: distances and numbers with those samples taken into account
        """
        if blocks.shape[1] == 0:
            return near, numbers
        distances = self._distances(queries, blocks)
        # Few are near enough to matter: only these are sorted. Not "or equal": copies of a point would fill the memory.
        group, query, place = (distances < near[..., -1:]).nonzero(as_tuple=True)
        row = group * queries.shape[1] + query
        counts = th.bincount(row, minlength=near.shape[0] * near.shape[1])
        column = th.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        width = int(counts.max())
        found = near.new_full((len(counts), width), th.inf)
        found[row, column] = distances[group, query, place]
        found_numbers = numbers.new_zeros(len(counts), width)
        found_numbers[row, column] = self._sample_table[blocks].flatten(1)[group, place]
        everything = th.cat([near, found.view(*near.shape[:2], width)], dim=2)
        near, chosen = everything.topk(near.shape[2], largest=False)
        return near, th.cat([numbers, found_numbers.view(*near.shape[:2], width)], dim=2).gather(2, chosen)


def _blocks(points: th.Tensor) -> Partition:
    return halve_repeatedly(points, max(0, round(math.log2(max(1, len(points)) / _BLOCK_SIZE))))
