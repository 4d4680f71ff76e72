"""Trials run on one core, in processes and on a Dask cluster; whatever is killed, nothing else is lost."""

import csv
import dataclasses
import gzip
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import torch as th
from joblib.externals.loky.backend import context

from helpers.recorded_swings import record_swings
from helpers.repository import environment
from helpers.toy_experiments import (
    PRELOADED,
    copied_workers,
    executions,
    experiment_of,
    fails,
    gives_a_matrix,
    kills_its_worker,
    run_four,
    run_some,
    square,
    squares,
    wait_for,
)
from sb3_nopg import InputError
from sb3_nopg.experiments import EXPERIMENTS, load_experiment, run_report, workers
from sb3_nopg.experiments import code_version as versions
from sb3_nopg.experiments.d3rlpy_trials import METHODS as D3RLPY_METHODS
from sb3_nopg.experiments.experiment import device_of, on_device
from sb3_nopg.experiments.report import read_markdown_tables
from sb3_nopg.experiments.results_file import Record, ResultsFile, trial_key
from sb3_nopg.experiments.runner import TrialError, Workplace, all_trials, of_methods, reproduce, run_trials


@pytest.fixture(autouse=True)
def quick_workers():
    with copied_workers():
        yield


# Processes import for seconds.
WORKPLACES = pytest.mark.parametrize(
    "workplace",
    [pytest.param(Workplace(), id="one core"), pytest.param(Workplace(n_jobs=2), id="two processes", marks=pytest.mark.slow)],
)


@WORKPLACES
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


@WORKPLACES
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


def test_a_run_goes_on_from_packed_numbers(tmp_path):
    experiment = experiment_of(square, tmp_path)
    table = reproduce(experiment, tmp_path / "before", n_seeds=3)
    numbers, folder = tmp_path / "before" / "squares.json", tmp_path / "now"
    folder.mkdir()
    (folder / "squares.json.gz").write_bytes(gzip.compress(numbers.read_bytes()))
    assert reproduce(experiment, folder, n_seeds=3, report_only=True) == table
    assert (folder / "squares.json").read_bytes() == numbers.read_bytes()
    reproduce(experiment, folder, n_seeds=5)
    assert executions(tmp_path) == [0, 1, 2, 3, 4]
    assert len(ResultsFile(folder / "squares.jsonl").read()) == 2
    (folder / "squares.json.gz").write_bytes(b"half")
    with pytest.raises(InputError, match=r"squares\.json\.gz: it is not a whole report"):
        reproduce(experiment, folder, n_seeds=6)
    assert executions(tmp_path) == [0, 1, 2, 3, 4]


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


@pytest.mark.parametrize(
    "wrong", [{"seconds": "1"}, {"seconds": math.nan}, {"versions": "1.0"}, {"trial": [1]}, {"code": 7}, {"result": None}]
)
def test_a_line_that_somebody_spoiled_is_skipped(tmp_path, wrong):
    results = ResultsFile(tmp_path / "results.jsonl")
    results.add(Record("a", "code", {"number": 1}, {"square": 1}, 0.5))
    fields = json.loads(results.path.read_text())
    with results.path.open("a") as file:
        file.write(json.dumps({**fields, "key": "b", **wrong}) + "\n")
    assert [record.key for record in results.read()] == ["a"]


@pytest.mark.parametrize("number", [77, math.nan])
def test_a_line_whose_key_is_that_of_another_trial_is_not_believed(tmp_path, number):
    experiment = experiment_of(square, tmp_path)
    reproduce(experiment, tmp_path, n_seeds=2)
    results = ResultsFile(tmp_path / "squares.jsonl")
    first, second = results.read()
    results.path.write_text("")
    results.add(first)
    results.add(dataclasses.replace(second, trial={**second.trial, "number": number}))
    table = reproduce(experiment, tmp_path, n_seeds=2)
    assert [row["number"] for row in read_markdown_tables(table)[0]] == ["0", "1"]
    assert executions(tmp_path) == [0, 1, 1]


@pytest.mark.slow
def test_a_trials_time_is_measured(tmp_path):
    trials = [{"number": 1, "log": str(tmp_path / "log.txt"), "seconds": 0.3}]
    (record,) = run_trials(experiment_of(square, tmp_path), trials, tmp_path, Workplace())
    assert 0.3 <= record.seconds < 5.0


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


def test_one_seed_comes_after_the_other(tmp_path):
    log = str(tmp_path / "log.txt")
    trials = [{"number": 10 * size + seed, "seed": seed, "log": log} for size in range(2) for seed in range(3)]
    trials.append({"number": 99, "log": log})
    records = run_trials(experiment_of(square, tmp_path), trials, tmp_path, Workplace())
    # A run that is stopped has the first seeds of every size; what has no seed is wanted with any of them.
    assert executions(tmp_path) == [0, 10, 99, 1, 11, 2, 12]
    assert [record.trial for record in records] == trials


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path):
    script = (
        "import sys; import pathlib; from helpers import toy_experiments as t\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "experiment = t.experiment_of(t.square, folder, seconds=0.3)\n"
        "from sb3_nopg.experiments.runner import Workplace, reproduce\n"
        "reproduce(experiment, folder, n_seeds=8, workplace=Workplace(n_jobs=2))\n"
    )
    results = ResultsFile(tmp_path / "squares.jsonl")
    # A group of its own, so that its workers can be killed with it.
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, env=environment())
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


