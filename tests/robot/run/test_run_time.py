"""``--seconds`` are seconds, also on a computer that is late, and what nobody expected ends with a code of its own."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.rigs import balance, metadata, quick_rig
from nopg_robot.commands import collect, command_line, deploy
from nopg_robot.flight.log import read_flight
from nopg_robot.plants import Rig
from nopg_robot.run import deployment
from nopg_robot.run.deployment import RunOptions
from sb3_nopg.commands import main as nopg
from sb3_nopg.commands import report


@pytest.mark.slow
def test_a_run_of_a_late_computer_is_no_longer_than_asked_for(tmp_path: Path):
    """Each action takes a quarter of its period longer: a run of so many actions would take two seconds and a half."""
    opened: list[Rig] = []

    def slow(observation: np.ndarray) -> np.ndarray:
        clock = opened[0].plant.clock
        clock.sleep_until(clock.now_s() + 0.005)
        return balance(observation)

    # Simulated time, which passes while the policy sleeps; nothing is said of lateness.
    rig = quick_rig(timing={"miss_s": 0.02, "max_misses": 62})
    path = tmp_path / "log.npz"
    summary = deployment.deploy(slow, metadata(), rig, path, RunOptions(2.0), on_connect=opened.append)
    assert summary.outcome == "finished"
    run = read_flight(path).of_phase("run")
    assert run.time_s[-1] - run.time_s[0] == pytest.approx(2.0, abs=0.05)
    assert summary.seconds == pytest.approx(2.0, abs=0.05)


def not_expected(*args: Any, **options: Any) -> None:
    raise KeyError("a defect")


@pytest.mark.parametrize("program", [deploy, collect])
def test_what_nobody_expected_is_a_defect(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Python's own 1 would mean that the supervisor has stopped the run."""
    monkeypatch.setattr(command_line, "rig_named", not_expected)
    monkeypatch.setattr(deploy, "OnnxPolicy", lambda path: not_expected())
    arguments = ["policy.onnx"] if program is deploy else []
    result = CliRunner().invoke(program.app, arguments)
    assert result.exit_code == 70
    assert "error: KeyError: 'a defect'" in result.stderr


@pytest.mark.parametrize("program", [deploy, collect, nopg])
def test_a_defect_outside_of_the_work_itself_has_the_same_code(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(program, "app", lambda: 1 // 0)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_defect_in_a_command_of_nopg_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(report, "find_model", lambda path: 1 // 0)
    monkeypatch.setattr(sys, "argv", ["nopg", "report", "model.zip"])
    # Which typer changes where a command fails.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended:
        nopg.main()
    assert ended.value.code == 70
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "ZeroDivisionError" in told
