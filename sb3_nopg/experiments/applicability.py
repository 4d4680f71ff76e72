"""
Experiment ``applicability``: the paper's table 1, every cell from a run.

A method that applies gives gradients, whose cosine to the true one is told; one that does not says why. Bias and variance are
measured on trajectories of a known stochastic behaviour, which every method accepts.
"""

import math
import pathlib
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.experiment import Experiment, Result, Trial, device_of
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_cells import CASES, METHODS, SETTING, case_data, case_gradient, policy_kind
from sb3_nopg.experiments.lqr_methods import gradient_or_none
from sb3_nopg.experiments.lqr_problem import SETTINGS, true_gradient
from sb3_nopg.experiments.lqr_statistics import INTERVAL, quality
from sb3_nopg.experiments.report import NOTHING, markdown_table, new_figure, save_figure

NAME = "applicability"
_N_TRAJECTORIES, _N_QUICK_TRAJECTORIES = 100, 20
# Where gradients are asked for, from the behaviour's gains: at it, near it and far from it.
_OFFSETS = ((0.0, 0.0), (-1.0, -0.5), (-4.0, -3.0))
# Demonstrations, unordered data and deterministic policies; bias and variance.
_PAPER = {
    "semi-gradient": "yes yes yes, high low",
    "semi-gradient, cross terms": None,
    "PWIS": "no no no, low high",
    "PWIS, self-normalised": None,
    "NOPG": "yes yes yes, low low",
    "NOPG, our defaults": None,
}


def trials(quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param quick: small data sets
    :param n_seeds: data sets for each cell
    """
    return [
        {
            "method": method,
            "case": case,
            "seed": seed,
            "n_trajectories": _N_QUICK_TRAJECTORIES if quick else _N_TRAJECTORIES,
        }
        for method in METHODS
        for case in CASES
        for seed in range(n_seeds)
    ]


def run(trial: Trial) -> Result:
    """
    :param trial: from :func:`trials`
    :return: whether the method ran, what it said if it refused, and its gradients if not
    """
    method, case = trial["method"], trial["case"]
    data = case_data(case, trial["n_trajectories"], trial["seed"])
    try:
        gradient = case_gradient(method, case, data, trial["seed"], device_of(trial))
    except InputError as refusal:
        return {"outcome": "refuses", "message": str(refusal), "gradients": []}
    estimates = [gradient_or_none(gradient, gains) for gains in _gains()]
    return {
        "outcome": "runs",
        "message": "",
        "gradients": [None if estimate is None else estimate.tolist() for estimate in estimates],
    }


def summarize(results: list[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    """
    :param results: of all trials
    :param folder: for the figure
    :param extent: how much of the experiment it is
    :return: the table, and what methods said that refused
    """
    rows, numbers = [], {}
    for method in METHODS:
        numbers[method] = _numbers(results, method, "trajectories")
        rows.append(
            {
                "method": method,
                **{case: _cell(results, method, case) for case in CASES[:-1]},
                "bias": _text(numbers[method], "bias"),
                "spread": _text(numbers[method], "spread"),
                "no gradient": _missing(results, method),
                "the paper's five columns": _PAPER[method],
            }
        )
    _draw(numbers, folder / f"{extent.file_name(NAME)}.png", extent)
    said = dict.fromkeys(
        f"- {trial['method']}, {trial['case']}: {result['message']}" for trial, result in results if result["message"]
    )
    return (
        "What each method does with each kind of data and policy; where it runs, the mean cosine of its gradients to the true "
        "one. Bias and spread are in units of the true gradient's length, averaged over three gains: the behaviour's, a near "
        "one and a far one; what follows ± is half a 95 % interval over data sets at one gain, averaged the same way. "
        "`no gradient` counts where a method had none to give; averages are over the others.\n\n"
        f"{markdown_table(rows)}\nWhat was said by those that refused:\n\n" + "\n".join(said) + "\n"
    )


def _gains() -> np.ndarray:
    return SETTINGS[SETTING].behavior_gains("stochastic") + np.array(_OFFSETS)


def _outcomes(results: list[tuple[Trial, Result]], method: str, case: str) -> list[Result]:
    return [result for trial, result in results if (trial["method"], trial["case"]) == (method, case)]


def _cell(results: list[tuple[Trial, Result]], method: str, case: str) -> str:
    outcomes = {result["outcome"] for result in _outcomes(results, method, case)}
    if not outcomes:
        return NOTHING
    if outcomes == {"refuses"}:
        return "refuses"
    cosine = _text(_numbers(results, method, case), "cosine")
    return f"runs, cosine {cosine}" if outcomes == {"runs"} else f"runs on some data, cosine {cosine}"


def _missing(results: list[tuple[Trial, Result]], method: str) -> str:
    estimates = [estimate for trial, result in results if trial["method"] == method for estimate in result["gradients"]]
    return f"{sum(estimate is None for estimate in estimates)} of {len(estimates)}"


def _text(numbers: dict[str, float], name: str) -> str:
    number, half_width = numbers[name], numbers.get(name + INTERVAL, math.nan)
    if math.isnan(number):
        return NOTHING
    return f"{number:.2f}" + ("" if math.isnan(half_width) else f" ± {half_width:.2f}")


def _numbers(results: list[tuple[Trial, Result]], method: str, case: str) -> dict[str, float]:
    """Quality of the gradients, averaged over the gains that have it; NaN where none has."""
    fields = [result["gradients"] for result in _outcomes(results, method, case) if result["outcome"] == "runs"]
    gradients = np.array([[[np.nan] * 2 if estimate is None else estimate for estimate in field] for field in fields])
    gradients = gradients.reshape(len(fields), len(_OFFSETS), 2)
    kind = policy_kind(method, case)
    all_gains: list[dict[str, Any]] = [
        quality(gradients[:, i], true_gradient(SETTING, kind, gains)) for i, gains in enumerate(_gains())
    ]
    known = {name: [each[name] for each in all_gains if each[name] is not None] for name in all_gains[0]}
    return {name: float(np.mean(values)) if values else math.nan for name, values in known.items()}


def _draw(numbers: dict[str, dict[str, float]], path: pathlib.Path, extent: Extent) -> None:
    figure = new_figure(6.0, 4.0)
    axes = figure.subplots()
    axes.set(xlabel="bias / |truth|", ylabel="spread over data sets / |truth|")
    shown = {method: each for method, each in numbers.items() if each["bias"] > 0 and each["spread"] > 0}
    for method, each in shown.items():
        axes.plot(each["bias"], each["spread"], "o", label=method)
    if shown:
        axes.set(xscale="log", yscale="log")
        axes.legend(fontsize="small")
    else:
        # A logarithmic axis without a point cannot be drawn.
        axes.text(0.5, 0.5, "a spread takes two data sets", ha="center", transform=axes.transAxes)
    save_figure(figure, path, extent)


EXPERIMENT = Experiment(NAME, "table 1", trials, run, summarize)
