"""``nopg reproduce``, as a person or a shell calls it."""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys

import pytest
import torch as th
from typer.testing import CliRunner

from helpers.repository import environment
from helpers.toy_experiments import executions, experiment_of, fails, wait_for
from sb3_nopg import InputError
from sb3_nopg.commands.main import app
from sb3_nopg.experiments import EXPERIMENTS, load_experiment


def nopg(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_line_knows_the_experiments():
    listed = nopg("reproduce", "list")
    assert listed.exit_code == 0, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()] == list(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert load_experiment(name).name == name


def test_without_recordings_all_leaves_out_what_needs_them(stand_in, tmp_path):
    monkeypatch, command = stand_in
    lacking = InputError("--data", "no recordings are given", "Give some")
    every = command.load_experiment

    def one_lacks_something(name):
        return dataclasses.replace(every(name), missing=(lambda: lacking) if name == "theory" else None)

    monkeypatch.setattr(command, "load_experiment", one_lacks_something)
    (tmp_path / "log.txt.mended").touch()
    done = nopg("reproduce", "all", "--seeds", 1, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    assert "theory is left out. --data: no recordings are given. Give some." in done.output
    assert not (tmp_path / "theory.md").exists()
    assert len(executions(tmp_path)) == len(EXPERIMENTS) - 1
    asked = nopg("reproduce", "theory", "--seeds", 1, "-o", tmp_path)
    assert asked.exit_code == 2
    assert "no recordings are given" in asked.output


@pytest.mark.slow
def test_a_report_asks_for_no_recordings(stand_in, tmp_path):
    """Trials have a name that only the recordings know, or the results."""
    monkeypatch, command = stand_in
    every, given = command.load_experiment, ["a"]
    lacking = InputError("--data", "no recordings are given", "Give some")

    def trials_of(name, recordings):
        def trials(quick, n_seeds):
            if not recordings:
                raise lacking
            return [{**trial, "recordings": recordings[-1]} for trial in every(name).trials(quick, n_seeds)]

        return trials

    def load(name):
        if name != "theory":
            return every(name)
        return dataclasses.replace(
            every(name),
            trials=trials_of(name, given),
            missing=lambda: None if given else lacking,
            told_by_results=lambda known: dataclasses.replace(
                every(name), trials=trials_of(name, [trial["recordings"] for trial in known])
            ),
        )

    monkeypatch.setattr(command, "load_experiment", load)
    (tmp_path / "log.txt.mended").touch()
    assert nopg("reproduce", "all", "--seeds", 2, "-o", tmp_path).exit_code == 0
    given.clear()
    for name in ("theory", "all"):
        (tmp_path / "theory.md").unlink()
        told = nopg("reproduce", name, "--seeds", 2, "--report-only", "-o", tmp_path)
        assert told.exit_code == 0, told.output
        assert "--data" not in told.output
        assert (tmp_path / "theory.md").exists()
    # A folder that was given and holds none is still an error.
    wrong = nopg("reproduce", "theory", "--seeds", 2, "--report-only", "--data", tmp_path / "nowhere", "-o", tmp_path)
    assert wrong.exit_code == 2
    (tmp_path / "theory.jsonl").unlink()
    nothing = nopg("reproduce", "theory", "--seeds", 2, "--report-only", "-o", tmp_path)
    assert nothing.exit_code == 1
    assert "has nothing to report of theory" in " ".join(nothing.output.split())
    others = nopg("reproduce", "all", "--seeds", 2, "--report-only", "-o", tmp_path)
    assert others.exit_code == 0, others.output
    assert "theory is left out." in others.output


def test_the_folder_of_recordings_is_told_to_the_trials(stand_in, tmp_path):
    monkeypatch, _ = stand_in
    monkeypatch.setenv("NOPG_RECORDINGS", "elsewhere")
    assert nopg("reproduce", "theory", "--seeds", 1, "--data", tmp_path / "mine", "-o", tmp_path).exit_code == 0
    assert os.environ["NOPG_RECORDINGS"] == str(tmp_path / "mine")


@pytest.mark.slow
def test_the_overview_is_of_the_reports_in_a_folder(tmp_path):
    trial, result = {"method": "KBRL", "samples": 100, "seed": 0}, {"return": -400.0, "learning_seconds": 1.0}
    (tmp_path / "pendulum-random.json").write_text(json.dumps({"trials": [{"trial": trial, "result": result}]}))
    told = nopg("reproduce", "overview", "-o", tmp_path)
    assert told.exit_code == 0, told.output
    assert "| pendulum-random, 100 | 100 % of 1, 1 s |" in told.output
    assert (tmp_path / "overview.png").exists()
    assert nopg("reproduce", "overview", "--quick", "-o", tmp_path).exit_code == 2


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The command line with an experiment of its own under every name."""
    command = importlib.import_module("sb3_nopg.experiments.command")
    experiment = dataclasses.replace(
        experiment_of(fails, tmp_path), d3rlpy_trials=lambda quick, n: [{"number": 9, "log": str(tmp_path / "log.txt")}]
    )
    monkeypatch.setattr(command, "load_experiment", lambda name: dataclasses.replace(experiment, name=name))
    return monkeypatch, command


@pytest.mark.slow
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


def test_a_kill_interrupts_the_installation_too(stand_in, tmp_path):
    monkeypatch, command = stand_in
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "make_environment", lambda folder: signal.raise_signal(signal.SIGTERM))
    ended = nopg("reproduce", "theory", "--with-d3rlpy", "-o", tmp_path / "new")
    assert ended.exit_code == 130
    assert "interrupted" in ended.output
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_cannot_be_run_leaves_no_folder(stand_in, tmp_path):
    assert nopg("reproduce", "theory", "--only", "nobody", "-o", tmp_path / "new").exit_code == 2
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_named_before_the_first_trial(stand_in, tmp_path):
    (tmp_path / "theory.jsonl").mkdir()
    ended = nopg("reproduce", "theory", "--seeds", 2, "-o", tmp_path)
    assert ended.exit_code == 2
    assert "theory.jsonl" in ended.output
    assert executions(tmp_path) == []


def test_a_report_that_cannot_be_written_is_not_called_too_little(stand_in, tmp_path):
    assert nopg("reproduce", "theory", "--seeds", 1, "-o", tmp_path).exit_code == 0
    (tmp_path / "theory.md").unlink()
    (tmp_path / "theory.md").mkdir()
    ended = nopg("reproduce", "theory", "--seeds", 2, "--report-only", "-o", tmp_path)
    assert ended.exit_code == 2
    assert "theory.md" in ended.output
    assert "too few" not in ended.output


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


def test_d3rlpy_without_a_gpu_is_found_before_any_trial(stand_in, tmp_path):
    monkeypatch, command = stand_in
    asked = []
    monkeypatch.setattr(command, "make_environment", lambda folder: None)
    monkeypatch.setattr(command, "_check_device", lambda *_: None)
    monkeypatch.setattr(command, "sees_a_gpu", lambda folder: asked.append(folder))
    own = command.load_experiment("theory")
    with_iql = dataclasses.replace(own, d3rlpy_trials=lambda quick, n: [{"method": "IQL", "log": str(tmp_path / "log.txt")}])
    monkeypatch.setattr(command, "load_experiment", lambda name: with_iql)
    result = nopg("reproduce", "theory", "--with-d3rlpy", "--device", "cuda", "-o", tmp_path / "new")
    assert result.exit_code == 2
    assert "sees no GPU" in result.output
    assert not (tmp_path / "new").exists()
    assert len(asked) == 1
    # Nobody asks where none of its trials run here.
    nopg("reproduce", "theory", "--with-d3rlpy", "--device", "cuda", "--report-only", "-o", tmp_path)
    monkeypatch.setattr(command, "load_experiment", lambda name: own)
    nopg("reproduce", "theory", "--seeds", 1, "--with-d3rlpy", "--device", "cuda", "-o", tmp_path)
    assert len(asked) == 1


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
        (["list", "--quick"], "--quick: given with list, which runs nothing"),
        (["list", "-o", "here"], "--output: given with list"),
        (["overview", "--seeds", 3], "--seeds: given with overview, which runs nothing"),
        (["overview", "--only", "KBRL"], "--only: given with overview"),
        (["overview", "--report-only"], "--report-only: given with overview"),
        (["overview", "--data", "nowhere"], "--data: given with overview"),
        # Also where it is what it would be anyway.
        (["overview", "--jobs", 1], "--jobs: given with overview"),
    ],
)
def test_wrong_arguments_are_named(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = nopg("reproduce", *arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


@pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "pendulum-grid", "--quick", "--device", "cuda", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "torch sees no GPU here" in result.output


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to catch")
def test_a_run_that_is_told_to_end_takes_its_workers_along(tmp_path):
    script = (
        "import sys; import importlib, pathlib; from helpers import toy_experiments as t\n"
        "command = importlib.import_module('sb3_nopg.experiments.command')\n"
        f"experiment = t.experiment_of(t.square, pathlib.Path({str(tmp_path)!r}), seconds=600.0)\n"
        "command.load_experiment = lambda name: experiment\n"
        "from sb3_nopg.commands.main import main\n"
        f"sys.argv = ['nopg', 'reproduce', 'theory', '--jobs', '2', '-o', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    # As a shell starts a program in the background: without Ctrl-C.
    in_background = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"', sys.executable, "-c", script]
    process = subprocess.Popen(in_background, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment())
    try:
        wait_for(lambda: len(executions(tmp_path)) == 2)
        workers = [int(line.split()[1]) for line in (tmp_path / "log.txt").read_text().splitlines()]
        process.terminate()
        _, told = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "interrupted" in told.splitlines()[-1]
        wait_for(lambda: not any(is_running(worker) for worker in workers), seconds=20.0)
    finally:
        # Workers too, where they were left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_running(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
