"""Reports: of all results or of some, with where each comes from; tables that can be read back."""

import csv
import dataclasses
import json
import math
import os
from importlib.metadata import version

import pytest

from helpers.toy_experiments import executions, experiment_of, fails, gives_a_matrix, square, squares
from sb3_nopg.common.files import replacing
from sb3_nopg.experiments import run_report, workers
from sb3_nopg.experiments import versions as package_versions
from sb3_nopg.experiments.report import (
    interval_cell,
    markdown_table,
    mean_interval,
    read_interval,
    read_markdown_tables,
    write_numbers,
)
from sb3_nopg.experiments.results_file import Record, ResultsFile, trial_key
from sb3_nopg.experiments.run_report import NothingToReportError
from sb3_nopg.experiments.runner import TrialError, Workplace, reproduce, run_trials


def test_a_quick_run_leaves_the_full_one_alone(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=3)
    full = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".json", ".csv", ".md")}
    text = reproduce(experiment, tmp_path, n_seeds=1, quick=True)
    assert {name: (tmp_path / name).read_bytes() for name in full} == full
    assert set(full) == {"squares.json", "squares.csv", "squares.md"}
    assert (tmp_path / "squares-quick.md").read_text() == text
    note, _, conditions = text.splitlines()[:3]
    assert note == "**--quick: fewer seeds, sizes and updates than the paper's experiment.**"
    assert conditions.startswith("seed 0, ")
    assert len(json.loads((tmp_path / "squares-quick.json").read_text())["trials"]) == 1
    assert (tmp_path / "squares-quick.csv").exists()
    # What both have in common runs once.
    assert executions(tmp_path) == [0, 1, 2]


def test_hours_are_those_of_the_trials_whose_time_is_known(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=3)
    results = ResultsFile(tmp_path / "squares.jsonl")
    records = results.read()
    results.path.write_text("")
    for record, seconds in zip(records, (1800.0, 3600.0, None), strict=True):
        results.add(dataclasses.replace(record, seconds=seconds))
    text = reproduce(experiment, tmp_path, n_seeds=3, report_only=True)
    assert "1.5 hours of trials and 1 more whose time is not known; " in text.splitlines()[0]
    assert json.loads((tmp_path / "squares.json").read_text())["conditions"]["trials whose time is not known"] == 1
    assert "1.5 hours of trials; " in reproduce(experiment, tmp_path, n_seeds=2, report_only=True).splitlines()[0]


def test_two_programs_may_write_the_same_report(tmp_path, monkeypatch):
    target = tmp_path / "report.md"
    with replacing(target) as ours:
        ours.write_text("ours")
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with replacing(target) as theirs:
            theirs.write_text("theirs")
        assert target.read_text() == "theirs"
    assert target.read_text() == "ours"
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_numbers_inside_of_records_are_in_the_csv(tmp_path):
    result = {"before": {"return": 1.5, "value": [1, 2], "of": {"one": "x"}}, "last": None, "path": [[1]]}
    records = [
        Record("a", "0123", {"seed": 0, "levels": [1]}, result, 1.5, {"torch": "2"}),
        Record("b", "4567", {"seed": 1}, {"before": {"return": 2}}, 2.5),
    ]
    conditions = {"versions": package_versions.counted_versions(record.versions for record in records)}
    write_numbers(tmp_path, "nested", conditions, records)
    # What came from where is told of each, so that the results of several runs can be told apart and put together.
    trials = json.loads((tmp_path / "nested.json").read_text())["trials"]
    assert [(trial["code"], trial["seconds"], trial["versions"]) for trial in trials] == [("0123", 1.5, 0), ("4567", 2.5, 1)]
    assert conditions["versions"] == [{"trials": 1, "torch": "2"}, {"trials": 1}]
    with (tmp_path / "nested.csv").open() as file:
        assert list(csv.DictReader(file)) == [
            {"seed": "0", "before.return": "1.5", "before.of.one": "x", "last": ""},
            {"seed": "1", "before.return": "2", "before.of.one": "", "last": ""},
        ]


