"""The report of an experiment's results: of all of them, or of those that are there."""

import pathlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.experiments.code_version import code_version
from sb3_nopg.experiments.experiment import Experiment, Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.numbers_file import read_numbers
from sb3_nopg.experiments.report import conditions_line, write_numbers
from sb3_nopg.experiments.results_file import Record, ResultsFile, trial_key
from sb3_nopg.experiments.versions import counted_versions


class NothingToReportError(RuntimeError):
    """There is no result to make a report of, or too few."""


def results_of(experiment: Experiment, folder: pathlib.Path) -> ResultsFile:
    """
    :param experiment: of any extent
    :param folder: that it is run in
    """
    return ResultsFile(folder / f"{experiment.name}.jsonl")


def earlier_results(experiment: Experiment, folder: pathlib.Path) -> list[Record]:
    """
    :param experiment: of any extent
    :param folder: that it was run in
    :return: all, older first: the numbers of a report that was packed, ``NAME.json.gz``, then the lines of ``NAME.jsonl``
    """
    packed = folder / f"{experiment.name}.json.gz"
    return [*(read_numbers(packed, experiment.name) if packed.exists() else []), *results_of(experiment, folder).read()]


def known_results(experiment: Experiment, folder: pathlib.Path, any_code: bool) -> dict[str, Record]:
    """
    :param experiment: of any extent
    :param folder: that it is run in
    :param any_code: also those of other code than today's
    :return: results that are there, by their trials' keys: the latest, and today's before those of other code
    """
    code = code_version(experiment.run.__module__)
    known: dict[str, Record] = {}
    for record in earlier_results(experiment, folder):
        if not _is_of(experiment, record):
            continue
        has_todays = record.key in known and known[record.key].code == code
        if record.code == code or (any_code and not has_todays):
            known[record.key] = record
    return known


def _is_of(experiment: Experiment, record: Record) -> bool:
    """Whether a record's key is its trial's: files are joined and edited by hand."""
    try:
        return record.key == trial_key(experiment.name, record.trial)
    except InputError:
        return False


def for_report(experiment: Experiment, folder: pathlib.Path) -> Experiment | None:
    """
    :param experiment: that may lack something to be run here
    :param folder: that it was run in
    :return: one that knows its trials by its results there, if it lacks something; None where there are no results either
    """
    if experiment.missing is None or experiment.missing() is None:
        return experiment
    trials = [record.trial for record in earlier_results(experiment, folder) if _is_of(experiment, record)]
    if not trials:
        return None
    return experiment if experiment.told_by_results is None else experiment.told_by_results(trials)


def report_of_known(
    experiment: Experiment,
    folder: pathlib.Path,
    told: dict[str, Any],
    trials: list[Trial],
    known: Mapping[str, Record],
) -> str:
    """
    :param experiment: whose trials they are
    :param folder: to write to
    :param told: conditions that the results do not tell: ``command``, ``quick`` and ``seeds``
    :param trials: all that belong to it
    :param known: results, by their trials' keys
    :return: the table
    :raises NothingToReportError: where results are missing, and what is there is too little
    """
    keys = [trial_key(experiment.name, trial) for trial in trials]
    records = [known[key] for key in keys if key in known]
    if not records:
        n_others = len(known_results(experiment, folder, any_code=True))
        others = f": of {n_others} results none is of these seeds, this device and this code" if n_others else ""
        raise NothingToReportError(f"{folder} has nothing to report of {experiment.name}{others}")
    extent = Extent(told["quick"], len(trials) - len(records), len(trials))
    conditions = {**told, **_what_records_tell(records)}
    if not extent.n_missing:
        return _report(experiment, folder, conditions, records, extent)
    try:
        return _report(experiment, folder, {**conditions, "trials missing": extent.n_missing}, records, extent)
    except (LookupError, ValueError, TypeError, StopIteration) as unable:
        # A table may want a result that is not there.
        reason = f"{type(unable).__name__}: {unable}"
        raise NothingToReportError(
            f"{len(records)} results of {experiment.name} are too few for a table ({reason})"
        ) from unable


def _report(
    experiment: Experiment, folder: pathlib.Path, conditions: dict[str, Any], records: list[Record], extent: Extent
) -> str:
    results: list[tuple[Trial, Result]] = [(record.trial, record.result) for record in records]
    name = extent.file_name(experiment.name)
    write_numbers(folder, name, conditions, records)
    head = "".join(f"**{note}.**\n\n" for note in extent.notes)
    head += f"{conditions_line(conditions)}\n\n"
    text = head + experiment.summarize(results, folder, extent)
    with replacing(folder / f"{name}.md") as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def _what_records_tell(records: list[Record]) -> dict[str, Any]:
    seconds = [record.seconds for record in records if record.seconds is not None]
    n_unknown = len(records) - len(seconds)
    return {
        "hours": round(sum(seconds) / 3600.0, 3),
        **({"trials whose time is not known": n_unknown} if n_unknown else {}),
        "trials by code version": dict(Counter(record.code for record in records)),
        "trials by device": dict(Counter(str(record.trial.get("device", "cpu")) for record in records)),
        "versions": counted_versions(record.versions for record in records),
    }
