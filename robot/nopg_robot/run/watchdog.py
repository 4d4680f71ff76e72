"""A guard beside the control loop: whatever keeps the loop from writing, the motor gets zero volts in time."""

import threading
import time
from types import TracebackType

from nopg_robot.plants.base import Plant, Reading


class GuardedPlant:
    """
    A plant whose motor is cut when no voltage has been written for too long: a policy that does not return cannot keep the
    last voltage standing. It cuts once and for all. A motor without voltage may wait as long as it likes.

    :param plant: open
    :param timeout_s: longest time between two writes; None for a plant in simulated time, which stands still meanwhile
    """

    def __init__(self, plant: Plant, timeout_s: float | None):
        self._plant, self._timeout_s = plant, timeout_s
        self._lock = threading.Lock()
        self._last_write_s, self._volt = time.perf_counter(), 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._reason = ""
        #: why the motor was cut, if it was
        self.tripped: str | None = None

    def __enter__(self) -> "GuardedPlant":
        self._last_write_s = time.perf_counter()
        if self._timeout_s is not None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def read(self) -> Reading:
        with self._lock:
            return self._plant.read()

    def write(self, volt: float) -> float:
        with self._lock:
            # After a sleep of the whole process the loop may come before the guard.
            if self._is_silent_too_long(1.0):
                self._trip()
            self._last_write_s = time.perf_counter()
            self._volt = 0.0 if self.tripped else volt
            return self._plant.write(self._volt)

    def _watch(self) -> None:
        assert self._timeout_s is not None
        is_cut = False
        # Four looks in the time: it cuts at most a quarter late. A plant that does not take the zero is asked again.
        while not is_cut and not self._over.wait(self._timeout_s / 4.0):
            is_cut = self._cut()

    def _cut(self) -> bool:
        """
        :return: whether the motor has been cut
        """
        with self._lock:
            # The loop may have written while this thread waited for the lock.
            if self._over.is_set() or not (self.tripped or self._is_silent_too_long(0.75)):
                return False
            self._trip()
            try:
                self._plant.write(0.0)
            except Exception as error:
                # Whatever it is, this thread must live to try again.
                self.tripped = f"{self._reason}, and the plant does not take zero volts: {error}"
                return False
            self._volt = 0.0
            return True

    def _is_silent_too_long(self, share: float) -> bool:
        silent_s = time.perf_counter() - self._last_write_s
        return self._timeout_s is not None and self._volt != 0.0 and silent_s > share * self._timeout_s

    def _trip(self) -> None:
        if self.tripped is None:
            silent_ms = 1e3 * (time.perf_counter() - self._last_write_s)
            self.tripped = self._reason = f"the control loop has not written a voltage for {silent_ms:.0f} ms"
