"""The states that one asks about, with their neighbours among the samples."""

from dataclasses import dataclass, field

import torch as th

from sb3_nopg.kernels.neighbors import NeighborLists
from sb3_nopg.kernels.workspace import Workspace


@dataclass
class Kept:
    """
    What need not be made again for every policy.

    :param workspace: on the CPU; a GPU's blocks are too large to keep room for them, and it need not
    :param state_powers: of the ways to the neighbours' states, (m, c, k)
    """

    workspace: Workspace | None = None
    state_powers: th.Tensor | None = None


@dataclass(frozen=True)
class Queries:
    """
    States with their neighbours among the samples.

    :param states: (m, d_s)
    :param neighbors: (m, k)
    :param neighbor_actions: actions of each state's neighbours, divided by the bandwidth, (d_a, m, k)
    :param kept: what was made for these once, and room to work in: two threads must not ask about the same queries
    """

    states: th.Tensor
    neighbors: NeighborLists
    neighbor_actions: th.Tensor
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.states)

    def rows(self, chosen: th.Tensor) -> "Queries":
        """
        Some of the queries.

        :param chosen: their numbers, (rows,)
        """
        neighbors = NeighborLists(
            None if self.neighbors.indices is None else self.neighbors.indices[chosen],
            self.neighbors.log_state_kernel[chosen],
            self.neighbors.log_dropped_mass[chosen],
        )
        return Queries(self.states[chosen], neighbors, self.neighbor_actions[:, chosen])


def workspace_of(queries: Queries) -> Workspace:
    """Room to work in: the queries' own on the CPU, and new elsewhere."""
    if queries.states.device.type != "cpu":
        return Workspace(queries.states)
    if queries.kept.workspace is None:
        queries.kept.workspace = Workspace(queries.states)
    return queries.kept.workspace
