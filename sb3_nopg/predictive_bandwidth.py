"""
Bandwidths of states and actions, chosen together by how well the samples predict each other.

What is predicted is what the Bellman equation uses: where a transition leads, what it earns, and whether the task ends there.
Each sample is predicted by kernel regression (Nadaraya–Watson) from the others; where there are episodes, from other episodes
(from other parts of few), since a sample's neighbours in time would give it away. A dimension that none of it depends on gets
a wide kernel, one that decides any of it a narrow one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch as th
from scipy.optimize import Bounds, minimize

# Bounds. Nothing is wider than so many standard deviations of its dimension: what did not matter in the data may matter later.
WIDEST = 1.0
NARROWEST = 0.02
# Where values repeat, as on a grid, no kernel is narrower than this share of the distance between levels.
NARROWEST_BETWEEN_LEVELS = 0.5
# At least so many samples share the weight at the median sample, or the estimate is a table of nearest samples.
FEWEST_EFFECTIVE_SAMPLES = 2.0
# Few episodes are cut into parts, so many in all, that are left out in turn: no other episode may come near one of two.
FEWEST_PARTS = 10

# Samples predicted, and samples each is predicted from: about 3 s for n = 10⁴ on one core. Below these, all.
_N_QUERIES, _N_NEIGHBORS = 2000, 512
# Ends of the task are rare and decide much: up to this share of the samples predicted are ends, weighted accordingly.
_SHARE_OF_TERMINALS = 0.25
# Neighbours depend on the bandwidths: they are found so many times, and in between no bandwidth changes by more than a factor.
_N_ROUNDS, _LARGEST_STEP = 6, 3.0
# Lists are found anew until no log-bandwidth changes by more.
_SMALLEST_STEP = 0.02
# Where the search starts, in standard deviations.
_START = 0.4
_BLOCK_PAIRS = 2**22


@dataclass(frozen=True)
class Prediction:
    """
    Kernel regression of some samples from the others, on neighbour lists.

    :param squared: squared distances in each dimension, (d, m, k)
    :param excluded: whether a neighbour is none, (m, k)
    :param neighbor_targets: (m, k, t)
    :param targets: what is to be predicted, (m, t)
    :param query_weights: share of each query in the error; they sum to one, (m,)
    """

    squared: th.Tensor
    excluded: th.Tensor
    neighbor_targets: th.Tensor
    targets: th.Tensor
    query_weights: th.Tensor

    def weights(self, log_bandwidths: th.Tensor) -> th.Tensor:
        """
        :param log_bandwidths: (d,)
        :return: rows that sum to one, (m, k)
        """
        log_kernel = th.tensordot(-0.5 * th.exp(-2.0 * log_bandwidths), self.squared, dims=1)
        return th.softmax(log_kernel.masked_fill(self.excluded, -th.inf), dim=1)

    def error(self, log_bandwidths: th.Tensor) -> th.Tensor:
        """Mean over the targets of the variance left unexplained; every target has variance one."""
        predicted = (self.weights(log_bandwidths)[:, None, :] @ self.neighbor_targets).squeeze(1)
        return (self.query_weights @ th.square(predicted - self.targets)).mean()

    def effective_samples(self, log_bandwidths: th.Tensor) -> float:
        """Median of 1 / Σ_j w_j² over the queries."""
        return float((1.0 / th.square(self.weights(log_bandwidths)).sum(dim=1)).median())


def predictive_bandwidths(
    states: np.ndarray,
    actions: np.ndarray,
    targets: np.ndarray,
    seed: int,
    *,
    terminals: np.ndarray | None = None,
    episode_ids: np.ndarray | None = None,
    fixed_state: np.ndarray | None = None,
    fixed_action: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    State and action bandwidths with the least error of leave-one-out prediction, within the bounds above.

    :param states: without constant dimensions, (n, d_s)
    :param actions: without constant dimensions, (n, d_a)
    :param targets: see :func:`bellman_targets`, (n, t)
    :param seed: of the choice of the samples predicted, where there are many
    :param terminals: ends of the task, which that choice prefers, (n,)
    :param episode_ids: samples that are left out together, (n,); None to leave out one at a time
    :param fixed_state: bandwidth of the state kernel where it is not to be chosen, (d_s,)
    :param fixed_action: likewise, (d_a,)
    :return: (d_s,) and (d_a,)
    """
    n_states = states.shape[1]
    inputs = np.concatenate([states, actions], axis=1)
    deviation = inputs.std(axis=0)
    inputs = (inputs - inputs.mean(axis=0)) / deviation
    low, high = np.log(_narrowest(inputs)), np.full(inputs.shape[1], np.log(WIDEST))
    for fixed, part in ((fixed_state, slice(None, n_states)), (fixed_action, slice(n_states, None))):
        if fixed is not None:
            low[part] = high[part] = np.log(fixed / deviation[part])
    groups = _groups(len(inputs), episode_ids)
    queries, query_weights = _queries(len(inputs), terminals, seed)

    def prediction(log_bandwidths: np.ndarray) -> Prediction:
        return _predict(inputs, targets, groups, queries, query_weights, log_bandwidths)

    # Nothing to predict is nothing that matters.
    chosen = _minimize(prediction, low, high) if targets.shape[1] else high
    chosen = _widen(prediction(chosen), chosen, low, high)
    bandwidths = np.exp(chosen) * deviation
    return bandwidths[:n_states], bandwidths[n_states:]


