"""Trials run on one core, in processes and on a Dask cluster; whatever is killed, nothing else is lost."""

import csv
import dataclasses
import importlib
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import numpy as np
import pytest
import torch as th
from typer.testing import CliRunner

from sb3_nopg import InputError
from sb3_nopg.cli.main import app
from sb3_nopg.reproduction import EXPERIMENTS, Experiment, load_experiment, run_report, workers
from sb3_nopg.reproduction import code_version as versions
from sb3_nopg.reproduction import versions as package_versions
from sb3_nopg.reproduction.experiment import device_of, on_device
from sb3_nopg.reproduction.report import (
    interval_cell,
    markdown_table,
    mean_interval,
    read_interval,
    read_markdown_tables,
    write_numbers,
)
from sb3_nopg.reproduction.results_file import Record, ResultsFile, trial_key
from sb3_nopg.reproduction.run_report import NothingToReportError
from sb3_nopg.reproduction.runner import TrialError, Workplace, of_methods, reproduce, run_trials

# What trials do. Each leaves a line in a file, so that one can count who ran how often.


def note(trial):
    with open(trial["log"], "a") as log:
        log.write(f"{trial['number']} {os.getpid()}\n")


def square(trial):
    note(trial)
    time.sleep(trial.get("seconds", 0.0))
    return {"square": trial["number"] ** 2, "threads": th.get_num_threads()}


def kills_its_worker(trial):
    killed = pathlib.Path(trial["log"] + ".killed")
    if trial.get("deadly") == "always" or (trial.get("deadly") == "once" and not killed.exists()):
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(trial)


def fails(trial):
    if trial["number"] == 1 and not os.path.exists(trial["log"] + ".mended"):
        raise ZeroDivisionError("one is too few")
    return square(trial)


def gives_a_matrix(trial):
    return {"matrix": np.zeros(2)}


def summarize(results, folder, extent):
    return markdown_table([{"number": trial["number"], "square": result["square"]} for trial, result in results])


def experiment_of(run, folder, n=4, **more):
    log = str(folder / "log.txt")

    def trials(quick, n_seeds):
        return [{"number": number, "log": log, **more} for number in range(n_seeds)]

    return Experiment("squares", "nowhere", trials, run, summarize)


def executions(folder):
    log = folder / "log.txt"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def squares(records):
    return [record.result["square"] for record in records]


def run_four(run, folder, workplace, deadly=None):
    log = str(folder / "log.txt")
    trials = [{"number": n, "log": log, "deadly": (deadly or {}).get(n)} for n in range(4)]
    return run_trials(experiment_of(run, folder), trials, folder, workplace)


@pytest.mark.parametrize("workplace", [Workplace(), Workplace(n_jobs=2)], ids=["one core", "two processes"])
def test_every_result_is_written_and_reported(tmp_path, workplace):
    seen = []
    table = reproduce(
        experiment_of(square, tmp_path),
        tmp_path,
        n_seeds=4,
        workplace=workplace,
        progress=lambda done, n, trial: seen.append((done, n, trial and trial["number"])),
        command="nopg reproduce squares",
    )
    assert sorted(executions(tmp_path)) == [0, 1, 2, 3]
    assert [done for done, _, _ in seen] == [0, 1, 2, 3, 4]
    assert {number for _, _, number in seen} == {None, 0, 1, 2, 3}
    content = json.loads((tmp_path / "squares.json").read_text())
    assert [entry["result"]["square"] for entry in content["trials"]] == [0, 1, 4, 9]
    assert content["conditions"]["command"] == "nopg reproduce squares"
    assert content["conditions"]["seeds"] == 4
    (versions,) = content["conditions"]["versions"]
    assert versions["trials"] == 4
    first = table.splitlines()[0]
    assert first.startswith("`nopg reproduce squares`, seeds 0 to 3, ")
    for name in ("python", "torch", "numpy", "sb3-nopg", "stable-baselines3", "gymnasium"):
        assert f"{name} {versions[name]}" in first
    assert f" {content['conditions']['hours']} hours of trials" in first
    assert "quick" not in first
    with (tmp_path / "squares.csv").open() as file:
        assert [(row["number"], row["square"]) for row in csv.DictReader(file)] == [(str(n), str(n * n)) for n in range(4)]
    assert (tmp_path / "squares.md").read_text() == table
    assert [row["square"] for row in read_markdown_tables(table)[0]] == ["0", "1", "4", "9"]


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


