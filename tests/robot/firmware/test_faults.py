"""
The serial rows of the fault matrix (``tests/robot/run/test_fault_matrix.py``) with the real firmware in the place of Python's:
whatever goes wrong, the pins are at 0 V in time, and the operator reads why.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from helpers.avr_board import WELL, AvrBoard, Contact
from helpers.repository import environment
from helpers.rigs import changed
from nopg_robot.control.observation import Observer
from nopg_robot.control.safety import Checks
from nopg_robot.flight.log import read_flight
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.run.deployment import describe
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest
from nopg_robot.virtual.simulated_cart import SimulatedCart

pytest.importorskip("serial")

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

CONTROL_PERIOD_S = 0.02
# Stated allowance for a loaded computer.
LOAD_S = 0.1
READ_TIMEOUT_S = 0.25
# Longer than the shipped firmware allows, for the same reason; test_board.py has the exact times.
WATCHDOG_S = 0.5
FROZEN_S = 0.3
BEFORE_S, LONGEST_S = 0.3, 1.8


@pytest.fixture
def board(build):
    with AvrBoard(build("LONGEST_SILENCE_MS=500"), cart=SimulatedCart(operator=False)) as board:
        yield board


def rig_file(board):
    return changed(
        RigFile.load("avr_board"),
        connection={"port": board.port, "watchdog_s": WATCHDOG_S, "read_timeout_s": READ_TIMEOUT_S},
        timing={"miss_s": 1.0, "watchdog_s": 1.0},
        limits={"stale_s": 1.0, "frozen_s": FROZEN_S, "jump_m": 0.1, "jump_rad": 1.0},
    )


def shuttle(volt: float):
    """Steady voltage that changes its sign each half second, so that the cart stays on the rail."""
    calls = iter(range(10**9))
    return lambda observation: volt if next(calls) // 25 % 2 == 0 else -volt


def run(board, path, strike):
    """:return: fault, log, and when the fault was caused, on the chip's clock"""
    struck_s = []

    def act() -> None:
        struck_s.append(board.chip_s)
        strike()

    file, timer = rig_file(board), threading.Timer(BEFORE_S, act)
    with StopRequest() as stop, FlightRecorder(path, describe(file)) as recorder:
        with Session(open_rig(file), recorder, NullDisplay(), stop) as session:
            session.loop.begin("run", "", Checks(rail=False, angle=False))
            timer.start()
            episode = run_episode(session, shuttle(2.0), Observer(), seconds=LONGEST_S)
        timer.join()
    return episode.fault, read_flight(path), struck_s[0]


def assert_dead(board, since_s: float) -> None:
    """No voltage from then on, on the chip's clock, and none now. A computer that stands still slows the chip down too."""
    board.wait(max(0.0, since_s - board.chip_s) + 0.1)
    assert any(change.volt for change in board.changes)
    assert [change.volt for change in board.changes if change.chip_s <= since_s][-1] == 0.0
    assert not any(change.volt for change in board.changes if change.chip_s > since_s)


@dataclass(frozen=True)
class Fault:
    """
    :param strike: causes it
    :param reason: that the supervisor latches
    :param message: what an operator reads must match it
    :param notice_s: that it takes to see it, by its nature
    """

    strike: Callable[[AvrBoard], object]
    reason: str
    message: str
    notice_s: float = 0.0


FAULTS = {
    "cable pulled": Fault(lambda b: b.unplug(), "plant", "cable pulled", WATCHDOG_S),
    # The chip's own watchdog is quicker than the computer.
    "chip hangs": Fault(lambda b: b.hang(), "plant", "restarted|no answer"),
    "half frames": Fault(lambda b: b.truncate_answers(), "plant", "damaged frames", READ_TIMEOUT_S),
    "CRC errors": Fault(lambda b: b.corrupt_answers(), "plant", "damaged frames", READ_TIMEOUT_S),
    "power dips": Fault(lambda b: b.restart(), "plant", "restarted|no answer"),
    "emergency stop": Fault(lambda b: setattr(b, "contacts", WELL | Contact.EMERGENCY_STOP), "plant", "emergency stop"),
    "bridge is hot": Fault(lambda b: setattr(b, "contacts", WELL & ~Contact.BRIDGE_FAULT), "plant", "amplifier"),
    "frozen cart": Fault(lambda b: setattr(b.cart, "frozen_cart", True), "frozen_cart", "stays at", FROZEN_S),
    "frozen pole": Fault(lambda b: setattr(b.cart, "frozen_pole", True), "frozen_pole", "stays at", FROZEN_S),
    # Too many edges to follow at once. For a millisecond the chip counts them and does nothing else: a question that comes
    # just then is lost, and asked again before the time-out.
    "pulses on the cable": Fault(
        lambda b: setattr(b.cart, "count_jump", 400), "plant", "counts may be missing", READ_TIMEOUT_S
    ),
    "Ctrl-C": Fault(lambda b: os.kill(os.getpid(), signal.SIGINT), "operator", "Ctrl-C"),
    "SIGTERM": Fault(lambda b: os.kill(os.getpid(), signal.SIGTERM), "operator", "terminate signal"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_cuts_the_motor(board, name, tmp_path):
    fault = FAULTS[name]
    found, log, struck_s = run(board, tmp_path / "log.npz", lambda: fault.strike(board))
    assert found is not None
    assert found.reason.value == fault.reason
    assert re.search(fault.message, found.message), found.message
    assert_dead(board, struck_s + fault.notice_s + CONTROL_PERIOD_S + LOAD_S)
    assert log.complete
    assert log.interventions[-1].message == found.message
    assert len(log.x) > 10


def test_a_run_survives_noise_on_the_way_to_the_board(board, tmp_path):
    def noise() -> None:
        line = os.open(board.port, os.O_WRONLY | os.O_NOCTTY)
        for _ in range(5):
            os.write(line, os.urandom(64))
            time.sleep(0.02)
        os.close(line)

    found, log, struck_s = run(board, tmp_path / "log.npz", noise)
    assert found is None
    assert any(change.volt for change in board.changes if change.chip_s > struck_s + 0.5)
    assert not log.interventions


DRIVE_FOR_EVER = """
import sys, time
from nopg_robot.plants.serial_board import SerialPlant
from nopg_robot.rig.sections import SerialConnection
connection = SerialConnection(plant="serial", port=sys.argv[1], read_timeout_s=1.0, watchdog_s=float(sys.argv[2]))
with SerialPlant(connection, counter_bits=32) as plant:
    for cycle in range(10**9):
        plant.read()
        plant.write(2.0)
        time.sleep(0.002)
"""


def test_kill_9_of_the_driving_program(board):
    program = subprocess.Popen([sys.executable, "-c", DRIVE_FOR_EVER, board.port, str(WATCHDOG_S)], env=environment())
    try:
        deadline_s = time.perf_counter() + 30.0
        while not board.volt:
            assert time.perf_counter() < deadline_s
            time.sleep(0.01)
        time.sleep(0.2)
        assert board.volt == pytest.approx(1.995)
    finally:
        program.kill()
        killed_s = board.chip_s
        program.wait()
    assert_dead(board, killed_s + WATCHDOG_S + LOAD_S)
    silence_s = board.changes[-1].chip_s - board.changes[-1].received_s
    assert WATCHDOG_S - 0.01 <= silence_s <= WATCHDOG_S + 0.001
