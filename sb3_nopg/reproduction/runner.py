"""Run an experiment's trials wherever there are machines, keep every result as it comes, and write the report."""

import json
import os
import pathlib
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sb3_nopg.datafiles.files import replacing
from sb3_nopg.errors import InputError
from sb3_nopg.reproduction.code_version import code_version
from sb3_nopg.reproduction.experiment import Experiment, Result, Trial, on_device
from sb3_nopg.reproduction.report import conditions_line, output_name, write_numbers
from sb3_nopg.reproduction.results_file import Record, ResultsFile, trial_key
from sb3_nopg.reproduction.workers import Outcome, run_here, run_in_processes, run_on_cluster

Progress = Callable[[int, int, Trial | None], None]
_VERSIONS = ("sb3-nopg", "numpy", "scipy", "torch", "stable-baselines3", "gymnasium")
_FAILURES_TOLD = 3


class TrialError(RuntimeError):
    """
    Some trials failed; the results of all others are kept.

    :param message: how many failed, and why the first of them did
    :param records: of the trials that did not fail, in their order
    :param n_trials: how many there were
    """

    def __init__(self, message: str, records: list[Record], n_trials: int):
        super().__init__(message)
        self.records, self.n_trials = records, n_trials


class NothingToReportError(RuntimeError):
    """There is no result to make a report of."""


@dataclass(frozen=True)
class Workplace:
    """
    Where trials run.

    :param n_jobs: processes of this machine; with one, in this process
    :param scheduler: address of a Dask scheduler, whose workers run them instead
    """

    n_jobs: int = 1
    scheduler: str | None = None

    def run(self, experiment: Experiment, trials: list[Trial]) -> Iterator[Outcome]:
        """
        :param experiment: whose trials they are
        :param trials: to run
        """
        if self.scheduler is not None:
            return run_on_cluster(experiment.run, trials, self.scheduler)
        if self.n_jobs > 1 and len(trials) > 1:
            return run_in_processes(experiment.run, trials, min(self.n_jobs, len(trials)))
        return run_here(experiment.run, trials)


def reproduce(
    experiment: Experiment,
    folder: pathlib.Path,
    *,
    n_seeds: int,
    quick: bool = False,
    workplace: Workplace | None = None,
    with_d3rlpy: bool = False,
    device: str = "cpu",
    any_code: bool = False,
    report_only: bool = False,
    progress: Progress | None = None,
    command: str = "",
) -> str:
    """
    Run what was not run before, and write ``<name>.jsonl`` (results as they come), ``.json``, ``.csv``, ``.md`` and figures.
    Of a quick run all but the first are called ``<name>-quick``.

    :param experiment: of the paper
    :param folder: for all files; results of an earlier run that lie there are used
    :param n_seeds: seeds 0, 1, … below this
    :param quick: a small part
    :param workplace: where trials run
    :param with_d3rlpy: also d3rlpy's algorithms, where the experiment compares algorithms
    :param device: that NOPG and value iteration compute on; results of another one are other results
    :param any_code: use results of other versions of the code too
    :param report_only: run nothing: write what the results that are there give
    :param progress: called with how many trials are done, how many there are, and the one that was done last
    :param command: that a reader can repeat
    :return: the table
    :raises TrialError: where trials failed, after the report of all others was written; the next run tries these again
    :raises NothingToReportError: where only a report is wanted, and no result is there
    """
    trials = experiment.trials(quick, n_seeds)
    if with_d3rlpy and experiment.d3rlpy_trials is not None:
        trials = [*trials, *experiment.d3rlpy_trials(quick, n_seeds)]
    trials = [on_device(trial, device) for trial in trials]
    told = {"command": command, "quick": quick, "seeds": n_seeds}
    if report_only:
        return _report_so_far(experiment, folder, told, trials, any_code)
    try:
        records = run_trials(experiment, trials, folder, workplace or Workplace(), any_code, progress)
    except TrialError as error:
        obstacle = _report_what_is_left(experiment, folder, told, error)
        if obstacle is None:
            raise
        raise TrialError(f"{error}\n{obstacle}", error.records, error.n_trials) from error
    return _report(experiment, folder, {**told, **conditions_of(records)}, records)


def _report(
    experiment: Experiment, folder: pathlib.Path, conditions: dict[str, Any], records: list[Record], warning: str = ""
) -> str:
    results: list[tuple[Trial, Result]] = [(record.trial, record.result) for record in records]
    name = output_name(experiment.name, conditions["quick"])
    write_numbers(folder, name, conditions, results)
    head = f"{warning}{conditions_line(conditions, ('python', *_VERSIONS))}\n\n"
    text = head + experiment.summarize(results, folder, conditions["quick"])
    with replacing(folder / f"{name}.md") as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def _report_so_far(
    experiment: Experiment, folder: pathlib.Path, told: dict[str, Any], trials: list[Trial], any_code: bool
) -> str:
    known = _known(experiment, folder, any_code)
    keys = [trial_key(experiment.name, trial) for trial in trials]
    records = [known[key] for key in keys if key in known]
    if not records:
        n_others = len(_known(experiment, folder, any_code=True))
        others = f": of {n_others} results none is of these seeds, this device and this code" if n_others else ""
        raise NothingToReportError(f"{folder} has nothing to report of {experiment.name}{others}")
    conditions, n_missing = {**told, **_what_records_tell(records)}, len(trials) - len(records)
    conditions.update(_versions_told_before(folder, output_name(experiment.name, told["quick"]), conditions))
    warning = ""
    if n_missing:
        conditions["trials missing"] = n_missing
        warning = f"**{n_missing} of {len(trials)} trials are not there yet; this is what the others gave.**\n\n"
    try:
        return _report(experiment, folder, conditions, records, warning)
    except Exception as unable:
        # A table may want a result that is not there yet.
        reason = f"{type(unable).__name__}: {unable}"
        raise NothingToReportError(
            f"{len(records)} results of {experiment.name} are too few for a table ({reason})"
        ) from unable


