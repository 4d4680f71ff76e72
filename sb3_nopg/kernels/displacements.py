"""
The ways δ from queries to their neighbours in units of the bandwidths, and sums over neighbours.

Numbers of which there is one for every query, action and neighbour are tensors. Those of which there is one for a query and
action are few, and a step with them takes less time than torch needs to begin it. NumPy begins in a fifth of that, so that on
the CPU they are its arrays. What is done with them is written for both.
"""

from abc import ABC, abstractmethod
from functools import cache
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.kernels.workspace import Workspace

# NumPy's array on the CPU, and a tensor elsewhere.
Small = Any


def small(x: th.Tensor) -> Small:
    """
    :param x: with few entries; shared, not copied
    """
    return x.numpy() if x.device.type == "cpu" else x


def tensor(x: Small) -> th.Tensor:
    """
    :param x: from :func:`small`, or made of such
    """
    return x if isinstance(x, th.Tensor) else th.from_numpy(x)


class Displacements(ABC):
    """δ, in d dimensions, for m queries with a actions and k neighbours each."""

    @abstractmethod
    def linear(self, slope: Small, constant: float, out: th.Tensor) -> th.Tensor:
        """
        :param slope: b, (d, m, a)
        :param constant: c
        :param out: c + bᵀδ, (m, a, k)
        """

    @abstractmethod
    def sums(self, weights: th.Tensor) -> tuple[Small, Small]:
        """
        :param weights: w, (m, a, k)
        :return: Σ_j w_j, (m, a), and Σ_j w_j δ_j, (d, m, a)
        """

    @abstractmethod
    def moments(self, weights: th.Tensor) -> tuple[Small, Small, Small]:
        """
        :param weights: w, (m, a, k)
        :return: Σ_j w_j, (m, a), Σ_j w_j δ_j, (d, m, a), and Σ_j w_j δ_j δ_jᵀ, (d, d, m, a)
        """

    def moments_and_cube(self, weights: th.Tensor) -> tuple[Small, Small, Small, Small]:
        """
        :param weights: w, (m, a, k)
        :return: the same, and Σ_j w_j δ_j³, (m, a), where there is one dimension and that costs next to nothing; None else
        """
        return *self.moments(weights), None


class OwnDisplacements(Displacements):
    """
    For few actions: one number after the other.

    :param planes: δ, (d, m, a, k); or (d, m, 1, k), the same for all actions
    :param workspace: to work in
    """

    def __init__(self, planes: th.Tensor, workspace: Workspace):
        self._planes = planes
        self._workspace = workspace

    def linear(self, slope: Small, constant: float, out: th.Tensor) -> th.Tensor:
        slopes = tensor(slope)[..., None]
        th.mul(slopes[0], self._planes[0], out=out)
        for part, plane in zip(slopes[1:], self._planes[1:], strict=True):
            out.addcmul_(part, plane)
        return out if constant == 0.0 else out.add_(constant)

    def sums(self, weights: th.Tensor) -> tuple[Small, Small]:
        product = self._workspace.array("product", *weights.shape)
        first = th.stack([th.mul(weights, plane, out=product).sum(dim=-1) for plane in self._planes])
        return small(weights.sum(dim=-1)), small(first)

    def moments(self, weights: th.Tensor) -> tuple[Small, Small, Small]:
        d = len(self._planes)
        weighted, product = (self._workspace.array(name, *weights.shape) for name in ("weighted", "product"))
        first, second = weights.new_empty(d, *weights.shape[:2]), weights.new_empty(d, d, *weights.shape[:2])
        for i in range(d):
            th.sum(th.mul(weights, self._planes[i], out=weighted), dim=-1, out=first[i])
            for j in range(i, d):
                th.sum(th.mul(weighted, self._planes[j], out=product), dim=-1, out=second[i, j])
                second[j, i] = second[i, j]
        return small(weights.sum(dim=-1)), small(first), small(second)


