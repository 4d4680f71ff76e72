"""
Tests in real time on a computer that others use as well: one that fails while the computer as a whole stood still is repeated,
with everything set up anew, because what it measured was something else.

It is not repeated on a computer that ran all the time, nor for ever: then it counts as what it is, a failure.
"""

import os
import threading
import time
from collections.abc import Callable

import pytest
from _pytest.runner import runtestprotocol

# Whoever is not let run for longer has not kept a deadline for a reason that is not in the code.
STALL_S = 0.02
# A repetition begins when the computer has run for so long, or does not seem to calm down.
CALM_S, LONGEST_WAIT_S = 1.0, 20.0
# For the repetitions of one test, and of all.
PATIENCE_S, PATIENCE_FOR_ALL_S = 180.0, 1200.0


class StallWatch:
    """
    Sees for how long this process was not let run, or a byte took through a pseudo-terminal: a thread of the system carries
    it, and on a loaded computer that one waits as well.
    """

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._ends: tuple[int, ...] = ()

    def __enter__(self) -> "StallWatch":
        # Windows has none.
        if hasattr(os, "openpty"):
            import tty

            self._ends = os.openpty()
            tty.setraw(self._ends[1])
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _watch(self) -> None:
        while not self._over.is_set():
            asleep_s = time.perf_counter()
            time.sleep(0.005)
            if self._ends:
                os.write(self._ends[0], b"?")
                os.read(self._ends[1], 1)
            self.worst_s = max(self.worst_s, time.perf_counter() - asleep_s - 0.005)


class Patience:
    """
    How long may still be spent on repetitions.

    :param clock: tells the time in seconds
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.left_s = PATIENCE_FOR_ALL_S
        self.n_repeated = 0
        self._clock = clock

    def repeat(self, attempt: Callable[[], bool]) -> int:
        """
        Attempts until one need not be repeated.

        :param attempt: returns whether it should be made again
        :return: how many were made
        """
        began_s, n_attempts = self._clock(), 1
        while attempt():
            spent_s = self._clock() - began_s
            if spent_s > min(PATIENCE_S, self.left_s):
                break
            wait_for_calm()
            n_attempts += 1
        if n_attempts > 1:
            self.left_s -= self._clock() - began_s
            self.n_repeated += 1
        return n_attempts


def wait_for_calm() -> None:
    """Until the computer has run for a while without standing still, as far as one can wait for that."""
    end_s = time.perf_counter() + LONGEST_WAIT_S
    while time.perf_counter() < end_s:
        with StallWatch() as watch:
            time.sleep(CALM_S)
        if watch.worst_s < STALL_S:
            return


_patience = Patience()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("real_time") is None:
        return None
    reports: list[pytest.TestReport] = []
    stalls_s: list[float] = []

    def attempt() -> bool:
        with StallWatch() as watch:
            reports[:] = runtestprotocol(item, nextitem=nextitem, log=False)
        stalls_s.append(watch.worst_s)
        return any(report.failed for report in reports) and watch.worst_s >= STALL_S

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    n_attempts = _patience.repeat(attempt)
    for report in reports:
        if report.failed:
            stood = ", ".join(f"{1e3 * stall_s:.0f}" for stall_s in stalls_s)
            report.sections.append(("the computer", f"{n_attempts} attempt(s), in which it stood still for up to {stood} ms"))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _patience.n_repeated:
        spent_s = PATIENCE_FOR_ALL_S - _patience.left_s
        terminalreporter.write_line(
            f"{_patience.n_repeated} tests were repeated because the computer stood still meanwhile ({spent_s:.0f} s)"
        )