@pytest.mark.slow
def test_lost_processes_cost_no_result_but_that_of_the_trial_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "N_RETRIES", 1)
    # Processes as programs have them, for once.
    context.set_start_method(None, force=True)
    # One that is lost once, one beside it, and one to blame. It comes last: in place of each lost process another imports.
    with pytest.raises(TrialError, match=r"(?s)1 of 3 trials.*'number': 2.*lost 2 times"):
        run_some(3, kills_its_worker, tmp_path, Workplace(n_jobs=2), deadly={0: "once", 2: "always"})
    assert (tmp_path / "log.txt.killed").exists()
    kept = ResultsFile(tmp_path / "squares.jsonl").read()
    assert sorted(squares(kept)) == [0, 1]


@WORKPLACES
def test_a_trial_that_fails_is_tried_again_next_time(tmp_path, workplace):
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials of squares.*'number': 1.*ZeroDivisionError: one is too few"):
        run_four(fails, tmp_path, workplace)
    assert sorted(executions(tmp_path)) == [0, 2, 3]
    (tmp_path / "log.txt.mended").touch()
    assert squares(run_four(fails, tmp_path, workplace)) == [0, 1, 4, 9]
    assert sorted(executions(tmp_path)) == [0, 1, 2, 3]


def test_a_name_that_begins_another_means_itself():
    trials = [{"method": method} for method in ("PWIS", "PWIS, self-normalised", "NOPG-D", "NOPG-S")]
    assert of_methods(trials, ["PWIS"]) == trials[:1]
    assert of_methods(trials, ["PWIS,", "NOPG-D"]) == trials[1:3]
    assert of_methods(trials, ["NOPG"]) == trials[2:]
    assert of_methods(trials, []) == trials


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


def test_a_result_that_cannot_be_kept_is_a_failure(tmp_path):
    with pytest.raises(TrialError, match="not what JSON can hold"):
        run_four(gives_a_matrix, tmp_path, Workplace())


@pytest.fixture(scope="module")
def cluster():
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    settings = {
        # A trial that kills workers would otherwise kill many before Dask tells.
        "distributed.scheduler.allowed-failures": 0,
        # As with ``copied_workers``.
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with dask.config.set(settings):
        distributed.utils.get_mp_context().set_forkserver_preload(PRELOADED)
        local = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with local:
        yield local


@pytest.mark.slow
def test_a_dask_cluster_whose_worker_is_killed_loses_one_trial(tmp_path, cluster):
    log = str(tmp_path / "log.txt")
    trials = [{"number": number, "log": log, "seconds": 1.5} for number in range(6)]
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


@pytest.mark.slow
def test_a_dask_cluster_tells_of_failures(tmp_path, cluster):
    with pytest.raises(TrialError, match="one is too few"):
        run_four(fails, tmp_path, Workplace(scheduler=cluster.scheduler_address))
    assert sorted(squares(ResultsFile(tmp_path / "squares.jsonl").read())) == [0, 4, 9]


@pytest.mark.slow
def test_a_trial_that_kills_dask_workers_is_given_up(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(workers, "N_RETRIES", 1)
    with pytest.raises(TrialError, match=r"(?s)1 of 4 trials.*'number': 2.*lost 2 times"):
        run_four(kills_its_worker, tmp_path, Workplace(scheduler=cluster.scheduler_address), deadly={2: "always"})
    assert sorted(squares(ResultsFile(tmp_path / "squares.jsonl").read())) == [0, 1, 9]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere://x"])
def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch, address):
    monkeypatch.setattr(workers, "_CONNECTION_TIMEOUT_S", 1.0)
    with pytest.raises(InputError, match=rf"--scheduler: no Dask scheduler answers at {re.escape(address)}"):
        run_four(square, tmp_path, Workplace(scheduler=address))


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


@pytest.mark.slow
def test_only_those_who_use_a_device_have_one(tmp_path, monkeypatch):
    monkeypatch.setenv("NOPG_RECORDINGS", str(record_swings(tmp_path, n=2, seconds=0.2)))
    trials = [trial for name in EXPERIMENTS for trial in all_trials(load_experiment(name), 1, True, True, "cpu")]
    with_device = {str(trial.get("method")) for trial in trials if "device" in on_device(trial, "cuda")}
    assert {"NOPG-D, paper", "NOPG-S, defaults", "NOPG", "KBRL", "example", "None", *D3RLPY_METHODS} <= with_device
    assert not any(method.startswith(("DDPG", "PWIS", "DPG", "semi", "behaviour", "demonstrator")) for method in with_device)
    assert all(on_device(trial, "cpu") == trial for trial in trials)


@pytest.mark.slow
@pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU")
def test_a_worker_without_a_gpu_does_not_take_the_processor_instead():
    assert device_of({"method": "KBRL"}) == "cpu"
    with pytest.raises(InputError, match="no GPU"):
        device_of({"method": "KBRL", "device": "cuda"})
