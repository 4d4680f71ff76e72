"""How good gradients are, as numbers, against how far from the data's behaviour they were asked for."""

import itertools
from typing import Any

import numpy as np

from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.lqr_problem import SETTINGS, true_gradient
from sb3_nopg.experiments.report import mean_interval

# What the names of half-widths end with.
INTERVAL = " ±"
# Between these, in units of the gains.
DISTANCES = (0.0, 0.25, 1.0, 2.5, np.inf)


def gradients_of(results: list[tuple[Trial, Result]], setting: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param results: of the experiment
    :return: gains of the field, (g, 2), and the gradient there on each data set, NaN where there was none, (data sets, g, 2)
    """
    chosen = [result for trial, result in results if (trial["setting"], trial["method"]) == (setting, method)]
    fields = [[[np.nan, np.nan] if gradient is None else gradient for gradient in result["field"]] for result in chosen]
    return np.array(chosen[0]["gains"]), np.array(fields, dtype=np.float64)


def quality(gradients: np.ndarray, truth: np.ndarray) -> dict[str, float | None]:
    """
    Bias and spread in units of the true gradient's length, at one gain.

    :param gradients: one for each data set, NaN where there was none, (data sets, d)
    :param truth: (d,)
    :return: ``bias`` |mean - truth|, ``spread`` the root of the summed variances, ``cosine`` to the truth and the share of
        ``signs`` that are right, both averaged over data sets; how far off bias and cosine may be for having so few data sets
        (95 % or a little more), as ``bias ±``, the mean gradient's own uncertainty, and ``cosine ±``; None where fewer
        data sets have a gradient than it takes
    """
    there = gradients[np.isfinite(gradients).all(axis=1)]
    numbers: dict[str, float | None] = dict.fromkeys(("bias", "bias ±", "spread", "cosine", "cosine ±", "signs"))
    if len(there) == 0:
        return numbers
    length = float(np.linalg.norm(truth))
    sizes = np.linalg.norm(there, axis=1)
    # A gradient of exactly zero points nowhere: its cosine counts as zero.
    numbers["cosine"], numbers["cosine ±"] = mean_interval(there @ truth / np.where(sizes > 0, sizes, 1.0) / length)
    numbers["signs"] = float(np.mean(np.sign(there) == np.sign(truth)))
    numbers["bias"] = float(np.linalg.norm(there.mean(axis=0) - truth)) / length
    if len(there) > 1:
        numbers["spread"] = float(np.sqrt(there.var(axis=0, ddof=1).sum())) / length
        numbers["bias ±"] = float(np.hypot.reduce([mean_interval(entries)[1] or 0.0 for entries in there.T])) / length
    return numbers


def quality_by_distance(results: list[tuple[Trial, Result]], setting: str, method: str, kind: str) -> list[dict[str, Any]]:
    """
    :param results: of the experiment
    :return: for each range of distances from the behaviour, the medians of :func:`quality` over the gains in it
    """
    gains, gradients = gradients_of(results, setting, method)
    distances = np.linalg.norm(gains - SETTINGS[setting].behavior_gains(kind), axis=1)
    rows = []
    for low, high in itertools.pairwise(DISTANCES):
        inside = np.flatnonzero((low <= distances) & (distances < high))
        if len(inside) == 0:
            continue
        numbers = [quality(gradients[:, i], true_gradient(setting, kind, gains[i])) for i in inside]
        medians = {name: _median([each[name] for each in numbers]) for name in numbers[0]}
        missing = float(np.mean(~np.isfinite(gradients[:, inside]).all(axis=2)))
        rows.append({"distance": float(distances[inside].mean()), **medians, "none": missing})
    return rows


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