class SharedDisplacements(Displacements):
    """
    For many actions, which share them but for an offset. What is made of them alone is made once; then each sum is a product
    of matrices for every query, of weights by action and neighbour with powers of δ by neighbour and dimension.

    :param powers: of δ⁰, from :func:`powers_of`, (m, c, k)
    :param d: dimensions
    :param offset: o, where δ = δ⁰ − o, (d, m, a). Moments about o are made from those about the origin: of an o that is large
        beside δ, float32 leaves two or three digits of them where float64 leaves eight
    """

    def __init__(self, powers: th.Tensor, d: int, offset: Small = None):
        self._powers, self._d, self._offset = powers, d, offset

    def linear(self, slope: Small, constant: float, out: th.Tensor) -> th.Tensor:
        coefficients = out.new_empty(*slope.shape[1:], 1 + self._d)
        parts = small(coefficients)
        parts[..., 0] = constant if self._offset is None else constant - (slope * self._offset).sum(0)
        for i in range(self._d):
            parts[..., 1 + i] = slope[i]
        return batch_product(coefficients, self._powers[:, : 1 + self._d], out)

    def sums(self, weights: th.Tensor) -> tuple[Small, Small]:
        return self._about_offset(batch_product(weights, self._powers[:, : 1 + self._d].mT))

    def _about_offset(self, sums: th.Tensor) -> tuple[Small, Small]:
        by_power = small(sums.permute(2, 0, 1))
        total, first = by_power[0], by_power[1 : 1 + self._d]
        return total, first if self._offset is None else first - self._offset * total

    def moments(self, weights: th.Tensor) -> tuple[Small, Small, Small]:
        return self._moments(batch_product(weights, self._powers[:, : n_powers(self._d)].mT).permute(2, 0, 1).contiguous())

    def _moments(self, sums: th.Tensor) -> tuple[Small, Small, Small]:
        d, pairs = self._d, _pairs(self._d)
        total, first = self._about_offset(sums.permute(1, 2, 0))
        if d == 1:
            second = small(sums)[2:3, None]
        else:
            numbers = [pairs.index((min(i, j), max(i, j))) + 1 + d for i in range(d) for j in range(d)]
            second = small(sums)[numbers].reshape(d, d, *total.shape)
        if self._offset is not None:
            # E[(δ⁰ − o)(δ⁰ − o)ᵀ] = E[δ⁰δ⁰ᵀ] − o E[δ⁰ᵀ] − E[δ] oᵀ
            second = second - self._offset[:, None] * small(sums)[None, 1 : 1 + d] - first[:, None] * self._offset[None]
        return total, first, second

    def moments_and_cube(self, weights: th.Tensor) -> tuple[Small, Small, Small, Small]:
        if self._d > 1:
            return *self.moments(weights), None
        sums = batch_product(weights, self._powers.mT).permute(2, 0, 1).contiguous()
        total, first, second = self._moments(sums)
        cube = small(sums)[3]
        if self._offset is not None:
            # E[(δ⁰ − o)³] = E[δ⁰³] − o (E[δ⁰²] + E[δ⁰δ] + E[δ²])
            both = small(sums)[2] - self._offset[0] * small(sums)[1]
            cube = cube - self._offset[0] * (small(sums)[2] + both + second[0, 0])
        return total, first, second, cube


def powers_of(planes: th.Tensor, out: th.Tensor | None = None) -> th.Tensor:
    """
    :param planes: δ, (d, m, k)
    :param out: for the result
    :return: 1, δ_i and δ_i δ_j for i ≤ j, and where d is one δ³, (m, c, k)
    """
    d, m, k = planes.shape
    powers = planes.new_empty(m, n_kept_powers(d), k) if out is None else out
    powers[:, 0] = 1.0
    powers[:, 1 : 1 + d] = planes.transpose(0, 1)
    for number, (i, j) in enumerate(_pairs(d), start=1 + d):
        th.mul(planes[i], planes[j], out=powers[:, number])
    if d == 1:
        th.mul(powers[:, 2], planes[0], out=powers[:, 3])
    return powers


def n_powers(d: int) -> int:
    """
    :param d: dimensions
    :return: how many powers there are up to the second
    """
    return 1 + d + d * (d + 1) // 2


def n_kept_powers(d: int) -> int:
    """
    :param d: dimensions
    :return: how many :func:`powers_of` makes, c
    """
    return n_powers(d) + (d == 1)


def worth_keeping(d: int, n_actions: int) -> bool:
    """
    Whether powers of what no policy changes are kept from update to update: where there are at most twice as many as actions,
    beside weights that take as much as these.

    :param d: dimensions
    :param n_actions: a
    """
    return n_kept_powers(d) <= 2 * n_actions


def _pairs(d: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(d) for j in range(i, d)]


def batch_product(left: th.Tensor, right: th.Tensor, out: th.Tensor | None = None) -> th.Tensor:
    """
    Products of many small matrices.

    :param left: (m, p, q)
    :param right: (m, q, r)
    :param out: for the result
    :return: (m, p, r)
    """
    if left.device.type != "cpu" or th.get_num_threads() > 1:
        return th.bmm(left, right, out=out)
    # torch takes longer to begin each product than to compute it. NumPy does not, but knows one thread only.
    _wake_blas()
    product = np.matmul(left.numpy(), right.numpy(), out=None if out is None else out.numpy())
    return th.from_numpy(product) if out is None else out


@cache
def _wake_blas() -> None:
    """NumPy's OpenBLAS takes nearly twice as long for small products until it has made one that is not so small."""
    np.matmul(np.ones((64, 64)), np.ones((64, 64)))
