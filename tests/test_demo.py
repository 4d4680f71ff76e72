"""The demonstration, small: everything it promises to leave behind is there."""

import pytest
from typer.testing import CliRunner

from nopg_robot.flight_log import read_flight
from sb3_nopg.cli import demo as module
from sb3_nopg.cli.main import app


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_the_demo_leaves_data_model_report_policy_and_flight(tmp_path, monkeypatch):
    # In simulated time, which the demo spends in real time to be looked at.
    run = module.deploy_app
    monkeypatch.setattr(module, "deploy_app", lambda arguments, **options: run([*arguments, "--fast"], **options))
    arguments = ["demo", "-o", str(tmp_path), "--transitions", "60", "--updates", "3", "--seconds", "1"]
    result = CliRunner().invoke(app, arguments)
    # A policy of three updates may let the pole fall, which is a result and not a failure of the demo.
    assert result.exit_code in (0, 1), result.output
    assert "predicted discounted return" in result.output
    # The report belongs to the policy that is run.
    assert "verdict of report.json: " in result.output
    for name in ("recorded.npz", "model.zip", "report.html", "policy.onnx", "flight.npz", "flight.png"):
        assert (tmp_path / name).stat().st_size > 0, name
    log = read_flight(tmp_path / "flight.npz")
    assert log.complete
    assert "run" in log.phase
    assert log.header["policy"]["digest"]
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code in (0, 1), again.output
