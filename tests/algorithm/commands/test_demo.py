"""The demonstration, small: everything it promises to leave behind is there."""

import json
import re
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from nopg_robot.flight.log import read_flight
from sb3_nopg.commands import demo as module
from sb3_nopg.commands.main import app


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rich is experimental")
@pytest.mark.usefixtures("without_pictures")
def test_the_demo_leaves_data_model_report_policy_and_flight(tmp_path, monkeypatch):
    # In simulated time, which the demo spends in real time to be looked at.
    run = module.deploy_app
    monkeypatch.setattr(module, "deploy_app", lambda arguments, **options: run([*arguments, "--fast"], **options))
    # Whatever an earlier one left behind is no hindrance.
    names = ("recorded.npz", "model.zip", "report.html", "policy.onnx", "flight.npz", "flight.png")
    for name in (*names, "recorded.npz.journal", "flight.npz.journal"):
        (tmp_path / name).write_text("old")
    arguments = ["demo", "-o", str(tmp_path), "--transitions", "60", "--updates", "3", "--seconds", "1"]
    result = CliRunner().invoke(app, arguments)
    # A policy of three updates may let the pole fall, which is a result and not a failure of the demo.
    assert result.exit_code in (0, 1), result.output
    assert re.search(r"verdict: (go|care|no)\n", result.output)
    assert re.search(r"predicted: \d+ % \(\d+ % to \d+ %\) of \d+ trajectories last for [\d,]+ steps", result.output)
    # What the model has found, and what training has tried.
    assert "coordinates: x, x_dot, theta_dot, theta" in result.output
    assert "candidates, the chosen one first:" in result.output
    assert "% last" in result.output
    # On other rigs than the one that it was recorded on, in the report as well.
    assert re.search(r"of simulated rigs that might be yours \d+ of 200 held for 20 s", result.output)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["stress"]["n_rigs"] == 200
    # The report belongs to the policy that is run.
    assert "verdict of report.json: " in result.output
    for name in names:
        assert (tmp_path / name).stat().st_size > 3, name
    log = read_flight(tmp_path / "flight.npz")
    assert log.complete
    assert "run" in log.phase
    assert log.header["policy"]["digest"]


@pytest.mark.parametrize("late", [True, False])
def test_a_busy_computer_gets_a_second_try_in_simulated_time(tmp_path, monkeypatch, late):
    flight = tmp_path / "flight.npz"
    started: list[list[str]] = []

    def deploy(arguments: list[str], **_: object) -> int:
        started.append(arguments)
        flight.write_bytes(b"flight")
        return 0 if "--fast" in arguments else 1

    monkeypatch.setattr(module, "deploy_app", deploy)
    monkeypatch.setattr(module, "_computer_was_late", lambda _: late)
    if late:
        module._deploy(tmp_path / "policy.onnx", flight, 1.0)
        assert started[1] == [*started[0], "--fast"]
        assert (tmp_path / "flight-stopped.npz").exists()
    else:
        with pytest.raises(typer.Exit) as stopped:
            module._deploy(tmp_path / "policy.onnx", flight, 1.0)
        assert stopped.value.exit_code == 1
        assert len(started) == 1


@pytest.mark.parametrize(("fault", "late"), [("deadline", True), ("jump", True), ("angle", False), (None, False)])
def test_only_a_late_computer_is_to_blame_for_a_late_computer(tmp_path, monkeypatch, fault, late):
    flight = tmp_path / "flight.npz"
    assert not module._computer_was_late(flight)
    flight.write_bytes(b"flight")
    monkeypatch.setattr(module, "read_flight", lambda _: SimpleNamespace(summary={"fault": fault}))
    assert module._computer_was_late(flight) is late
