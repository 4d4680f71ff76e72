"""What the console knows of a flight: the last half minute, what the supervisor did, and how it ended."""

import json
import math
import threading
import time
from collections import deque
from typing import Any

from nopg_robot.console.channel import Cycle, CycleReader

# A page shows 20 s.
HISTORY_S = 30.0
# Points of a curve are this far apart; of the voltage each keeps the lowest and the highest, so that no peak is lost.
BIN_S = 0.02
# The policy acts in these.
ACTING_PHASES = ("run", "collect")
#: a page that is this far behind gets what there is
MOST_POINTS = round(HISTORY_S / BIN_S)


class Board:
    """
    Threads that answer pages read from here what one thread, that of :meth:`absorb`, writes.

    :param reader: of the loop's cycles
    """

    def __init__(self, reader: CycleReader):
        self._reader, self._lock = reader, threading.Lock()
        self._stop_asked = False
        self._flight_number = 0
        self._ending: dict[str, Any] | None = None
        self._forget({})

    def begin_flight(self, flight: dict[str, Any]) -> None:
        """
        :param flight: what its pages have to know once: names, limits, duration, prediction
        """
        with self._lock:
            self._flight_number += 1
            self._forget(flight)

    def end_flight(self, ending: dict[str, Any]) -> None:
        """
        :param ending: how it ended: ``outcome``, ``reason``, ``phase``, ``exit_code`` and ``interventions``
        """
        self.absorb()
        with self._lock:
            self._finish_point()
            self._ending = ending
            for reason, count in dict(ending.get("interventions") or {}).items():
                self._count(str(reason), int(count))

    def program_is_gone(self) -> None:
        """Without a word: killed, or crashed."""
        with self._lock:
            over = self._ending is not None
        if not over:
            reason = "The program has died without saying how the flight ended. Switch the amplifier off."
            self.end_flight({"outcome": "lost", "reason": reason})

    def ask_to_stop(self) -> bool:
        """:return: whether there was a flight to stop"""
        with self._lock:
            over = self._ending is not None
            self._stop_asked = True
            # Also between two flights: then the next one ends before it begins.
            self._reader.ask_to_stop()
        return not over

    def absorb(self) -> None:
        """Take in what the loop has written; what comes before its flight was told of waits."""
        with self._lock:
            if not self._flight or self._ending is not None:
                return
            for cycle in self._reader.read():
                self._add(cycle)
            self._read_text()

    def flight(self) -> dict[str, Any]:
        """What a page has to know once in a flight."""
        with self._lock:
            return {"number": self._flight_number, **self._flight}

    def state(self, after: int) -> dict[str, Any]:
        """
        :param after: number of the last point that a page has
        :return: what it needs to draw the present, and all points that it has not got
        """
        with self._lock:
            first = self._n_points - len(self._points)
            points = list(self._points)[max(0, after - first) :] if after <= self._n_points else list(self._points)
            return {
                "flight": self._flight_number,
                "now": self._now,
                "age_s": None if self._heard_s is None else round(time.monotonic() - self._heard_s, 3),
                "phase": self._phase,
                "acting_since_s": self._acting_since_s,
                "message": self._message,
                "is_hardware": self._is_hardware,
                "interventions": [{"reason": reason, **entry} for reason, entry in self._interventions.items()],
                "stop_asked": self._stop_asked,
                "ending": self._ending,
                "skipped": self._reader.skipped,
                "points": points,
                "n_points": self._n_points,
            }

    def _forget(self, flight: dict[str, Any]) -> None:
        self._flight = flight
        self._points: deque[list[float | None]] = deque(maxlen=MOST_POINTS)
        self._n_points = 0
        self._now: dict[str, Any] | None = None
        self._begin_s, self._bin, self._making = 0.0, 0, list[float]()
        self._heard_s: float | None = None
        self._phase, self._message = "connect", ""
        self._is_hardware: bool | None = None
        self._acting_since_s: float | None = None
        self._text: bytes | None = None
        self._interventions: dict[str, dict[str, Any]] = {}
        self._ending = None

    def _add(self, cycle: Cycle) -> None:
        if self._heard_s is None:
            self._begin_s = cycle.time_s
        self._heard_s = time.monotonic()
        passed_s = cycle.time_s - self._begin_s
        if cycle.phase != self._phase:
            self._phase = cycle.phase
            self._acting_since_s = passed_s if cycle.phase in ACTING_PHASES else None
        names = ("x", "theta", "x_dot", "theta_dot", "asked_volt", "applied_volt", "late_s", "busy_s")
        self._now = {"time_s": passed_s, "misses": cycle.misses, **{name: _number(getattr(cycle, name)) for name in names}}
        self._draw(passed_s, cycle)

    def _draw(self, passed_s: float, cycle: Cycle) -> None:
        """Add to the point in the making, which is passed on when the next one begins."""
        place, low, high = math.floor(passed_s / BIN_S), cycle.applied_volt, cycle.applied_volt
        if place != self._bin:
            self._finish_point()
        if self._making:
            low, high = min(low, self._making[3]), max(high, self._making[4])
        self._bin, self._making = place, [passed_s, cycle.x, cycle.theta, low, high]

    def _finish_point(self) -> None:
        if self._making:
            self._points.append([_number(value) for value in self._making])
            self._n_points += 1
            self._making = []

    def _read_text(self) -> None:
        text = self._reader.text()
        if text is None or text == self._text:
            return
        self._text = text
        content = json.loads(text)
        if content["flight"] == self._flight.get("id"):
            self._message, self._is_hardware = content["message"], content["is_hardware"]
            for reason, count in content["interventions"].items():
                self._count(reason, count)

    def _count(self, reason: str, count: int) -> None:
        time_s = None if self._now is None else self._now["time_s"]
        entry = self._interventions.setdefault(reason, {"count": 0, "first_s": time_s, "last_s": time_s})
        if count > entry["count"]:
            entry.update(count=count, last_s=time_s)


def _number(value: float) -> float | None:
    """JSON has no word for NaN and infinity."""
    return round(value, 6) if math.isfinite(value) else None
