"""
Faults × plants, in real time: whatever goes wrong, the motor is without voltage in time, the reason is latched, and the flight
log can be read and tells it.

Cells that make no sense are not in the tables. A TCP stream has no checksum, no numbers and no order of its own, so that CRC
errors, duplicated and reordered frames exist on the serial board alone; the QUARC bridge sends metres, which do not wrap
around; a card in the computer has no cable and no bytes, its calls fail; the simulated cart cannot be lost at all. A motor
with the wrong sign and a stop that is not where homing expects it are in ``test_deployment.py``, in simulated time. The serial
rows are gone through twice: with the board that is made of Python, and with the real firmware on a simulated chip (``avr``).

A voltage must be gone after the time that noticing takes by its nature (a read timeout, the time after which an encoder counts
as frozen, a watchdog), plus one control period, plus ``LOAD_S`` for a computer that does other things at the same time. A test
that fails while the computer as a whole stood still is repeated (``stalls.py``).
"""

import contextlib
import errno
import math
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from helpers import avr_board
from helpers.avr_board import WELL, AvrBoard, Contact
from helpers.faulty_line import AvrBoardOnALine
from helpers.rigs import QUICK_PHASES, balance, changed, metadata
from nopg_robot.control.observation import Observer
from nopg_robot.control.safety import Checks, Intervention
from nopg_robot.flight import recorder as flight_recorder
from nopg_robot.flight.journal import journal_path, read_journal
from nopg_robot.flight.log import FlightLog, read_flight
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig, open_rig
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.errors import PlantError, RecorderError
from nopg_robot.rig.file import RigFile
from nopg_robot.run import watchdog
from nopg_robot.run.deployment import RunOptions, deploy, describe, run_session
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import ControlLoop
from nopg_robot.run.rig_env import RigEnv
from nopg_robot.run.session import Session, run_episode, summarize
from nopg_robot.run.stop import StopRequest
from nopg_robot.run.watchdog import GuardedPlant
from nopg_robot.virtual import hil_stub, simulated_cart
from nopg_robot.virtual.simulated_card import SimulatedCard
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

pytest.importorskip("serial")
if sys.platform == "win32":
    pytest.skip("pseudo-terminals and kill -9", allow_module_level=True)

from nopg_robot.virtual.serial_board import VirtualSerialBoard

pytestmark = pytest.mark.real_time

CONTROL_PERIOD_S = 0.02
# Stated allowance for a loaded computer.
LOAD_S = 0.1
# Where a test is about them ...
READ_TIMEOUT_S = 0.25
WATCHDOG_S = 0.5
# ... and where it is not: the longest that a rig file allows.
PATIENT_S = 1.0
FROZEN_S = 0.3
FLUSH_S = flight_recorder.FLUSH_S
# Shorter than any watchdog, and long enough for a backlog of sixty samples.
PAUSE_S = 0.12
BEFORE_S, LONGEST_S = 0.25, 1.6
SHORT_RAIL_M = 0.5

# Longer than the shipped firmware allows, for the same reason; tests/robot/firmware has the exact times.
FIRMWARE_SETTING = "LONGEST_SILENCE_MS=1000"

BOARDS = ("serial", "avr")
ALL = ("simulated", "quarc", *BOARDS, "hil")


class WatchedCart(SimulatedCart):
    """Remembers when its voltage changed."""

    def __init__(self, **arguments: Any):
        super().__init__(operator=False, **arguments)
        self.applied_voltages: list[tuple[float, float]] = []

    def set_voltage(self, volt: float) -> float:
        before = self.voltage
        if super().set_voltage(volt) != before:
            self.applied_voltages.append((time.perf_counter(), self.voltage))
        return self.voltage


