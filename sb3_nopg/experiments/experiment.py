"""What an experiment is: independent trials, and what is made of their results."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.extent import Extent

Trial = dict[str, Any]
"""Parameters of one trial: what JSON can hold, so that they can be hashed, written and sent to another machine."""

Result = dict[str, Any]
"""What a trial gave: what JSON can hold."""


DEVICES = ("cpu", "cuda")
# Beginnings of the names of methods that can compute on a GPU.
_ON_A_GPU = ("NOPG", "KBRL", "greedy", "example", "IQL", "TD3+BC", "ReBRAC", "CQL")


def device_of(trial: Trial) -> str:
    """
    :param trial: with ``device`` where it is another one than the processor
    :return: what NOPG, value iteration and d3rlpy's algorithms compute on; all other methods use the processor
    :raises InputError: where it is not there: Stable-Baselines3 would take the processor without a word
    """
    device = str(trial.get("device", "cpu"))
    if device != "cpu" and not th.cuda.is_available():
        raise InputError("device", f"torch sees no GPU where this trial runs, and {device} was asked for", "Take the cpu")
    return device


def on_other_devices(trial: Trial) -> list[Trial]:
    """
    :param trial: of any experiment, on any device
    :return: the same on each of the others
    """
    anywhere = {name: value for name, value in trial.items() if name != "device"}
    return [other for other in (on_device(anywhere, device) for device in DEVICES) if other != trial]


def on_device(trial: Trial, device: str) -> Trial:
    """
    :param trial: of any experiment
    :param device: ``"cpu"`` or ``"cuda"``
    :return: the same on that device, if it is of a method that uses one; otherwise as it is
    """
    uses_one = str(trial.get("method", "NOPG")).startswith(_ON_A_GPU)
    return {**trial, "device": device} if uses_one and device != "cpu" else trial


@dataclasses.dataclass(frozen=True)
class Experiment:
    """
    :param name: as on the command line, for example "pendulum-grid"
    :param of_the_paper: where the paper shows it, for example "figure 2, left"
    :param trials: ``trials(quick, n_seeds)`` gives the parameters of every trial; no two alike
    :param run: one trial, from its parameters to its result. A function of a module, so that it can be sent to another
        process; what it gives must depend on the parameters alone, never on what ran before in the same process.
    :param summarize: ``summarize(results, folder, extent)`` draws the figures into ``folder`` (names that begin
        with ``extent.file_name(name)``) and returns the Markdown of what was found. ``results`` are
        (parameters, result) in the order of ``trials``, without those that failed. Every trial is written as JSON and CSV
        without it.
    :param d3rlpy_trials: like ``trials``, those to add where d3rlpy's algorithms are wanted too; None where it compares none
    :param missing: gives what it lacks to be run here as an error, or None; None where it never lacks anything
    :param told_by_results: ``told_by_results(trials)`` gives the same experiment with what it lacks to know its trials taken
        from those that were run, older first and one at least: a report needs nothing else. None where it never lacks anything
    """

    name: str
    of_the_paper: str
    trials: Callable[[bool, int], list[Trial]]
    run: Callable[[Trial], Result]
    summarize: Callable[[list[tuple[Trial, Result]], pathlib.Path, Extent], str]
    d3rlpy_trials: Callable[[bool, int], list[Trial]] | None = None
    missing: Callable[[], InputError | None] | None = None
    told_by_results: "Callable[[list[Trial]], Experiment] | None" = None
