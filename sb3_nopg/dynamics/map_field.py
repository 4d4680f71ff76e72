"""Affine maps at nodes of their own, blended between them: what some of the targets do, wherever the state is."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch as th

from sb3_nopg.dynamics.affine import AffineMaps
from sb3_nopg.dynamics.interpolation import Interpolation

# Maps that are blended at a state, and how many widths of its kernel away from a node the farthest of them lies; the same on a
# line, where eight reach far enough for the farthest not to count.
_BLENDED, _BLENDED_ON_A_LINE = (10, 2.5), (8, 4.0)


@dataclass(frozen=True)
class MapField:
    """
    :param targets: that it is of, numbers of theirs among all
    :param between: interpolation, with nodes spread over those coordinates that the maps depend on
    :param maps: at these nodes
    """

    targets: tuple[int, ...]
    between: Interpolation
    maps: AffineMaps

    @property
    def single(self) -> bool:
        """Whether there is one map for all states."""
        return len(self.between.nodes) == 1

    def to(self, device: th.device) -> "MapField":
        """The same on a device."""
        return replace(self, between=self.between.to(device), maps=self.maps.to(device))

    @cached_property
    def _blending(self) -> tuple[int, float]:
        on_a_line = int(self.between.scale.isfinite().sum()) <= 1
        return _BLENDED_ON_A_LINE if on_a_line else _BLENDED

    @cached_property
    def _blended(self) -> th.Tensor:
        """Nodes around each whose maps are blended, (n, k)."""
        return self.between.around[:, : self._blending[0]]

    @cached_property
    def offsets(self) -> th.Tensor:
        """From these to the node itself, over the scale, (n, k, d)."""
        return self.between.offsets[:, : self._blending[0]].contiguous()

    @cached_property
    def squared_widths(self) -> th.Tensor:
        """Of these nodes' kernels, (n, k)."""
        farthest = self.offsets[:, -1].norm(dim=-1) / self._blending[1]
        usual = farthest.median().clamp_min(th.finfo(farthest.dtype).tiny)
        return farthest.maximum(1e-3 * usual).square()[self._blended]

    @cached_property
    def tables(self) -> th.Tensor:
        """Of these nodes: value at the node itself, slopes in the state, slopes in the inputs, (n, k, t, 1 + d + p)."""
        maps, blended, nodes = self.maps, self._blended, self.between.nodes
        away = self.between.coordinates.difference(nodes[:, None], nodes[blended])
        slope = maps.state_slope[blended]
        value = maps.value[blended][..., None] + slope @ away[..., None]
        return th.cat([value, slope, maps.action_slope[blended]], dim=3)

    def _blend(self, weights: th.Tensor, tables: th.Tensor) -> th.Tensor:
        """
        Σ_l φ_l (value, A, B)_l, (m, t, 1 + d + p).

        :param weights: φ, (m, k)
        :param tables: of the nodes in question, (m, k, t, 1 + d + p)
        """
        return (weights[:, None] @ tables.flatten(2)).view(-1, *tables.shape[2:])

    def _weights(self, way: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        φ, Gaussian weights that sum to one, and δ/h², by which they grow with the state, (m, k) and (m, k, d).

        Nothing corrects their mean: whatever the weights, blended maps give an affine function back.

        :param way: from the nearest node, over the scale, (m, d)
        :param nearest: (m,)
        """
        delta, squared_width = _rows(self.offsets, nearest).add_(way[:, None]).neg_(), _rows(self.squared_widths, nearest)
        growth = delta / squared_width[..., None]
        # Not squares over widths: a product of vectors is one step, and δ/h² is there.
        exponent = (delta[..., None, :] @ growth[..., None])[..., 0, 0]
        return th.softmax(exponent.mul_(-0.5), dim=1), growth

    def evaluate(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param inputs: ψ, (m, p)
        :param nearest: node next to each, (m,)
        :return: the blended maps' values, (m, t)
        """
        maps, way = self.maps, self.between.from_nearest(states, nearest)
        if self.single:
            return maps.value[0] + way @ maps.state_slope[0].T + inputs @ maps.action_slope[0].T
        weights, _ = self._weights(way / self.between.scale, nearest)
        # Maps are blended first, and then asked once.
        return (self._blend(weights, _rows(self.tables, nearest)) @ _column(way, inputs))[..., 0]

    def slopes(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Derivatives of :meth:`evaluate` with respect to the states, (m, t, d), and to the inputs, (m, t, p).
        """
        n = len(states)
        if self.single:
            return self.maps.state_slope[0].expand(n, -1, -1), self.maps.action_slope[0].expand(n, -1, -1)
        way, d = self.between.from_nearest(states, nearest), states.shape[1]
        weights, growth = self._weights(way / self.between.scale, nearest)
        tables = _rows(self.tables, nearest)
        blended = self._blend(weights, tables)
        # What each node's own map says here, (m, k, t), for the weights move with the state too: Σ_l φ_l (f_l − f) δ_l/h_l².
        each = (tables.flatten(1, 2) @ _column(way, inputs)).view(n, -1, blended.shape[1])
        pulls = weights[..., None] * (each - weights[:, None] @ each)
        return blended[..., 1 : 1 + d] + pulls.mT @ growth / self.between.scale, blended[..., 1 + d :]


def _rows(x: th.Tensor, chosen: th.Tensor) -> th.Tensor:
    """x[chosen], in less time."""
    return x.index_select(0, chosen)


def _column(way: th.Tensor, inputs: th.Tensor) -> th.Tensor:
    """(1, x − z, u), (m, 1 + d + p, 1)."""
    return th.cat([th.ones_like(way[:, :1]), way, inputs], dim=1)[..., None]