@dataclass
class Bench:
    """
    :param file: of the rig
    :param cart: at the end of all wires
    :param device: between wires and cart: server, board, card; what has ``applied_voltages``
    :param stop: the operator's
    :param now_s: the clock that ``applied_voltages`` go by; a chip's stands still while the computer does
    :param struck: set when the fault is there
    """

    file: RigFile
    cart: SimulatedCart
    device: Any
    now_s: Callable[[], float] = time.perf_counter
    stop: StopRequest = field(default_factory=StopRequest)
    struck: threading.Event = field(default_factory=threading.Event)

    def open(self) -> Rig:
        if self.file.connection.plant != "simulated":
            return open_rig(self.file)
        plant = SimulatedPlant(self.file.connection, self.file.sensors, self.cart)
        plant.open()
        return Rig(plant, self.file)

    def wait_until(self, time_s: float) -> None:
        wait_until(lambda: self.now_s() >= time_s)

    def voltage_at(self, time_s: float) -> float:
        """At the motor."""
        return next((volt for changed_s, volt in reversed(self.device.applied_voltages) if changed_s <= time_s), 0.0)

    def assert_dead(self, since_s: float) -> None:
        """No voltage from then on, and none now."""
        assert self.voltage_at(since_s) == 0.0
        later = [(changed_s - since_s, volt) for changed_s, volt in self.device.applied_voltages if changed_s > since_s]
        assert not any(volt for _, volt in later), later
        assert self.cart.voltage == 0.0


@contextlib.contextmanager
def bench(
    plant: str,
    *,
    cart: SimulatedCart | None = None,
    read_timeout_s: float = 0.7 * PATIENT_S,
    watchdog_s: float = PATIENT_S,
    **sections: dict[str, Any],
) -> Iterator[Bench]:
    """A rig of the kind with its own watchdog, and its file with budgets that only a fault exhausts."""
    cart = cart or WatchedCart()
    patient = {
        "timing": {"miss_s": PATIENT_S, "watchdog_s": PATIENT_S},
        "limits": {"stale_s": PATIENT_S, "frozen_s": FROZEN_S, "jump_m": 0.1, "jump_rad": 1.0},
    }
    for section, fields in sections.items():
        patient[section] = {**patient.get(section, {}), **fields}
    if plant == "simulated":
        yield Bench(changed(RigFile.load("simulated"), **patient), cart, cart)
    elif plant == "quarc":
        with VirtualQuarcServer(cart, watchdog_s=watchdog_s) as server:
            host, port = server.address
            wire = {"host": host, "port": port, "virtual": True}
            connection = {**wire, "watchdog_s": watchdog_s, "read_timeout_s": read_timeout_s}
            yield Bench(changed(RigFile.load("quanser_ip02_quarc"), connection=connection, **patient), cart, server)
    elif plant == "serial":
        with VirtualSerialBoard(cart=cart) as board:
            wire = {"port": board.port, "virtual": True}
            connection = {**wire, "watchdog_s": watchdog_s, "read_timeout_s": read_timeout_s}
            yield Bench(changed(RigFile.load("serial_board"), connection=connection, **patient), cart, board)
    elif plant == "avr":
        with AvrBoardOnALine(avr_board.build(FIRMWARE_SETTING), cart=cart) as board:
            wire = {"port": board.port, "virtual": True}
            connection = {**wire, "watchdog_s": watchdog_s, "read_timeout_s": read_timeout_s}
            file = changed(RigFile.load("avr_board"), connection=connection, **patient)
            yield Bench(file, cart, board, now_s=lambda: board.chip_s)
    else:
        card = hil_stub.plug_in("test", "0", SimulatedCard(cart, counter_bits=16))
        connection = {"card_type": "test", "module": "nopg_robot.virtual.hil_stub", "watchdog_s": watchdog_s}
        patient["sensors"] = {"counter_bits": 16}
        yield Bench(changed(RigFile.load("quanser_ip02_hil"), connection=connection, **patient), cart, card)


def shuttle(volt: float) -> Callable[[np.ndarray], float]:
    """Steady voltage that changes its sign each half second, so that the cart stays on the rail."""
    calls = iter(range(10**9))
    return lambda observation: volt if next(calls) // 25 % 2 == 0 else -volt


def run(
    bench: Bench,
    path: Any,
    policy: Callable[[np.ndarray], Any],
    *,
    strike: Callable[[], None] = lambda: None,
    seconds: float = LONGEST_S,
) -> tuple[Intervention | None, FlightLog, float]:
    """
    :param strike: causes the fault, in another thread
    :param seconds: to fly, if nothing ends it before
    :return: fault, log, and when the fault was caused
    """
    struck_s = [math.inf]

    def act() -> None:
        struck_s[0] = bench.now_s()
        bench.struck.set()
        strike()

    rig = bench.open()
    timer = threading.Timer(BEFORE_S, act)
    # A full disk is found by the recorder once more when it is closed.
    with contextlib.suppress(RecorderError), bench.stop, FlightRecorder(path, describe(bench.file)) as recorder:
        with Session(rig, recorder, NullDisplay(), bench.stop) as session:
            session.loop.begin("run", "", Checks(rail=False, angle=False))
            timer.start()
            episode = run_episode(session, policy, Observer(), seconds=seconds)
        timer.join()
    return episode.fault, read_flight(path), struck_s[0]


