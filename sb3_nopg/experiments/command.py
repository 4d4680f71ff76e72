"""``nopg reproduce``: experiments of the paper, beside their baselines, with the paper's numbers beside ours."""

import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch as th
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import UnsuccessfulError, note, one_line_errors
from sb3_nopg.experiments import EXPERIMENTS, Experiment, Trial, load_experiment
from sb3_nopg.experiments.baselines.d3rlpy_runner import D3rlpyError, make_environment
from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import sees_a_gpu
from sb3_nopg.experiments.d3rlpy_trials import METHODS as D3RLPY_METHODS
from sb3_nopg.experiments.experiment import DEVICES
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.methods import d3rlpy_folder
from sb3_nopg.experiments.overview import write_overview
from sb3_nopg.experiments.recordings import VARIABLE as RECORDINGS
from sb3_nopg.experiments.run_report import NothingToReportError, for_report
from sb3_nopg.experiments.runner import TrialError, Workplace, all_trials, of_methods
from sb3_nopg.experiments.runner import reproduce as run_experiment

_ALL, _LIST, _OVERVIEW = "all", "list", "overview"
# What runs no trials, and the options that it has.
_WITHOUT_TRIALS: dict[str, tuple[str, ...]] = {_LIST: (), _OVERVIEW: ("quick", "output")}
_DEFAULT_SEEDS, _QUICK_SEEDS = 10, 2


