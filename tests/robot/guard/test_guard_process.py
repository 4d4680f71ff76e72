"""
The guard outside of the interpreter, over the real wire formats: a program that holds up all of its threads, is suspended or
killed leaves no voltage behind, on rigs whose own watchdog would not have acted yet, or never.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from helpers import rig_programs
from helpers.rigs import changed
from nopg_robot.flight.log import read_flight
from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.guard.spawn import OutsideGuard
from nopg_robot.plants.quarc import QuarcPlant
from nopg_robot.rig.file import RigFile
from nopg_robot.run import watchdog
from nopg_robot.run.watchdog import GuardedPlant
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

pytest.importorskip("serial")
if sys.platform == "win32":
    pytest.skip("descriptors cannot be handed on", allow_module_level=True)

from nopg_robot.virtual.serial_board import VirtualSerialBoard

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# Of the rig file: thread and process act after it, and both before a board does.
GUARD_S, READ_TIMEOUT_S = 0.3, 0.2
# Stated allowance for a loaded computer.
LOAD_S = 0.25
HOLD_S = 1.5


@dataclass
class Bench:
    file: RigFile
    device: Any

    def zero_after(self, begin_s: float) -> float:
        """Seconds until the motor was without voltage for good."""
        assert self.device.cart.voltage == 0.0
        time_s, volt = self.device.applied_voltages[-1]
        assert volt == 0.0
        return time_s - begin_s


@contextlib.contextmanager
def bench(plant: str) -> Iterator[Bench]:
    """A rig that keeps its voltage: a model without a watchdog, a board with the longest that the protocol allows."""
    cart = SimulatedCart(operator=False, start=(-0.35, 3.14159, 0.0, 0.0))
    patient = {
        "timing": {"miss_s": 1.0, "watchdog_s": GUARD_S},
        "limits": {"stale_s": 1.0, "jump_m": 0.1, "jump_rad": 1.0},
    }
    if plant == "quarc":
        with VirtualQuarcServer(cart, watchdog_s=None) as server:
            wire = {"host": server.address[0], "port": server.address[1], "virtual": True}
            connection = {**wire, "watchdog_s": None, "read_timeout_s": READ_TIMEOUT_S}
            yield Bench(changed(RigFile.load("quanser_ip02_quarc"), connection=connection, **patient), server)
    else:
        with VirtualSerialBoard(cart=cart) as board:
            connection = {"port": board.port, "virtual": True, "watchdog_s": 1.0, "read_timeout_s": READ_TIMEOUT_S}
            yield Bench(changed(RigFile.load("serial_board"), connection=connection, **patient), board)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    end_s = time.perf_counter() + timeout_s
    while not condition():
        assert time.perf_counter() < end_s, "nothing happened"
        time.sleep(0.005)


@contextlib.contextmanager
def flying(rig: Bench, folder: Any, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    program = rig_programs.start(rig.file, folder, **arguments)
    try:
        wait_until(lambda: rig.device.cart.voltage == 1.0 or program.poll() is not None)
        assert program.poll() is None, program.communicate()
        yield program
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("plant", ["quarc", "serial"])
def test_a_call_that_holds_the_interpreter(plant, tmp_path):
    """No thread of the program runs for a second and a half, the guard's thread neither."""
    with bench(plant) as rig, flying(rig, tmp_path, hold_after=15, hold_s=HOLD_S) as program:
        assert program.stdout.readline() == "flying\n"
        # On the same clock as the rig's.
        held_s = float(program.stdout.readline().split()[1])
        wait_until(lambda: rig.device.cart.voltage == 0.0)
        assert rig.zero_after(held_s) < GUARD_S + LOAD_S
        output, errors = program.communicate(timeout=20)
        # It was held up for all of the time, and drove nothing afterwards.
        assert time.perf_counter() - held_s > HOLD_S
        assert rig.zero_after(held_s) < GUARD_S + LOAD_S
        assert program.returncode == 0, errors
        assert "the guard process has cut the motor" in output
        assert re.search(r"guard process: the program was silent for [345]\d\d ms: 0 V were sent to the motor", errors)
    log = read_flight(tmp_path / "log.npz")
    assert log.complete
    assert log.interventions[-1].reason == "deadline"


