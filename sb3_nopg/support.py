"""The samples that every estimate is made of, and what they weigh at the states one asks about."""

from dataclasses import dataclass

import torch as th

from sb3_nopg.kernels import action_derivative, largest_weights, log_action_kernel, responsibilities, row_blocks
from sb3_nopg.local_linear import corrected_weights, weight_derivative
from sb3_nopg.neighbors import NeighborCount, NeighborLists, find_neighbors


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


@dataclass(frozen=True)
class Support:
    """
    :param observations: s, (n, d_s)
    :param actions: a, (n, d_a)
    :param state_bandwidth: of the state kernel ψ, (d_s,)
    :param action_bandwidth: of the action kernel φ, (d_a,)
    :param n_neighbors: see :func:`sb3_nopg.neighbors.find_neighbors`
    :param truncation_tolerance: likewise
    :param keep_largest: entries kept in each row of weights, see :func:`sb3_nopg.kernels.largest_weights`
    :param kl_bound: divergence allowed to each row of weights, likewise
    :param local_linear: correct the weights to first order, see :mod:`sb3_nopg.local_linear`
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
        :return: rows that sum to one, (m, a, k)
        """
        return self.corrected(queries, self.kernel_weights(queries, actions))

    def kernel_weights(self, queries: Queries, actions: th.Tensor) -> th.Tensor:
        """
        ε at every query for each of the policy's actions there: the kernels' normalised product.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        :return: rows that sum to one, (m, a, k)
        """
        log_state_kernel = queries.neighbors.log_state_kernel
        weights = actions.new_empty(len(queries), actions.shape[1], log_state_kernel.shape[1])
        for rows in row_blocks(weights):
            weights[rows] = self._weights(log_state_kernel[rows], queries.neighbor_actions[:, rows], actions[rows])
        return weights

    def corrected(self, queries: Queries, kernel_weights: th.Tensor) -> th.Tensor:
        """
        :param queries: m states
        :param kernel_weights: ε, (m, a, k)
        :return: the same, corrected to first order where that is wanted; rows that sum to one, (m, a, k)
        """
        if not self.local_linear:
            return kernel_weights
        corrected = th.empty_like(kernel_weights)
        for rows in row_blocks(kernel_weights):
            corrected[rows] = corrected_weights(kernel_weights[rows], self._displacements(queries, rows))
        return corrected

    def action_derivative(self, queries: Queries, kernel_weights: th.Tensor, values: th.Tensor) -> th.Tensor:
        """
        ∂v/∂a at every query, where v is the mean of the samples' values under the weights there.

        :param queries: m states
        :param kernel_weights: ε for the actions in question, (m, a, k)
        :param values: of the samples, held constant, (n,)
        :return: for actions divided by the bandwidth, (m, a, d_a)
        """
        neighbor_values = queries.neighbors.gather(values)
        derivative = kernel_weights.new_empty(*kernel_weights.shape[:2], len(queries.neighbor_actions))
        for rows in row_blocks(kernel_weights):
            weights, block_values = kernel_weights[rows], neighbor_values[rows]
            if self.local_linear:
                by_weight = weight_derivative(weights, self._displacements(queries, rows), block_values)
            else:
                by_weight = block_values[:, None, :]
            derivative[rows] = action_derivative(weights, by_weight, queries.neighbor_actions[:, rows])
        return derivative

    def _displacements(self, queries: Queries, rows: slice) -> th.Tensor:
        """From some queries to their neighbours in units of the bandwidth, (rows, k, d_s)."""
        indices = queries.neighbors.indices
        if indices is None:
            neighbors = self.observations
        else:
            chosen = indices[rows]
            neighbors = self.observations.index_select(0, chosen.reshape(-1)).view(*chosen.shape, -1)
        return (neighbors - queries.states[rows, None, :]) / self.state_bandwidth

    def _weights(self, log_state_kernel: th.Tensor, neighbor_actions: th.Tensor, actions: th.Tensor) -> th.Tensor:
        log_kernel = log_action_kernel(actions / self.action_bandwidth, neighbor_actions)
        weights = responsibilities(log_state_kernel, log_kernel)
        if self.keep_largest is not None or self.kl_bound is not None:
            keep = largest_weights(weights.mean(dim=1), self.keep_largest, self.kl_bound)
            weights = responsibilities(log_state_kernel, log_kernel.masked_fill_(~keep[:, None, :], -th.inf))
        return weights

    def kernel_mass(self, queries: Queries, actions: th.Tensor) -> th.Tensor:
        """
        Σ_j ψ_j φ_j, where a sample at the very place counts one, and less the farther away it is.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        :return: logarithm, (m, a)
        """
        log_kernel = log_action_kernel(actions / self.action_bandwidth, queries.neighbor_actions)
        return th.logsumexp(log_kernel + queries.neighbors.log_state_kernel[:, None, :], dim=-1)

    def effective_samples(self, queries: Queries, actions: th.Tensor) -> float:
        """
        Median over the queries of 1 / Σ_j ε_j²: how many samples share the weight at a state.

        :param queries: m states
        :param actions: in the environment's units, (m, a, d_a)
        """
        return float((1.0 / self.weights(queries, actions).square().sum(dim=-1)).median())

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