def bellman_targets(
    next_observations: np.ndarray, rewards: np.ndarray | None = None, terminals: np.ndarray | None = None
) -> np.ndarray:
    """
    What the Bellman equation takes from a transition, each with mean zero and variance one so that none outweighs the others.

    :param next_observations: (n, d_s)
    :param rewards: (n,)
    :param terminals: (n,)
    :return: next state, reward, termination, without what is constant, (n, t)
    """
    # The next state itself, not the displacement: the estimate continues at the samples' next states, so their scatter is its
    # error. Displacements made wider state kernels, with lower returns on the pendulum's grids of 200 and 450.
    columns, rounding = next_observations.astype(np.float64), [_rounding(next_observations)] * next_observations.shape[1]
    for outcome in (rewards, terminals):
        if outcome is not None:
            columns = np.column_stack([columns, np.asarray(outcome, dtype=np.float64)])
            rounding.append(_rounding(np.asarray(outcome)))
    extent = columns.max(axis=0) - columns.min(axis=0)
    varying = extent > 8 * np.array(rounding) * np.abs(columns).max(axis=0)
    # The extent first: squares of tiny or huge numbers leave the range of float64.
    scaled = columns[:, varying] / extent[varying]
    scaled = scaled - scaled.mean(axis=0)
    return scaled / scaled.std(axis=0)


def _rounding(samples: np.ndarray) -> float:
    return float(np.finfo(samples.dtype).eps) if samples.dtype.kind == "f" else 0.0


def _narrowest(inputs: np.ndarray) -> np.ndarray:
    """
    :param inputs: in units of their standard deviations, (n, d)
    :return: smallest bandwidths, (d,)
    """
    narrowest = np.full(inputs.shape[1], NARROWEST)
    for dim, column in enumerate(inputs.T):
        gaps = np.diff(np.sort(column))
        levels = gaps > 1e-6
        # Values count as levels where most samples repeat another's.
        if levels.any() and levels.mean() < 0.5:
            narrowest[dim] = max(NARROWEST, NARROWEST_BETWEEN_LEVELS * float(np.median(gaps[levels])))
    return np.minimum(narrowest, WIDEST)