@pytest.mark.parametrize("plant", ["quarc", "serial"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_program_that_is_killed_or_suspended(plant, number, tmp_path):
    with bench(plant) as rig, flying(rig, tmp_path) as program:
        guard = guard_of(program)
        time.sleep(0.3)
        assert rig.device.cart.voltage == 1.0
        program.send_signal(number)
        struck_s = time.perf_counter()
        wait_until(lambda: rig.device.cart.voltage == 0.0)
        # A pipe that ends is noticed at once; one that is only silent, after its time.
        allowed_s = 0.0 if number == signal.SIGKILL else GUARD_S
        assert rig.zero_after(struck_s) < allowed_s + LOAD_S
        program.kill()
        _, errors = program.communicate(timeout=20)
        assert "guard process: the program" in errors
        assert "0 V were sent to the motor" in errors
        # It does not stay behind.
        guard.wait(5.0)


def guard_of(program: subprocess.Popen[str]) -> psutil.Process:
    (guard,) = psutil.Process(program.pid).children()
    assert "nopg_robot/guard/process.py" in " ".join(guard.cmdline())
    return guard


@pytest.mark.parametrize("plant", ["quarc", "serial"])
def test_ctrl_c_at_the_terminal_ends_the_program_first(plant, tmp_path):
    with bench(plant) as rig, flying(rig, tmp_path) as program:
        guard = guard_of(program)
        time.sleep(0.2)
        # Not even those that are meant for it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(number)
        time.sleep(0.2)
        assert guard.is_running()
        assert rig.device.cart.voltage == 1.0
        # What a terminal does.
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate(timeout=20)
        assert program.returncode == 0
        assert "stopped by Ctrl-C" in output
        # The program landed by itself and said goodbye.
        assert errors == ""
        assert rig.device.cart.voltage == 0.0
        assert not guard.is_running()
    assert read_flight(tmp_path / "log.npz").complete


def test_a_program_does_not_fly_without_its_guard(tmp_path):
    with bench("serial") as rig, flying(rig, tmp_path) as program:
        guard_of(program).kill()
        killed_s = time.perf_counter()
        output, _ = program.communicate(timeout=20)
        assert "the guard process has died" in output
        assert rig.zero_after(killed_s) < LOAD_S


def test_the_guard_connects_anew_where_the_connection_broke(tmp_path):
    """The program is held up while the model drops it: nobody but the guard can send zero, and not the way it was sent."""
    with bench("quarc") as rig, flying(rig, tmp_path, hold_after=15, hold_s=HOLD_S) as program:
        program.stdout.readline()
        held_s = float(program.stdout.readline().split()[1])
        rig.device.drop()
        assert rig.device.cart.voltage == 1.0
        wait_until(lambda: rig.device.cart.voltage == 0.0)
        assert rig.zero_after(held_s) < GUARD_S + LOAD_S


def test_it_starts_at_once_and_is_small():
    reading, writing = os.pipe()
    try:
        begin_s = time.perf_counter()
        guard = OutsideGuard(Lifeline(writing, b"zero"))
        took_s = time.perf_counter() - begin_s
        try:
            assert took_s < 1.0
            # Whoever has NumPy has three times as much.
            assert psutil.Process(guard.pid).memory_info().rss < 25 * 2**20
            assert guard.allow(0.05) is None
            wait_until(lambda: guard.news() is not None)
            assert os.read(reading, 4) == b"zero"
        finally:
            guard.close()
        assert not psutil.pid_exists(guard.pid)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("flags", ["", "--reset-on-fork"])
def test_it_has_the_priority_of_the_loop(flags):
    """A real-time loop whose children do not inherit that has a guard that no other program holds up either."""
    program = """
import os
from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.guard.spawn import OutsideGuard
guard = OutsideGuard(Lifeline(os.pipe()[1], b"zero"))
print(os.sched_getscheduler(guard.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO, os.sched_getparam(guard.pid).sched_priority)
guard.close()
"""
    command = ["chrt", *flags.split(), "--fifo", "7"]
    if shutil.which("chrt") is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("real-time priority is not to be had")
    answer = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "7"]


def test_half_a_command_is_finished_with_zeros():
    """Whatever the program had begun to send, the last whole command is zero volts."""
    with VirtualQuarcServer(watchdog_s=None) as server:
        file = changed(RigFile.load("quanser_ip02_quarc"), connection={"host": "127.0.0.1", "port": server.address[1]})
        plant = QuarcPlant(file.connection)
        plant.open()
        guard = OutsideGuard(plant.lifeline())
        plant.write(2.0)
        wait_until(lambda: server.cart.voltage == 2.0)
        # Three bytes of 3 V.
        plant._socket.send(b"\x40\x08\x00")
        guard.allow(0.02)
        wait_until(lambda: server.cart.voltage == 0.0)
        time.sleep(0.1)
        assert server.cart.voltage == 0.0
        guard.close()
        plant.close()


def test_no_process_where_there_is_no_lifeline(monkeypatch):
    """A simulated cart, and a card, whose own watchdog is a guard outside of the interpreter."""
    from nopg_robot.plants.simulated import SimulatedPlant

    monkeypatch.setattr(watchdog, "OutsideGuard", lambda lifeline: pytest.fail("it must not be started"))
    plant = SimulatedPlant(RigFile.load("simulated").connection)
    with plant, GuardedPlant(plant, 0.1) as guarded:
        assert guarded.write(1.0) == 1.0
