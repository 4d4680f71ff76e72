"""A guard beside the control loop: whatever keeps the loop from writing, the motor gets zero volts in time."""

import threading
import time
from types import TracebackType

from nopg_robot.errors import PlantError
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
            self._last_write_s = time.perf_counter()
            self._volt = 0.0 if self.tripped else volt
            return self._plant.write(self._volt)

    def _watch(self) -> None:
        assert self._timeout_s is not None
        # Four looks in the time: it cuts at most a quarter late.
        while self.tripped is None and not self._over.wait(self._timeout_s / 4.0):
            if self._volt != 0.0 and time.perf_counter() - self._last_write_s > 0.75 * self._timeout_s:
                self._cut()

    def _cut(self) -> None:
        with self._lock:
            silent_s = time.perf_counter() - self._last_write_s
            # The loop may have written while this thread waited for the lock.
            if self._over.is_set() or silent_s <= 0.75 * (self._timeout_s or 0.0):
                return
            self.tripped = f"the control loop has not written a voltage for {1e3 * silent_s:.0f} ms"
            try:
                self._plant.write(0.0)
            except PlantError as error:
                self.tripped += f", and the plant does not take zero volts: {error}"
