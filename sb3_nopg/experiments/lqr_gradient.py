"""
Experiment ``lqr-gradient``: gradients of a linear controller against the true ones, and where following them leads.

The paper shows arrows. Here are numbers too, and a second version of its problem, because the printed one has no finite return
where its gains are (see :mod:`sb3_nopg.experiments.lqr_problem`).
"""

import pathlib
from typing import Any

import numpy as np

from sb3_nopg.experiments.experiment import Experiment, Result, Trial, device_of
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_figures import draw_fields, draw_quality
from sb3_nopg.experiments.lqr_methods import METHODS, ascend, gradient_function, gradient_or_none
from sb3_nopg.experiments.lqr_problem import SETTINGS, collect, make_env
from sb3_nopg.experiments.lqr_statistics import INTERVAL, quality_by_distance
from sb3_nopg.experiments.report import interval_cell, markdown_table

NAME = "lqr-gradient"
_N_TRAJECTORIES, _N_QUICK_TRAJECTORIES = 100, 20


def trials(quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param quick: small data sets, few gains and few updates
    :param n_seeds: data sets of each kind; a variance takes two, and the paper has five
    """
    return [
        {
            "setting": setting,
            "method": method,
            "seed": seed,
            "n_trajectories": _N_QUICK_TRAJECTORIES if quick else _N_TRAJECTORIES,
            "gains": SETTINGS[setting].field_gains(settings.kind, quick).tolist(),
            "n_updates": settings.n_quick_updates if quick else settings.n_updates,
        }
        for setting in SETTINGS
        for method, settings in METHODS.items()
        for seed in range(n_seeds)
    ]


def run(trial: Trial) -> Result:
    """
    :param trial: from :func:`trials`
    :return: the gradient at each gain, None where the method has none, and the gains along the path from the behaviour's
    """
    setting, method = trial["setting"], trial["method"]
    kind, gains = METHODS[method].kind, np.array(trial["gains"])
    data = collect(setting, kind, trial["n_trajectories"], trial["seed"])
    gradient = gradient_function(method, setting, data, trial["seed"], device_of(trial))
    field = [gradient_or_none(gradient, gain) for gain in gains]
    start = SETTINGS[setting].behavior_gains(kind)
    path = ascend(gradient, start, METHODS[method].learning_rate, trial["n_updates"])
    return {
        "gains": gains.tolist(),
        "field": [None if estimate is None else estimate.tolist() for estimate in field],
        "path": path,
        "regret_before": _regret(setting, kind, path[0]),
        "regret_after": _regret(setting, kind, path[-1]),
    }


def _regret(setting: str, kind: str, gains: list[float]) -> float | None:
    """How far the true return is from the optimum's; None where there is no optimum, or no return."""
    env, covariance = make_env(setting), SETTINGS[setting].policy_std(kind) ** 2 * np.eye(2)
    if SETTINGS[setting].horizon is not None:
        return None
    try:
        return env.true_return(env.optimal_gain(), covariance) - env.true_return(np.diag(gains), covariance)
    except ValueError:
        # Not discounted-stable: the return is -∞.
        return None


def summarize(results: list[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    """
    :param results: of all trials
    :param folder: for the figures
    :param extent: how much of the experiment it is
    :return: tables of the gradients' quality and of where the paths end
    """
    rows = _quality_rows(results)
    name = extent.file_name(NAME)
    draw_fields(results, folder / f"{name}.png", extent)
    draw_quality(rows, folder / f"{name}-quality.png", extent)
    shown = [{column: _with_interval(row, column) for column in row if not column.endswith(INTERVAL)} for row in rows]
    return (
        "Gradients against the truth, medians over gains at about the same distance from the behaviour's. Bias and spread "
        "over data sets are in units of the true gradient's length; `signs` is the share of entries with the right sign, "
        "which is what Adam follows; what follows ± is half a 95 % interval over data sets, of a bias that of the mean "
        "gradient; `none` the share of gains where the method gives no gradient. The paper gives arrows, "
        f"no numbers.\n\n{markdown_table(shown)}\n"
        "Where the paths end, in the setting that has an optimum: how far the true return is from it, mean over data sets "
        f"with a 95 % interval.\n\n{markdown_table(_path_rows(results))}"
    )


def _quality_rows(results: list[tuple[Trial, Result]]) -> list[dict[str, Any]]:
    return [
        {"setting": setting, "method": method, **numbers}
        for setting in SETTINGS
        for method, settings in METHODS.items()
        if any((trial["setting"], trial["method"]) == (setting, method) for trial, _ in results)
        for numbers in quality_by_distance(results, setting, method, settings.kind)
    ]


def _path_rows(results: list[tuple[Trial, Result]]) -> list[dict[str, Any]]:
    rows = []
    for method in METHODS:
        ends = [result for trial, result in results if (trial["setting"], trial["method"]) == ("regulator", method)]
        if ends:
            after = [result["regret_after"] for result in ends]
            rows.append(
                {
                    "method": method,
                    "before": interval_cell([result["regret_before"] for result in ends], 3),
                    "after": interval_cell(after, 3),
                    "return lost for good": f"{sum(end is None for end in after)} of {len(after)}",
                }
            )
    return rows


def _with_interval(row: dict[str, Any], column: str) -> Any:
    value, half_width = row[column], row.get(column + INTERVAL)
    if not isinstance(value, float):
        return value
    return f"{value:.3g}" + ("" if half_width is None else f" ± {half_width:.2g}")


EXPERIMENT = Experiment(NAME, "figure 1", trials, run, summarize)
