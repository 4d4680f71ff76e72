"""Run an experiment's trials wherever there are machines, keep every result as it comes, and write the report."""

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
from sb3_nopg.reproduction.experiment import Experiment, Result, Trial
from sb3_nopg.reproduction.report import write_numbers
from sb3_nopg.reproduction.results_file import Record, ResultsFile, trial_key
from sb3_nopg.reproduction.workers import Outcome, run_here, run_in_processes, run_on_cluster

Progress = Callable[[int, int, Trial | None], None]
_VERSIONS = ("sb3-nopg", "numpy", "scipy", "torch", "stable-baselines3", "gymnasium")
_FAILURES_TOLD = 3


class TrialError(RuntimeError):
    """Some trials failed; the results of all others are kept."""


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
    any_code: bool = False,
    progress: Progress | None = None,
    command: str = "",
) -> str:
    """
    Run what was not run before, and write ``<name>.jsonl`` (results as they come), ``.json``, ``.csv``, ``.md`` and figures.

    :param experiment: of the paper
    :param folder: for all files; results of an earlier run that lie there are used
    :param n_seeds: seeds 0, 1, … below this
    :param quick: a small part
    :param workplace: where trials run
    :param with_d3rlpy: also d3rlpy's algorithms, where the experiment compares algorithms
    :param any_code: use results of other versions of the code too
    :param progress: called with how many trials are done, how many there are, and the one that was done last
    :param command: that a reader can repeat
    :return: the table
    :raises TrialError: where trials failed; the next run tries these again
    """
    trials = experiment.trials(quick, n_seeds)
    if with_d3rlpy and experiment.d3rlpy_trials is not None:
        trials = [*trials, *experiment.d3rlpy_trials(quick, n_seeds)]
    records = run_trials(experiment, trials, folder, workplace or Workplace(), any_code, progress)
    results: list[tuple[Trial, Result]] = [(record.trial, record.result) for record in records]
    conditions = {"command": command, "quick": quick, "seeds": n_seeds, **conditions_of(records)}
    write_numbers(folder, experiment.name, conditions, results)
    table = experiment.summarize(results, folder, quick)
    with replacing(folder / f"{experiment.name}.md") as partial:
        partial.write_text(table, encoding="utf-8")
    return table


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
    """
    keys = [trial_key(experiment.name, trial) for trial in trials]
    if len(set(keys)) < len(keys):
        twice = trials[keys.index(Counter(keys).most_common(1)[0][0])]
        raise InputError("trials", f"{twice} is there twice", f"Trials of {experiment.name} must differ")
    results, code = ResultsFile(folder / f"{experiment.name}.jsonl"), code_version(experiment.run.__module__)
    known = {record.key: record for record in results.read() if any_code or record.code == code}
    waiting = [number for number, key in enumerate(keys) if key not in known]
    n_done, failures = len(trials) - len(waiting), list[str]()
    if progress is not None:
        progress(n_done, len(trials), None)
    for outcome in workplace.run(experiment, [trials[number] for number in waiting]):
        number = waiting[outcome.index]
        failure = outcome.failure or _keep(results, keys[number], trials[number], outcome)
        if failure is not None:
            failures.append(f"{trials[number]}: {failure}")
        n_done += 1
        if progress is not None:
            progress(n_done, len(trials), trials[number])
    if failures:
        told = "\n".join(failures[:_FAILURES_TOLD])
        raise TrialError(f"{len(failures)} of {len(trials)} trials of {experiment.name} failed, the first of them:\n{told}")
    # As they were written: a run that goes on later must find the same. A worker may have had other code than this machine.
    kept = {record.key: record for record in results.read()}
    return [known.get(key) or kept[key] for key in keys]


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
    :param records: all results
    :return: what a reader needs to know to do it again
    """
    return {
        "hours": round(sum(record.seconds for record in records) / 3600.0, 3),
        "trials by code version": dict(Counter(record.code for record in records)),
        "python": platform.python_version(),
        **{package: version(package) for package in _VERSIONS},
        "cpu_count": os.cpu_count(),
    }
