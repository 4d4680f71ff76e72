"""Pictures of the LQR experiment: gradient fields with paths through them, and how good the gradients are."""

import math
import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_methods import METHODS, ascend
from sb3_nopg.experiments.lqr_problem import SETTINGS, make_env, true_gradient
from sb3_nopg.experiments.lqr_statistics import gradients_of
from sb3_nopg.experiments.report import new_figure, save_figure

KINDS = ("deterministic", "stochastic")
_COLORS = ("tab:red", "tab:green", "tab:purple", "tab:brown")
_TRUTH = "tab:orange"


def draw_fields(results: list[tuple[Trial, Result]], path: pathlib.Path, extent: Extent) -> None:
    """
    One row for each setting and kind of data: the true field, then that of each method; arrows of unit length, a thin one for
    each data set and a thick one for their mean.

    :param results: of the experiment
    :param path: of the figure
    :param extent: how much of the experiment it is
    """
    rows = [(setting, kind) for setting in SETTINGS for kind in KINDS if _methods(results, setting, kind)]
    width = 1 + max(len(_methods(results, *row)) for row in rows)
    figure = new_figure(3.1 * width, 3.0 * len(rows))
    axes = np.atleast_2d(figure.subplots(len(rows), width, squeeze=False))
    for line, (setting, kind) in zip(axes, rows, strict=True):
        methods = _methods(results, setting, kind)
        gains, _ = gradients_of(results, setting, methods[0])
        truth = np.array([true_gradient(setting, kind, gain) for gain in gains])
        truth_path = true_path(setting, kind, METHODS[methods[0]].learning_rate, len(_paths(results, setting, methods[0])[0]))
        _draw_panel(line[0], f"{setting}, {kind}: truth", gains, truth[None], [truth_path], _TRUTH)
        for panel, method, color in zip(line[1:], methods, _COLORS, strict=False):
            _draw_panel(
                panel, method, gains, gradients_of(results, setting, method)[1], _paths(results, setting, method), color
            )
        for panel in line:
            _frame(panel, setting, kind, gains)
        for panel in line[1 + len(methods) :]:
            panel.set_visible(False)
    save_figure(figure, path, extent)


def true_path(setting: str, kind: str, learning_rate: float, n_points: int) -> list[list[float]]:
    """Where Adam goes with the true gradient; as far as there is one."""
    return ascend(
        lambda gains: true_gradient(setting, kind, gains),
        SETTINGS[setting].behavior_gains(kind),
        learning_rate,
        n_points - 1,
    )


def draw_quality(rows: list[dict[str, Any]], path: pathlib.Path, extent: Extent) -> None:
    """
    :param rows: of the experiment's table, each with setting, method and the numbers at a distance
    :param path: of the figure
    :param extent: how much of the experiment it is
    """
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    measures = (("bias", "bias / |truth|"), ("spread", "spread / |truth|"), ("cosine", "cosine to the truth"))
    figure = new_figure(12.0, 3.4 * len(settings))
    axes = figure.subplots(len(settings), len(measures), squeeze=False)
    for line, setting in zip(axes, settings, strict=True):
        for panel, (measure, label) in zip(line, measures, strict=True):
            for method in METHODS:
                chosen = [row for row in rows if (row["setting"], row["method"]) == (setting, method)]
                heights = [math.nan if row[measure] is None else row[measure] for row in chosen]
                style = "-o" if METHODS[method].kind == "deterministic" else "--s"
                panel.plot([row["distance"] for row in chosen], heights, style, label=method, markersize=4)
            panel.set(title=setting, xlabel="distance from the behaviour's gains", ylabel=label)
            if measure == "cosine":
                panel.set_ylim(-1.05, 1.05)
            else:
                # Zero is a place that exact gradients, and those that ran out of weights, are at.
                panel.set_yscale("symlog", linthresh=1e-2)
    axes[0, -1].legend(fontsize="x-small")
    save_figure(figure, path, extent)


def _methods(results: list[tuple[Trial, Result]], setting: str, kind: str) -> list[str]:
    found = {trial["method"] for trial, _ in results if trial["setting"] == setting}
    return [method for method in METHODS if method in found and METHODS[method].kind == kind]


def _paths(results: list[tuple[Trial, Result]], setting: str, method: str) -> list[list[list[float]]]:
    return [result["path"] for trial, result in results if (trial["setting"], trial["method"]) == (setting, method)]


def _draw_panel(
    axes: Axes, title: str, gains: np.ndarray, gradients: np.ndarray, paths: list[list[list[float]]], color: str
) -> None:
    axes.set_title(title, fontsize="small")
    if len(gradients) > 1:
        for field in gradients:
            _draw_arrows(axes, gains, field, color, 0.003, 0.5)
    _draw_arrows(axes, gains, gradients.mean(axis=0), color, 0.008, 1.0)
    for way in paths:
        axes.plot(*np.array(way).T, color="black", linewidth=1.0)
        axes.plot(*way[-1], "k.", markersize=5)


def _draw_arrows(axes: Axes, gains: np.ndarray, gradients: np.ndarray, color: str, width: float, alpha: float) -> None:
    sizes = np.linalg.norm(gradients, axis=1)
    shown = np.isfinite(sizes) & (sizes > 0)
    directions = gradients[shown] / sizes[shown, None]
    axes.quiver(*gains[shown].T, *directions.T, color=color, width=width, alpha=alpha, scale=9.0, pivot="mid")


def _frame(axes: Axes, setting: str, kind: str, gains: np.ndarray) -> None:
    axes.plot(*SETTINGS[setting].behavior_gains(kind), "bx", markersize=7)
    if setting == "regulator":
        axes.plot(*np.diag(make_env(setting).optimal_gain()), "k*", markersize=9)
    low, high = gains.min(axis=0), gains.max(axis=0)
    room = 0.15 * (high - low)
    axes.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
    axes.set_xlabel("k₁", fontsize="x-small")
    axes.set_ylabel("k₂", fontsize="x-small")
