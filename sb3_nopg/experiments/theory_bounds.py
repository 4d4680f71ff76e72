"""
Experiment ``theory``: the measured bias of kernel estimates against the bounds of theorems 2 and 3.

The bounds are statements about infinitely many samples, so that the bias is found by quadrature; estimates from samples, of
our own engine for theorem 3, stand beside it.
"""

import math
import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sb3_nopg.bellman.settings import grouped
from sb3_nopg.experiments.experiment import Experiment, Result, Trial, device_of
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_chains import (
    GAIN,
    GAMMA,
    LIPSCHITZ_TRANSITION,
    chain_data,
    function_values,
    regression_limit,
    true_values,
    value_limit,
)
from sb3_nopg.experiments.report import markdown_table, new_figure, save_figure
from sb3_nopg.nopg import NOPG
from sb3_nopg.paper import AS_IN_THE_PAPER
from sb3_nopg.prediction.bias_bounds import bias_bound_regression, bias_bound_value

NAME = "theory"
_BANDWIDTHS = (0.05, 0.1, 0.2, 0.4)
# Function, its Lipschitz constant, and that of the log-density.
_CASES = {
    2: (("cone", 1.0, 0.1), ("cone", 1.0, 1.0), ("cone", 4.0, 1.0), ("cosine", 1.0, 1.0), ("cosine", 4.0, 1.0)),
    3: (("cone", 1.0, 0.5), ("cosine", 1.0, 0.5), ("cosine", 4.0, 0.5)),
}
_N_SAMPLES = {2: 20_000, 3: 4_000}
_N_QUICK_SAMPLES = {2: 5_000, 3: 500}
_POINTS = np.linspace(-2.0, 2.0, 41)


