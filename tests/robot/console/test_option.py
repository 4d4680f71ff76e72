"""``--console`` of the programs that fly."""

import hashlib
import json
import re

import pytest
from typer.testing import CliRunner

from helpers.consoles import ask, state, wait_for
from helpers.policy_files import write_policy
from helpers.rigs import quick_rig
from nopg_robot.commands import collect, deploy, operator_console
from nopg_robot.console.feed import OperatorConsole
from nopg_robot.control.safety import Intervention, Reason
from nopg_robot.rig.file import RigFile
from nopg_robot.run.session import RunSummary
from nopg_robot.run.stop import StopRequest

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def write_rig(path):
    path.write_text(quick_rig().to_yaml(), encoding="utf-8")
    return path


def fly(command, *arguments):
    result = CliRunner().invoke(command.app, [str(argument) for argument in arguments])
    address = re.search(r"^Console: (http://127\.0\.0\.1:\d+/[\w-]{43}/) ", result.stdout, re.MULTILINE)
    return result, address and address[1]


def told(address):
    flight, ended = json.loads(ask(address, "flight")[2]), wait_for(lambda: state(address)["ending"])
    return flight, ended


def band():
    quantities = [{"name": "x", "low": [-0.1, -0.2], "high": [0.1, 0.2]}]
    return {"level": 0.9, "steps": [0, 50], "going": [1.0, 1.0], "quantities": quantities}


@pytest.mark.slow
def test_deploying(tmp_path):
    policy = write_policy(tmp_path / "policy.onnx")
    files = [hashlib.sha256(policy.read_bytes()).hexdigest()]
    figures = {"format_version": 2, "verdict": "go", "reasons": [], "policy_files": files, "band": band()}
    (tmp_path / "policy.report.json").write_text(json.dumps(figures))
    result, address = fly(
        deploy, policy, "--rig", write_rig(tmp_path / "rig.yaml"), "--fast", "--seconds", 1, "--no-plot", "--console"
    )
    assert result.exit_code == 0, result.output
    flight, ended = told(address)
    assert (flight["title"], flight["seconds"], flight["limits"]["volt"]) == ("policy.onnx", 1.0, 5.0)
    assert flight["limits"]["x_m"] == pytest.approx(0.357)
    assert flight["band"]["time_s"] == [0.0, 1.0]
    assert (ended["outcome"], ended["phase"], ended["exit_code"]) == ("finished", "run", 0)


def test_a_dry_run_has_no_limits_and_no_band(tmp_path):
    policy = write_policy(tmp_path / "policy.onnx")
    result, address = fly(deploy, policy, "--fast", "--seconds", 0.2, "--no-plot", "--console", "--dry-run")
    assert result.exit_code == 0, result.output
    limits = told(address)[0]["limits"]
    assert (limits["x_m"], limits["theta_rad"], limits["volt_in_phase"]["run"]) == (None, None, 0.0)


@pytest.mark.slow
def test_collecting(tmp_path):
    rig = write_rig(tmp_path / "rig.yaml")
    result, address = fly(collect, "--rig", rig, "--fast", "--episodes", 1, "--seconds", 1, "--console", "--start", "hanging")
    assert result.exit_code == 0, result.output
    flight, ended = told(address)
    assert flight["title"] == "collecting: uniform"
    assert flight["limits"]["theta_rad"] is None
    assert (ended["outcome"], ended["phase"]) == ("finished", "collect")


def test_without_it_there_is_none(tmp_path, monkeypatch):
    def refuse():
        raise AssertionError("nobody has asked for a console")

    monkeypatch.setattr(operator_console, "OperatorConsole", refuse)
    result, address = fly(deploy, write_policy(tmp_path / "policy.onnx"), "--fast", "--seconds", 0.2, "--no-plot", "--dry-run")
    assert result.exit_code == 0, result.output
    assert address is None


def test_one_that_cannot_be_served_is_said_before_anything_moves(tmp_path, monkeypatch):
    monkeypatch.setattr("nopg_robot.console.feed.START_TIMEOUT_S", 0.0)
    result, _ = fly(deploy, write_policy(tmp_path / "policy.onnx"), "--fast", "--log", "f.npz", "--console")
    assert result.exit_code == 2
    assert "the console cannot be started" in result.stderr
    assert not (tmp_path / "f.npz").exists()


@pytest.mark.slow
def test_a_loop_that_hangs_is_told_before_the_program_ends_itself(tmp_path, monkeypatch):
    """Otherwise the page would take a program that has cut the motor for one that was killed."""
    left, stop = [], StopRequest()
    monkeypatch.setattr(operator_console.command_line, "end_hung", lambda *given: left.append(given))
    fault = Intervention(Reason.DEADLINE, "the policy does not answer", 1.0)
    summary = RunSummary("stopped", fault.message, fault, "run", 1.0, 1.0, 0.8)
    with OperatorConsole(linger_s=5.0) as console:
        served = operator_console.ServedConsole(console, stop)
        served.begin(RigFile.load("simulated"), title="policy.onnx", seconds=1.0)
        served.end_hung(summary, tmp_path / "f.npz", "display")
        ending = told(console.address)[1]
    assert left == [(summary, tmp_path / "f.npz", "display")]
    assert (ending["outcome"], ending["reason"], ending["exit_code"]) == ("stopped", "the policy does not answer", 5)
