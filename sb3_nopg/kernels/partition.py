"""Points in cells of equal size whose members lie close together."""

from dataclasses import dataclass

import torch as th


@dataclass(frozen=True)
class Partition:
    """
    :param order: numbers of the points, those of the first cell first, (n,)
    :param starts: where each cell begins in that order, and at the end n, (c + 1,)
    """

    order: th.Tensor
    starts: th.Tensor

    @property
    def n_cells(self) -> int:
        return len(self.starts) - 1

    @property
    def labels(self) -> th.Tensor:
        """The cell of each point, (n,)."""
        numbers = th.arange(self.n_cells, device=self.order.device)
        return th.empty_like(self.order).scatter_(0, self.order, numbers.repeat_interleave(self.starts.diff()))

    def table(self) -> tuple[th.Tensor, th.Tensor]:
        """
        :return: numbers of the members of each cell, (c, size of the largest), and which of them are no repetition of the
            cell's last one
        """
        sizes = self.starts.diff()
        place = self.starts[:-1, None] + th.arange(int(sizes.max()), device=self.order.device)
        last = self.starts[1:, None] - 1
        return self.order[place.minimum(last)], place <= last


def halve_repeatedly(points: th.Tensor, n_levels: int) -> Partition:
    """
    Halve every cell at the median of its widest dimension, level after level.

    :param points: (n, d)
    :param n_levels: how often to halve, with 2^n_levels ≤ n
    :return: 2^n_levels cells whose sizes differ by one at most
    """
    n, device = len(points), points.device
    partition = Partition(th.arange(n, device=device), th.tensor([0, n], device=device))
    for _ in range(n_levels):
        members, _ = partition.table()
        lowest, highest = bounding_boxes(points, members)
        widest = (highest - lowest).argmax(dim=1)
        sizes = partition.starts.diff()
        cell = th.arange(partition.n_cells, device=device).repeat_interleave(sizes)
        along = points[partition.order, widest[cell]]
        # Two stable sorts, the second by cell: members of a cell stay together and are sorted within it.
        by_value = th.sort(along, stable=True).indices
        within = by_value[th.sort(cell[by_value], stable=True).indices]
        middles = partition.starts[:-1] + (sizes + 1) // 2
        starts = th.stack([partition.starts[:-1], middles], dim=1).reshape(-1)
        partition = Partition(partition.order[within], th.cat([starts, partition.starts[-1:]]))
    return partition


def bounding_boxes(points: th.Tensor, members: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    :param points: (n, d)
    :param members: numbers of the points in each cell, (c, size)
    :return: least and greatest coordinates of each cell, (c, d)
    """
    # One dimension after another: no (c, size, d) array ever exists.
    lowest, highest = zip(*(th.aminmax(column[members], dim=1) for column in points.T), strict=True)
    return th.stack(lowest, dim=1), th.stack(highest, dim=1)


def sum_members(x: th.Tensor, members: th.Tensor, is_member: th.Tensor) -> th.Tensor:
    """
    :param x: one number a point, (n,)
    :param members: as :meth:`Partition.table` gives them, (c, size)
    :param is_member: from the same method, (c, size)
    :return: the sum of each cell, (c,)
    """
    return x.index_select(0, members.reshape(-1)).view(members.shape).mul_(is_member).sum(dim=1)
