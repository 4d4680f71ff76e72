"""
Guards beside the control loop: whatever keeps the loop from writing, the motor gets zero volts in time.

A thread of this program comes first. Behind it stands a process of its own (:mod:`nopg_robot.guard`), for what stops all
threads: a call that does not let go of the interpreter, a program that is suspended or killed.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from nopg_robot.guard.spawn import IS_POSSIBLE, OutsideGuard
from nopg_robot.plants.base import Plant, Reading
from nopg_robot.rig.errors import SWITCH_OFF
from nopg_robot.rig.sections import GUARD_SHARE

#: a policy or a driver that has not come back after this time never will
HANG_S = 3.0

_log = logging.getLogger(__name__)


class GuardedPlant:
    """
    A plant whose motor is cut when no voltage has been written for too long: a policy that does not return cannot keep the
    last voltage standing. It cuts once and for all. A motor without voltage may wait as long as it likes.

    :param plant: open
    :param timeout_s: longest time between two writes; None for a plant in simulated time, which stands still meanwhile
    :param on_hang: told, in the guard's thread, that a call has not come back for ``HANG_S``, and who has cut the motor, if
        anybody; by default that is logged
    """

    def __init__(self, plant: Plant, timeout_s: float | None, on_hang: Callable[[str], None] = _log.error):
        self._plant, self._timeout_s, self._on_hang = plant, timeout_s, on_hang
        self._lock = threading.Lock()
        self._last_write_s, self._volt = time.perf_counter(), 0.0
        # What the plant took last; None while nobody knows.
        self._taken_volt: float | None = 0.0
        self._hushed_until_s = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._outside: OutsideGuard | None = None
        self._reason = ""
        #: why the motor was cut, if it was
        self.tripped: str | None = None
        #: what the loop waits for and since when; None while it is at work itself
        self.waits: tuple[str, float] | None = None

    def __enter__(self) -> "GuardedPlant":
        self._last_write_s = time.perf_counter()
        lifeline = self._plant.lifeline() if self._timeout_s is not None and IS_POSSIBLE else None
        if lifeline is not None:
            self._outside = OutsideGuard(lifeline)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._outside is not None:
            self._outside.close()

    def wait_for(self, what: str | None) -> None:
        """
        :param what: the loop calls now and may not return from; None when it has returned
        """
        self.waits = None if what is None else (what, time.perf_counter())

    def read(self) -> Reading:
        with self._lock:
            self.wait_for("the rig to be read")
            try:
                return self._plant.read()
            finally:
                self.wait_for(None)

    def write(self, volt: float) -> float:
        with self._lock:
            # After a sleep of the whole process the loop may come before the guard.
            if self._is_silent_too_long(1.0):
                self._trip()
            volt = 0.0 if self.tripped else volt
            if volt != 0.0 and time.perf_counter() < self._hushed_until_s:
                return self._volt
            self._hushed_until_s = 0.0
            self._last_write_s = time.perf_counter()
            self.wait_for("the rig to be driven")
            try:
                return self._write(volt)
            finally:
                self.wait_for(None)

    def check(self) -> str | None:
        """Why the motor was cut, if it was, or is to be: after a sleep of the whole process nobody may have had a look yet."""
        with self._lock:
            if self._is_silent_too_long(1.0):
                self._trip()
            return self.tripped

    def hush(self, seconds: float) -> None:
        """
        Send nothing for a while, so that the rig's own watchdog shows what it does. A voltage that is asked for meanwhile is
        not sent; zero volts are, and end it.

        :param seconds: at most; then the guards cut
        """
        with self._lock:
            self._last_write_s = time.perf_counter()
            self._hushed_until_s = self._last_write_s + seconds
            if self._timeout_s is not None and self._volt != 0.0:
                self._allow(seconds + self._timeout_s)

    def speak(self) -> None:
        """The silence is over."""
        with self._lock:
            self._hushed_until_s, self._last_write_s = 0.0, time.perf_counter()

    def test_watchdog(self) -> bool:
        """As :meth:`nopg_robot.plants.base.Plant.test_watchdog`."""
        with self._lock:
            self.wait_for("the rig to show its watchdog")
            # A board may get a voltage that moves nothing.
            self._taken_volt = None
            try:
                return self._plant.test_watchdog()
            finally:
                self.wait_for(None)

    def _write(self, volt: float) -> float:
        """With the lock."""
        self._volt = volt
        # The process outside knows of a voltage before the motor does, and of its end afterwards.
        if volt != 0.0 and self._timeout_s is not None:
            self._allow(self._timeout_s)
        self._taken_volt = None
        applied = self._plant.write(self._volt)
        self._taken_volt = self._volt
        if self._volt == 0.0:
            self._allow(0.0)
        return applied

    def _allow(self, seconds: float) -> None:
        if self._outside is not None and (problem := self._outside.allow(seconds)) is not None and self.tripped is None:
            self.tripped = self._reason = problem
            self._volt = 0.0

    def _watch(self) -> None:
        # Four looks in the time, the last of which finds three quarters of it gone by. The process outside waits for it all,
        # and so the thread, which says more, usually comes first. A plant that does not take the zero is asked again.
        look_s = HANG_S / 4.0 if self._timeout_s is None else min(self._timeout_s, HANG_S) / 4.0
        is_cut = False
        while not self._over.wait(look_s):
            is_cut = is_cut or self._cut(look_s)
            waits = self.waits
            if waits is not None and time.perf_counter() - waits[1] > HANG_S:
                self._on_hang(self._tell_hang(f"waited {HANG_S:g} s in vain for {waits[0]}", is_cut))
                return

    def _tell_hang(self, waited: str, is_cut: bool) -> str:
        """
        :param waited: for what
        :param is_cut: by this guard
        :return: the same, and who has cut the motor; or, first of all, that nobody surely has
        """
        if is_cut:
            return f"{waited}; {self.tripped}. The guard has cut the motor"
        # Whoever holds the lock is inside the plant's driver, and nobody else can write.
        is_inside = self._lock.locked()
        if self._taken_volt == 0.0 and not is_inside:
            return f"{waited}. The motor had no voltage"
        if self._timeout_s is None and not is_inside:
            return f"{waited}. Simulated time stands still meanwhile"
        news = "the rig's own watchdog must act" if self._outside is None else self._outside.news()
        what = self.tripped or "this program cannot write 0 V"
        return f"{SWITCH_OFF}: {waited}; {what}; {news or 'the guard process has not cut it'}"

    def _cut(self, patience_s: float) -> bool:
        """
        :param patience_s: for a loop that is with the plant at this moment; one that stays there is left to the process
        :return: whether the motor has been cut
        """
        if not self._lock.acquire(timeout=patience_s):
            return False
        try:
            # The loop may have written while this thread waited for the lock.
            if self._over.is_set() or not (self.tripped or self._is_silent_too_long(GUARD_SHARE)):
                return False
            self._trip()
            try:
                self._write(0.0)
            except Exception as error:
                # Whatever it is, this thread must live to try again.
                self.tripped = f"{self._reason}, and the plant does not take zero volts: {error}"
                return False
            return True
        finally:
            self._lock.release()

    def _is_silent_too_long(self, share: float) -> bool:
        if self._timeout_s is None or self._volt == 0.0:
            return False
        return time.perf_counter() - max(self._last_write_s, self._hushed_until_s) > share * self._timeout_s

    def _trip(self) -> None:
        if self.tripped is None:
            silent_ms = 1e3 * (time.perf_counter() - self._last_write_s)
            self.tripped = self._reason = f"the control loop has not written a voltage for {silent_ms:.0f} ms"
            if self._outside is not None and (news := self._outside.news()) is not None:
                self.tripped = self._reason = f"{self._reason}; {news}"