@pytest.mark.parametrize("workplace", [Workplace(), Workplace(n_jobs=2)], ids=["one core", "two processes"])
def test_a_trial_has_one_torch_thread(tmp_path, workplace):
    before = th.get_num_threads()
    th.set_num_threads(2)
    try:
        assert {record.result["threads"] for record in run_four(square, tmp_path, workplace)} == {1}
        assert th.get_num_threads() == 2
    finally:
        th.set_num_threads(before)


def test_a_second_run_does_only_what_is_new(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=3)
    table = reproduce(experiment, tmp_path, n_seeds=5)
    assert executions(tmp_path) == [0, 1, 2, 3, 4]
    assert len(read_markdown_tables(table)[0]) == 5


def test_results_of_other_code_are_not_used_unless_one_wants_them(tmp_path, monkeypatch):
    run_four(square, tmp_path, Workplace())
    for module in (run_report, workers):
        monkeypatch.setattr(module, "code_version", lambda name: "another")
    log = str(tmp_path / "log.txt")
    trials = [{"number": n, "log": log, "deadly": None} for n in range(4)]
    records = run_trials(experiment_of(square, tmp_path), trials, tmp_path, Workplace(), any_code=True)
    assert len(executions(tmp_path)) == 4
    assert "another" not in {record.code for record in records}
    records = run_trials(experiment_of(square, tmp_path), trials, tmp_path, Workplace())
    assert len(executions(tmp_path)) == 8
    assert {record.code for record in records} == {"another"}


def test_a_version_of_the_code_is_that_of_what_a_trial_can_use(tmp_path, monkeypatch):
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "trials.py").write_text("from some_package import used\n")
    (package / "used.py").write_text('"""Doc."""\n\n\ndef f():\n    """Doc."""\n    return 1\n')
    (package / "unused.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(versions, "_OURS", ("some_package",))

    def version():
        versions.code_version.cache_clear()
        return versions.code_version("some_package.trials")

    first = version()
    (package / "unused.py").write_text("x = 2\n")
    (package / "used.py").write_text('"""Another."""\ndef f():\n    """Words."""\n    return 1  # comment\n')
    assert version() == first
    (package / "used.py").write_text("def f():\n    return 2\n")
    second = version()
    assert second != first
    (package / "__init__.py").write_text("x = 1\n")
    assert version() != second
    versions.code_version.cache_clear()


def test_half_a_line_is_skipped_and_spoils_nothing(tmp_path):
    results = ResultsFile(tmp_path / "results.jsonl")
    results.add(Record("a", "code", {"number": 1}, {"square": 1}, 0.5))
    with results.path.open("a") as file:
        file.write('{"key": "b", "code": "co')
    assert [record.key for record in results.read()] == ["a"]
    results.add(Record("c", "code", {"number": 3}, {"square": math.inf}, 0.5))
    assert [record.key for record in results.read()] == ["a", "c"]
    assert results.read()[1].result == {"square": math.inf}


@pytest.mark.parametrize("wrong", [{"seconds": None}, {"versions": "1.0"}, {"trial": [1]}, {"code": 7}, {"result": None}])
def test_a_line_that_somebody_spoiled_is_skipped(tmp_path, wrong):
    results = ResultsFile(tmp_path / "results.jsonl")
    results.add(Record("a", "code", {"number": 1}, {"square": 1}, 0.5))
    fields = json.loads(results.path.read_text())
    with results.path.open("a") as file:
        file.write(json.dumps({**fields, "key": "b", **wrong}) + "\n")
    assert [record.key for record in results.read()] == ["a"]


def test_a_key_is_that_of_the_parameters_in_any_order():
    assert trial_key("x", {"a": 1, "b": [2]}) == trial_key("x", {"b": [2], "a": 1})
    different = [trial_key("x", {"a": 1}), trial_key("y", {"a": 1}), trial_key("x", {"a": 2}), trial_key("x", {"a": "1"})]
    assert len(set(different)) == 4
    with pytest.raises(InputError, match="JSON"):
        trial_key("x", {"a": object()})


def test_trials_must_differ(tmp_path):
    trials = [{"number": 1, "log": "x"}, {"number": 2, "log": "x"}, {"log": "x", "number": 2}]
    with pytest.raises(InputError, match=r"'number': 2.*twice"):
        run_trials(experiment_of(square, tmp_path), trials, tmp_path, Workplace())


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        "import pathlib, test_reproduction_runner as t\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "experiment = t.experiment_of(t.square, folder, seconds=0.3)\n"
        "t.reproduce(experiment, folder, n_seeds=8, workplace=t.Workplace(n_jobs=2))\n"
    )
    results = ResultsFile(tmp_path / "squares.jsonl")
    # A group of its own, so that its workers can be killed with it.
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        wait_for(lambda: len(results.read()) >= 3)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kept = [record.trial["number"] for record in results.read()]
    assert 3 <= len(kept) < 8
    table = reproduce(experiment_of(square, tmp_path, seconds=0.3), tmp_path, n_seeds=8)
    assert [row["square"] for row in read_markdown_tables(table)[0]] == [str(n * n) for n in range(8)]
    ran = executions(tmp_path)
    assert set(ran) == set(range(8))
    # What was kept was not run again, and what was lost is what was under way.
    assert all(ran.count(number) == 1 for number in kept)
    assert len(ran) <= 8 + 2