def trials(quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param quick: fewer samples
    :param n_seeds: sets of samples
    """
    return [
        {
            "theorem": theorem,
            "function": function,
            "lipschitz": lipschitz,
            "density_lipschitz": decay,
            "bandwidth": bandwidth,
            "n_samples": (_N_QUICK_SAMPLES if quick else _N_SAMPLES)[theorem],
            "seed": seed,
        }
        for theorem, cases in _CASES.items()
        for function, lipschitz, decay in cases
        for bandwidth in _BANDWIDTHS
        for seed in range(n_seeds)
    ]


def run(trial: Trial) -> Result:
    """
    :param trial: from :func:`trials`
    :return: truth, limit and estimate at some states, the bound and the printed bound
    """
    return _run_regression(trial) if trial["theorem"] == 2 else _run_value(trial)


def _run_regression(trial: Trial) -> Result:
    function, lipschitz, decay, bandwidth = _case(trial)
    samples = np.random.default_rng(trial["seed"]).laplace(0.0, 1.0 / decay, (trial["n_samples"],))
    log_weights = -0.5 * ((_POINTS[:, None] - samples) / bandwidth) ** 2
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    bound = bias_bound_regression(lipschitz, decay, [bandwidth])
    return _result(
        truth=function_values(function, lipschitz, _POINTS),
        limit=regression_limit(function, lipschitz, decay, bandwidth, _POINTS),
        estimate=weights @ function_values(function, lipschitz, samples) / weights.sum(axis=1),
        bound=bound,
        printed_bound=bound / 2.0,
    )


def _run_value(trial: Trial) -> Result:
    function, lipschitz, decay, bandwidth = _case(trial)
    limit, lipschitz_value = value_limit(function, lipschitz, decay, bandwidth, _POINTS)
    bandwidths = {name: [bandwidth] for name in ("state_bandwidth", "action_bandwidth", "next_state_bandwidth")}
    model = NOPG(
        "LinearPolicy",
        None,
        dataset=chain_data(function, lipschitz, decay, trial["n_samples"], trial["seed"]),
        gamma=GAMMA,
        initial_states=[[1.0]],
        policy_kwargs={"initial_gain": [[GAIN]]},
        seed=trial["seed"],
        device=device_of(trial),
        **grouped(AS_IN_THE_PAPER, n_next_state_samples=5, **bandwidths),
    )
    constants = (lipschitz, lipschitz_value, decay, [bandwidth], [bandwidth], [bandwidth], GAMMA)
    return _result(
        truth=true_values(function, lipschitz, _POINTS),
        limit=limit,
        estimate=model.value(_POINTS[:, None]),
        bound=bias_bound_value(*constants, lipschitz_transition=LIPSCHITZ_TRANSITION),
        # Without the term that the proof forgets, and with half of the others.
        printed_bound=bias_bound_value(*constants) / 2.0,
    )


def _case(trial: Trial) -> tuple[str, float, float, float]:
    return trial["function"], trial["lipschitz"], trial["density_lipschitz"], trial["bandwidth"]


def _result(truth: np.ndarray, limit: np.ndarray, estimate: np.ndarray, bound: float, printed_bound: float) -> Result:
    return {
        "points": _POINTS.tolist(),
        "truth": truth.tolist(),
        "limit": limit.tolist(),
        "estimate": estimate.tolist(),
        "bias": float(np.abs(limit - truth).max()),
        "bound": bound,
        "printed_bound": printed_bound,
    }


def summarize(results: list[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    """
    :param results: of all trials
    :param folder: for the figure
    :param extent: how much of the experiment it is
    :return: table of biases and bounds
    """
    rows = _rows(results)
    _draw(rows, folder / f"{extent.file_name(NAME)}.png", extent)
    counts = {column: sum(row[column] == "yes" for row in rows) for column in ("within", "within the printed")}
    shown = [{name: _text(value) for name, value in row.items()} for row in rows]
    return (
        "Largest bias over 41 states in [-2, 2]. `bias` is that of infinitely many samples, by quadrature; `sampled` the "
        "largest error of the mean estimate over seeds, which has noise in it. `bound` is ours, `printed` the paper's.\n\n"
        f"{markdown_table(shown)}\n"
        f"{counts['within']} of {len(rows)} biases lie within our bound, {counts['within the printed']} within the printed.\n"
    )


def _rows(results: list[tuple[Trial, Result]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for trial, result in results:
        groups.setdefault((trial["theorem"], *_case(trial)), []).append(result)
    rows = []
    for (theorem, function, lipschitz, decay, bandwidth), group in groups.items():
        first = group[0]
        estimate = np.mean([result["estimate"] for result in group], axis=0)
        rows.append(
            {
                "theorem": theorem,
                "function": function,
                "L": lipschitz,
                "L of log-density": decay,
                "bandwidth": bandwidth,
                "bias": first["bias"],
                "sampled": float(np.abs(estimate - first["truth"]).max()),
                "bound": first["bound"],
                "printed": first["printed_bound"],
                "within": _yes(first["bias"] <= first["bound"]),
                "within the printed": _yes(first["bias"] <= first["printed_bound"]),
            }
        )
    return rows


def _draw(rows: list[dict[str, Any]], path: pathlib.Path, extent: Extent) -> None:
    cases = list(dict.fromkeys((row["theorem"], row["function"], row["L"], row["L of log-density"]) for row in rows))
    width = min(len(cases), 4)
    height = math.ceil(len(cases) / width)
    figure = new_figure(3.4 * width, 3.2 * height)
    axes = figure.subplots(height, width, squeeze=False).ravel()
    for panel, case in zip(axes, cases, strict=False):
        chosen = [row for row in rows if (row["theorem"], row["function"], row["L"], row["L of log-density"]) == case]
        _draw_case(panel, chosen)
        panel.set_title(f"theorem {case[0]}, {case[1]}, L = {case[2]:g}, L_β = {case[3]:g}", fontsize="small")
    for panel in axes[len(cases) :]:
        panel.set_visible(False)
    axes[0].legend(fontsize="x-small")
    save_figure(figure, path, extent)


def _draw_case(axes: Axes, rows: list[dict[str, Any]]) -> None:
    widths = [row["bandwidth"] for row in rows]
    axes.loglog(widths, [row["bias"] for row in rows], "-", color="black", label="bias, infinitely many samples")
    axes.loglog(widths, [row["sampled"] for row in rows], "o", color="tab:red", label="error from samples")
    axes.loglog(widths, [row["bound"] for row in rows], "--", color="tab:blue", label="bound")
    axes.loglog(widths, [row["printed"] for row in rows], ":", color="tab:blue", label="bound as printed")
    axes.set_xlabel("bandwidth", fontsize="x-small")
    axes.set_xticks(widths, [f"{width:g}" for width in widths])
    axes.set_xticks([], minor=True)
    axes.tick_params(which="both", labelsize="x-small")


def _yes(condition: bool) -> str:
    return "yes" if condition else "**no**"


def _text(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


EXPERIMENT = Experiment(NAME, "theorems 2 and 3", trials, run, summarize)
