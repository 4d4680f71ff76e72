"""``real-recordings``: learned from a user's recordings of a real cart-pole, judged on recordings that were left out."""

import dataclasses
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.cartpole.starts import OPERATOR_RAIL_SHARE
from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.comparison import SECONDS
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_notes, d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.random_agent import updates_of
from sb3_nopg.experiments.real_recordings_trials import AFFINE, MODEL, SIMULATORS, STILL, WINDOWS_S, run
from sb3_nopg.experiments.recordings import fingerprint, missing_recordings, recording_files
from sb3_nopg.experiments.report import interval_cell, markdown_table, new_figure, save_figure

NAME = "real-recordings"
# Without randomness.
_CERTAIN = (AFFINE, STILL, *SIMULATORS)
_TASKS = ("balance", "swing_up")
_POLICIES = ("NOPG-D, paper", "NOPG-D, defaults", "NOPG-S, paper", "NOPG-S, defaults", "KBRL", *first_tries.LEARNING)
_QUICK_POLICIES = ("NOPG-D, defaults", *first_tries.LEARNING)
_N_RIGS, _N_QUICK_RIGS = 200, 20
_OPERATOR_REACH_M = OPERATOR_RAIL_SHARE * PARAMETER_SETS["identified"].rail_length_m / 2.0
_NOTES = (
    "Motion: a model of all recordings but one is followed through that one, under its voltages, from every 20 ms on and left "
    "alone; root mean squares over all steps. The simulators start from measured states too, and leave out what is near the "
    'ends of the rail; "identified" was fitted to recordings of one particular rig, yours perhaps, the data sheet to none.',
    "Flights: learned from all recordings and their mirror images, without the simulator; recordings that keep to one side of "
    "the rail would say nothing of starts on the other. A policy may ask for voltages as large as were recorded. It "
    "holds if the pole stays within 0.2 rad for 20 s, or, swinging up, is upright through the last 5 s.",
    "Rigs: drawn around what was identified, as `nopg stress` draws them; the same ones for every policy. Simulator: ten "
    "starts of an operator on the identified rig.",
    *first_tries.NOTES,
    f'Here "{first_tries.RICCATI}" does not know the action before.',
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    files = recording_files()
    return _trials_of({"recordings": fingerprint(files)}, [file.name for file in files], quick, n_seeds)


def _trials_of(common: Trial, names: Sequence[str], quick: bool, n_seeds: int) -> list[Trial]:
    trials: list[Trial] = []
    for method in (MODEL, *_CERTAIN):
        for name in (*names[:1], *names[-1:]) if quick else names:
            for seed in range(1 if method in _CERTAIN else n_seeds):
                shown = {"shown": True} if method == MODEL and seed == 0 else {}
                trials.append({**common, "method": method, "left_out": name, "seed": seed, **shown})
    flights: list[Trial] = [
        {"method": method, "seed": seed, **updates_of(method, quick)}
        for method in (_QUICK_POLICIES if quick else _POLICIES)
        for seed in range(1 if method == first_tries.RICCATI else n_seeds)
    ]
    return trials + _flown(common, [*flights, {"method": first_tries.NOTHING, "seed": 0}], quick)


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    return _d3rlpy_trials_of({"recordings": fingerprint(recording_files())}, quick, n_seeds)


def _d3rlpy_trials_of(common: Trial, quick: bool, n_seeds: int) -> list[Trial]:
    return _flown(common, d3rlpy_trials([{}], quick, n_seeds), quick)


def told_by_results(trials: Sequence[Trial]) -> Experiment:
    """
    :param trials: that were run, older first
    :return: the experiment with the recordings of the last of them, as far as trials name those: nobody needs to have them
    """
    common: Trial = {"recordings": trials[-1]["recordings"]}
    names = sorted({t["left_out"] for t in trials if "left_out" in t and t["recordings"] == common["recordings"]})
    return dataclasses.replace(
        EXPERIMENT, trials=partial(_trials_of, common, names), d3rlpy_trials=partial(_d3rlpy_trials_of, common), missing=None
    )


def _flown(common: Trial, trials: list[Trial], quick: bool) -> list[Trial]:
    rigs = _N_QUICK_RIGS if quick else _N_RIGS
    return [{**common, "task": task, **trial, "rigs": rigs} for task in _TASKS for trial in trials]


def summarize(results: Sequence[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    """
    :param results: parameters and result of each trial
    :param folder: for the figure
    :param extent: how much of the experiment it is
    :return: Markdown
    """
    predicted = [(trial, result) for trial, result in results if "left_out" in trial]
    flown = [(trial, result) for trial, result in results if "task" in trial]
    _draw(predicted, folder / f"{extent.file_name(NAME)}.png", extent)
    parts = [
        "Predicted against recorded motion of the recordings that were left out:\n",
        markdown_table(motion_rows(predicted)),
    ]
    parts += ["Each of them:\n", markdown_table(motion_rows(predicted, each=True))]
    parts += ["Policies learned from all recordings, share of flights that hold:\n", markdown_table(flight_rows(flown))]
    parts += ["Every seed, share of the plausible rigs:\n", markdown_table(_seed_rows(flown))]
    notes = (*_coverage_notes(flown), *_NOTES, *d3rlpy_notes(flown), *first_tries.refusal_notes(flown))
    return "\n".join([*parts, *(f"- {note}" for note in notes)]) + "\n"


def _coverage_notes(results: Sequence[tuple[Trial, Result]]) -> list[str]:
    """What the recordings can tell of balancing: all policies had the same."""
    recorded = next((result["recorded"] for _, result in results if "recorded" in result), None)
    if recorded is None:
        return []
    low, high = recorded["x_m"]
    text = f"Recorded: {recorded['samples']:,} steps of 20 ms, x from {low:.2f} to {high:.2f} m. The pole is within 0.2 rad "
    text += f"of upright in {recorded['upright_samples']:,} of them"
    if recorded["upright_x_m"] is not None:
        low, high = recorded["upright_x_m"]
        text += f", x from {low:.2f} to {high:.2f} m; a linear function of the state explains "
        text += f"{100 * recorded['voltage_follows']:.0f} % of the variance of their voltages: these steps alone hardly "
        text += "tell what a voltage does"
    return [f"{text}. Flights that balance start anywhere within ±{_OPERATOR_REACH_M:.2f} m."]


def motion_rows(results: Sequence[tuple[Trial, Result]], each: bool = False) -> list[dict[str, Any]]:
    """
    :param results: of predictions
    :param each: a row for each recording, instead of one for all
    :return: errors of each method after so long, of all steps of all recordings; means over seeds
    """
    rows = []
    for name in dict.fromkeys(trial["left_out"] for trial, _ in results) if each else [None]:
        for method in dict.fromkeys(trial["method"] for trial, _ in results):
            own = [(t, r) for t, r in results if t["method"] == method and name in (None, t["left_out"])]
            row: dict[str, Any] = {**({"left out": name} if each else {}), "method": method}
            for window_s in WINDOWS_S:
                window = f"{window_s:g} s"
                row[f"x, {window} [mm]"] = _pooled(own, window, "x_m", 1e3, 1)
                row[f"θ, {window} [rad]"] = _pooled(own, window, "theta_rad", 1.0, 3)
            rows.append(row)
    return rows


def _pooled(results: Sequence[tuple[Trial, Result]], window: str, name: str, factor: float, digits: int) -> str:
    by_seed = []
    for seed in dict.fromkeys(trial["seed"] for trial, _ in results):
        errors = [result[window] for trial, result in results if trial["seed"] == seed]
        squares, counts = [error[name] ** 2 for error in errors], [error["n"] for error in errors]
        by_seed.append(factor * float(np.sqrt(np.average(squares, weights=counts))))
    return interval_cell(by_seed, digits)


def flight_rows(results: Sequence[tuple[Trial, Result]]) -> list[dict[str, Any]]:
    """
    :param results: of policies
    :return: for each task and method, means over seeds
    """
    rows = []
    for (task, method), own in _by_method(results).items():
        columns = {"plausible rigs": ("return", 2), "identified simulator": ("simulator", 2), "seconds to learn": (SECONDS, 1)}
        cells = {column: interval_cell([r[name] for r in own], digits) for column, (name, digits) in columns.items()}
        rows.append({"task": task.replace("_", " "), "method": method, **cells})
    return rows


def _seed_rows(results: Sequence[tuple[Trial, Result]]) -> list[dict[str, Any]]:
    return [
        {"task": task.replace("_", " "), "method": method, "shares": [f"{result['return']:.3g}" for result in own]}
        for (task, method), own in _by_method(results).items()
    ]


def _by_method(results: Sequence[tuple[Trial, Result]]) -> dict[tuple[str, str], list[Result]]:
    found: dict[tuple[str, str], list[Result]] = {}
    for trial, result in results:
        found.setdefault((trial["task"], trial["method"]), []).append(result)
    return found


def _draw(results: Sequence[tuple[Trial, Result]], path: pathlib.Path, extent: Extent) -> None:
    """Motion of each recording that was left out, and what was predicted of it, restarted every half second."""
    shown = [(trial["left_out"], result["motion"]) for trial, result in results if "motion" in result]
    figure = new_figure(12.0, 1.2 + 2.0 * max(len(shown), 1))
    panels = figure.subplots(max(len(shown), 1), 2, squeeze=False)
    for line, (name, motion) in zip(panels, shown, strict=False):
        for panel, recorded, predicted, label in zip(
            line, motion["recorded"], motion["predicted"], ("x [m]", "θ [°]"), strict=True
        ):
            for times, real, found in zip(motion["times_s"], recorded, predicted, strict=True):
                panel.plot(times, real, color="0.7", linewidth=3.0)
                panel.plot(times, found, color="tab:blue", linewidth=1.2)
            panel.set_ylabel(label)
        line[0].set_title(
            f"{name}: recorded (grey), predicted by the {MODEL} on the others (blue)", fontsize="small", loc="left"
        )
    for panel in panels[-1]:
        panel.set_xlabel("time [s]")
    save_figure(figure, path, extent)


EXPERIMENT = Experiment(NAME, "not in the paper", _trials, run, summarize, _d3rlpy_trials, missing_recordings, told_by_results)