def _versions_told_before(folder: pathlib.Path, name: str, conditions: dict[str, Any]) -> dict[str, Any]:
    """Versions that the results were made with, if a report of the same results knew them: they may be another machine's."""
    try:
        before = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["conditions"]
    except (OSError, ValueError, KeyError):
        return {}
    if any(before.get(fact) != conditions[fact] for fact in ("hours", "trials by code version")):
        return {}
    return {fact: before[fact] for fact in ("python", *_VERSIONS, "cpu_count") if fact in before}


def _known(experiment: Experiment, folder: pathlib.Path, any_code: bool) -> dict[str, Record]:
    """Results that are there, by their trials' keys."""
    results, code = ResultsFile(folder / f"{experiment.name}.jsonl"), code_version(experiment.run.__module__)
    return {record.key: record for record in results.read() if any_code or record.code == code}


def _report_what_is_left(experiment: Experiment, folder: pathlib.Path, told: dict[str, Any], error: TrialError) -> str | None:
    """:return: why there is no report"""
    if not error.records:
        return "There is no report: nothing is left."
    n_failed = error.n_trials - len(error.records)
    conditions = {**told, "trials failed": n_failed, **conditions_of(error.records)}
    warning = f"**{n_failed} of {error.n_trials} trials failed; this is what the others gave.**\n\n"
    try:
        _report(experiment, folder, conditions, error.records, warning)
    except Exception as unable:
        # A table may want a result that is not there. What has to be mended is the trials' failure, which is told first.
        return f"There is no report of the others ({type(unable).__name__}: {unable})."
    return None


def run_trials(
    experiment: Experiment,
    trials: list[Trial],
    folder: pathlib.Path,
    workplace: Workplace,
    any_code: bool = False,
    progress: Progress | None = None,
) -> list[Record]:
    """
    :param experiment: whose trials they are
    :param trials: no two alike
    :param folder: with the results of earlier runs, if there were any
    :param workplace: where trials run
    :param any_code: use results of other versions of the code too
    :param progress: as in :func:`reproduce`
    :return: one for each trial, in their order
    :raises TrialError: where trials failed
    """
    keys = [trial_key(experiment.name, trial) for trial in trials]
    if len(set(keys)) < len(keys):
        twice = trials[keys.index(Counter(keys).most_common(1)[0][0])]
        raise InputError("trials", f"{twice} is there twice", f"Trials of {experiment.name} must differ")
    results, known = ResultsFile(folder / f"{experiment.name}.jsonl"), _known(experiment, folder, any_code)
    waiting = [number for number, key in enumerate(keys) if key not in known]
    n_done, failures = len(trials) - len(waiting), dict[int, str]()
    if progress is not None:
        progress(n_done, len(trials), None)
    for outcome in workplace.run(experiment, [trials[number] for number in waiting]):
        number = waiting[outcome.index]
        failure = outcome.failure or _keep(results, keys[number], trials[number], outcome)
        if failure is not None:
            failures[number] = f"{trials[number]}: {failure}"
        n_done += 1
        if progress is not None:
            progress(n_done, len(trials), trials[number])
    # As they were written: a run that goes on later must find the same. A worker may have had other code than this machine.
    kept = {record.key: record for record in results.read()} | known
    if failures:
        told = "\n".join(list(failures.values())[:_FAILURES_TOLD])
        message = f"{len(failures)} of {len(trials)} trials of {experiment.name} failed, the first of them:\n{told}"
        raise TrialError(message, [kept[key] for number, key in enumerate(keys) if number not in failures], len(trials))
    return [kept[key] for key in keys]


def _keep(results: ResultsFile, key: str, trial: Trial, outcome: Outcome) -> str | None:
    """:return: why the result cannot be kept"""
    assert outcome.result is not None
    try:
        results.add(Record(key, outcome.code, trial, outcome.result, round(outcome.seconds, 2)))
    except (TypeError, ValueError) as error:
        return f"its result is not what JSON can hold ({error})"
    return None


def conditions_of(records: list[Record]) -> dict[str, Any]:
    """
    :param records: all results, of which the last ones at least were made here
    :return: what a reader needs to know to do it again
    """
    return {
        **_what_records_tell(records),
        "python": platform.python_version(),
        **{package: version(package) for package in _VERSIONS},
        "cpu_count": os.cpu_count(),
    }


def _what_records_tell(records: list[Record]) -> dict[str, Any]:
    return {
        "hours": round(sum(record.seconds for record in records) / 3600.0, 3),
        "trials by code version": dict(Counter(record.code for record in records)),
    }