def assert_it_was_moving(bench: Bench, struck_s: float) -> None:
    """Otherwise zero volts mean nothing."""
    assert any(volt for changed_s, volt in bench.device.applied_voltages if changed_s < struck_s)


@dataclass(frozen=True)
class Fault:
    """
    :param plants: on which it can happen
    :param strike: causes it
    :param reason: that the supervisor latches
    :param message: what an operator reads must match it
    :param notice_s: that it takes to see it, by its nature
    :param limits: of the rig file that differ
    """

    plants: tuple[str, ...]
    strike: Callable[[Bench], Any]
    reason: str
    message: str
    notice_s: float = 0.0
    limits: dict[str, float] = field(default_factory=dict)


def lose_the_card(bench: Bench) -> None:
    bench.device.failing |= {"read_encoder", "write_analog", "watchdog_reload"}


def press_the_emergency_stop(bench: Bench) -> None:
    if isinstance(bench.device, AvrBoard):
        bench.device.contacts = WELL | Contact.EMERGENCY_STOP
    else:
        bench.device.firmware.fault = True


def lose_commands(bench: Bench) -> None:
    if isinstance(bench.device, AvrBoardOnALine):
        bench.device.loses_commands = True
    else:
        bench.device.firmware.ignores_drive = True


def slip(bench: Bench) -> None:
    """As fast as a chip can count: what comes all at once it cannot, and says so."""
    for count in range(0, 3000, 150):
        bench.cart.count_jump = count
        bench.device.wait(0.001)


def send_noise(bench: Bench) -> None:
    """To the board."""
    line = os.open(bench.device.port, os.O_WRONLY | os.O_NOCTTY)
    for _ in range(5):
        os.write(line, os.urandom(64))
        time.sleep(0.02)
    os.close(line)


FAULTS = {
    # The model sees a connection that closes; a board and a card have only their watchdogs.
    "cable pulled, TCP": Fault(("quarc",), lambda b: b.device.drop(), "plant", "closed the connection|connection .* broke"),
    "cable pulled, serial": Fault(BOARDS, lambda b: b.device.unplug(), "plant", "cable pulled", WATCHDOG_S),
    "card lost": Fault(("hil",), lose_the_card, "plant", "cannot be (read|driven)", WATCHDOG_S),
    "hangs": Fault(("quarc", "serial"), lambda b: b.device.hang(), "plant", "no (sample|answer)", WATCHDOG_S),
    # The chip's own watchdog is quicker than the computer.
    "chip hangs": Fault(("avr",), lambda b: b.device.hang(), "plant", "restarted|no answer"),
    "mute": Fault(("quarc",), lambda b: b.device.mute(), "plant", "sent no sample", READ_TIMEOUT_S),
    "half a packet": Fault(("quarc",), lambda b: b.device.send_half(), "plant", "only 8 bytes", READ_TIMEOUT_S),
    "half frames": Fault(BOARDS, lambda b: b.device.truncate_next(10**6), "plant", "damaged frames", READ_TIMEOUT_S),
    "garbage": Fault(("quarc",), lambda b: b.device.send_garbage(7), "plant", "out of step"),
    "CRC errors": Fault(BOARDS, lambda b: b.device.corrupt_next(10**6), "plant", "damaged frames", READ_TIMEOUT_S),
    # A packet with a third double: from then on position and angle change places.
    "wrong length": Fault(
        ("quarc",),
        lambda b: b.device._ask(lambda: b.device._send(struct.pack(">d", 0.0))),
        "jump",
        "jumped",
        limits={"jump_m": 0.02},
    ),
    "board restarts": Fault(("serial",), lambda b: b.device.restart(), "plant", "restarted"),
    "chip restarts": Fault(("avr",), lambda b: b.device.restart(), "plant", "restarted|no answer"),
    "emergency stop": Fault(BOARDS, press_the_emergency_stop, "plant", "emergency stop"),
    "bridge is hot": Fault(
        ("avr",), lambda b: setattr(b.device, "contacts", WELL & ~Contact.BRIDGE_FAULT), "plant", "amplifier"
    ),
    # Too many edges to follow at once. For a millisecond the chip counts them and does nothing else: a question that comes
    # just then is lost, and asked again before the time-out.
    "pulses on the cable": Fault(
        ("avr",), lambda b: setattr(b.cart, "count_jump", 400), "plant", "counts may be missing", READ_TIMEOUT_S
    ),
    "commands are lost": Fault(BOARDS, lose_commands, "plant", "commands", WATCHDOG_S),
    "frozen cart": Fault(ALL, lambda b: setattr(b.cart, "frozen_cart", True), "frozen_cart", "stays at", FROZEN_S),
    "frozen pole": Fault(ALL, lambda b: setattr(b.cart, "frozen_pole", True), "frozen_pole", "stays at", FROZEN_S),
    "jump": Fault(
        tuple(plant for plant in ALL if plant != "avr"),
        lambda b: setattr(b.cart, "count_jump", 10_000),
        "jump",
        r"x jumped by 0\.2",
    ),
    "encoder slips": Fault(("avr",), slip, "jump", r"x jumped by 0\.0"),
    "Ctrl-C": Fault(ALL, lambda b: os.kill(os.getpid(), signal.SIGINT), "operator", "Ctrl-C"),
    "SIGTERM": Fault(ALL, lambda b: os.kill(os.getpid(), signal.SIGTERM), "operator", "terminate signal"),
}


