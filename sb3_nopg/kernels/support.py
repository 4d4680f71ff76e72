"""The samples that every estimate is made of, and what they weigh at the states one asks about."""

from dataclasses import dataclass, replace

import torch as th

from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.kernels.local_linear import corrected_weights, correction, derivatives
from sb3_nopg.kernels.neighbors import NeighborCount, NeighborLists, find_neighbors
from sb3_nopg.kernels.weights import action_derivative, largest_weights, log_action_kernel, responsibilities, row_blocks


@dataclass(frozen=True)
class Queries:
    """
    States with their neighbours among the samples.

    :param states: (m, d_s)
    :param neighbors: (m, k)
    :param neighbor_actions: actions of each state's neighbours, divided by the bandwidth, (d_a, m, k)
    """

    states: th.Tensor
    neighbors: NeighborLists
    neighbor_actions: th.Tensor

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


@dataclass(frozen=True)
class Displacements:
    """
    From queries to their neighbours, in units of the bandwidths.

    :param states: (d_s, m, 1, k)
    :param actions: (d_a, m, a, k)
    """

    states: th.Tensor
    actions: th.Tensor


@dataclass(frozen=True)
class KernelWeights:
    """
    ε at some queries: the kernels' normalised product, for the actions that a policy takes there.

    :param actions: in the environment's units, (m, a, d_a)
    :param rows: they sum to one, or to their confidence, (m, a, k)
    """

    actions: th.Tensor
    rows: th.Tensor

    def of(self, chosen: th.Tensor) -> "KernelWeights":
        """
        At some of the queries.

        :param chosen: their numbers, (rows,)
        """
        return KernelWeights(self.actions[chosen], self.rows[chosen])


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
        corrected, columns = th.empty_like(weights.rows), self.observations.T.contiguous()
        for rows in row_blocks(weights.rows, self._depth):
            displacements = self._displacements(queries, rows, columns, weights.actions)
            corrected[rows] = self._corrected(weights.rows[rows], displacements)
        return corrected

    def _corrected(self, kernel_weights: th.Tensor, displacements: Displacements) -> th.Tensor:
        if self.pessimism == 0.0:
            return _corrected_twice(kernel_weights, displacements)
        weights, confidence = _normalized(kernel_weights)
        return _corrected_twice(weights, displacements).mul_(confidence)

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
            return fused.action_derivative(weights.rows, indices, values, queries.neighbor_actions)
        neighbor_values = queries.neighbors.gather(values)
        derivative = th.empty_like(weights.actions)
        columns = self.observations.T.contiguous()
        for rows in row_blocks(weights.rows, self._depth):
            displacements = self._displacements(queries, rows, columns, weights.actions) if self.local_linear else None
            parts = (weights.rows[rows], neighbor_values[rows], queries.neighbor_actions[:, rows], displacements)
            if self.pessimism == 0.0:
                derivative[rows] = self._mean_derivative(*parts)[1]
            else:
                derivative[rows] = self._pessimistic_derivative(*parts, weights.actions[rows])
        return derivative

    @property
    def _depth(self) -> int:
        """How many numbers a pair of query and neighbour takes, roughly."""
        return len(self.state_bandwidth) + len(self.action_bandwidth) if self.local_linear else 1

    @staticmethod
    def _mean_derivative(
        weights: th.Tensor, values: th.Tensor, neighbor_actions: th.Tensor, displacements: Displacements | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """u and ∂u/∂a for rows that sum to one, (m, a, 1) and (m, a, d_a)."""
        values = values[:, None, :]
        if displacements is None:
            return (weights * values).sum(dim=-1, keepdim=True), action_derivative(weights, values, neighbor_actions)
        by_action = correction(weights, displacements.actions)
        corrected = by_action.of(weights)
        by_state = correction(corrected, displacements.states)
        # Backwards through both corrections.
        mean, by_weight, _ = derivatives(corrected, displacements.states, by_state, values)
        _, by_weight, directly = derivatives(weights, displacements.actions, by_action, by_weight)
        return mean, action_derivative(weights, by_weight, neighbor_actions) + directly

    def _pessimistic_derivative(
        self,
        kernel_weights: th.Tensor,
        values: th.Tensor,
        neighbor_actions: th.Tensor,
        displacements: Displacements | None,
        actions: th.Tensor,
    ) -> th.Tensor:
        """
        ∂(c u)/∂a = c ∂u/∂a + u ∂c/∂a, where c = M / (M + κ) gives ∂c/∂a = c (1 − c) ∂log M/∂a, and ∂log M/∂a is the mean
        way, under the kernel weights, from the action to the neighbours' actions.
        """
        weights, confidence = _normalized(kernel_weights)
        mean, derivative = self._mean_derivative(weights, values, neighbor_actions, displacements)
        mean_action = th.stack([(weights * neighbors[:, None, :]).sum(dim=-1) for neighbors in neighbor_actions], dim=-1)
        by_confidence = mean * (1.0 - confidence) * (mean_action - actions / self.action_bandwidth)
        return confidence * (derivative + by_confidence)

    def _displacements(self, queries: Queries, rows: slice, columns: th.Tensor, actions: th.Tensor) -> Displacements:
        """
        From some queries to their neighbours in units of the bandwidths.

        :param columns: ``self.observations`` with one dimension after the other in memory, (d_s, n)
        :param actions: at all queries, (m, a, d_a)
        """
        indices = None if queries.neighbors.indices is None else queries.neighbors.indices[rows]
        n_columns = queries.neighbors.n_neighbors
        planes = columns.new_empty(len(columns), len(queries.states[rows]), n_columns)
        for plane, column, state, bandwidth in zip(planes, columns, queries.states[rows].T, self.state_bandwidth, strict=True):
            neighbors = column if indices is None else column.index_select(0, indices.reshape(-1)).view(indices.shape)
            th.sub(neighbors, state[:, None], out=plane).div_(bandwidth)
        scaled = (actions[rows] / self.action_bandwidth).permute(2, 0, 1)
        return Displacements(planes[:, :, None], queries.neighbor_actions[:, rows, None, :] - scaled[..., None])

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


def _corrected_twice(weights: th.Tensor, displacements: Displacements) -> th.Tensor:
    return corrected_weights(corrected_weights(weights, displacements.actions), displacements.states)


def _normalized(kernel_weights: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    :param kernel_weights: rows that sum to their confidence, (m, a, k)
    :return: rows that sum to one, (m, a, k), and the confidence, (m, a, 1)
    """
    confidence = kernel_weights.sum(dim=-1, keepdim=True)
    # Where the confidence is too small for a number, any weights will do: nothing is made of them.
    lost = confidence < th.finfo(kernel_weights.dtype).tiny
    return th.where(lost, 1.0 / kernel_weights.shape[-1], kernel_weights / confidence), confidence
