"""What a policy is predicted to do, before anything moves: numbers and pictures from a model with its data attached."""

import csv
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from sb3_nopg.errors import InputError
from sb3_nopg.nopg import NOPG

# States that estimates are asked for; more only take longer.
_N_STATES = 20_000
_N_CELLS = 90
# Where the smoothed number of samples in a cell falls below this share of the largest, there is no data to speak of.
_EMPTY = 1e-3
# Samples below which an estimate is a guess.
THIN = 1.0
REPORT_SUFFIXES = (".html", ".png")


@dataclass(frozen=True)
class SupportSummary:
    """
    How many samples stand behind the estimates where the policy is predicted to go, see ``NOPG.support``.

    :param samples: at states of the data, (m,)
    :param weights: how much of its time the policy is predicted to be there, sums to one, (m,)
    """

    samples: np.ndarray
    weights: np.ndarray

    def quantile(self, share: float) -> float:
        """
        :param share: of the policy's time
        :return: samples that this share does not exceed
        """
        order = np.argsort(self.samples)
        return float(self.samples[order][np.searchsorted(np.cumsum(self.weights[order]), share).clip(max=len(order) - 1)])

    @property
    def thin_share(self) -> float:
        """Of the policy's time, where less than one sample stands behind the estimates, which are guesses there."""
        return float(self.weights[self.samples < THIN].sum())

    def text(self) -> str:
        return (
            f"median {self.quantile(0.5):.3g}, lowest tenth {self.quantile(0.1):.3g}; "
            f"less than one for {100 * self.thin_share:.0f} % of the time"
        )


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
class PolicyReport:
    """
    :param facts: what a table says, name and text
    :param estimated_return: predicted from the start states, discounted
    :param value: predicted discounted return, averaged over the state dimensions that are not shown
    :param visitation: predicted share of time in each cell, whatever the dimensions that are not shown
    :param support: along the predicted way
    :param curve: number of updates and predicted return during training, (k, 2); None if not known
    """

    facts: list[tuple[str, str]]
    estimated_return: float
    value: StateMap
    visitation: StateMap
    support: SupportSummary
    curve: np.ndarray | None


def support_along_the_way(model: NOPG) -> SupportSummary:
    """
    :param model: with its data attached
    """
    rows = _rows(model)
    weights = np.clip(model.visitation[rows], 0.0, None)
    assert model.dataset is not None
    return SupportSummary(model.support(model.dataset.observations[rows]), weights / weights.sum())


def make_report(model: NOPG, curve: np.ndarray | None = None) -> PolicyReport:
    """
    :param model: with its data attached
    :param curve: number of updates and predicted return during training, (k, 2), see :func:`read_curve`
    """
    if model.dataset is None or model.bandwidths is None:
        raise InputError("model", "it has no data attached", "Call set_dataset() first")
    rows = _rows(model)
    states = model.dataset.observations[rows].astype(np.float64)
    dimensions = _most_spread(states, model.bandwidths.state)
    names = _dimension_names(model)
    shown, axis_names = states[:, dimensions], [names[i] for i in dimensions]
    smoothing = np.asarray(model.bandwidths.state, dtype=np.float64)[dimensions]
    support, visits = support_along_the_way(model), np.clip(model.visitation[rows], 0.0, None)
    cells, ranges = _Cells(shown, smoothing), _ranges(shown)
    counts = cells.smoothed(np.ones(len(shown)))
    empty = counts < _EMPTY * counts.max()
    value = cells.smoothed(model.value(states)) / np.where(empty, np.nan, counts)
    share = cells.smoothed(visits / visits.sum())
    return PolicyReport(
        _facts(model, names, support),
        model.estimated_return(),
        StateMap(value, ranges, axis_names),
        StateMap(np.where(empty, np.nan, share), ranges, axis_names),
        support,
        curve,
    )