@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, fault in FAULTS.items() for plant in fault.plants])
def test_a_fault_cuts_the_motor(name, plant, tmp_path):
    fault = FAULTS[name]
    with bench(plant, read_timeout_s=READ_TIMEOUT_S, watchdog_s=WATCHDOG_S, limits=fault.limits) as rig:
        found, log, struck_s = run(rig, tmp_path / "log.npz", shuttle(2.0), strike=lambda: fault.strike(rig))
        assert found is not None
        assert (found.reason.value, name) == (fault.reason, name)
        assert_it_was_moving(rig, struck_s)
        # Those that the host cannot reach go to zero by themselves.
        dead_s = struck_s + fault.notice_s + CONTROL_PERIOD_S + LOAD_S
        rig.wait_until(dead_s)
        if plant == "hil":
            rig.device.advance()
        rig.assert_dead(dead_s)
    assert_told(log, found, fault.message)


def assert_told(log: FlightLog, fault: Intervention, message: str) -> None:
    """Of the supervisor's word, in a sealed log."""
    assert re.search(message, fault.message), fault.message
    assert log.complete
    assert (log.interventions[-1].reason, log.interventions[-1].message) == (fault.reason.value, fault.message)
    assert len(log.x) > 10


def raises(observation: np.ndarray) -> float:
    raise ArithmeticError("no idea")


def sleeps(observation: np.ndarray) -> float:
    time.sleep(0.7)
    return 2.0


ANSWERS: dict[str, tuple[Callable[[np.ndarray], Any], str, str]] = {
    "NaN": (lambda observation: np.array([math.nan]), "policy_output", "returned nan V"),
    "infinity": (lambda observation: math.inf, "policy_output", "returned inf V"),
    "wrong shape": (lambda observation: np.zeros((1, 2)), "policy_output", r"shape \(1, 2\)"),
    "raises": (raises, "policy_error", "ArithmeticError: no idea"),
    "too long": (sleeps, "deadline", "has not written a voltage for"),
}


@pytest.mark.parametrize("plant", ALL)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_policy_that_fails(name, plant, tmp_path):
    answer, reason, message = ANSWERS[name]
    # Of the guard beside the loop, which cuts at the latest after this time; much less than the policy sleeps.
    guard_s = 0.12
    steady, asked_s = shuttle(2.0), []
    with bench(plant, read_timeout_s=0.08, timing={"watchdog_s": guard_s}) as rig:

        def policy(observation: np.ndarray) -> Any:
            if not rig.struck.is_set():
                return steady(observation)
            asked_s.append(rig.now_s())
            return answer(observation)

        found, log, struck_s = run(rig, tmp_path / "log.npz", policy)
        assert found is not None
        assert found.reason.value == reason
        assert_it_was_moving(rig, struck_s)
        assert len(asked_s) == 1
        rig.assert_dead(asked_s[0] + (guard_s if name == "too long" else 0.0) + CONTROL_PERIOD_S + LOAD_S)
    assert_told(log, found, message)


