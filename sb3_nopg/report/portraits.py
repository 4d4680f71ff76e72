"""Pictures of a policy as numbers: where it goes, what it expects and what it does, over the state dimensions that matter."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.report.limits import Limit
from sb3_nopg.report.support import Visits, weighted_quantile

_N_CELLS = 90
# Of a slice, along each axis; of the lines that tell which dimensions matter.
_N_SLICE_CELLS, _N_LINE_POINTS = 48, 25
# Where each value is a trajectory that has to be followed.
_N_SLICE_CELLS_FOLLOWED = 24
_N_BINS = 40
# Where the smoothed number of samples in a cell falls below this share of the largest, there is no data to speak of.
_EMPTY = 1e-3
# Bandwidths from the nearest sample beyond which a picture is pale.
NEAR = 3.0
# Actions of many dimensions are not all drawn.
_N_ACTIONS = 3
# Samples that values are averaged over in a map, and that a nearest one is looked for among.
N_SAMPLES = 20_000


@dataclass(frozen=True)
class StateMap:
    """
    A picture over one or two state dimensions.

    :param values: (c,) or (c, c), horizontal axis first; NaN where there is no data
    :param ranges: low and high end of each axis
    :param names: of the axes
    """

    values: np.ndarray
    ranges: list[tuple[float, float]]
    names: list[str]


@dataclass(frozen=True)
class Slice:
    """
    Value and policy over one or two dimensions through one state.

    :param value: predicted discounted return
    :param actions: the policy's, one map for each of the first few dimensions
    :param near: whether a sample is near, of the maps' shape
    :param limits: formula, and whether each cell lies inside
    :param through: what the other dimensions are held at, in words
    """

    value: StateMap
    actions: list[StateMap]
    near: np.ndarray
    limits: list[tuple[str, np.ndarray]]
    through: str


@dataclass(frozen=True)
class Histogram:
    """
    One dimension of the state, in the data and where the policy is predicted to be.

    :param name: of the dimension
    :param edges: of the bins, (b + 1,)
    :param data: share of the samples in each bin, (b,)
    :param policy: share of the policy's time, (b,)
    """

    name: str
    edges: np.ndarray
    data: np.ndarray
    policy: np.ndarray


@dataclass(frozen=True)
class DimensionRange:
    """
    Between which values a dimension of the state is for 98 % of the time.

    :param name: of the dimension
    :param data_low: in the data
    :param data_high: in the data
    :param policy_low: under the policy, as predicted
    :param policy_high: under the policy, as predicted
    """

    name: str
    data_low: float
    data_high: float
    policy_low: float
    policy_high: float


def histograms(data: TransitionDataset, visits: Visits, labels: Sequence[str]) -> list[Histogram]:
    """
    :param data: that the model learned from
    :param visits: of the policy
    :param labels: of the dimensions
    """
    result = []
    for number, label in enumerate(labels):
        samples, visited = data.observations[:, number].astype(np.float64), visits.states[:, number]
        both = np.concatenate([samples, visited])[:, None]
        edges = np.linspace(*_ranges(both)[0], _N_BINS + 1)
        counts, _ = np.histogram(samples, edges)
        shares, _ = np.histogram(visited, edges, weights=visits.support.weights)
        result.append(Histogram(label, edges, counts / counts.sum(), shares))
    return result


def dimension_ranges(data: TransitionDataset, visits: Visits, names: Sequence[str]) -> tuple[DimensionRange, ...]:
    """
    :param data: that the model learned from
    :param visits: of the policy
    :param names: of the dimensions
    """
    low, high = np.quantile(data.observations, [0.01, 0.99], axis=0)
    weights = visits.support.weights
    ends = [[weighted_quantile(column, weights, share) for share in (0.01, 0.99)] for column in visits.states.T]
    return tuple(
        DimensionRange(name, float(low[i]), float(high[i]), float(ends[i][0]), float(ends[i][1]))
        for i, name in enumerate(names)
    )


def visitation_map(evaluation: PolicyEvaluation, visits: Visits, labels: Sequence[str]) -> StateMap:
    """
    Share of the policy's time over the two dimensions that the data spreads over most, whatever the others are.

    :param evaluation: of the policy
    :param visits: of its policy
    :param labels: of the dimensions
    """
    samples = some(evaluation.data.observations)
    dimensions = _most_spread(samples, evaluation.estimator.bandwidths.state)
    both = np.concatenate([samples, visits.states])[:, dimensions]
    bandwidth, ranges = np.asarray(evaluation.estimator.bandwidths.state, dtype=np.float64)[dimensions], _ranges(both)
    counts = _smoothed(samples[:, dimensions], np.ones(len(samples)), ranges, bandwidth)
    share = _smoothed(visits.states[:, dimensions], visits.support.weights, ranges, bandwidth)
    empty = (counts < _EMPTY * counts.max()) & (share < _EMPTY * share.max())
    return StateMap(np.where(empty, np.nan, share), ranges, [labels[i] for i in dimensions])


def slices(evaluation: PolicyEvaluation, visits: Visits, labels: Sequence[str], limits: Sequence[Limit]) -> list[Slice]:
    """
    Value and policy over the pairs of dimensions that change them most, through the state where the policy mostly is.

    :param evaluation: of the policy
    :param visits: of its policy
    :param labels: of the dimensions
    :param limits: to draw
    """
    center = visits.center()
    ranges = _ranges(evaluation.data.observations.astype(np.float64))
    tree = scipy.spatial.cKDTree(some(evaluation.data.observations) / evaluation.estimator.bandwidths.state)
    pairs = _pairs(_importance(evaluation, tree, center, ranges))
    n_cells = _N_SLICE_CELLS_FOLLOWED if evaluation.settings.on_model else _N_SLICE_CELLS
    grids = [_grid(center, pair, ranges, n_cells) for pair in pairs]
    # At once, because every question costs a solve.
    values = np.split(evaluation.value(np.concatenate(grids)), np.cumsum([len(grid) for grid in grids])[:-1])
    result = []
    for pair, grid, value in zip(pairs, grids, values, strict=True):
        shape = (n_cells,) * len(pair)
        axes: tuple[list[tuple[float, float]], list[str]] = ([ranges[i] for i in pair], [labels[i] for i in pair])
        actions = np.asarray(evaluation.act(grid), dtype=np.float64)
        others = [f"{labels[i]} = {center[i]:.3g}" for i in range(len(center)) if i not in pair]
        result.append(
            Slice(
                StateMap(value.reshape(shape), *axes),
                [StateMap(column.reshape(shape), *axes) for column in actions.T[:_N_ACTIONS]],
                _near(evaluation, tree, grid).reshape(shape),
                [(limit.formula, limit(grid).reshape(shape)) for limit in limits],
                ", ".join(others) or "there are no other dimensions",
            )
        )
    return result


def some(observations: np.ndarray) -> np.ndarray:
    """
    :param observations: (n, d_s)
    :return: no more of them than are needed, in their order
    """
    if len(observations) > N_SAMPLES:
        observations = observations[np.sort(np.random.default_rng(0).permutation(len(observations))[:N_SAMPLES])]
    return observations.astype(np.float64)


def _near(evaluation: PolicyEvaluation, tree: "scipy.spatial.cKDTree", states: np.ndarray) -> np.ndarray:
    """Whether a sample is near, (m,)."""
    return np.asarray(tree.query(states / evaluation.estimator.bandwidths.state)[0]) <= NEAR


def _importance(
    evaluation: PolicyEvaluation, tree: "scipy.spatial.cKDTree", center: np.ndarray, ranges: list[tuple[float, float]]
) -> np.ndarray:
    """
    How much value and action change along each dimension from the center, as far as samples are near, as shares of their
    largest change, (d_s,).
    """
    lines = np.repeat(center[None, None], len(center), axis=0).repeat(_N_LINE_POINTS, axis=1)
    for i, ends in enumerate(ranges):
        lines[i, :, i] = np.linspace(*ends, _N_LINE_POINTS)
    flat = lines.reshape(-1, len(center))
    actions = np.asarray(evaluation.act(flat), dtype=np.float64)
    near = _near(evaluation, tree, flat)
    # What the center says stands for what is not known, and changes nothing.
    answers = np.column_stack([evaluation.value(flat), actions])
    at_center = answers[np.argmin(np.abs(flat - center).sum(axis=1))]
    change = np.ptp(np.where(near[:, None], answers, at_center).reshape(*lines.shape[:2], -1), axis=1)
    largest = change.max(axis=0)
    total = (change / np.where(largest > 0, largest, 1.0)).sum(axis=1)
    # A dimension that never changes is the last to be shown.
    constant = np.ptp(evaluation.data.observations, axis=0) == 0
    return np.where(constant, -1.0, total)


def _pairs(importance: np.ndarray) -> list[tuple[int, ...]]:
    """The two dimensions that matter most, then the next two; each pair in the order of the state."""
    order = [int(i) for i in np.argsort(-importance, kind="stable")]
    pairs = [order[:2]]
    if len(order) == 3:
        pairs.append([order[0], order[2]])
    elif len(order) > 3:
        pairs.append(order[2:4])
    return [tuple(sorted(pair)) for pair in pairs]


def _grid(center: np.ndarray, pair: tuple[int, ...], ranges: list[tuple[float, float]], n_cells: int) -> np.ndarray:
    """States of a slice, horizontal axis first, (c², d_s) or (c, d_s)."""
    axes = [np.linspace(*ranges[i], 2 * n_cells + 1)[1::2] for i in pair]
    meshes = np.meshgrid(*axes, indexing="ij")
    grid = np.repeat(center[None], meshes[0].size, axis=0)
    for i, mesh in zip(pair, meshes, strict=True):
        grid[:, i] = mesh.reshape(-1)
    return grid


def _most_spread(states: np.ndarray, bandwidth: np.ndarray) -> list[int]:
    """The two dimensions that spread over most bandwidths, in their own order; one where only one varies."""
    spread = states.std(axis=0) / bandwidth
    chosen = [int(i) for i in np.argsort(-spread, kind="stable")[:2] if np.ptp(states[:, i]) > 0]
    return sorted(chosen) or [0]


def _smoothed(points: np.ndarray, weights: np.ndarray, ranges: list[tuple[float, float]], bandwidth: np.ndarray) -> np.ndarray:
    """
    Sums over cells, smoothed by the state kernel's width. Nothing is asked of states that no sample is near to: in
    many spaces, as that of a sine and a cosine, most states cannot be.
    """
    widths = np.array([(high - low) / _N_CELLS for low, high in ranges])
    sums, _ = np.histogramdd(points, bins=_N_CELLS, range=ranges, weights=weights)
    return scipy.ndimage.gaussian_filter(sums, np.clip(bandwidth / widths, 1.0, _N_CELLS / 4), mode="constant")


def _ranges(points: np.ndarray) -> list[tuple[float, float]]:
    """Ends of each axis, with a margin."""
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.where(high > low, 0.04 * (high - low), 0.5)
    return [(float(a), float(b)) for a, b in zip(low - margin, high + margin, strict=True)]
