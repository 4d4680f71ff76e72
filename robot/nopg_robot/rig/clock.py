"""Time as a control loop sees it: the computer's, or that of a simulation that runs as fast as it can."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some moment, and waiting."""

    def now_s(self) -> float:
        """Never runs backwards."""

    def sleep_until(self, time_s: float) -> None:
        """Return at ``time_s`` or shortly after it; at once if it has passed."""


class MonotonicClock:
    """
    The computer's own clock.

    :param spin_s: the last part of a wait is spent watching the clock: a sleeping process may be woken late
    """

    def __init__(self, spin_s: float = 2e-4):
        self._spin_s = spin_s

    def now_s(self) -> float:
        return time.perf_counter()

    def sleep_until(self, time_s: float) -> None:
        rest_s = time_s - time.perf_counter() - self._spin_s
        if rest_s > 0.0:
            time.sleep(rest_s)
        while time.perf_counter() < time_s:
            pass


class SimulatedClock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self._time_s = 0.0

    def now_s(self) -> float:
        return self._time_s

    def sleep_until(self, time_s: float) -> None:
        self._time_s = max(self._time_s, time_s)