@pytest.mark.parametrize("plant", ALL)
def test_an_answer_that_comes_too_late_moves_nothing(plant, tmp_path):
    """Without voltage nothing needs to be cut while a policy thinks, but what it says then is about a state long gone."""
    steady = shuttle(2.0)
    with bench(plant, read_timeout_s=0.08, timing={"watchdog_s": 0.12}) as rig:

        def policy(observation: np.ndarray) -> float:
            if not rig.struck.is_set():
                return steady(observation)
            if rig.cart.voltage != 0.0:
                return 0.0
            time.sleep(0.25)
            return 2.0

        found, log, struck_s = run(rig, tmp_path / "log.npz", policy)
        assert found is not None
        assert found.reason.value == "deadline"
        rig.assert_dead(struck_s + 2.0 * CONTROL_PERIOD_S + LOAD_S)
    assert_told(log, found, r"the policy took 2\d\d ms")


@pytest.mark.parametrize("plant", [plant for plant in ALL if plant != "avr"])
def test_a_full_disk(plant, tmp_path, monkeypatch):
    def full(stream: Any, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full_s = []

    def fill() -> None:
        # Once there is something on it: a busy disk takes its time.
        wait_until(lambda: len(read_journal(journal_path(tmp_path / "log.npz")).samples) > 10, timeout_s=1.0)
        patch.setattr(flight_recorder, "_write", full)
        full_s.append(time.perf_counter())

    with monkeypatch.context() as patch, bench(plant) as rig:
        found, log, struck_s = run(rig, tmp_path / "log.npz", shuttle(2.0), strike=fill)
        assert found is not None
        assert found.reason.value == "recorder"
        assert "No space left" in found.message
        assert_it_was_moving(rig, struck_s)
        rig.assert_dead(full_s[0] + FLUSH_S + CONTROL_PERIOD_S + LOAD_S)
    # What was written before is there.
    assert not log.complete
    assert len(log.x) > 10


SURVIVED: dict[str, tuple[tuple[str, ...], Callable[[Bench], Any]]] = {
    "a CRC error": (BOARDS, lambda b: b.device.corrupt_next()),
    "half a frame": (BOARDS, lambda b: b.device.truncate_next()),
    "garbage": (BOARDS, lambda b: b.device.send_garbage(bytes(range(256)) * 2)),
    "noise on the way to the board": (BOARDS, send_noise),
    "duplicated frames": (BOARDS, lambda b: b.device.duplicate_next(20)),
    "a reordered frame": (BOARDS, lambda b: b.device.reorder_next()),
    "packets in pieces": (("quarc",), lambda b: b.device.trickle()),
    "a backlog sent once more": (("quarc",), lambda b: b.device.send_backlog()),
}


@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, (plants, _) in SURVIVED.items() for plant in plants])
def test_what_a_run_survives(name, plant, tmp_path):
    _, strike = SURVIVED[name]
    # A question whose answer is lost is asked again after half of it; bytes one at a time take their time.
    with bench(plant, read_timeout_s=0.4 if plant in BOARDS else 0.7 * PATIENT_S) as rig:
        found, log, struck_s = run(rig, tmp_path / "log.npz", shuttle(1.0), strike=lambda: strike(rig))
        assert found is None
        assert_it_was_moving(rig, struck_s)
    assert log.complete
    assert not log.interventions
    assert np.abs(np.diff(log.x)).max() < 0.1
    # It went on moving.
    assert np.ptp(log.x[log.time_s > log.time_s[-1] - 0.3]) > 2e-3


