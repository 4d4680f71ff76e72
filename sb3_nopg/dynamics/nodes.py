"""
The data compiled into affine maps at nodes: states that need not be samples, each with what the data say around it.

Between nodes the maps are blended by the interpolation's weights. What depends on the number of samples happens once, here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch as th

from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.interpolation import Interpolation
from sb3_nopg.dynamics.regression import AffineMaps

# Rounds of random actions, each held for some steps, by which states beside the recorded ones are found.
_N_ROUNDS, _HELD_FOR = 15, 3
_MOST_STATES = 100_000
_HALVINGS = 20


@dataclass(frozen=True)
class NodeMaps:
    """
    :param interpolation: between the nodes
    :param maps: of each node
    :param single: whether all maps are the same one
    """

    interpolation: Interpolation
    maps: AffineMaps
    single: bool

    @property
    def states(self) -> th.Tensor:
        """z, (n, d)."""
        return self.interpolation.nodes

    def __len__(self) -> int:
        return len(self.states)

    def to(self, device: th.device) -> "NodeMaps":
        """The same on a device."""
        return replace(self, interpolation=self.interpolation.to(device), maps=self.maps.to(device))

    @cached_property
    def tables(self) -> th.Tensor:
        """Of each node's neighbours: value at the node, slopes in the state, slopes in the inputs, (n, k, t (1 + d + p))."""
        interpolation, maps = self.interpolation, self.maps
        around = interpolation.around
        away = interpolation.coordinates.difference(self.states[:, None], self.states[around])
        slope = maps.state_slope[around]
        value = maps.value[around] + (slope @ away[..., None])[..., 0]
        return th.cat([value, slope.flatten(2), maps.action_slope[around].flatten(2)], dim=2)

    def evaluate(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param inputs: ψ, (m, p)
        :param nearest: node of each, (m,)
        :return: the blended maps' values, (m, t)
        """
        maps = self.maps
        if self.single:
            way = self.interpolation.coordinates.difference(states, self.states[0])
            return maps.value[0] + way @ maps.state_slope[0].T + inputs @ maps.action_slope[0].T
        weights = self.interpolation.weights(states, nearest)
        # Σ_l φ_l (value, A, B)_l: maps are blended first, and then asked once.
        value, slope, action_slope = self._parts((weights.values[:, None] @ self.tables[nearest])[:, 0])
        way = self.interpolation.from_nearest(states, nearest)
        moved = (slope @ way[..., None] + action_slope @ inputs[..., None])[..., 0]
        return value + moved

    def _parts(self, rows: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Rows of the tables as values, (…, t), and slopes, (…, t, d) and (…, t, p)."""
        t, d, p = self.maps.state_slope.shape[1], self.states.shape[1], self.maps.action_slope.shape[2]
        value, slope, action_slope = rows.split([t, t * d, t * p], dim=-1)
        return value, slope.unflatten(-1, (t, d)), action_slope.unflatten(-1, (t, p))

    def slopes(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Derivatives of :meth:`evaluate` with respect to the states, (m, t, d), and to the inputs, (m, t, p).
        """
        n = len(states)
        if self.single:
            return self.maps.state_slope[0].expand(n, -1, -1), self.maps.action_slope[0].expand(n, -1, -1)
        weights, tables = self.interpolation.weights(states, nearest), self.tables[nearest]
        _, slope, action_slope = self._parts((weights.values[:, None] @ tables)[:, 0])
        # By each node's own map, for the weights move with the state too, (m, k, t)
        own_value, own_slope, own_action_slope = self._parts(tables)
        way = self.interpolation.from_nearest(states, nearest)
        each = own_value + (own_slope @ way[:, None, :, None] + own_action_slope @ inputs[:, None, :, None])[..., 0]
        moved = [self.interpolation.pull_back(weights, each[..., i]) for i in range(each.shape[2])]
        return slope + th.stack(moved, dim=1), action_slope


def choose_nodes(
    states: th.Tensor,
    first: th.Tensor,
    coordinates: Coordinates,
    scale: th.Tensor,
    n_nodes: int,
    reach: Callable[[th.Tensor, th.Tensor], th.Tensor],
    bounds: Bounds,
    action_range: tuple[th.Tensor, th.Tensor],
    generator: th.Generator,
) -> th.Tensor:
    """
    Recorded states and those that the model reaches from them, thinned evenly.

    :param states: recorded, (n, d)
    :param first: states that count most, start states for instance, (f, d)
    :param coordinates: of the states
    :param scale: of each coordinate, (d,)
    :param n_nodes: at most
    :param reach: next states of states and actions
    :param bounds: where states stop being of interest
    :param action_range: smallest and largest actions
    :param generator: to draw from
    :return: (m, d)
    """
    low, high = action_range
    recorded = states
    if len(states) > _MOST_STATES:
        recorded = states[th.randperm(len(states), generator=generator)[:_MOST_STATES]]
    found = [first, recorded]

    def drawn(n: int) -> th.Tensor:
        return recorded[th.randint(len(recorded), (n,), generator=generator)]

    at = drawn(max(n_nodes // 2, 500))
    actions = low.expand(len(at), -1)
    for number in range(_N_ROUNDS):
        if number % _HELD_FOR == 0:
            actions = low + (high - low) * th.rand(len(at), len(low), generator=generator, dtype=at.dtype)
        reached = reach(at, actions)
        inside = bounds.cross(reached).goes_on > 0.5
        found.append(reached[inside])
        at = th.where(inside[:, None], reached, drawn(len(at)))
    return _thinned(th.cat(found), coordinates, scale, n_nodes)


def _thinned(states: th.Tensor, coordinates: Coordinates, scale: th.Tensor, n_most: int) -> th.Tensor:
    """The first state of each cell of a lattice, as fine a one as leaves at most so many."""
    points = coordinates.embed(states, scale)

    def firsts(size: float) -> th.Tensor:
        cells = (points / size).round().long().numpy()
        # One number a cell: rows would be compared column by column, which takes most of the time of all this.
        extent = cells.max(axis=0) - (least := cells.min(axis=0)) + 1
        if np.prod(extent.astype(np.float64)) < 2**62:
            cells = (cells - least) @ np.concatenate([np.cumprod(extent[:0:-1])[::-1], [1]])
        return th.from_numpy(np.sort(np.unique(cells, axis=0, return_index=True)[1]))

    kept = firsts(1e-6)
    if len(kept) <= n_most:
        return states[kept]
    low, high = 1e-6, float((points.max(dim=0).values - points.min(dim=0).values).max()) + 1e-6
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        chosen = firsts(middle)
        if len(chosen) > n_most:
            low = middle
        else:
            high, kept = middle, chosen
            if len(chosen) > 0.95 * n_most:
                break
    return states[kept]