def read_curve(path: pathlib.Path) -> np.ndarray | None:
    """
    :param path: log of a training, CSV
    :return: number of updates and predicted return, (k, 2); None if there is no such file or nothing in it
    """
    if not path.is_file():
        return None
    try:
        with open(path, newline="", encoding="utf-8") as file:
            points = [
                (float(row["train/n_updates"]), float(row["train/estimated_return"]))
                for row in csv.DictReader(file)
                if row["train/estimated_return"]
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), f"no log of a training ({error!r})", "Remove it") from error
    return np.array(points) if points else None


def _rows(model: NOPG) -> np.ndarray:
    if model.dataset is None:
        raise InputError("model", "it has no data attached", "Call set_dataset() first")
    return np.sort(np.random.default_rng(0).permutation(len(model.dataset))[:_N_STATES])


def _most_spread(states: np.ndarray, bandwidth: np.ndarray) -> list[int]:
    """The two dimensions that spread over most bandwidths, in their own order; one where only one varies."""
    spread = states.std(axis=0) / bandwidth
    chosen = [int(i) for i in np.argsort(-spread, kind="stable")[:2] if np.ptp(states[:, i]) > 0]
    return sorted(chosen) or [0]


class _Cells:
    """
    Sums over cells of a plane, smoothed by the state kernel's width. Nothing is asked of states that no sample is near to: in
    many spaces, as that of a sine and a cosine, most states cannot be.

    :param points: (m, 1) or (m, 2)
    :param bandwidth: of each axis
    """

    def __init__(self, points: np.ndarray, bandwidth: np.ndarray):
        self._points, self._ranges = points, _ranges(points)
        widths = np.array([(high - low) / _N_CELLS for low, high in self._ranges])
        self._sigma = np.clip(bandwidth / widths, 1.0, _N_CELLS / 4)

    def smoothed(self, weights: np.ndarray) -> np.ndarray:
        """
        :param weights: (m,)
        :return: (c,) or (c, c)
        """
        sums, _ = np.histogramdd(self._points, bins=_N_CELLS, range=self._ranges, weights=weights)
        return gaussian_filter(sums, self._sigma, mode="constant")


def _ranges(points: np.ndarray) -> list[tuple[float, float]]:
    """Ends of each axis, with a margin."""
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.where(high > low, 0.04 * (high - low), 0.5)
    return [(float(a), float(b)) for a, b in zip(low - margin, high + margin, strict=True)]


def _dimension_names(model: NOPG) -> list[str]:
    """As the environment calls them, or else by number."""
    assert model.dataset is not None
    n = model.dataset.observation_dim
    env = model.get_env()
    metadata: Any = {} if env is None else env.get_attr("metadata")[0] or {}
    told, units = metadata.get("observation_names", ()), metadata.get("observation_units", ())
    if len(told) != n:
        return [f"s[{i}]" for i in range(n)]
    return [f"{name}, {unit}" if unit not in ("", "1") else name for name, unit in zip(told, units or [""] * n, strict=True)]


def _facts(model: NOPG, names: list[str], support: SupportSummary) -> list[tuple[str, str]]:
    data, bandwidths = model.dataset, model.bandwidths
    assert data is not None
    assert bandwidths is not None
    of_states = ", ".join(f"{name}: {width:.3g}" for name, width in zip(names, bandwidths.state, strict=True))
    return [
        ("predicted return", f"{model.estimated_return():.5g}, discounted by {model.gamma:g} a step"),
        ("samples behind the prediction", support.text()),
        ("data", f"{len(data):,} transitions, {int(data.terminals.sum())} of them ends of the task"),
        ("algorithm", f"NOPG-{model.variant}, {type(model.policy).__name__}, {model.num_timesteps} updates"),
        ("bandwidths of the states", of_states),
        ("bandwidths of the actions", ", ".join(f"{width:.3g}" for width in bandwidths.action)),
        ("bandwidths of the next states", ", ".join(f"{width:.3g}" for width in bandwidths.next_state)),
    ]