@pytest.mark.parametrize("plant", ALL)
def test_after_a_pause_nothing_old_is_read(plant, tmp_path):
    """Sixty samples wait, and the newest counts. That the cart went on meanwhile is no jump."""
    steady, paused_s = shuttle(2.0), []
    # What comes over a wire may have been under way for longer than it seems.
    limits = {"jump_m": 0.02} if plant in ("simulated", "hil") else {}
    with bench(plant, limits=limits) as rig:

        def policy(observation: np.ndarray) -> float:
            if rig.struck.is_set() and not paused_s:
                paused_s.append(time.perf_counter())
                time.sleep(PAUSE_S)
            return steady(observation)

        found, log, _ = run(rig, tmp_path / "log.npz", policy, seconds=0.8)
        assert found is None
    after = np.flatnonzero(log.time_s > paused_s[0] + PAUSE_S)[0]
    assert log.time_s[after] - log.time_s[after - 1] > PAUSE_S
    # As far as the cart went meanwhile, not as far as in one sample.
    expected_m = abs(log.x_dot[after - 1]) * PAUSE_S
    assert expected_m > 0.01
    assert abs(log.x[after] - log.x[after - 1]) > 0.5 * expected_m
    # And the cycles that were slept through are not made up for.
    soon = (log.time_s >= log.time_s[after]) & (log.time_s < log.time_s[after] + CONTROL_PERIOD_S)
    assert np.count_nonzero(soon) <= 15


@pytest.mark.parametrize("plant", ["simulated", "serial", "hil"])
def test_counters_of_16_bits_wrap_around(plant, tmp_path):
    cart = WatchedCart()
    # 7 mm before the counter's end.
    cart.count_jump = 32_767 - 300
    with bench(plant, cart=cart) as rig:
        found, log, _ = run(rig, tmp_path / "log.npz", shuttle(1.0), seconds=0.8)
        assert found is None
    assert np.ptp(log.raw_cart) > 60_000
    assert np.abs(np.diff(log.x)).max() < 0.05


@pytest.mark.parametrize("plant", [*BOARDS, "hil"])
def test_a_loop_that_stops_with_its_guard_is_cut_by_the_hardware(plant, tmp_path):
    """As when the whole process hangs: the policy never returns in time, and nobody watches it."""
    steady, asked_s = shuttle(2.0), []
    with bench(plant, watchdog_s=WATCHDOG_S) as rig:
        # Far above what a rig file may ask for.
        unwatched = rig.file.timing.model_copy(update={"watchdog_s": 60.0})
        rig.file = rig.file.model_copy(update={"timing": unwatched})

        def policy(observation: np.ndarray) -> float:
            if rig.struck.is_set():
                asked_s.append(rig.now_s())
                time.sleep(WATCHDOG_S + CONTROL_PERIOD_S + 2.0 * LOAD_S)
            return steady(observation)

        found, log, _ = run(rig, tmp_path / "log.npz", policy)
        assert found is not None
        assert len(asked_s) == 1
        rig.assert_dead(asked_s[0] + WATCHDOG_S + CONTROL_PERIOD_S + LOAD_S)
    assert_told(log, found, "watchdog has cut the motor")


DEPLOYING = """
import sys
from nopg_robot.run.deployment import describe
from nopg_robot.run.display import NullDisplay
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.control.observation import Observer
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.control.safety import Checks
from nopg_robot.run.session import Session, run_episode, summarize
from nopg_robot.run.stop import StopRequest

file = RigFile.load(sys.argv[1])
with StopRequest() as stop, FlightRecorder(sys.argv[2], describe(file)) as recorder:
    with Session(open_rig(file), recorder, NullDisplay(), stop) as session:
        session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
        run_episode(session, lambda observation: 1.0, Observer(), seconds=60.0)
"""


@pytest.mark.parametrize("plant", ["quarc", *BOARDS])
def test_kill_9(plant, tmp_path):
    with bench(plant, watchdog_s=WATCHDOG_S) as rig:
        (tmp_path / "rig.yaml").write_text(rig.file.to_yaml(), encoding="utf-8")
        deploying = subprocess.Popen([sys.executable, "-c", DEPLOYING, tmp_path / "rig.yaml", tmp_path / "log.npz"])
        try:
            wait_until(lambda: rig.cart.voltage != 0.0 or deploying.poll() is not None)
            # Until something is on the disk.
            time.sleep(2.0 * FLUSH_S + LOAD_S)
            # A chip's PWM has steps.
            assert rig.cart.voltage == pytest.approx(1.0, abs=0.02)
        finally:
            deploying.kill()
            killed_s = rig.now_s()
            deploying.wait()
        dead_s = killed_s + WATCHDOG_S + CONTROL_PERIOD_S + LOAD_S
        rig.wait_until(dead_s)
        rig.assert_dead(dead_s)
    log = read_flight(tmp_path / "log.npz")
    assert not log.complete
    assert len(log.x) > 50
    assert log.applied_volt[-1] == 1.0


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end_s = time.perf_counter() + timeout_s
    while not condition():
        assert time.perf_counter() < end_s, "nothing happened"
        time.sleep(0.01)


