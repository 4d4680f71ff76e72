"""Run an experiment's trials wherever there are machines, keep every result as it comes, and write the report."""

import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.experiment import Experiment, Trial, on_device, on_other_devices
from sb3_nopg.experiments.results_file import Record, ResultsFile, trial_key
from sb3_nopg.experiments.run_report import (
    NothingToReportError,
    known_results,
    report_of_known,
    results_of,
)
from sb3_nopg.experiments.workers import Outcome, run_here, run_in_processes, run_on_cluster

Progress = Callable[[int, int, Trial | None], None]
_FAILURES_TOLD = 3


class TrialError(RuntimeError):
    """
    Some trials failed; the results of all others are kept.

    :param message: how many failed, and why the first of them did
    :param records: of the trials that did not fail, in their order
    """

    def __init__(self, message: str, records: list[Record]):
        super().__init__(message)
        self.records = records


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
    only: Sequence[str] = (),
    any_code: bool = False,
    any_device: bool = False,
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
    :param device: that NOPG, value iteration and d3rlpy's algorithms compute on; results of another one are other results
    :param only: methods whose trials are run now, by their names or beginnings of them; none for all. The report is of all
        results.
    :param any_code: use results of other versions of the code too
    :param any_device: use results of another device where this one's are missing
    :param report_only: run nothing: write what the results that are there give
    :param progress: called with how many trials are done, how many there are, and the one that was done last
    :param command: that a reader can repeat
    :return: the table
    :raises TrialError: where trials failed, after the report of all others was written; the next run tries these again
    :raises NothingToReportError: where results are missing, and what is there is too little for a report
    """
    trials = all_trials(experiment, n_seeds, quick, with_d3rlpy, device)
    if any_device:
        found = known_results(experiment, folder, any_code)
        trials = [_where_known(experiment, trial, found) for trial in trials]
    told = {"command": command, "quick": quick, "seeds": n_seeds}
    if report_only:
        known = known_results(experiment, folder, any_code)
        return report_of_known(experiment, folder, told, trials, known)
    failure: TrialError | None = None
    try:
        records = run_trials(experiment, of_methods(trials, only), folder, workplace or Workplace(), any_code, progress)
    except TrialError as error:
        failure, records = error, error.records
    # A worker may have had other code than this machine: its results count all the same.
    known = known_results(experiment, folder, any_code) | {record.key: record for record in records}
    try:
        text = report_of_known(experiment, folder, told, trials, known)
    except NothingToReportError as obstacle:
        if failure is None:
            raise
        raise TrialError(f"{failure}\nThere is no report of the others: {obstacle}", records) from failure
    if failure is not None:
        raise failure
    return text


def all_trials(experiment: Experiment, n_seeds: int, quick: bool, with_d3rlpy: bool, device: str) -> list[Trial]:
    """Parameters as in :func:`reproduce`."""
    trials = experiment.trials(quick, n_seeds)
    if with_d3rlpy and experiment.d3rlpy_trials is not None:
        trials = [*trials, *experiment.d3rlpy_trials(quick, n_seeds)]
    return [on_device(trial, device) for trial in trials]


def of_methods(trials: list[Trial], only: Sequence[str]) -> list[Trial]:
    """
    :param trials: of an experiment
    :param only: methods' names, or beginnings of them; none for all
    """
    if not only:
        return trials
    methods = list(dict.fromkeys(str(trial["method"]) for trial in trials if "method" in trial))
    chosen: set[str] = set()
    for name in only:
        # A name may be the beginning of another.
        named = {name} & set(methods) or {method for method in methods if name and method.startswith(name)}
        if not named:
            known = f"Its methods are {'; '.join(methods)}" if methods else "Its trials are of no method: leave it out"
            raise InputError("--only", f"no method of the experiment begins with {name!r}", known)
        chosen |= named
    return [trial for trial in trials if trial.get("method") in chosen]


def _where_known(experiment: Experiment, trial: Trial, known: Mapping[str, Record]) -> Trial:
    """The same trial, on another device if only that one's result is there."""
    for candidate in (trial, *on_other_devices(trial)):
        if trial_key(experiment.name, candidate) in known:
            return candidate
    return trial


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
    results, known = results_of(experiment, folder), known_results(experiment, folder, any_code)
    # One seed after the other: a run that is stopped has the first ones whole, which make a table.
    waiting = sorted(
        (number for number, key in enumerate(keys) if key not in known), key=lambda number: trials[number].get("seed", 0)
    )
    if waiting:
        results.prepare()
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
        raise TrialError(message, [kept[key] for number, key in enumerate(keys) if number not in failures])
    return [kept[key] for key in keys]


def _keep(results: ResultsFile, key: str, trial: Trial, outcome: Outcome) -> str | None:
    """:return: why the result cannot be kept"""
    assert outcome.result is not None
    try:
        results.add(Record(key, outcome.code, trial, outcome.result, round(outcome.seconds, 2), outcome.versions))
    except (TypeError, ValueError) as error:
        return f"its result is not what JSON can hold ({error})"
    return None