def test_lost_processes_cost_no_result_but_that_of_the_trial_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "N_RETRIES", 1)
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials.*'number': 2.*lost 2 times"):
        run_four(kills_its_worker, tmp_path, Workplace(n_jobs=2), deadly={1: "once", 2: "always"})
    assert (tmp_path / "log.txt.killed").exists()
    kept = ResultsFile(tmp_path / "squares.jsonl").read()
    assert sorted(squares(kept)) == [0, 1, 9]


@pytest.mark.parametrize("workplace", [Workplace(), Workplace(n_jobs=2)], ids=["one core", "two processes"])
def test_a_trial_that_fails_is_tried_again_next_time(tmp_path, workplace):
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials of squares.*'number': 1.*ZeroDivisionError: one is too few"):
        run_four(fails, tmp_path, workplace)
    assert sorted(executions(tmp_path)) == [0, 2, 3]
    (tmp_path / "log.txt.mended").touch()
    assert squares(run_four(fails, tmp_path, workplace)) == [0, 1, 4, 9]
    assert sorted(executions(tmp_path)) == [0, 1, 2, 3]


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


def test_a_name_that_begins_another_means_itself():
    trials = [{"method": method} for method in ("PWIS", "PWIS, self-normalised", "NOPG-D", "NOPG-S")]
    assert of_methods(trials, ["PWIS"]) == trials[:1]
    assert of_methods(trials, ["PWIS,", "NOPG-D"]) == trials[1:3]
    assert of_methods(trials, ["NOPG"]) == trials[2:]
    assert of_methods(trials, []) == trials


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


def test_methods_can_be_run_one_at_a_time(tmp_path):
    log = str(tmp_path / "log.txt")
    methods = ["NOPG-D", "NOPG-S", "DDPG"]
    trials = [{"number": number, "log": log, "method": method} for number, method in enumerate(methods)]
    experiment = dataclasses.replace(experiment_of(square, tmp_path), trials=lambda quick, n_seeds: trials)
    text = reproduce(experiment, tmp_path, n_seeds=1, only=["NOPG"])
    assert executions(tmp_path) == [0, 1]
    assert text.startswith("**1 of 3 trials are missing")
    with pytest.raises(InputError, match=r"(?s)begins with 'PWIS'.*NOPG-D; NOPG-S; DDPG"):
        reproduce(experiment, tmp_path, n_seeds=1, only=["NOPG", "PWIS"])
    with pytest.raises(InputError, match="begins with ''"):
        reproduce(experiment, tmp_path, n_seeds=1, only=[""])
    text = reproduce(experiment, tmp_path, n_seeds=1, only=["DDPG", "NOPG-S"])
    assert executions(tmp_path) == [0, 1, 2]
    assert [row["square"] for row in read_markdown_tables(text)[0]] == ["0", "1", "4"]
    assert "missing" not in text
    with pytest.raises(InputError, match="of no method"):
        reproduce(experiment_of(square, tmp_path), tmp_path, n_seeds=1, only=["NOPG"])


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


def test_a_result_that_cannot_be_kept_is_a_failure(tmp_path):
    with pytest.raises(TrialError, match="not what JSON can hold"):
        run_four(gives_a_matrix, tmp_path, Workplace())


@pytest.fixture(scope="module")
def cluster():
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    # A trial that kills workers would otherwise kill many before Dask tells.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        local = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with local:
        yield local