@pytest.mark.parametrize("plant", ["quarc", "serial", "hil"])
def test_a_rig_that_cannot_be_connected(plant, tmp_path):
    with bench(plant) as rig:
        file, words = rig.file, "refuses the connection"
        if plant == "hil":
            rig.device.failing.add("open")
            words = "cannot be opened"
        elif plant == "serial":
            file, words = changed(file, connection={"port": "/dev/pts/no_port"}), "cannot be opened"
        else:
            rig.device.close()
        summary = deploy(balance, metadata(), file, tmp_path / "log.npz", RunOptions())
        assert (summary.outcome, summary.phase) == ("failed", "connect")
        assert words in summary.reason
        assert not rig.device.applied_voltages
    log = read_flight(tmp_path / "log.npz")
    assert log.complete
    assert log.interventions[-1].reason == "plant"
    assert log.interventions[-1].message == summary.reason


def test_an_environment_whose_rig_does_not_answer_closes_its_log(tmp_path):
    file = changed(RigFile.load("serial_board"), connection={"port": str(tmp_path / "no_port")})
    env = RigEnv(file, tmp_path / "log.npz")
    with pytest.raises(PlantError, match="cannot be opened"):
        env.reset()
    env.close()
    assert read_flight(tmp_path / "log.npz").complete


class DeadPlant(SimulatedPlant):
    """Takes no voltage after the first."""

    def __init__(self) -> None:
        super().__init__(RigFile.load("simulated").connection)
        self.written: list[float] = []

    def write(self, volt: float) -> float:
        self.written.append(volt)
        if len(self.written) > 1:
            raise PlantError("gone")
        return super().write(volt)


def test_the_guard_cuts_once_and_for_all():
    plant = SimulatedPlant(RigFile.load("simulated").connection)
    with plant, GuardedPlant(plant, 0.05) as guarded:
        assert guarded.write(2.0) == 2.0
        wait_until(lambda: plant.cart.voltage == 0.0)
        assert "has not written a voltage" in guarded.tripped
        # Who comes too late gets nothing more.
        assert guarded.write(2.0) == 0.0
        assert plant.cart.voltage == 0.0


def test_a_motor_without_voltage_may_wait():
    plant = SimulatedPlant(RigFile.load("simulated").connection)
    with plant, GuardedPlant(plant, 0.02) as guarded:
        guarded.write(0.0)
        time.sleep(0.1)
        assert guarded.tripped is None
        assert guarded.write(2.0) == 2.0


def test_the_loop_ends_at_zero_volts(tmp_path):
    """Before the plant is closed, which may take its time."""
    file = RigFile.load("simulated")
    plant = SimulatedPlant(file.connection, file.sensors)
    with plant, FlightRecorder(tmp_path / "log.npz", {}) as recorder:
        with ControlLoop(plant, file, recorder, NullDisplay(), StopRequest()) as loop:
            loop.begin("run", "", Checks(rail=False, angle=False))
            loop.cycle(lambda state: 2.0, acts=True)
            assert plant.cart.voltage == 2.0
        assert plant.cart.voltage == 0.0


def test_a_connection_that_breaks_where_the_rig_has_no_watchdog(tmp_path):
    """The last voltage would stay for ever: it is taken away over another connection, and the operator hears of it."""
    with VirtualQuarcServer(WatchedCart(), watchdog_s=None) as server:
        host, port = server.address
        connection = {"host": host, "port": port, "watchdog_s": None, "read_timeout_s": 0.1, "virtual": True}
        file = changed(RigFile.load("quanser_ip02_quarc"), connection=connection, timing={"miss_s": 1.0, "watchdog_s": 0.5})
        rig = Bench(file, server.cart, server)
        session = None

        def work(opened: Session) -> Any:
            nonlocal session
            session = opened
            opened.loop.begin("run", "", Checks(rail=False, angle=False))
            threading.Timer(BEFORE_S, server.drop).start()
            episode = run_episode(opened, shuttle(2.0), Observer(), seconds=LONGEST_S)
            return summarize(opened, "stopped", episode.fault.message, phase="run", fault=episode.fault)

        with FlightRecorder(tmp_path / "log.npz", describe(file)) as recorder:
            summary = run_session(rig.open, recorder, work, NullDisplay(), StopRequest(), lambda opened: None)
        broke_s = summary.fault.time_s
        rig.assert_dead(broke_s + CONTROL_PERIOD_S + LOAD_S)
        assert any(volt for changed_s, volt in server.applied_voltages if changed_s < broke_s)
    assert "SWITCH THE AMPLIFIER OFF: zero volts were sent over a new connection" in summary.reason
    assert read_flight(tmp_path / "log.npz").summary["reason"] == summary.reason