def test_what_did_not_fail_is_reported(tmp_path):
    experiment = experiment_of(fails, tmp_path)
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials of squares.*one is too few") as caught:
        reproduce(experiment, tmp_path, n_seeds=4)
    assert "no report" not in str(caught.value)
    text = (tmp_path / "squares.md").read_text()
    assert text.startswith("**1 of 4 trials are missing")
    assert [row["square"] for row in read_markdown_tables(text)[0]] == ["0", "4", "9"]
    content = json.loads((tmp_path / "squares.json").read_text())
    assert content["conditions"]["trials missing"] == 1
    assert [entry["trial"]["number"] for entry in content["trials"]] == [0, 2, 3]
    (tmp_path / "log.txt.mended").touch()
    text = reproduce(experiment, tmp_path, n_seeds=4)
    assert "missing" not in text
    assert "trials missing" not in json.loads((tmp_path / "squares.json").read_text())["conditions"]


def test_a_report_of_what_is_there_so_far(tmp_path, monkeypatch):
    experiment = experiment_of(square, tmp_path)
    with pytest.raises(NothingToReportError, match=r"nothing to report of squares$"):
        reproduce(experiment, tmp_path, n_seeds=4, report_only=True)
    assert not (tmp_path / "squares.md").exists()
    run_trials(experiment, experiment.trials(False, 2), tmp_path, Workplace())
    text = reproduce(experiment, tmp_path, n_seeds=4, report_only=True)
    assert text.startswith("**2 of 4 trials are missing")
    assert [row["square"] for row in read_markdown_tables(text)[0]] == ["0", "1"]
    assert json.loads((tmp_path / "squares.json").read_text())["conditions"]["trials missing"] == 2
    assert executions(tmp_path) == [0, 1]
    # Whole, it is what a run wrote.
    whole = reproduce(experiment, tmp_path, n_seeds=4)
    assert reproduce(experiment, tmp_path, n_seeds=4, report_only=True) == whole
    for module in (run_report, workers):
        monkeypatch.setattr(module, "code_version", lambda name: "another")
    with pytest.raises(NothingToReportError, match="of 4 results none is of these seeds, this device and this code"):
        reproduce(experiment, tmp_path, n_seeds=4, report_only=True)
    assert reproduce(experiment, tmp_path, n_seeds=4, report_only=True, any_code=True) == whole
    assert executions(tmp_path) == [0, 1, 2, 3]


def test_what_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(package_versions, "_PACKAGES", ("torch", "no-such-package"))
    package_versions.versions_here.cache_clear()
    try:
        found = package_versions.versions_here()
    finally:
        package_versions.versions_here.cache_clear()
    assert found["no-such-package"] == "not installed"
    assert found["torch"] == version("torch")


def test_todays_results_come_before_those_of_other_code(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=2)
    results = ResultsFile(tmp_path / "squares.jsonl")
    # Joined from another machine's file: one that is there already, and one that is not.
    for trial in (experiment.trials(False, 2)[1], experiment.trials(False, 3)[2]):
        results.add(Record(trial_key("squares", trial), "old", trial, {"square": -9}, 0.5))
    text = reproduce(experiment, tmp_path, n_seeds=3, any_code=True)
    assert [row["square"] for row in read_markdown_tables(text)[0]] == ["0", "1", "-9"]
    assert "from 2 states of the code" in text.splitlines()[0]
    text = reproduce(experiment, tmp_path, n_seeds=3)
    assert [row["square"] for row in read_markdown_tables(text)[0]] == ["0", "1", "4"]
    assert executions(tmp_path) == [0, 1, 2]


