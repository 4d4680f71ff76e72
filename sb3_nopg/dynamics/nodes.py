"""
The data compiled into affine maps at nodes: states that need not be samples, each with what the data say around it.

Between nodes the maps are blended. What depends on the number of samples happens once, here.
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
# Maps that are blended at a state, and how many widths of its kernel away from a node the farthest of them lies; the same on a
# line, where eight reach far enough for the farthest not to count.
_BLENDED, _BLENDED_ON_A_LINE = (10, 2.5), (8, 4.0)
_MOST_STATES = 100_000
_HALVINGS = 20


@dataclass(frozen=True)
class NodeMaps:
    """
    :param interpolation: of values between the nodes
    :param between_maps: the same of maps, at nodes of their own that are spread over those coordinates that maps depend on
    :param maps: at these nodes
    :param without_past: at the nodes of values, of state and action alone: what follows on average over all pasts
    :param single: whether all maps are the same one
    """

    interpolation: Interpolation
    between_maps: Interpolation
    maps: AffineMaps
    without_past: AffineMaps
    single: bool

    @property
    def states(self) -> th.Tensor:
        """z, (n, d)."""
        return self.interpolation.nodes

    def __len__(self) -> int:
        return len(self.states)

    def to(self, device: th.device) -> "NodeMaps":
        """The same on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("interpolation", "between_maps", "maps", "without_past")}
        return replace(self, **moved)

    @cached_property
    def _blending(self) -> tuple[int, float]:
        on_a_line = int(self.between_maps.scale.isfinite().sum()) <= 1
        return _BLENDED_ON_A_LINE if on_a_line else _BLENDED

    @cached_property
    def _blended(self) -> th.Tensor:
        """Nodes around each whose maps are blended, (n, k)."""
        return self.between_maps.around[:, : self._blending[0]]

    @cached_property
    def offsets(self) -> th.Tensor:
        """From these to the node itself, over the scale, (n, k, d)."""
        return self.between_maps.offsets[:, : self._blending[0]].contiguous()

    @cached_property
    def squared_widths(self) -> th.Tensor:
        """Of these nodes' kernels, (n, k)."""
        farthest = self.offsets[:, -1].norm(dim=-1) / self._blending[1]
        usual = farthest.median().clamp_min(th.finfo(farthest.dtype).tiny)
        return farthest.maximum(1e-3 * usual).square()[self._blended]

    @cached_property
    def tables(self) -> th.Tensor:
        """Of these nodes: value at the node itself, slopes in the state, slopes in the inputs, (n, k, t, 1 + d + p)."""
        maps, blended, nodes = self.maps, self._blended, self.between_maps.nodes
        away = self.between_maps.coordinates.difference(nodes[:, None], nodes[blended])
        slope = maps.state_slope[blended]
        value = maps.value[blended][..., None] + slope @ away[..., None]
        return th.cat([value, slope, maps.action_slope[blended]], dim=3)

    def _blend(self, weights: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """Σ_l φ_l (value, A, B)_l, (m, t, 1 + d + p)."""
        shape = self.tables.shape[2:]
        return (weights[:, None] @ self.tables.flatten(2)[nearest]).view(-1, *shape)

    def _weights(self, way: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        φ, Gaussian weights that sum to one, and δ/h², by which they grow with the state, (m, k) and (m, k, d).

        Nothing corrects their mean: whatever the weights, blended maps give an affine function back.

        :param way: from the nearest node, over the scale, (m, d)
        :param nearest: (m,)
        """
        delta, squared_width = -(self.offsets[nearest] + way[:, None]), self.squared_widths[nearest]
        weights = th.softmax(-0.5 * delta.square().sum(dim=-1) / squared_width, dim=1)
        return weights, delta / squared_width[..., None]

    def evaluate(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param inputs: ψ, (m, p)
        :param nearest: node of maps next to each, (m,)
        :return: the blended maps' values, (m, t)
        """
        maps = self.maps
        if self.single:
            way = self.between_maps.coordinates.difference(states, self.between_maps.nodes[0])
            return maps.value[0] + way @ maps.state_slope[0].T + inputs @ maps.action_slope[0].T
        way = self.between_maps.from_nearest(states, nearest)
        weights, _ = self._weights(way / self.between_maps.scale, nearest)
        # Maps are blended first, and then asked once.
        return (self._blend(weights, nearest) @ _column(way, inputs))[..., 0]

    def slopes(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Derivatives of :meth:`evaluate` with respect to the states, (m, t, d), and to the inputs, (m, t, p).
        """
        n = len(states)
        if self.single:
            return self.maps.state_slope[0].expand(n, -1, -1), self.maps.action_slope[0].expand(n, -1, -1)
        way, d = self.between_maps.from_nearest(states, nearest), states.shape[1]
        weights, growth = self._weights(way / self.between_maps.scale, nearest)
        blended = self._blend(weights, nearest)
        # What each node's own map says here, (m, k, t), for the weights move with the state too: Σ_l φ_l (f_l − f) δ_l/h_l².
        each = (self.tables[nearest].flatten(1, 2) @ _column(way, inputs)).view(n, -1, blended.shape[1])
        pulls = weights[..., None] * (each - weights[:, None] @ each)
        return blended[..., 1 : 1 + d] + pulls.mT @ growth / self.between_maps.scale, blended[..., 1 + d :]


def _column(way: th.Tensor, inputs: th.Tensor) -> th.Tensor:
    """(1, x − z, u), (m, 1 + d + p, 1)."""
    return th.cat([th.ones_like(way[:, :1]), way, inputs], dim=1)[..., None]


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
    return thinned(th.cat(found), coordinates, scale, n_nodes)


def thinned(states: th.Tensor, coordinates: Coordinates, scale: th.Tensor, n_most: int) -> th.Tensor:
    """
    The first state of each cell of a lattice, as fine a one as leaves at most so many.

    :param states: (n, d)
    :param coordinates: of the states
    :param scale: of each coordinate, (d,), infinite where it does not count
    :param n_most: to leave
    :return: (m, d)
    """
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
