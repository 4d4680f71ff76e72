"""
``nopg-deploy``, as an operator starts it, balances a pole through the real firmware. Its faults are rows of the fault matrix,
``tests/robot/run/test_fault_matrix.py``.
"""

import subprocess
import sys
import threading
import time

import pytest

from helpers.avr_board import CHIPS, LONGEST_SILENCE_S, AvrBoard
from helpers.policy_files import write_policy
from helpers.repository import environment
from helpers.rigs import QUICK_PHASES, changed
from nopg_robot.commands.command_line import ExitCode
from nopg_robot.flight.log import read_flight
from nopg_robot.rig.file import RigFile
from nopg_robot.virtual.simulated_cart import SimulatedCart

pytest.importorskip("onnxruntime")
pytest.importorskip("serial")

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# A computer that does other things at the same time is late now and then. The board's own longest silence is a setting of the
# build; what the shipped one does with it, to the millisecond, is in test_board.py.
PATIENT_MS = 1000
SECONDS = 1.0
# Homing takes less time.
RAIL_LENGTH_M = 0.4


def deploy(rig, folder, *arguments):
    (folder / "rig.yaml").write_text(rig.to_yaml(), encoding="utf-8")
    write_policy(folder / "policy.onnx")
    program = "from nopg_robot.commands.deploy import main; main()"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "policy.onnx",
            "--rig",
            "rig.yaml",
            "--plain",
            "--no-plot",
            "--log",
            "log.npz",
            *arguments,
        ],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )


def patient_rig(port, watchdog_s=PATIENT_MS / 1000):
    patient_s = PATIENT_MS / 1000
    return changed(
        RigFile.load("avr_board"),
        connection={"port": port, "virtual": True, "watchdog_s": watchdog_s, "read_timeout_s": 0.7 * watchdog_s},
        limits={"stale_s": patient_s, "rail_length_m": RAIL_LENGTH_M},
        timing={"miss_s": patient_s, "watchdog_s": patient_s},
        # Homing as shipped: how hard the cart meets the stops is looked at.
        self_test=QUICK_PHASES["self_test"],
        start=QUICK_PHASES["start"],
    )


@pytest.mark.parametrize("chip", CHIPS)
def test_balances(build, chip, tmp_path):
    cart = SimulatedCart({"rail_length_m": RAIL_LENGTH_M})
    with AvrBoard(build(f"LONGEST_SILENCE_MS={PATIENT_MS}"), chip, cart=cart) as board:
        # Homing leans on the stops, at 0.22 m/s; 12 mm before them the board takes the voltage away.
        board.limit_switches_m = (0.012 - RAIL_LENGTH_M / 2, RAIL_LENGTH_M / 2 - 0.012)
        result = deploy(patient_rig(board.port), tmp_path, "--require-hardware", "--seconds", str(SECONDS))
        assert result.returncode == 0, result.stdout + result.stderr
        assert board.volt == 0.0
        assert (board.n_lost_bytes, board.n_restarts) == (0, 0)
        assert board.cart.hardest_impact_m_s < 0.18
    log = read_flight(tmp_path / "log.npz")
    flying = log.phase == "run"
    assert abs(log.theta[flying]).max() < 0.2
    assert log.time_s[flying][-1] - log.time_s[flying][0] > 0.95 * SECONDS
    # The log and the pins tell the same story, but for rounding to a step of the PWM.
    largest = max(abs(change.volt) for change in board.changes)
    assert 0.0 <= abs(log.applied_volt).max() - largest < 0.0151


def test_a_cable_that_is_pulled_from_the_shipped_firmware(build, tmp_path):
    """Nobody but the chip can take the voltage away, and it does after the 50 ms of the rig file; it allows 60."""
    pulled_s = []
    with AvrBoard(build(), cart=SimulatedCart({"rail_length_m": RAIL_LENGTH_M})) as board:

        def pull() -> None:
            # The test of its watchdog has a tenth of a volt.
            while abs(board.volt) < 0.5:
                time.sleep(0.002)
            board.unplug()
            pulled_s.append(board.chip_s)

        puller = threading.Thread(target=pull, daemon=True)
        puller.start()
        shipped_s = RigFile.load("avr_board").connection.watchdog_s
        result = deploy(patient_rig(board.port, shipped_s), tmp_path, "--require-hardware", "--seconds", str(SECONDS))
        board.wait(LONGEST_SILENCE_S)
        assert pulled_s, result.stdout + result.stderr
        last = board.changes[-1]
    assert result.returncode == ExitCode.PHASE_FAILED, result.stdout + result.stderr
    assert "cable pulled" in result.stdout + result.stderr
    assert last.volt == 0.0
    assert last.chip_s - last.received_s <= shipped_s + 0.002 < LONGEST_SILENCE_S
    assert last.chip_s > pulled_s[0]
    assert read_flight(tmp_path / "log.npz").complete


def test_another_version(build, tmp_path):
    with AvrBoard(build("PROTOCOL_VERSION=2"), cart=SimulatedCart(operator=False)) as board:
        result = deploy(patient_rig(board.port), tmp_path, "--require-hardware", "--seconds", "1")
        assert result.returncode == 3, result.stdout + result.stderr
        assert board.changes == []
    assert "speaks version 2 of the protocol, this program version 1" in " ".join((result.stdout + result.stderr).split())