@contextmanager
def _a_kill_interrupts() -> Iterator[None]:
    """
    SIGTERM does what Ctrl-C does, which ends the workers too. A long run is in the background, where a shell lets programs
    ignore Ctrl-C: ``kill`` is what is left, and cluster managers send nothing else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@one_line_errors
@_a_kill_interrupts()
def reproduce(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help=f"Experiment: {', '.join(EXPERIMENTS)}; {_ALL}; {_LIST}, to see them; {_OVERVIEW}, those done in one figure."
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, help=f"Seeds 0, 1, … of each case. {_DEFAULT_SEEDS}, or {_QUICK_SEEDS} if quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small part, in minutes; figures say so.")] = False,
    jobs: Annotated[int, typer.Option(min=-1, help="Processes; -1 for as many as there are cores.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(help="Run on the Dask cluster with the scheduler at this address, tcp://…")
    ] = None,
    output: Annotated[
        pathlib.Path,
        typer.Option("--output", "-o", help="Folder for numbers, tables and figures; a run that was stopped goes on there."),
    ] = pathlib.Path("reproduced"),
    with_d3rlpy: Annotated[
        bool, typer.Option("--with-d3rlpy", help="Also IQL, TD3+BC and ReBRAC or CQL of d3rlpy, in an environment of its own.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda: what NOPG, value iteration and d3rlpy compute on.")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this method, or those whose names begin so; may be given again. The report has all."),
    ] = None,
    any_code: Annotated[
        bool, typer.Option("--any-code", help="Use results in the folder although the code has changed since.")
    ] = False,
    any_device: Annotated[
        bool, typer.Option("--any-device", help="Use results of another device where this one's are missing.")
    ] = False,
    data: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Folder with recordings of your own cart-pole, for real-recordings; without it, all leaves that out."
        ),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing: write the report of the results in the folder so far.")
    ] = False,
) -> None:
    """
    Run an experiment of the paper, every seed kept, and write its numbers beside the paper's.

    Example: nopg reproduce pendulum-grid --quick --jobs 2
    """
    if name in _WITHOUT_TRIALS:
        _check_alone(context, name)
        typer.echo(_listed() if name == _LIST else _overview(output, quick))
        return
    _tell_data(data)
    experiments = [load_experiment(known) for known in (EXPERIMENTS if name == _ALL else [name])]
    n_jobs = _n_jobs(jobs, scheduler)
    _check_only(only, name, report_only)
    _check_folder(output, report_only)
    if report_only and data is None:
        experiments = _told_by_results(experiments, name, output)
    experiments = _that_can_be_run(experiments, name)
    n_seeds = seeds or (_QUICK_SEEDS if quick else _DEFAULT_SEEDS)
    # What a cluster's workers have is theirs to know.
    used_here = [] if scheduler is not None or report_only else experiments
    trials = [all_trials(experiment, n_seeds, quick, with_d3rlpy, device) for experiment in used_here]
    chosen = [trial for own in trials for trial in of_methods(own, only or ())]
    _check_device(device, chosen)
    if with_d3rlpy and not report_only:
        _install_d3rlpy(for_a_gpu=any("device" in trial and trial.get("method") in D3RLPY_METHODS for trial in chosen))
    failures, unknown = [], []
    for experiment in experiments:
        command = f"nopg reproduce {experiment.name} --seeds {n_seeds}" + " --quick" * quick + " --with-d3rlpy" * with_d3rlpy
        command += f" --device {device}" * (device != "cpu")
        try:
            with _Told(experiment) as told:
                table = run_experiment(
                    experiment,
                    output,
                    n_seeds=n_seeds,
                    quick=quick,
                    workplace=Workplace(n_jobs, scheduler),
                    with_d3rlpy=with_d3rlpy,
                    device=device,
                    only=only or (),
                    any_code=any_code,
                    any_device=any_device,
                    report_only=report_only,
                    progress=told,
                    command=command,
                )
        except TrialError as error:
            # The other experiments may be fine.
            typer.echo(str(error), err=True)
            failures.append(experiment.name)
            continue
        except NothingToReportError as error:
            typer.echo(str(error), err=True)
            unknown.append(experiment.name)
            continue
        files = output / Extent(quick).file_name(experiment.name)
        typer.echo(f"## {experiment.name} ({experiment.of_the_paper})\n\n{table}\n{files}.md, .json, .csv, .png\n")
    _check_successful(failures, unknown)
    if name == _ALL:
        _overview_of_all(output, quick)


def _listed() -> str:
    return "\n".join(f"{known:<18}{load_experiment(known).of_the_paper}" for known in EXPERIMENTS)


def _overview(output: pathlib.Path, quick: bool) -> str:
    _check_folder(output, report_only=True)
    return write_overview(output, Extent(quick))


def _overview_of_all(output: pathlib.Path, quick: bool) -> None:
    try:
        _overview(output, quick)
    except InputError as error:
        note(f"there is no {_OVERVIEW}: {error}")
    else:
        typer.echo(f"All of them in one figure: {output / Extent(quick).file_name(_OVERVIEW)}.png, .md")


def _tell_data(data: pathlib.Path | None) -> None:
    """By the environment, so that processes which run trials know it too."""
    if data is not None:
        os.environ[RECORDINGS] = str(data.absolute())


def _check_successful(failures: list[str], unknown: list[str]) -> None:
    if failures:
        raise UnsuccessfulError(f"trials failed in {', '.join(failures)}; the same command tries them again, and them only")
    if unknown:
        raise UnsuccessfulError(f"nothing to report of {', '.join(unknown)}")


def _told_by_results(experiments: list[Experiment], name: str, output: pathlib.Path) -> list[Experiment]:
    """For reports: what an experiment lacks to be run, its results may know."""
    found = []
    for experiment in experiments:
        told = for_report(experiment, output)
        if told is not None:
            found.append(told)
        elif name == _ALL:
            note(f"{experiment.name} is left out. {output} has no results of it")
        else:
            raise UnsuccessfulError(f"{output} has nothing to report of {experiment.name}")
    return found


def _that_can_be_run(experiments: list[Experiment], name: str) -> list[Experiment]:
    """Of all of them, those that lack nothing; one that was asked for must not."""
    found = []
    for experiment in experiments:
        missing = None if experiment.missing is None else experiment.missing()
        if missing is None:
            found.append(experiment)
        elif name == _ALL:
            note(f"{experiment.name} is left out. {missing}")
        else:
            raise missing
    return found


def _n_jobs(jobs: int, scheduler: str | None) -> int:
    if jobs == 0:
        raise InputError("--jobs", "0 processes do nothing", "Give 1 or more, or -1 for as many as there are cores")
    if scheduler is not None and jobs != 1:
        raise InputError("--jobs", "given with --scheduler", "The cluster has its own workers: leave out one of the two")
    return (os.cpu_count() or 1) if jobs == -1 else jobs


def _check_only(only: list[str] | None, name: str, report_only: bool) -> None:
    if only and name == _ALL:
        raise InputError("--only", f"given with {_ALL}, whose experiments have different methods", "Give one experiment")
    if only and report_only:
        raise InputError("--only", "given with --report-only, which runs nothing", "Leave out one of the two")


def _check_alone(context: typer.Context, name: str) -> None:
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in ("name", *_WITHOUT_TRIALS[name]) and source is not None and source.name == "COMMANDLINE":
            raise InputError(option.opts[0], f"given with {name}, which runs nothing", "Leave it out")


def _check_folder(output: pathlib.Path, report_only: bool) -> None:
    if output.exists() and not output.is_dir():
        raise InputError("--output", f"{output} is a file", "Give a folder")
    if report_only and not output.exists():
        raise InputError("--output", f"{output} is not there", "Give the folder with the results")


def _check_device(device: str, trials_here: list[Trial]) -> None:
    if device not in DEVICES:
        raise InputError("--device", f"{device!r} is unknown", f"Give {' or '.join(DEVICES)}")
    if any("device" in trial for trial in trials_here) and not th.cuda.is_available():
        raise InputError("--device", "torch sees no GPU here", "Leave it out")


def _install_d3rlpy(for_a_gpu: bool) -> None:
    folder = d3rlpy_folder()
    note(f"d3rlpy's environment is {folder}; it is made if it is not there, which takes minutes")
    try:
        make_environment(folder)
        # Asked now, and not by each trial after all others have run.
        if for_a_gpu and not sees_a_gpu(folder):
            there = f"torch in d3rlpy's environment, {folder}, sees no GPU"
            raise InputError("--device", there, "Make it again with a build of torch that does, or leave --device out")
    except D3rlpyError as error:
        raise UnsuccessfulError(str(error)) from error


class _Told:
    """
    Tells how far an experiment is: by a bar to a person, by a line for each trial to a log.

    :param experiment: under way
    """

    def __init__(self, experiment: Experiment):
        self._name, self._began = experiment.name, time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn())
            self._task = self._bar.add_task(self._name)

    def __enter__(self) -> "_Told":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, n_done: int, n_trials: int, trial: Trial | None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=n_done, total=n_trials)
            return
        what = (
            "before"
            if trial is None
            else " ".join(str(value) for value in trial.values() if not isinstance(value, list | dict))
        )
        typer.echo(f"{self._name} {n_done}/{n_trials} {time.monotonic() - self._began:.0f} s: {what}", err=True)
