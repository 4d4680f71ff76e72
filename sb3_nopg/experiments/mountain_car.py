"""``mountain-car``: learned from a few demonstrations, figure 4 of the paper."""

import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.comparison import Bar, Comparison, share_legend
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.methods import AS_PRINTED, ON_LEVELS_OF_ACTIONS
from sb3_nopg.experiments.mountain_car_trials import run
from sb3_nopg.experiments.random_agent import OWN_MODEL, QUICK_OWN_UPDATES
from sb3_nopg.experiments.report import new_figure, save_figure

NAME = "mountain-car"
# A car that has to back off before it can climb is no linear system anywhere.
_FIRST_TRIES = (first_tries.CLONING, first_tries.GREEDY)
_QUICK_METHODS = ("NOPG-D, paper", "NOPG-D, defaults", "NOPG-S, paper", "KBRL", *_FIRST_TRIES)
_COUNTS, _QUICK_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10), (1, 2)
COMPARISON = Comparison(
    name=NAME,
    across="demonstrations",
    label="number of demonstrations",
    paper={
        "NOPG-D": dict(enumerate((-274.2, -101.0, -114.4, -106.7, -77.0, -82.8, -86.1, -79.0, -96.0, -86.2), start=1)),
        "NOPG-S": dict(enumerate((-283.2, -95.4, -98.1, -96.6, -99.2, -86.1, -84.9, -91.7, -84.7, -83.4), start=1)),
        "human": dict.fromkeys(range(1, 11), -434.1),
    },
    notes=(
        "Minus the steps to the goal, at most 500, averaged over ten starts that the environment draws; the last policy.",
        "The demonstrations are those of a scripted operator that come with this package, not the paper's human ones. "
        "Each seed draws others of the ten.",
        '"paper": bandwidths by cross-validation, 1,500 updates. The paper multiplies those of actions by 50; where actions '
        "have a few levels, as here, our rule gives half of the gap between them, and no factor is applied. "
        f'"{AS_PRINTED}": it is applied all the same.',
        "\"defaults\": this library's, 500 updates. A quick run makes fewer. NOPG's policies see normalised observations, of "
        "which the paper says nothing.",
        *first_tries.NOTES,
        f"{first_tries.RICCATI} is left out: nothing about this hill is linear.",
    ),
    logarithmic=False,
    solved=Bar(-200.0, "at the flag within 200 steps"),
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    counts = _QUICK_COUNTS if quick else _COUNTS
    trials: list[Trial] = [
        {"method": method, "demonstrations": n, "seed": seed, **_updates(method, quick)}
        for method in (_QUICK_METHODS if quick else (*ON_LEVELS_OF_ACTIONS, *_FIRST_TRIES))
        for n in (counts[-1:] if quick and method in OWN_MODEL else counts)
        for seed in range(n_seeds)
    ]
    trials += [{"method": "demonstrator", "demonstrations": n, "seed": seed} for n in counts for seed in range(n_seeds)]
    trials.append({"method": first_tries.NOTHING, "seed": 0})
    # One to look at, from two demonstrations.
    shown = "NOPG-D, defaults"
    example: Trial = {"method": "example", "of": shown, "demonstrations": 2, "seed": 0, **_updates(shown, quick)}
    return [*trials, example]


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    return d3rlpy_trials([{"demonstrations": n} for n in (_QUICK_COUNTS if quick else _COUNTS)], quick, n_seeds)


def _updates(method: str, quick: bool) -> Trial:
    if not method.startswith("NOPG"):
        return {}
    if quick:
        return {"updates": QUICK_OWN_UPDATES if method in OWN_MODEL else 60}
    return {"updates": 1500 if ", paper" in method else 500}


def _summarize(results: Sequence[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    compared = [(trial, result) for trial, result in results if trial["method"] != "example"]
    figure = new_figure(13.0, 4.8)
    left, right = figure.subplots(1, 2)
    COMPARISON.draw(left, compared)
    left.set_title(NAME)
    for trial, result in results:
        if trial["method"] == "example":
            _draw_example(right, trial, result)
    share_legend(figure, left)
    save_figure(figure, folder / f"{extent.file_name(NAME)}.png", extent)
    return COMPARISON.tables(compared)


def _draw_example(panel: Axes, trial: Trial, result: Result) -> None:
    for name, label in (("demonstrated", "one of the demonstrations"), ("learned", trial["of"])):
        path = np.array(result[name])
        panel.plot(path[:, 0], path[:, 1], label=f"{label}, {len(path) - 1} steps", linewidth=1.2)
    panel.axvline(0.45, color="black", linestyle=":", label="goal")
    panel.set_title(f"example, learned from {trial['demonstrations']} demonstrations")
    panel.set_xlabel("position")
    panel.set_ylabel("velocity")
    panel.legend(fontsize="small")


EXPERIMENT = Experiment(NAME, "figure 4", _trials, run, _summarize, _d3rlpy_trials)