def test_a_dask_cluster_whose_worker_is_killed_loses_one_trial(tmp_path, cluster):
    log = str(tmp_path / "log.txt")
    trials = [{"number": number, "log": log, "seconds": 2.0} for number in range(6)]
    killed = []

    def kill_one(done, n_trials, trial):
        # The process that began the latest trial is in the midst of it.
        if done == 2 and not killed:
            wait_for(lambda: len(executions(tmp_path)) >= 4)
            # What that process had done just before may still be on its way here, and would be lost too.
            time.sleep(0.7)
            killed.append(int(pathlib.Path(log).read_text().splitlines()[-1].split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    workplace = Workplace(scheduler=cluster.scheduler_address)
    records = run_trials(experiment_of(square, tmp_path), trials, tmp_path, workplace, progress=kill_one)
    assert squares(records) == [number**2 for number in range(6)]
    assert {record.result["threads"] for record in records} == {1}
    ran = executions(tmp_path)
    assert len(killed) == 1
    assert len(ran) == 7


def test_a_dask_cluster_tells_of_failures(tmp_path, cluster):
    with pytest.raises(TrialError, match="one is too few"):
        run_four(fails, tmp_path, Workplace(scheduler=cluster.scheduler_address))
    assert sorted(squares(ResultsFile(tmp_path / "squares.jsonl").read())) == [0, 4, 9]


def test_a_trial_that_kills_dask_workers_is_given_up(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(workers, "N_RETRIES", 1)
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials.*'number': 2.*lost 2 times"):
        run_four(kills_its_worker, tmp_path, Workplace(scheduler=cluster.scheduler_address), deadly={2: "always"})
    assert sorted(squares(ResultsFile(tmp_path / "squares.jsonl").read())) == [0, 1, 9]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere://x"])
def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch, address):
    monkeypatch.setattr(workers, "_CONNECTION_TIMEOUT_S", 1.0)
    with pytest.raises(InputError, match=rf"--scheduler: no Dask scheduler answers at {re.escape(address)}"):
        run_four(square, tmp_path, Workplace(scheduler=address))


def nopg(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_line_knows_the_experiments():
    listed = nopg("reproduce", "list")
    assert listed.exit_code == 0, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()] == list(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert load_experiment(name).name == name


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The command line with an experiment of its own under every name."""
    command = importlib.import_module("sb3_nopg.cli.reproduce")
    experiment = dataclasses.replace(
        experiment_of(fails, tmp_path), d3rlpy_trials=lambda quick, n: [{"number": 9, "log": str(tmp_path / "log.txt")}]
    )
    monkeypatch.setattr(command, "load_experiment", lambda name: dataclasses.replace(experiment, name=name))
    return monkeypatch, command


def test_the_command_line_runs_all_and_goes_on_after_a_failure(stand_in, tmp_path):
    failed = nopg("reproduce", "all", "--seeds", 3, "-o", tmp_path)
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.output
    assert f"trials failed in {', '.join(EXPERIMENTS)}" in failed.output
    assert len(executions(tmp_path)) == 2 * len(EXPERIMENTS)
    (tmp_path / "log.txt.mended").touch()
    done = nopg("reproduce", "all", "--seeds", 3, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    assert len(executions(tmp_path)) == 3 * len(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert (tmp_path / f"{name}.md").read_text() in done.output
        command = json.loads((tmp_path / f"{name}.json").read_text())["conditions"]["command"]
        assert command == f"nopg reproduce {name} --seeds 3"


def test_the_command_line_reports_what_is_there(stand_in, tmp_path):
    (tmp_path / "log.txt.mended").touch()
    assert nopg("reproduce", "theory", "--seeds", 2, "-o", tmp_path).exit_code == 0
    told = nopg("reproduce", "theory", "--seeds", 3, "--report-only", "-o", tmp_path)
    assert told.exit_code == 0, told.output
    assert "1 of 3 trials are missing" in told.output
    # All that there are, although others are missing.
    (tmp_path / "theory.md").unlink()
    every = nopg("reproduce", "all", "--seeds", 3, "--report-only", "-o", tmp_path)
    assert every.exit_code == 1
    assert f"nothing to report of {', '.join(name for name in EXPERIMENTS if name != 'theory')}" in every.output
    assert (tmp_path / "theory.md").exists()
    assert executions(tmp_path) == [0, 1]


def test_a_report_of_what_a_gpu_computed_needs_none(stand_in, tmp_path):
    monkeypatch, command = stand_in
    (tmp_path / "log.txt.mended").touch()
    monkeypatch.setattr(command.th.cuda, "is_available", lambda: True)
    assert nopg("reproduce", "theory", "--seeds", 2, "--device", "cuda", "-o", tmp_path).exit_code == 0
    monkeypatch.setattr(command.th.cuda, "is_available", lambda: False)
    told = nopg("reproduce", "theory", "--seeds", 2, "--device", "cuda", "--report-only", "-o", tmp_path)
    either = nopg("reproduce", "theory", "--seeds", 2, "--any-device", "--report-only", "-o", tmp_path)
    assert either.exit_code == 0, either.output
    assert told.exit_code == 0, told.output
    # Those of the processor are other results.
    other = nopg("reproduce", "theory", "--seeds", 2, "--report-only", "-o", tmp_path)
    assert other.exit_code == 1
    assert "of 2 results none is of these seeds, this device and this code" in " ".join(other.output.split())


def test_seeds_are_ten_or_two_if_quick(stand_in, tmp_path):
    (tmp_path / "log.txt.mended").touch()
    assert nopg("reproduce", "theory", "--quick", "-o", tmp_path).exit_code == 0
    assert executions(tmp_path) == [0, 1]
    assert nopg("reproduce", "theory", "-o", tmp_path).exit_code == 0
    assert executions(tmp_path) == list(range(10))


def test_d3rlpy_is_installed_and_its_trials_are_added_if_one_wants_them(stand_in, tmp_path):
    monkeypatch, command = stand_in
    folders = []
    monkeypatch.setattr(command, "make_environment", folders.append)
    monkeypatch.setenv("NOPG_D3RLPY_ENVIRONMENT", str(tmp_path / "d3rlpy"))
    assert nopg("reproduce", "theory", "--seeds", 1, "--with-d3rlpy", "-o", tmp_path).exit_code == 0
    assert folders == [tmp_path / "d3rlpy"]
    assert executions(tmp_path) == [0, 9]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pendulum"], "'pendulum' is no experiment. Give one of lqr-gradient, pendulum-grid"),
        (["pendulum-grid", "--jobs", 0], "--jobs"),
        (["pendulum-grid", "--device", "abacus"], "--device: 'abacus' is unknown"),
        (["pendulum-grid", "--jobs", 2, "--scheduler", "tcp://127.0.0.1:1"], "--jobs: given with --scheduler"),
        (["pendulum-grid", "-o", __file__], "is a file"),
        (["pendulum-grid", "--report-only", "-o", "nowhere"], "nowhere is not there"),
        (["all", "--only", "KBRL"], "--only: given with all"),
        (["pendulum-grid", "--only", "KBRL", "--report-only"], "--only: given with --report-only"),
        (["pendulum-grid", "--only", "PWIS"], "no method of the experiment begins with 'PWIS'"),
        (["pendulum-grid", "--seeds", 0], "--seeds"),
    ],
)
def test_wrong_arguments_are_named(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = nopg("reproduce", *arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


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


def test_what_another_device_found_is_kept_apart(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=2)
    reproduce(experiment, tmp_path, n_seeds=2, device="cuda")
    records = ResultsFile(tmp_path / "squares.jsonl").read()
    assert [record.trial.get("device") for record in records] == [None, None, "cuda", "cuda"]
    assert all(kept["trial"]["device"] == "cuda" for kept in json.loads((tmp_path / "squares.json").read_text())["trials"])


def test_results_of_another_device_are_used_if_one_wants_them(tmp_path):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=1, device="cuda")
    reproduce(experiment, tmp_path, n_seeds=2)
    assert executions(tmp_path) == [0, 0, 1]
    text = reproduce(experiment, tmp_path, n_seeds=3, device="cuda", any_device=True, report_only=True)
    assert text.startswith("**1 of 3 trials are missing")
    # This device's where it is there, the other's where not.
    content = json.loads((tmp_path / "squares.json").read_text())
    assert [entry["trial"].get("device") for entry in content["trials"]] == ["cuda", None]
    assert content["conditions"]["trials by device"] == {"cuda": 1, "cpu": 1}
    reproduce(experiment, tmp_path, n_seeds=3, device="cuda", any_device=True)
    assert executions(tmp_path) == [0, 0, 1, 2]


def test_only_those_who_use_a_device_have_one():
    trials = [trial for name in EXPERIMENTS for trial in load_experiment(name).trials(True, 1)]
    with_device = {str(trial.get("method")) for trial in trials if "device" in on_device(trial, "cuda")}
    assert {"NOPG-D, paper", "NOPG-S, defaults", "NOPG", "KBRL", "example", "None"} <= with_device
    assert not any(method.startswith(("DDPG", "PWIS", "DPG", "semi", "behaviour", "demonstrator")) for method in with_device)
    assert all(on_device(trial, "cpu") == trial for trial in trials)


@pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "pendulum-grid", "--quick", "--device", "cuda", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "torch sees no GPU here" in result.output


@pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU")
def test_a_worker_without_a_gpu_does_not_take_the_processor_instead():
    assert device_of({"method": "KBRL"}) == "cpu"
    with pytest.raises(InputError, match="no GPU"):
        device_of({"method": "KBRL", "device": "cuda"})
