"""The console in the program that flies: whatever happens to it, the loop goes on, and its stop is heard."""

import json
import logging
import os
import signal
import sys
import time

import pytest

from helpers.consoles import flight, flying, snapshot, state, wait_for
from helpers.rigs import balance, fast_rig, metadata
from nopg_robot.console import feed
from nopg_robot.console.feed import BesideConsole, ConsoleError, OperatorConsole
from nopg_robot.console.flight import describe_ending
from nopg_robot.flight.log import read_flight
from nopg_robot.run.deployment import RunOptions, deploy
from nopg_robot.run.stop import StopRequest


def test_a_page_sees_what_the_loop_shows():
    with OperatorConsole(linger_s=0.0) as console:
        console.begin_flight(flight(), StopRequest())
        console.connected(is_hardware=False)
        console.update(snapshot(5.0, phase="home", message="Looking for the left end.", misses=3))
        shown = wait_for(lambda: (found := state(console.address))["message"] and found)
        assert (shown["phase"], shown["message"], shown["is_hardware"]) == ("home", "Looking for the left end.", False)
        assert (shown["now"]["x"], shown["now"]["misses"]) == (0.1, 3)


@pytest.mark.slow
def test_counts_that_grow_in_every_cycle_are_shown_now_and_then_and_new_ones_at_once():
    texts = []
    with OperatorConsole(linger_s=0.0) as console:
        console.begin_flight(flight(), StopRequest())
        console._writer.write_text = lambda text: texts.append(json.loads(text)["interventions"])
        begin_s = time.monotonic()
        for number in range(1, 2001):
            console.update(snapshot(number / 500.0, interventions={"voltage": number}))
        allowed = 2 + (time.monotonic() - begin_s) / 0.1
        console.update(snapshot(5.0, interventions={"voltage": 2001, "operator": 1}))
    assert len(texts) <= allowed + 1
    assert texts[-1] == {"voltage": 2001, "operator": 1}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_a_console_that_is_gone_does_not_hold_the_loop(number, caplog):
    with OperatorConsole(linger_s=0.0) as console:
        console.begin_flight(flight(), StopRequest())
        os.kill(console._process.pid, number)
        begin_s = time.perf_counter()
        # Ten times as much as fits.
        for cycle in range(20_000):
            console.update(snapshot(cycle / 500.0, interventions={"voltage": cycle}))
        assert time.perf_counter() - begin_s < 5.0
        if number == signal.SIGKILL:
            console._process.wait(10)
        console.end_flight({"outcome": "finished", "reason": ""})
        os.kill(console._process.pid, signal.SIGCONT) if number == signal.SIGSTOP else None
    assert ("The console had died, or hung, before the flight was over" in caplog.text) == (number == signal.SIGKILL)


@pytest.mark.slow
def test_a_display_that_fails_does_not_take_the_stop_along(caplog):
    class Broken:
        def update(self, snapshot):
            raise SystemExit(1)

    with flying() as flown:
        shown = BesideConsole(Broken(), flown.console)
        with caplog.at_level(logging.ERROR):
            shown.update(snapshot(1.0))
            shown.update(snapshot(2.0))
        assert caplog.text.count("The display has failed and is switched off") == 1
        flown.console._writer._bytes[0] = 1
        shown.update(snapshot(3.0))
        assert flown.stop.reason == "the console"


def test_a_cycle_that_cannot_be_shown_does_not_take_the_stop_along(caplog):
    shown = []

    class Display:
        def update(self, snapshot):
            shown.append(snapshot)

    with flying() as flown:
        both = BesideConsole(Display(), flown.console)
        flown.console._writer._bytes[0] = 1
        for _ in range(2):
            both.update(snapshot(1.0, applied_volt=None))
        assert flown.stop.reason == "the console"
    assert len(shown) == 2
    assert caplog.text.count("The console shows no more") == 1


def fly_often(console):
    for _ in range(1000):
        console.begin_flight(flight(), StopRequest())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_the_next_flight_does_not_wait_for_a_console_that_hangs():
    with OperatorConsole(linger_s=0.0) as console:
        os.kill(console._process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConsoleError, match="the console does not answer"):
                fly_often(console)
        finally:
            os.kill(console._process.pid, signal.SIGCONT)


def test_one_that_does_not_start_is_an_error_before_anything_moves(monkeypatch):
    monkeypatch.setattr(feed.sys, "executable", "/nowhere/python")
    with pytest.raises(ConsoleError, match="the console cannot be started"), OperatorConsole():
        pass


def test_one_that_does_not_answer_is_an_error_too(monkeypatch):
    monkeypatch.setattr(feed, "START_TIMEOUT_S", 0.0)
    with pytest.raises(ConsoleError, match="did not answer within 0 s"), OperatorConsole():
        pass


@pytest.mark.slow
def test_a_whole_flight_that_the_console_stops(tmp_path):
    """In simulated time: as soon as homing shows, the button is pressed."""
    rig, stop = fast_rig(), StopRequest()
    with OperatorConsole(linger_s=5.0) as console:
        console.begin_flight(flight(), stop)

        class Presses:
            def update(self, snapshot):
                if snapshot.phase == "home":
                    console._writer._bytes[0] = 1

        summary = deploy(
            balance, metadata(), rig, tmp_path / "f.npz", RunOptions(), display=BesideConsole(Presses(), console), stop=stop
        )
        console.end_flight(describe_ending(summary, 130))
        ended = wait_for(lambda: state(console.address)["ending"])
    assert (summary.outcome, summary.phase, summary.reason) == ("stopped", "home", "stopped by the console")
    assert (ended["outcome"], ended["phase"], ended["fault"], ended["exit_code"]) == ("stopped", "home", "operator", 130)
    log = read_flight(tmp_path / "f.npz")
    assert log.applied_volt[-1] == 0.0
    assert (log.interventions[-1].reason, log.interventions[-1].message) == ("operator", "stopped by the console")


def test_an_error_in_the_flight_is_told():
    def fly():
        with console:
            console.begin_flight(flight(), StopRequest())
            raise RuntimeError("broken")

    console = OperatorConsole(linger_s=5.0)
    with pytest.raises(RuntimeError):
        fly()
    ending = wait_for(lambda: state(console.address)["ending"])
    assert ending == {"outcome": "failed", "reason": "RuntimeError: broken"}
