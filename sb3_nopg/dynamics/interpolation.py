"""
Values between nodes: weights that are positive, sum to one, and have their mean where the state is.

With δ_l = (z_l − x) / scale and the Gaussian weights w_l of the nodes around a state,

    b = −(E_w[δδᵀ] + λ E_w[h²] I)⁻¹ E_w[δ]        φ_l ∝ w_l · max(1 + bᵀδ_l, 0.02)

Plain Gaussian weights put the mean to one side wherever nodes lie to one side, which is a push in every step; the correction
takes it out, wherever the clip allows. The clip keeps the weights positive, hence any matrix made of them stochastic.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy
import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates

# Neighbours of a node that values between nodes are made of, and the number of the one that its width is taken from.
_N_AROUND, _WIDTH_FROM = 20, 12
_RIDGE, _LEAST = 0.01, 0.02
# So many states are looked for on several cores.
_MANY = 5000


@dataclass(frozen=True)
class Weights:
    """
    Weights of nodes at m states, with what their derivative needs.

    :param nodes: numbers of the nodes, (m, k)
    :param values: φ, (m, k)
    """

    nodes: th.Tensor
    values: th.Tensor
    way: th.Tensor
    gaussian: th.Tensor
    tilt: th.Tensor
    correction: th.Tensor
    inverse: th.Tensor
    total: th.Tensor

    def mean(self, of_nodes: th.Tensor) -> th.Tensor:
        """
        :param of_nodes: a number for each node, (n,)
        :return: its interpolation, (m,)
        """
        return (self.values * of_nodes[self.nodes]).sum(dim=1)


@dataclass(frozen=True)
class Interpolation:
    """
    :param coordinates: of the states
    :param nodes: z, (n, d)
    :param scale: of each coordinate, (d,); infinite for one that does not count
    :param around: numbers of the nearest nodes of each, itself first, (n, k)
    :param squared_width: h² of each node, (n,)
    """

    coordinates: Coordinates
    nodes: th.Tensor
    scale: th.Tensor
    around: th.Tensor
    squared_width: th.Tensor

    @classmethod
    def between(cls, coordinates: Coordinates, nodes: th.Tensor, scale: th.Tensor) -> "Interpolation":
        """
        :param coordinates: of the states
        :param nodes: (n, d), on the processor
        :param scale: (d,)
        """
        points = coordinates.embed(nodes, scale).numpy()
        k = min(_N_AROUND, len(nodes))
        distances, around = map(np.asarray, scipy.spatial.cKDTree(points).query(points, k=[*range(1, k + 1)]))
        # A node of its own is its first neighbour, also where another lies at the same place.
        width = th.from_numpy(distances[:, min(_WIDTH_FROM, k - 1)]) / 2.0
        usual = float(width.median()) or 1.0
        return cls(coordinates, nodes, scale, th.from_numpy(around), width.clamp_min(1e-3 * usual).square())

    def to(self, device: th.device) -> "Interpolation":
        """The same on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("nodes", "scale", "around", "squared_width")}
        return replace(self, coordinates=self.coordinates.to(device), **moved)

    def locate(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: anywhere, (m, d)
        :return: the nearest node of each, (m,)
        """
        # What is no number is near to any node, and stays none.
        at = np.nan_to_num(self.coordinates.embed(states.detach(), self.scale).cpu().numpy())
        found = np.asarray(self.tree.query(at, workers=th.get_num_threads() if len(at) >= _MANY else 1)[1])
        return th.from_numpy(found).to(self.nodes.device)

    @cached_property
    def tree(self) -> "scipy.spatial.cKDTree":
        """Of the nodes, to find the nearest one."""
        return scipy.spatial.cKDTree(self.coordinates.embed(self.nodes, self.scale).cpu().numpy())

    @cached_property
    def offsets(self) -> th.Tensor:
        """From each node's neighbours to the node itself, over the scale, (n, k, d)."""
        return self.coordinates.difference(self.nodes[:, None], self.nodes[self.around]) / self.scale

    @cached_property
    def _squared_widths(self) -> th.Tensor:
        """Of each node's neighbours, (n, k)."""
        return self.squared_width[self.around]

    def from_nearest(self, states: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """x − z of the nearest node, (m, d)."""
        return self.coordinates.difference(states, self.nodes[nearest])

    def _ways(self, states: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """δ, from the states to the nodes around the nearest one, over the scale, (m, k, d)."""
        return -(self.offsets[nearest] + (self.from_nearest(states, nearest) / self.scale)[:, None])

    def weights(self, states: th.Tensor, nearest: th.Tensor) -> Weights:
        """
        :param states: (m, d)
        :param nearest: node of each, (m,)
        """
        way, squared_width = self._ways(states, nearest), self._squared_widths[nearest]  # δ, (m, k, d), and h², (m, k)
        gaussian = th.softmax(-0.5 * way.square().sum(dim=-1) / squared_width, dim=1)  # w
        weighted = gaussian[..., None] * way
        mean = weighted.sum(dim=1)
        moment = weighted.mT @ way
        ridge = _RIDGE * (gaussian * squared_width).sum(dim=1)
        moment = moment + ridge[:, None, None] * th.eye(way.shape[2], dtype=way.dtype, device=way.device)
        inverse = th.linalg.inv(moment)
        correction = -(inverse @ mean[..., None])[..., 0]  # b
        tilt = 1.0 + (way @ correction[..., None])[..., 0]
        raw = gaussian * tilt.clamp_min(_LEAST)
        total = raw.sum(dim=1, keepdim=True)
        return Weights(self.around[nearest], raw / total, way, gaussian, tilt, correction, inverse, total)

    def pull_back(self, weights: Weights, gradient: th.Tensor) -> th.Tensor:
        """
        From a derivative with respect to the weights to one with respect to the states, nodes held where they are.

        :param weights: at the states
        :param gradient: ∂f/∂φ, (m, k)
        :return: ∂f/∂x, (m, d)
        """
        w, way, tilt, b = weights.gaussian, weights.way, weights.tilt, weights.correction
        squared_width = self.squared_width[weights.nodes]
        raw = (gradient - (weights.values * gradient).sum(dim=1, keepdim=True)) / weights.total
        of_gaussian = raw * tilt.clamp_min(_LEAST)
        of_tilt = th.where(tilt > _LEAST, raw * w, th.zeros_like(raw))
        # b solves M b = −E[δ]: with y = M⁻¹ ∂f/∂b, the mean's derivative is −y and the moment's −y bᵀ.
        y = (weights.inverse @ (of_tilt[:, None] @ way).mT)[..., 0]
        along = (way @ y[..., None])[..., 0]
        of_gaussian = of_gaussian - along * tilt - _RIDGE * squared_width * (y * b).sum(dim=1, keepdim=True)
        of_exponent = w * (of_gaussian - (w * of_gaussian).sum(dim=1, keepdim=True))
        # ∂f/∂δ_l = (t̄_l − w_l yᵀδ_l) b − w_l (1 + bᵀδ_l) y − ē_l δ_l / h_l², summed over the nodes
        of_way = (
            (of_tilt - w * along).sum(dim=1, keepdim=True) * b
            - (w * tilt).sum(dim=1, keepdim=True) * y
            - ((of_exponent / squared_width)[:, None] @ way)[:, 0]
        )
        return -of_way / self.scale
