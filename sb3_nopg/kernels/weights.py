"""Gaussian kernels in log space and the weights made of them: the estimator's arithmetic, and nothing else."""

import math
from collections.abc import Iterator

import torch as th

# Work on so many entries at a time fits a processor's cache, and its results a piece of memory that is in use already: fresh
# pages cost more than the arithmetic. A GPU wants as much at once as leaves its memory to what is kept.
_BLOCK_ENTRIES = 2**18
_DEEP_BLOCK_ENTRIES = 2**21
_GPU_BLOCK_ENTRIES = 2**26


def row_blocks(weights: th.Tensor, depth: int = 1) -> Iterator[slice]:
    """
    :param weights: something to compute row by row, (m, …)
    :param depth: how many numbers are held for each of its entries
    :return: ranges of rows, one after the other
    """
    n_rows = len(weights)
    # Where much is computed for each entry, in memory that is used again, it is the beginnings of many steps that count: they
    # want larger blocks than the cache does.
    in_memory = _BLOCK_ENTRIES if depth == 1 else _DEEP_BLOCK_ENTRIES
    n_entries = (_GPU_BLOCK_ENTRIES if weights.is_cuda else in_memory) // depth
    size = max(1, n_entries * n_rows // max(1, weights.numel()))
    return (slice(start, start + size) for start in range(0, n_rows, size))


def log_action_kernel(actions: th.Tensor, neighbor_actions: th.Tensor) -> th.Tensor:
    """
    Log of φ, the kernel between a query's actions and its neighbours' actions, without its constant.

    :param actions: actions at each query, divided by the bandwidth, (m, a, d_a)
    :param neighbor_actions: actions of each query's neighbours, divided by the bandwidth, (d_a, m, k)
    :return: (m, a, k)
    """
    squared_distance: th.Tensor | None = None
    # One action dimension after another: no (m, a, k, d_a) array ever exists.
    for dimension, neighbors in enumerate(neighbor_actions):
        difference = actions[:, :, dimension, None] - neighbors[:, None, :]
        squared_distance = (
            difference.square_() if squared_distance is None else squared_distance.addcmul_(difference, difference)
        )
    assert squared_distance is not None
    return squared_distance.mul_(-0.5)


def responsibilities(log_state_kernel: th.Tensor, log_action_kernel: th.Tensor, pessimism: float = 0.0) -> th.Tensor:
    """
    Weight of each neighbour at each query for each of its actions, ε in the paper before the average over actions.

    A stochastic policy averages these *normalised* weights over its actions; averaging the kernels first and
    normalising afterwards would be another estimator.

    With pessimism κ there is one imaginary sample more, which is as near as any can be and counts κ everywhere. Its share
    κ / (M + κ), where M is the sum of all kernels, belongs to no neighbour and is what the rows lack.

    :param log_state_kernel: (m, k)
    :param log_action_kernel: (m, a, k)
    :param pessimism: κ
    :return: rows that sum to one, or with pessimism to M / (M + κ), (m, a, k)
    """
    log_kernel = log_action_kernel + log_state_kernel[:, None, :]
    if pessimism == 0.0:
        # Softmax keeps a far query normalised, where exp-then-divide gives 0/0.
        return th.softmax(log_kernel, dim=-1)
    log_mass = th.logsumexp(log_kernel, dim=-1, keepdim=True)
    return log_kernel.sub_(th.logaddexp(log_mass, th.full_like(log_mass, math.log(pessimism)))).exp_()


def action_covariance(responsibilities: th.Tensor, neighbor_values: th.Tensor, neighbor_actions: th.Tensor) -> th.Tensor:
    """
    ∂v/∂a at each query, where v = Σ_j ε_j q_j: the covariance, under ε, of the neighbours' values and their actions.

    With log-weights l_j = log ψ_j − ½‖a − a_j‖², ∂v/∂a = Σ_j ε_j (q_j − v) ∂l_j/∂a = Σ_j ε_j (q_j − v) a_j,
    because Σ_j ε_j (q_j − v) = 0 removes the term in a. Actions are in units of the bandwidth.
    The values q are held constant: how they change with the policy is the visitation's part of the gradient.

    :param responsibilities: ε, (m, a, k)
    :param neighbor_values: q at each query's neighbours, or more generally ∂v/∂ε, (m, 1 or a, k)
    :param neighbor_actions: actions of each query's neighbours, divided by the bandwidth, (d_a, m, k)
    :return: (m, a, d_a), for actions divided by the bandwidth
    """
    # Values have a large common part, in which E[qa] − E[q]E[a] would drown. Differences to one of them are free of it.
    differences = neighbor_values - neighbor_values[..., :1]
    means = (responsibilities * differences).sum(dim=-1, keepdim=True)  # (m, a, k) -> (m, a, 1)
    advantages = responsibilities * (differences - means)
    return th.stack([(advantages * actions[:, None, :]).sum(dim=-1) for actions in neighbor_actions], dim=-1)


def largest_weights(weights: th.Tensor, keep_largest: int | None, kl_bound: float | None) -> th.Tensor:
    """
    Which entries of each row the paper's sparsifications keep.

    Dropping entries and normalising again moves a row by KL(kept ‖ row) = −log(mass kept), so a bound on the divergence
    is a bound on the mass: each row keeps as few entries as reach it.

    :param weights: rows that sum to one, (m, k)
    :param keep_largest: how many entries to keep in each row; of equal ones, any
    :param kl_bound: largest divergence allowed for a row
    :return: mask of entries to keep, at least one a row, (m, k)
    """
    n_kept = weights.shape[1] if keep_largest is None else min(keep_largest, weights.shape[1])
    ordered, order = th.topk(weights, n_kept, dim=1)
    keep = th.ones_like(ordered, dtype=th.bool)
    if kl_bound is not None:
        mass_before = th.cumsum(ordered, dim=1) - ordered
        keep &= mass_before < math.exp(-kl_bound)
    keep[:, 0] = True
    return th.zeros_like(weights, dtype=th.bool).scatter_(1, order, keep)