def _groups(n_samples: int, episode_ids: np.ndarray | None) -> np.ndarray:
    """Number of the group that each sample is left out with, (n,)"""
    if episode_ids is None:
        return np.arange(n_samples)
    episodes = np.unique(episode_ids, return_inverse=True)[1]
    lengths = np.bincount(episodes)
    n_parts = -(-FEWEST_PARTS // len(lengths))
    # How far into its own episode each sample is.
    order = np.argsort(episodes, kind="stable")
    steps = np.empty(n_samples, dtype=int)
    steps[order] = np.arange(n_samples) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parts = steps * n_parts // np.maximum(lengths[episodes], n_parts)
    return episodes * n_parts + parts


def _queries(n_samples: int, terminals: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Samples to predict: all or, of many, a random choice in which ends of the task are as frequent as is useful.

    :return: sample numbers (m,), weights that make up for the choice and sum to one, (m,)
    """
    if n_samples <= _N_QUERIES:
        return np.arange(n_samples), np.full(n_samples, 1.0 / n_samples)
    order = np.random.default_rng(seed).permutation(n_samples)
    ends = np.zeros(n_samples, dtype=bool) if terminals is None else np.asarray(terminals, dtype=bool)
    n_ends = int(ends.sum())
    n_chosen_ends = min(n_ends, max(int(_SHARE_OF_TERMINALS * _N_QUERIES), _N_QUERIES * n_ends // n_samples))
    chosen_ends = order[ends[order]][:n_chosen_ends]
    chosen_others = order[~ends[order]][: _N_QUERIES - n_chosen_ends]
    weights = [
        np.full(len(chosen), of / n_samples / max(len(chosen), 1))
        for chosen, of in ((chosen_ends, n_ends), (chosen_others, n_samples - n_ends))
    ]
    return np.concatenate([chosen_ends, chosen_others]), np.concatenate(weights)


def _predict(
    inputs: np.ndarray,
    targets: np.ndarray,
    groups: np.ndarray,
    queries: np.ndarray,
    query_weights: np.ndarray,
    log_bandwidths: np.ndarray,
) -> Prediction:
    """Regression of the queries from their nearest samples in other groups, nearest by the kernel of these bandwidths."""
    scaled = th.from_numpy(inputs / np.exp(log_bandwidths))
    group = th.from_numpy(groups)
    n_neighbors = min(_N_NEIGHBORS, len(inputs) - 1)
    indices, excluded = [], []
    for rows in th.from_numpy(queries).split(max(1, _BLOCK_PAIRS // len(inputs))):
        distance = th.cdist(scaled[rows], scaled).masked_fill_(group[rows][:, None] == group, th.inf)
        nearest, found = th.topk(distance, n_neighbors, dim=1, largest=False)
        indices.append(found)
        excluded.append(nearest.isinf())
    neighbors, samples, outcome = th.cat(indices), th.from_numpy(inputs), th.from_numpy(targets)
    squared = th.stack([th.square(column[neighbors] - column[queries][:, None]) for column in samples.T])
    return Prediction(squared, th.cat(excluded), outcome[neighbors], outcome[queries], th.from_numpy(query_weights))


def _minimize(prediction: Callable[[np.ndarray], Prediction], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """
    :param prediction: regression on the neighbour lists of given log-bandwidths
    :param low: lower bounds of the log-bandwidths, (d,)
    :param high: upper bounds, (d,)
    :return: log-bandwidths, (d,)
    """
    chosen = np.clip(np.full(len(low), np.log(_START)), low, high)
    step = np.log(_LARGEST_STEP)
    for _ in range(_N_ROUNDS):
        bounds = Bounds(np.maximum(low, chosen - step), np.minimum(high, chosen + step))
        error = _objective(prediction(chosen))
        found = minimize(error, chosen, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 15, "ftol": 1e-5}).x
        moved = float(np.abs(found - chosen).max())
        chosen = found
        if moved < _SMALLEST_STEP:
            break
    return chosen


def _objective(regression: Prediction) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The logarithm of the error, so that the optimiser's tolerance is relative, and its gradient."""

    def log_error(log_bandwidths: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = th.tensor(log_bandwidths, requires_grad=True)
        # An error of zero has no logarithm.
        value = th.log(regression.error(parameters) + np.finfo(np.float64).tiny)
        value.backward()
        assert parameters.grad is not None
        return value.item(), parameters.grad.numpy()

    return log_error


def _widen(regression: Prediction, log_bandwidths: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Widen all bandwidths by one factor, as little as gives the median sample enough effective samples."""

    def widened(log_factor: float) -> np.ndarray:
        return np.clip(log_bandwidths + log_factor, low, high)

    def enough(log_factor: float) -> bool:
        return regression.effective_samples(th.from_numpy(widened(log_factor))) >= FEWEST_EFFECTIVE_SAMPLES

    shortest, longest = 0.0, float(np.max(high - log_bandwidths))
    if enough(shortest):
        return log_bandwidths
    for _ in range(12):
        middle = (shortest + longest) / 2.0
        shortest, longest = (shortest, middle) if enough(middle) else (middle, longest)
    return widened(longest)