def test_versions_are_told_of_each_machine(tmp_path):
    experiment = experiment_of(square, tmp_path)
    results = ResultsFile(tmp_path / "squares.jsonl")
    for trial, kept in zip(experiment.trials(False, 2), ({"python": "3.0", "torch": "1.2"}, None), strict=True):
        results.add(Record(trial_key("squares", trial), "old", trial, {"square": 0}, 0.5, kept))
    # As lines were before versions were kept.
    lines = results.path.read_text().splitlines()
    results.path.write_text(lines[0] + "\n" + lines[1].replace(', "versions": null', "") + "\n")
    first = reproduce(experiment, tmp_path, n_seeds=4, any_code=True).splitlines()[0]
    assert executions(tmp_path) == [2, 3]
    assert f"torch {version('torch')}" in first
    others = "python 3.0, torch 1.2 (1 trial); versions not known (1 trial)."
    assert first.endswith(f"gymnasium {version('gymnasium')} (2 trials); {others}")


def test_what_is_there_may_be_too_little_for_a_table(tmp_path):
    def wants_number_one(results, folder, extent):
        return str({trial["number"]: result for trial, result in results}[1])

    experiment = dataclasses.replace(experiment_of(square, tmp_path), summarize=wants_number_one)
    run_trials(experiment, experiment.trials(False, 1), tmp_path, Workplace())
    with pytest.raises(NothingToReportError, match=r"1 results of squares are too few for a table \(KeyError: 1\)"):
        reproduce(experiment, tmp_path, n_seeds=2, report_only=True)


def test_results_of_other_code_do_not_stand_in_for_a_failed_trial(tmp_path, monkeypatch):
    (tmp_path / "log.txt.mended").touch()
    reproduce(experiment_of(fails, tmp_path), tmp_path, n_seeds=3)
    (tmp_path / "log.txt.mended").unlink()
    for module in (run_report, workers):
        monkeypatch.setattr(module, "code_version", lambda name: "another")
    with pytest.raises(TrialError, match="1 of 3") as caught:
        reproduce(experiment_of(fails, tmp_path), tmp_path, n_seeds=3)
    assert squares(caught.value.records) == [0, 4]
    assert {record.code for record in caught.value.records} == {"another"}


def test_the_trials_failure_is_told_although_there_is_no_report(tmp_path):
    def wants_number_one(results, folder, extent):
        return str({trial["number"]: result for trial, result in results}[1])

    experiment = dataclasses.replace(experiment_of(fails, tmp_path), summarize=wants_number_one)
    with pytest.raises(
        TrialError, match=r"(?s)1 of 3 trials.*one is too few.*no report of the others.*too few for a table \(KeyError: 1\)"
    ):
        reproduce(experiment, tmp_path, n_seeds=3)
    assert len(json.loads((tmp_path / "squares.json").read_text())["trials"]) == 2


def test_where_every_trial_failed_there_is_nothing_to_report(tmp_path):
    with pytest.raises(TrialError, match=r"(?s)4 of 4 trials.*nothing to report"):
        reproduce(experiment_of(gives_a_matrix, tmp_path), tmp_path, n_seeds=4)
    assert not (tmp_path / "squares.json").exists()


def test_intervals():
    # Student's t with two degrees of freedom: 4.3027.
    mean, half_width = mean_interval([1.0, 2.0, 3.0, None, math.nan])
    assert mean == 2.0
    assert half_width == pytest.approx(4.302653 / math.sqrt(3.0), rel=1e-6)
    assert mean_interval([5.0]) == (5.0, None)
    assert math.isnan(mean_interval([])[0])


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.5], [-5.0], []])
def test_a_cell_can_be_read_back(values):
    mean, half_width = read_interval(interval_cell(values, digits=3))
    expected = mean_interval(values)
    assert mean == pytest.approx(expected[0], abs=5e-4, nan_ok=True)
    assert half_width == (None if expected[1] is None else pytest.approx(expected[1], abs=5e-4))


def test_tables_can_be_read_back():
    text = (
        "Words.\n\n"
        + markdown_table([{"a": 1, "b": [1, 2]}, {"a": None, "b": "x"}])
        + "\nMore.\n\n"
        + markdown_table([{"c": 3}])
    )
    assert read_markdown_tables(text) == [[{"a": "1", "b": "1 2"}, {"a": "–", "b": "x"}], [{"c": "3"}]]