class EndlessRead(SimulatedPlant):
    """Its driver does not return once there is a voltage."""

    def read(self):
        while self.cart.voltage != 0.0:
            time.sleep(0.01)
        return super().read()


def test_a_driver_that_never_returns(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "HANG_S", 0.4)
    file = RigFile.load("simulated")
    plant = EndlessRead(file.connection, file.sensors)
    plant.open()
    ended = []

    def end_program(summary: Any) -> None:
        ended.append(summary)
        # This test goes on.
        plant.cart.set_voltage(0.0)

    recorder = FlightRecorder(tmp_path / "log.npz", describe(file))
    with Session(Rig(plant, file), recorder, NullDisplay(), StopRequest(end_program=end_program)) as session:
        session.loop.begin("run", "", Checks(rail=False, angle=False))
        run_episode(session, lambda observation: 1.0, Observer(), seconds=1.0)
    (summary,) = ended
    assert (summary.outcome, summary.fault.reason.value) == ("stopped", "deadline")
    assert summary.reason.startswith("SWITCH THE AMPLIFIER OFF: waited 0.4 s in vain for the rig to be read")
    log = read_flight(tmp_path / "log.npz")
    assert log.complete
    assert log.interventions[-1].message == summary.reason


def test_a_guard_that_cannot_cut_says_so():
    plant = DeadPlant()
    with plant, GuardedPlant(plant, 0.05) as guarded:
        guarded.write(2.0)
        wait_until(lambda: guarded.tripped is not None and "gone" in guarded.tripped)
        assert plant.written == [2.0, 0.0]


class Reader:
    """
    Remembers what the display shows, and lifts the pole when it says so; not before, however long connecting takes.

    :param cart: beside which the operator stands
    """

    def __init__(self, cart: SimulatedCart):
        self.seen: list[str] = []
        self._hand = cart._hand

    def update(self, snapshot: Any) -> None:
        if snapshot.phase not in self.seen:
            self.seen.append(snapshot.phase)
            if snapshot.phase == "lift":
                self._hand._lifts = True


@pytest.mark.parametrize("plant", ["quarc", "serial"])
def test_the_whole_sequence_in_real_time(plant, tmp_path, monkeypatch):
    """
    Connect to run, over the wire, with a policy that balances; quick phases, for a cart that may be pushed harder, on a short
    rail, beside an operator who does not hesitate.
    """
    monkeypatch.setattr(simulated_cart, "HAND_WAITS_S", 0.3)
    cart = SimulatedCart({"rail_length_m": SHORT_RAIL_M}, lifts_pole=False)
    display = Reader(cart)
    with bench(plant, cart=cart, limits={"rail_length_m": SHORT_RAIL_M}, **QUICK_PHASES) as rig:
        summary = deploy(balance, metadata(), rig.file, tmp_path / "log.npz", RunOptions(seconds=1.0), display=display)
        assert summary.outcome == "finished", summary.reason
        assert rig.cart.voltage == 0.0
        assert rig.cart.hardest_impact_m_s < 0.5
        assert rig.device.applied_voltages[-1][1] == 0.0
    # Of a model's watchdog the cart tells; a board says it itself, without a movement.
    shown = ["hang", "self-test", "watchdog", "home", "calm", "place", "lift", "run", "stop"]
    assert display.seen == [phase for phase in shown if plant == "quarc" or phase != "watchdog"]
    assert summary.span_m == pytest.approx(SHORT_RAIL_M, abs=2e-3)
    assert summary.mean_reward > 0.99
    assert not summary.simulated
    log = read_flight(tmp_path / "log.npz")
    assert log.complete
    # Periods in which the loop was held up are left out.
    assert 30 < len(log.transitions()["observations"]) <= 51
