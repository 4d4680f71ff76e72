"""``nopg-deploy`` and ``nopg-collect`` as a person and a script see them: what they print and leave, and their exit codes."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from helpers.policy_files import write_endless_policy, write_policy
from helpers.rigs import changed, quick_rig
from nopg_robot.commands import collect, deploy
from nopg_robot.flight import recorder as flight_recorder
from nopg_robot.flight.log import read_flight
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.run import collection, deployment
from nopg_robot.virtual.tcp import VirtualQuarcServer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """Logs go where the program runs."""
    monkeypatch.chdir(tmp_path)
    # Lines are as wide as they need to be.
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def policy(tmp_path):
    return write_policy(tmp_path / "policy.onnx")


def write_rig(path, name="simulated", **sections):
    path.write_text(changed(RigFile.load(name), **sections).to_yaml(), encoding="utf-8")
    return path


def invoke(command, *arguments):
    return CliRunner().invoke(command.app, [str(argument) for argument in arguments])


@pytest.fixture
def quick(tmp_path):
    """Arguments for a rig whose phases are short."""
    path = tmp_path / "quick.yaml"
    path.write_text(quick_rig().to_yaml(), encoding="utf-8")
    return "--fast", "--rig", path


def fast_deploy(policy, *arguments):
    return invoke(deploy, policy, "--fast", "--seconds", 1, *arguments)


def programs(result):
    """Paths that the program named."""
    return dict(re.findall(r"^(Flight log|Picture): (.*)$", result.stdout, re.MULTILINE))


@pytest.mark.slow
def test_a_run_that_finishes(policy):
    result = fast_deploy(policy)
    assert result.exit_code == 0, result.output
    assert "FINISHED in phase 'run': 1 s are over" in result.stdout
    assert "Simulated cart: nothing real moves" in result.stdout
    for row in (
        r"policy ran for .* 1\.00 s \(simulated\)",
        r"mean cos θ .* (0\.99|1\.00)",
        r"rail measured .* 81\d\.\d mm",
        "late p50",
    ):
        assert re.search(row, result.stdout), row
    named = programs(result)
    assert re.fullmatch(r"flights/deploy_\d{8}_\d{6}\.npz", named["Flight log"].replace(os.sep, "/"))
    log = read_flight(named["Flight log"])
    assert log.complete
    with open(named["Picture"], "rb") as picture:
        assert picture.read(4) == b"\x89PNG"


@pytest.mark.slow
def test_a_policy_that_lets_the_pole_fall(tmp_path, quick):
    falls = write_policy(tmp_path / "falls.onnx", np.zeros(5), 5.0)
    result = fast_deploy(falls, *quick, "--no-plot", "--log", "fall.npz")
    assert result.exit_code == 1, result.output
    assert "STOPPED in phase 'run': theta" in result.stdout
    assert read_flight("fall.npz").interventions[-1].reason == "angle"
    assert "Picture" not in programs(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.onnx",), "missing.onnx"),
        (("rig.txt",), "rig.txt"),
        (("policy.onnx", "--rig", "nowhere.yaml"), "rig files that come with the package: .*serial_board"),
        (("policy.onnx", "--rig", "bad.yaml"), "limits.voltage_volt is missing"),
        (("policy.onnx", "--rig", "quanser_ip02_quarc", "--fast"), "--fast is for simulations"),
        (("policy.onnx", "--fast", "--seconds", "0"), "seconds: must be positive"),
        (("policy.onnx", "--fast", "--seconds", "nan"), "seconds: must be positive"),
        (("policy.onnx", "--fast", "--seconds", "soon"), "'--seconds'"),
        (("policy.onnx", "--fast", "--start", "sideways"), "unknown 'sideways'; known are upright and hanging"),
        (("policy.onnx", "--fast", "--plant", "real"), "unknown 'real'; known are rig, auto and simulated"),
        (("policy.onnx", "--fast", "--log", "log.txt"), "must end in .npz"),
        (("policy.onnx", "--fast", "--log", "there.npz"), "there is such a file already"),
        (("policy.onnx", "--fast", "--log", "crashed.npz"), "left by a run that did not end in order"),
        (("slow.onnx", "--fast"), "rates.control_hz"),
        (("policy.onnx", "--unknown"), "unknown"),
        ((), "policy"),
    ],
)
def test_what_can_be_put_right_before_anything_moves(policy, tmp_path, arguments, message):
    (tmp_path / "rig.txt").write_text("no policy")
    write_policy(tmp_path / "slow.onnx", control_period_s=0.1)
    content = RigFile.load("simulated").model_dump(mode="json")
    del content["limits"]["voltage_volt"]
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "there.npz").write_text("")
    (tmp_path / "crashed.npz.journal").write_text("")
    before = set(tmp_path.rglob("*"))
    result = invoke(deploy, *arguments)
    assert result.exit_code == 2, result.output
    assert re.search(message, result.stderr, re.IGNORECASE), result.output
    assert "Traceback" not in result.output
    assert set(tmp_path.rglob("*")) == before


def test_nobody_answers(policy, tmp_path):
    rig = write_rig(tmp_path / "rig.yaml", "quanser_ip02_quarc", connection={"host": "127.0.0.1", "port": 1})
    result = invoke(deploy, policy, "--rig", rig, "--log", "log.npz")
    assert result.exit_code == 3, result.output
    assert "FAILED in phase 'connect': 127.0.0.1:1 refuses the connection" in result.stdout
    assert list(programs(result)) == ["Flight log"]
    assert read_flight("log.npz").interventions[0].reason == "plant"


@pytest.mark.slow
def test_auto_says_in_red_that_it_is_a_simulation(policy, tmp_path):
    """The banner comes before anything moves; a stop request right after it saves the time of a run."""
    rig = write_rig(
        tmp_path / "rig.yaml", "quanser_ip02_quarc", connection={"host": "127.0.0.1", "port": 1}, start={"timeout_s": 0.1}
    )
    result = invoke(deploy, policy, "--rig", rig, "--plant", "auto", "--log", "log.npz", "--no-plot")
    assert "SIMULATION, NO HARDWARE: 127.0.0.1:1 refuses the connection" in result.stdout
    assert "(simulated)" in result.stdout
    assert result.exit_code == 4
    refused = invoke(deploy, policy, "--rig", rig, "--plant", "auto", "--require-hardware", "--log", "refused.npz")
    assert refused.exit_code == 3
    assert "SIMULATION" not in refused.stdout
    assert "127.0.0.1:1 refuses" in refused.stdout


def test_require_hardware_refuses_a_simulation(policy):
    for arguments in (("--fast",), ("--rig", "serial_board", "--plant", "simulated")):
        result = invoke(deploy, policy, "--require-hardware", *arguments, "--log", f"{len(arguments)}.npz")
        assert result.exit_code == 3
        assert "hardware is required" in result.stdout


@pytest.mark.slow
def test_a_rig_without_watchdog_is_said_aloud(policy, tmp_path):
    with VirtualQuarcServer() as server:
        host, port = server.address
        for number, (watchdog_s, said) in enumerate(((None, "NO WATCHDOG"), (0.02, "The cart will move"))):
            rig = write_rig(
                tmp_path / f"{number}.yaml",
                "quanser_ip02_quarc",
                connection={"host": host, "port": port, "watchdog_s": watchdog_s, "virtual": True},
                start={"timeout_s": 0.1},
                timing={"miss_s": 1.0},
                limits={"stale_s": 1.0},
            )
            result = invoke(deploy, policy, "--rig", rig, "--no-plot", "--log", f"{number}.npz")
            assert said in result.stdout, result.output
            assert result.exit_code == 4


@pytest.mark.slow
def test_a_phase_that_fails(policy, tmp_path):
    rig = write_rig(tmp_path / "rig.yaml", motor={"sign": -1})
    result = fast_deploy(policy, "--rig", rig, "--log", "log.npz")
    assert result.exit_code == 4, result.output
    assert "FAILED in phase 'self-test'" in result.stdout
    assert "motor.sign" in result.stdout
    # What it did not come to is left out.
    assert "nan" not in result.stdout
    assert set(programs(result)) == {"Flight log", "Picture"}


@pytest.mark.slow
def test_a_dry_run(policy):
    result = fast_deploy(policy, "--dry-run", "--log", "dry.npz", "--no-plot")
    assert result.exit_code == 0, result.output
    log = read_flight("dry.npz")
    assert not log.applied_volt.any()
    assert np.abs(log.asked_volt).max() > 0.0


@pytest.mark.slow
def test_the_rig_file_has_the_last_word_on_how_long(policy, tmp_path):
    rig = tmp_path / "rig.yaml"
    rig.write_text(quick_rig(limits={"max_seconds": 0.5}).to_yaml(), encoding="utf-8")
    result = fast_deploy(policy, "--rig", rig, "--no-plot")
    assert result.exit_code == 0, result.output
    assert "0.5 s are over" in result.stdout


def test_ctrl_c_while_connecting(policy, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    for module, command, arguments in ((deployment, deploy, (policy, "--no-plot")), (collection, collect, ())):
        monkeypatch.setattr(module, "open_rig", interrupted)
        name = f"{module.__name__}.npz"
        result = invoke(command, *arguments, "--fast", "--log", name)
        assert result.exit_code == 130, result.output
        assert "STOPPED in phase 'connect': the operator stopped it" in result.stdout
        assert read_flight(name).interventions[-1].reason == "operator"


@pytest.mark.slow
def test_what_the_operator_should_know_is_printed(tmp_path, quick):
    strong = write_policy(tmp_path / "strong.onnx", action_high=(12.0,))
    result = fast_deploy(strong, *quick, "--no-plot")
    assert result.exit_code == 0, result.output
    assert "note: The policy may ask for 12 V; the rig file allows 5 V" in result.stdout


def test_a_disk_that_fills_up_is_a_stop_like_any_other(policy, monkeypatch):
    """Exit code, summary and the readable part of the log; no picture, and no complaint about arguments."""
    written = flight_recorder._write
    calls = []

    def full(stream, content):
        calls.append(content)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        written(stream, content)

    monkeypatch.setattr(flight_recorder, "_write", full)
    monkeypatch.setattr(flight_recorder, "FLUSH_S", 0.01)
    monkeypatch.setattr(deploy, "plot_flight", lambda path: full(None, b""))
    result = fast_deploy(policy, "--log", "log.npz")
    assert result.exit_code in (1, 4), result.output
    assert "No space left on device" in result.stdout
    assert programs(result) == {"Flight log": "log.npz.journal"}
    assert "No picture: " in result.stdout
    assert not read_flight("log.npz").complete


@pytest.mark.slow
def test_zero_volts_that_could_not_be_sent_are_said(policy, monkeypatch, quick):
    """The last thing that may go wrong, and the one to switch the amplifier off for."""
    from nopg_robot.plants.simulated import SimulatedPlant

    def fail(self):
        raise PlantError("zero volts could not be sent: switch the amplifier off")

    monkeypatch.setattr(SimulatedPlant, "close", fail)
    result = fast_deploy(policy, *quick, "--log", "log.npz", "--no-plot")
    # What the run did is not lost over how it ended.
    assert result.exit_code == 1
    assert "SWITCH THE AMPLIFIER OFF" in result.stdout
    assert "policy ran for" in result.stdout
    assert read_flight("log.npz").complete


@pytest.mark.parametrize("command", [deploy, collect])
def test_help_can_be_read(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    for word in ("Exit codes: 0 finished", "130 stopped by the operator", "--rig", "--require-hardware", "flight log"):
        assert word.lower() in " ".join(result.stdout.split()).lower(), word


@pytest.mark.slow
def test_data_are_collected(quick):
    result = invoke(collect, *quick, "--episodes", 2, "--seconds", 1, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "FINISHED in phase 'collect': 2 episodes" in result.stdout
    path = programs(result)["Flight log"]
    assert re.fullmatch(r"flights/collect_\d{8}_\d{6}\.npz", path.replace(os.sep, "/"))
    assert read_flight(path).complete


@pytest.mark.slow
def test_data_are_collected_with_a_policy(policy, quick):
    result = invoke(collect, *quick, "--episodes", 1, "--seconds", 1, "--behaviour", policy, "--log", "log.npz")
    assert result.exit_code == 0, result.output
    assert len(read_flight("log.npz").transitions()["actions"]) == pytest.approx(50, abs=1)


@pytest.mark.slow
def test_a_behaviour_that_fails_in_mid_collection(tmp_path, quick):
    wild = write_policy(tmp_path / "wild.onnx", np.zeros(5), np.nan)
    result = invoke(collect, *quick, "--episodes", 3, "--behaviour", wild, "--log", "log.npz")
    assert result.exit_code == 1, result.output
    assert "in phase 'collect': the policy returned nan V" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--behaviour", "wild"), "behaviour: unknown 'wild'; known are uniform"),
        (("--behaviour", "missing.onnx"), "missing.onnx"),
        (("--episodes", "0"), "episodes"),
        (("--transitions", "0"), "transitions"),
        (("--seconds", "1e9"), "seconds"),
        (("--spread", "1"), "spread"),
        (("--angle-limit", "2"), "angle_limit"),
        (("--start", "sideways"), "sideways"),
        (("--plant", "real"), "real"),
        (("--rig", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_collecting_refuses(tmp_path, arguments, message):
    result = invoke(collect, "--fast", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_collecting_where_a_phase_fails_or_nobody_answers(tmp_path):
    backwards = write_rig(tmp_path / "backwards.yaml", motor={"sign": -1})
    assert invoke(collect, "--fast", "--rig", backwards, "--log", "a.npz").exit_code == 4
    away = write_rig(tmp_path / "away.yaml", "quanser_ip02_quarc", connection={"host": "127.0.0.1", "port": 1})
    assert invoke(collect, "--rig", away, "--log", "b.npz").exit_code == 3


def start(module, *arguments):
    """As a program of its own."""
    command = [sys.executable, "-u", "-m", f"nopg_robot.commands.{module}", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_as_programs(policy, quick):
    for module, arguments in (
        ("deploy", (policy, *quick, "--seconds", 1, "--no-plot", "--log", "deploy.npz")),
        ("collect", (*quick, "--episodes", 1, "--seconds", 1, "--log", "collect.npz")),
    ):
        process = start(module, *arguments)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "FINISHED" in output
        assert errors == ""
        assert read_flight(f"{module}.npz").complete


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
@pytest.mark.parametrize(("phase", "number"), [("hang", signal.SIGTERM), ("run", signal.SIGINT)])
def test_a_signal_stops_in_order(policy, phase, number):
    """In real time, so that there is time for a signal; a dry run comes to its run at once."""
    options = {"hang": (), "run": ("--dry-run",)}[phase]
    process = start("deploy", policy, "--seconds", 60, "--plain", "--log", "log.npz", "--no-plot", *options)
    try:
        for line in process.stdout:
            if re.search(rf"\b{phase}\b", line):
                break
        time.sleep(0.3)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, output + errors
    assert f"STOPPED in phase '{phase}'" in output
    assert errors == ""
    log = read_flight("log.npz")
    assert log.complete
    assert log.interventions[-1].reason == "operator"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
@pytest.mark.parametrize("options", [("--dry-run",), ("--dry-run", "--fast")])
def test_a_policy_that_never_answers(tmp_path, options):
    """No signal is heard any more. The guard says what happened, seals the log and ends the program."""
    endless = write_endless_policy(tmp_path / "endless.onnx")
    process = start("deploy", endless, "--plain", "--no-plot", "--log", "log.npz", *options)
    try:
        for line in process.stdout:
            if "Simulated cart" in line:
                break
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 5, output + errors
    assert "waited 3 s in vain for the policy to answer. The motor had no voltage. The program ends itself" in errors
    assert "Flight log: log.npz" in errors
    log = read_flight("log.npz")
    assert log.complete
    assert log.interventions[-1].reason == "deadline"
    assert (log.summary["outcome"], log.summary["phase"]) == ("stopped", "run")
