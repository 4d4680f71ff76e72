"""
Bandwidths by how many samples share the weight at a state.

Densities know nothing of the dynamics. What the Bellman equation needs is that a handful of samples, neither one nor hundreds,
stand behind the estimate at each next state: one scale for all dimensions, in units of their standard deviations, is chosen so
that they do.
"""

import numpy as np
import scipy

# Samples that share the weight at the median next state.
TARGET = 10.0
# More neighbours than could share the weight at any sensible scale, and enough states for a median.
_N_NEIGHBORS = 256
_N_QUERIES = 500
# The scale lies between these, in standard deviations, to half a percent.
_LOWEST, _HIGHEST, _N_BISECTIONS = 1e-4, 10.0, 12


def effective_neighbors(samples: np.ndarray, queries: np.ndarray, seed: int, target: float = TARGET) -> np.ndarray:
    """
    :param samples: states of the data, not constant in any dimension, (n, d)
    :param queries: states at which the policy will act, (m, d)
    :param seed: of the choice among many queries
    :param target: median of 1 / Σ_j w_j² over the queries
    :return: bandwidths, c times each dimension's standard deviation, (d,)
    """
    deviation = samples.std(axis=0)
    chosen = np.random.default_rng(seed).permutation(len(queries))[:_N_QUERIES]
    # Copies share a weight without telling more than one of them does.
    samples = np.unique(samples, axis=0)
    n_neighbors = min(len(samples), _N_NEIGHBORS)
    distance, _ = scipy.spatial.cKDTree(samples / deviation).query(queries[chosen] / deviation, k=n_neighbors)
    squared = np.square(np.reshape(distance, (len(chosen), n_neighbors)))
    excess = squared - squared[:, :1]

    def sharing(scale: float) -> float:
        weights = np.exp(-0.5 * excess / scale**2)
        return float(np.median(weights.sum(axis=1) ** 2 / np.square(weights).sum(axis=1)))

    # Wider kernels are shared by more samples, always.
    low, high = np.log(_LOWEST), np.log(_HIGHEST)
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sharing(float(np.exp(middle))) < min(target, 0.5 * n_neighbors) else (low, middle)
    return deviation * float(np.exp((low + high) / 2.0))
