"""The samples that every estimate is made of, and what they weigh at the states one asks about."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch as th

from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.kernels.displacements import (
    Displacements,
    OwnDisplacements,
    SharedDisplacements,
    batch_product,
    n_kept_powers,
    powers_of,
    small,
    tensor,
    worth_keeping,
)
from sb3_nopg.kernels.local_linear import Corrections, correct, corrected_derivative
from sb3_nopg.kernels.neighbors import NeighborCount, NeighborLists, find_neighbors
from sb3_nopg.kernels.queries import Queries, workspace_of
from sb3_nopg.kernels.weights import action_covariance, largest_weights, log_action_kernel, responsibilities, row_blocks
from sb3_nopg.kernels.workspace import Workspace


@dataclass(frozen=True)
class KernelWeights:
    """
    ε at some queries: the kernels' normalised product, for the actions that a policy takes there.

    :param actions: in the environment's units, (m, a, d_a)
    :param rows: they sum to one, or to their confidence, (m, a, k)
    :param corrections: to first order, where these are wanted and known already
    """

    actions: th.Tensor
    rows: th.Tensor
    corrections: Corrections | None = None

    def of(self, chosen: th.Tensor) -> "KernelWeights":
        """
        At some of the queries.

        :param chosen: their numbers, (rows,)
        """
        corrections = None if self.corrections is None else self.corrections.of(chosen)
        return KernelWeights(self.actions[chosen], self.rows[chosen], corrections)


@dataclass(frozen=True)
class _Block:
    """
    Some of the queries.

    :param rows: which
    :param corrected: weights up to a factor, in memory that the next block has, (rows, a, k)
    :param factor: of each row, so that it sums to what it should, (rows, a)
    :param corrections: that made them
    """

    rows: slice
    corrected: th.Tensor
    factor: th.Tensor
    corrections: Corrections


@dataclass(frozen=True)
class Support:
    """
    :param observations: s, (n, d_s)
    :param actions: a, (n, d_a)
    :param state_bandwidth: of the state kernel ψ, (d_s,)
    :param action_bandwidth: of the action kernel φ, (d_a,)
    :param n_neighbors: see :func:`sb3_nopg.kernels.neighbors.find_neighbors`
    :param truncation_tolerance: see the same function
    :param keep_largest: entries kept in each row of weights, see :func:`sb3_nopg.kernels.weights.largest_weights`
    :param kl_bound: divergence allowed to each row of weights, see the same function
    :param local_linear: correct the weights to first order, see :mod:`sb3_nopg.kernels.local_linear`
    :param pessimism: κ, weight of an imaginary sample at every state and action. Each row of weights then sums to
        its confidence M / (M + κ), where M is the kernel mass of the samples; what it lacks stands for a bad end
    """

    observations: th.Tensor
    actions: th.Tensor
    state_bandwidth: th.Tensor
    action_bandwidth: th.Tensor
    n_neighbors: NeighborCount = "auto"
    truncation_tolerance: float = 1e-3
    keep_largest: int | None = None
    kl_bound: float | None = None
    local_linear: bool = False
    pessimism: float = 0.0

    def locate(self, states: th.Tensor, like: NeighborLists | None = None) -> Queries:
        """
        Find the neighbours of some states.

        :param states: (m, d_s)
        :param like: lists whose length to keep to, where ``n_neighbors`` would otherwise choose one for these states
        """
        n_neighbors = self.n_neighbors if like is None or like.indices is None else like.n_neighbors
        neighbors = find_neighbors(states, self.observations, self.state_bandwidth, n_neighbors, self.truncation_tolerance)
        scaled_actions = self.actions / self.action_bandwidth
        return Queries(states, neighbors, th.stack([neighbors.gather(column) for column in scaled_actions.T]))

    def weights(self, queries: Queries, actions: th.Tensor) -> th.Tensor:
        """
        What each neighbour counts at every query for each of the policy's actions there.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        :return: rows that sum to one, or to their confidence, (m, a, k)
        """
        return self.corrected(queries, self.kernel_weights(queries, actions))

    def kernel_weights(self, queries: Queries, actions: th.Tensor) -> KernelWeights:
        """
        :param queries: m states
        :param actions: the policy's there, in the environment's units, (m, a, d_a)
        """
        actions = actions.detach()
        log_state_kernel = queries.neighbors.log_state_kernel
        if fused.usable(actions, log_state_kernel.shape[1]) and self.keep_largest is None and self.kl_bound is None:
            scaled = actions / self.action_bandwidth
            return KernelWeights(
                actions, fused.kernel_weights(log_state_kernel, queries.neighbor_actions, scaled, self.pessimism)
            )
        weights = actions.new_empty(len(queries), actions.shape[1], log_state_kernel.shape[1])
        for rows in row_blocks(weights):
            weights[rows] = self._weights(log_state_kernel[rows], queries.neighbor_actions[:, rows], actions[rows])
        return KernelWeights(actions, weights)

    def corrected(self, queries: Queries, weights: KernelWeights) -> th.Tensor:
        """
        :param queries: m states
        :param weights: ε
        :return: the same, corrected to first order where that is wanted; the rows' sums do not change, (m, a, k)
        """
        if not self.local_linear:
            return weights.rows
        corrected = th.empty_like(weights.rows)
        for block in self._corrected_blocks(queries, weights):
            th.mul(block.corrected, block.factor[..., None], out=corrected[block.rows])
        return corrected

    def averaged(self, queries: Queries, weights: KernelWeights) -> tuple[th.Tensor, KernelWeights]:
        """
        The stochastic policy's mean, over its actions, of normalised weights.

        :param queries: m states
        :param weights: ε
        :return: of weights corrected to first order where that is wanted, (m, k); and ε with what corrects it, for the
            derivative
        """
        n_actions = weights.rows.shape[1]
        if not self.local_linear:
            return weights.rows[:, 0] if n_actions == 1 else weights.rows.mean(dim=1), weights
        mean = weights.rows.new_empty(len(queries), weights.rows.shape[2])
        parts = []
        for block in self._corrected_blocks(queries, weights):
            if n_actions == 1:
                th.mul(block.corrected[:, 0], block.factor, out=mean[block.rows])
            else:
                shares = (block.factor / n_actions)[:, None, :]
                batch_product(shares, block.corrected, out=mean[block.rows][:, None, :])
            if self._corrections_are_small(weights):
                parts.append(block.corrections)
        return mean, replace(weights, corrections=Corrections.joined(parts) if parts else None)

    def _corrections_are_small(self, weights: KernelWeights) -> bool:
        """Whether to keep them takes less memory than the weights. Else it is better to find them again."""
        return sum((d + 1) ** 2 for d in (len(self.state_bandwidth), len(self.action_bandwidth))) < weights.rows.shape[2]

    def _corrected_blocks(self, queries: Queries, weights: KernelWeights) -> Iterator[_Block]:
        workspace = workspace_of(queries)
        for rows in row_blocks(weights.rows, self._depth):
            kernel_weights, confidence = self._normalized(weights.rows[rows])
            displacements = self._displacements(queries, rows, weights.actions, workspace)
            corrected, corrections = correct(kernel_weights, *displacements, workspace)
            factor = confidence[..., 0] / tensor(corrections.total)
            yield _Block(rows, corrected, factor, corrections)

    def action_derivative(self, queries: Queries, weights: KernelWeights, values: th.Tensor) -> th.Tensor:
        """
        ∂v/∂a at every query, where v is the sum of the samples' values under the weights there.

        With pessimism v = c u, of the mean value u and the confidence c, so that the derivative has a second term, u ∂c/∂a.
        What a row lacks counts as value zero.

        :param queries: m states
        :param weights: ε for the actions in question
        :param values: of the samples, held constant, (n,)
        :return: for actions divided by the bandwidth, (m, a, d_a)
        """
        plain, indices = not self.local_linear and self.pessimism == 0.0, queries.neighbors.indices
        if plain and indices is not None and fused.usable(values, indices.shape[1]):
            return fused.action_covariance(weights.rows, indices, values, queries.neighbor_actions)
        neighbor_values = queries.neighbors.gather(values)
        derivative = th.empty_like(weights.actions)
        workspace = workspace_of(queries)
        for rows in row_blocks(weights.rows, self._depth):
            kernel_weights, confidence = self._normalized(weights.rows[rows])
            if self.local_linear:
                displacements = self._displacements(queries, rows, weights.actions, workspace)
                corrections = None if weights.corrections is None else weights.corrections.of(rows)
                mean, of_mean = corrected_derivative(
                    kernel_weights, neighbor_values[rows], *displacements, corrections, workspace
                )
            else:
                mean, of_mean = _mean_derivative(kernel_weights, neighbor_values[rows], queries.neighbor_actions[:, rows])
            if self.pessimism != 0.0:
                # ∂(c u)/∂a = c ∂u/∂a + u ∂c/∂a, where c = M / (M + κ) gives ∂c/∂a = c (1 − c) ∂log M/∂a, and ∂log M/∂a is
                # the mean way, under the kernel weights, from the action to the neighbours' actions.
                neighbor_actions = queries.neighbor_actions[:, rows, None, :]
                mean_action = th.stack([(kernel_weights * plane).sum(dim=-1) for plane in neighbor_actions], dim=-1)
                way = mean_action - weights.actions[rows] / self.action_bandwidth
                of_mean = confidence * (of_mean + mean[..., None] * (1.0 - confidence) * way)
            derivative[rows] = of_mean
        return derivative

    @property
    def _depth(self) -> int:
        """How many numbers a pair of query and neighbour takes, roughly."""
        return len(self.state_bandwidth) + len(self.action_bandwidth) if self.local_linear else 1

    def _normalized(self, kernel_weights: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        :param kernel_weights: rows that sum to their confidence, (m, a, k)
        :return: rows that sum to one, (m, a, k), and the confidence, (m, a, 1)
        """
        if self.pessimism == 0.0:
            return kernel_weights, kernel_weights.new_ones(1, 1, 1)
        confidence = kernel_weights.sum(dim=-1, keepdim=True)
        # Where the confidence is too small for a number, any weights will do: nothing is made of them.
        lost = confidence < th.finfo(kernel_weights.dtype).tiny
        return th.where(lost, 1.0 / kernel_weights.shape[-1], kernel_weights / confidence), confidence

    def _displacements(
        self, queries: Queries, rows: slice, actions: th.Tensor, workspace: Workspace
    ) -> tuple[Displacements, Displacements]:
        """
        From some queries to their neighbours in units of the bandwidths, those of the actions and of the states.

        :param actions: at all queries, (m, a, d_a)
        :param workspace: to keep them in
        """
        scaled = (actions[rows] / self.action_bandwidth).permute(2, 0, 1)  # (d_a, m, a)
        neighbor_actions = queries.neighbor_actions[:, rows]
        (d_a, m, k), d_s = neighbor_actions.shape, len(self.state_bandwidth)
        if actions.shape[1] < d_s:
            ways = workspace.array("actions", *scaled.shape, k)
            th.sub(neighbor_actions[:, :, None, :], scaled[..., None], out=ways)
            planes = self._state_planes(queries, rows, workspace)
            return OwnDisplacements(ways, workspace), OwnDisplacements(planes[:, :, None], workspace)
        # From the middle of the policy's actions: the neighbours that weigh most are around it.
        middle = scaled.mean(dim=2, keepdim=True)
        ways = th.sub(neighbor_actions, middle, out=workspace.array("actions", *neighbor_actions.shape))
        action_kept_powers = powers_of(ways, workspace.array("powers of actions", m, n_kept_powers(d_a), k))
        by_action = SharedDisplacements(action_kept_powers, d_a, small(scaled - middle))
        return by_action, SharedDisplacements(self._state_powers(queries, rows, actions.shape[1], workspace), d_s)

    def _state_powers(self, queries: Queries, rows: slice, n_actions: int, workspace: Workspace) -> th.Tensor:
        """Of the ways to the neighbours' states, which no policy changes."""
        d_s, k = len(self.state_bandwidth), queries.neighbors.n_neighbors
        if not worth_keeping(d_s, n_actions):
            shape = (len(queries.states[rows]), n_kept_powers(d_s), k)
            planes = self._state_planes(queries, rows, workspace)
            return powers_of(planes, workspace.array("powers of states", *shape))
        if queries.kept.state_powers is None:
            powers = queries.states.new_empty(len(queries), n_kept_powers(d_s), k)
            for block in row_blocks(powers):
                powers_of(self._state_planes(queries, block, workspace), powers[block])
            queries.kept.state_powers = powers
        return queries.kept.state_powers[rows]

    def _state_planes(self, queries: Queries, rows: slice, workspace: Workspace) -> th.Tensor:
        """The ways from some queries to their neighbours' states, (d_s, m, k)."""
        indices = None if queries.neighbors.indices is None else queries.neighbors.indices[rows]
        states = queries.states[rows]
        planes = workspace.array("states", states.shape[1], len(states), queries.neighbors.n_neighbors)
        for plane, column, state, bandwidth in zip(planes, self._columns, states.T, self.state_bandwidth, strict=True):
            neighbors = column if indices is None else column.index_select(0, indices.reshape(-1)).view(indices.shape)
            th.sub(neighbors, state[:, None], out=plane).div_(bandwidth)
        return planes

    @cached_property
    def _columns(self) -> th.Tensor:
        """The samples' states with one dimension after the other in memory, (d_s, n)."""
        return self.observations.T.contiguous()

    def _weights(self, log_state_kernel: th.Tensor, neighbor_actions: th.Tensor, actions: th.Tensor) -> th.Tensor:
        log_kernel = log_action_kernel(actions / self.action_bandwidth, neighbor_actions)
        if self.keep_largest is not None or self.kl_bound is not None:
            weights = responsibilities(log_state_kernel, log_kernel)
            keep = largest_weights(weights.mean(dim=1), self.keep_largest, self.kl_bound)
            log_kernel.masked_fill_(~keep[:, None, :], -th.inf)
        return responsibilities(log_state_kernel, log_kernel, self.pessimism)

    def kernel_mass(self, queries: Queries, actions: th.Tensor) -> th.Tensor:
        """
        Σ_j ψ_j φ_j, where a sample at the very place counts one, and less the farther away it is.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        :return: logarithm, (m, a)
        """
        log_kernel = log_action_kernel(actions / self.action_bandwidth, queries.neighbor_actions)
        return th.logsumexp(log_kernel + queries.neighbors.log_state_kernel[:, None, :], dim=-1)

    def effective_counts(self, queries: Queries, actions: th.Tensor) -> th.Tensor:
        """
        1 / Σ_j ε_j²: how many samples share the weight at a state.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        :return: (m, a)
        """
        # The imaginary sample of pessimism is none.
        weights = replace(self, pessimism=0.0).weights(queries, actions)
        return 1.0 / weights.square().sum(dim=-1)

    def truncation_error(self, queries: Queries, actions: th.Tensor) -> float:
        """
        Largest share of a query's weights, under the policy's actions, that its neighbour list may lack.

        A sample left out weighs at most its state kernel, because φ ≤ 1; a sample kept may weigh little if its action is
        far from the policy's. So this can exceed what was left out of the state kernel alone.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        """
        log_dropped = queries.neighbors.log_dropped_mass
        return float(th.sigmoid(log_dropped[:, None] - self.kernel_mass(queries, actions)).max())


def _mean_derivative(weights: th.Tensor, values: th.Tensor, neighbor_actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """u and ∂u/∂a for rows that sum to one and are not corrected, (m, a) and (m, a, d_a)."""
    values = values[:, None, :]
    return (weights * values).sum(dim=-1), action_covariance(weights, values, neighbor_actions)
