"""A call that never comes back: who has cut the motor is said, and that nobody surely has."""

import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

from nopg_robot.control.safety import Checks, Reason
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.guard.spawn import IS_POSSIBLE, OutsideGuard
from nopg_robot.plants import Rig
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.run import watchdog
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.session import Session
from nopg_robot.run.stop import StopRequest
from nopg_robot.run.watchdog import GuardedPlant

GUARD_S, HANG_S = 0.05, 0.2


class Obstinate(SimulatedPlant):
    """Takes no zero, or does not return, when it is told so."""

    def __init__(self) -> None:
        file = RigFile.load("simulated")
        super().__init__(file.connection, file.sensors)
        self.takes_zero, self.let_go = True, threading.Event()

    def write(self, volt: float) -> float:
        if volt == 0.0 and not self.takes_zero:
            raise PlantError("no zero")
        return super().write(volt)

    def test_watchdog(self) -> bool:
        self.let_go.wait(5.0)
        return True


class Outside:
    """A guard process that has something to tell."""

    def __init__(self, news: str | None):
        self._news = news

    def allow(self, seconds: float) -> None:
        return None

    def news(self) -> str | None:
        return self._news

    def close(self) -> None:
        return None


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "HANG_S", HANG_S)
    with Obstinate() as plant:
        yield plant
        plant.let_go.set()
        plant.takes_zero = True


def wait(told: list[str]) -> str:
    end_s = time.perf_counter() + 5.0
    while not told and time.perf_counter() < end_s:
        time.sleep(0.01)
    return told[0]


def test_a_policy_that_hangs_is_cut_by_the_guard(plant: Obstinate):
    told: list[str] = []
    with GuardedPlant(plant, GUARD_S, told.append) as guarded:
        guarded.write(1.0)
        guarded.wait_for("the policy to answer")
        assert wait(told).endswith("ms. The guard has cut the motor")
    assert plant.cart.voltage == 0.0


def test_a_policy_that_hangs_before_there_is_a_voltage(plant: Obstinate):
    told: list[str] = []
    with GuardedPlant(plant, GUARD_S, told.append) as guarded:
        guarded.wait_for("the policy to answer")
        assert wait(told) == "waited 0.2 s in vain for the policy to answer. The motor had no voltage"


def test_a_zero_that_was_not_taken_is_to_be_switched_off(plant: Obstinate):
    told: list[str] = []
    with GuardedPlant(plant, GUARD_S, told.append) as guarded:
        guarded.write(1.0)
        plant.takes_zero = False
        guarded.wait_for("the policy to answer")
        message = wait(told)
    assert message.startswith("SWITCH THE AMPLIFIER OFF: waited 0.2 s in vain for the policy to answer")
    assert "the plant does not take zero volts: no zero" in message


@pytest.mark.parametrize("news", ["the guard process has cut the motor", None])
def test_a_driver_that_hangs_while_its_watchdog_is_tested(plant: Obstinate, news: str | None):
    told: list[str] = []
    with GuardedPlant(plant, GUARD_S, told.append) as guarded:
        guarded._outside = Outside(news)  # type: ignore[assignment]
        loop = threading.Thread(target=guarded.test_watchdog)
        loop.start()
        message = wait(told)
        plant.let_go.set()
        loop.join()
    assert message.startswith("SWITCH THE AMPLIFIER OFF: waited 0.2 s in vain for the rig to show its watchdog")
    assert message.endswith(news or "the guard process has not cut it")


@pytest.mark.slow
def test_what_went_wrong_before_does_not_hide_it(plant: Obstinate, tmp_path: Any):
    told: list[Any] = []
    stop = StopRequest(end_program=told.append)
    with Session(
        Rig(plant, RigFile.load("simulated")), FlightRecorder(tmp_path / "log.npz", {}), NullDisplay(), stop
    ) as session:
        session.loop.begin("run", "", Checks(rail=False, angle=False))
        session.loop.supervisor.latch(Reason.JUMP, "x jumped", 0.0)
        loop = threading.Thread(target=session.loop.guarded.test_watchdog)
        loop.start()
        summary = wait(told)
        plant.let_go.set()
        loop.join()
    assert summary.reason.startswith("SWITCH THE AMPLIFIER OFF")  # type: ignore[attr-defined]
    assert summary.reason.endswith("Before that: x jumped")  # type: ignore[attr-defined]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other pipes")
def test_a_guard_process_that_is_suspended_is_noticed_soon():
    pipe = os.pipe()
    guard = OutsideGuard(Lifeline(pipe[1], b"zero"))
    try:
        os.kill(guard.pid, signal.SIGSTOP)
        words = next((number for number in range(100_000) if guard.allow(10.0) is not None), None)
        assert words is not None
        # Two seconds and a little more at 500 cycles a second.
        assert words <= 1100
    finally:
        os.kill(guard.pid, signal.SIGCONT)
        guard.close()
        for descriptor in pipe:
            os.close(descriptor)


@pytest.mark.skipif(not IS_POSSIBLE, reason="descriptors cannot be handed on")
@pytest.mark.parametrize(
    ("end", "news"), [(0, "the guard process could not send 0 V"), (1, "the guard process has cut the motor")]
)
def test_a_guard_process_that_could_not_send_zero_does_not_say_that_it_has(end: int, news: str, capfd: Any):
    # Nothing can be written into the end that is read from.
    pipe = os.pipe()
    guard = OutsideGuard(Lifeline(pipe[end], b"zero"))
    try:
        guard.allow(0.01)
        found = None
        end_s = time.perf_counter() + 5.0
        while found is None and time.perf_counter() < end_s:
            found = guard.news()
        assert found == news
    finally:
        guard.close()
        for descriptor in pipe:
            os.close(descriptor)
