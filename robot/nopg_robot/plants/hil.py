"""A Quanser data-acquisition card in this computer, through the vendor's Python package."""

import importlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nopg_robot.plants.base import Plant, Reading
from nopg_robot.rig.clock import MonotonicClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import HilConnection

# Of the cards' converters, before an amplifier of gain one.
DAC_LIMIT_VOLT = 10.0
STAND_IN = "nopg_robot.virtual.hil_stub"
# A watchdog that has not acted after so many times its time does not.
SILENCE = 1.5

#: element types that the vendor's library takes memory for, whatever it is
CHANNELS, COUNTS, VOLTS, DIGITAL, STATES = np.uint32, np.int32, np.float64, np.int8, np.int32
#: what the vendor's library calls the states of a digital line
LOW, TRISTATE = 0, 2


class HilPlant(Plant):
    """
    Encoders in, analog voltage out, a digital line that enables the amplifier where there is one, and the card's own watchdog,
    which is started with the first voltage and reloaded by each one that the card took. A card that takes no more is left to
    it, however often somebody tries.

    Counters are left as they are: to set them to zero would be a jump for everybody else who reads them, and the estimator
    takes them from wherever they stand.

    :param connection: of the rig file
    """

    name = "hil"

    def __init__(self, connection: HilConnection):
        self._connection = connection
        self.is_hardware = connection.module != STAND_IN
        self.clock = MonotonicClock()
        self._module: Any = None
        self._card: Any = None
        self._watched = False
        # Once the rig is known to be lost, closing it has nothing new to say.
        self._failed = False
        self._encoders = np.array([connection.cart_encoder_channel, connection.pole_encoder_channel], dtype=CHANNELS)
        self._counts = np.zeros(2, dtype=COUNTS)
        self._output = np.array([connection.analog_channel], dtype=CHANNELS)
        self._volts = np.zeros(1, dtype=VOLTS)
        self._no_volts = np.zeros(1, dtype=VOLTS)
        self._enable_line = np.array([connection.enable_channel or 0], dtype=CHANNELS)
        self._switch = np.zeros(1, dtype=DIGITAL)
        self._line_state = np.zeros(1, dtype=STATES)

    def open(self) -> None:
        self._failed = self._watched = False
        self._open_card()
        with self._card_errors("cannot be set up"):
            # A program that was killed leaves a card that refuses everything. Clearing may bring back what the outputs were.
            if self._card.watchdog_is_expired():
                self._card.watchdog_clear()
            self._write_volt(0.0)
            self._card.watchdog_set_analog_expiration_state(
                checked(self._output, CHANNELS, 1), 1, checked(self._no_volts, VOLTS, 1)
            )
            if self._connection.enable_channel is not None:
                self._card.set_digital_directions(None, 0, checked(self._enable_line, CHANNELS, 1), 1)
                self._disable_on_expiration()
                self._enable(True)

    def read(self) -> Reading:
        with self._card_errors("cannot be read"):
            self._card.read_encoder(checked(self._encoders, CHANNELS, 2), 2, checked(self._counts, COUNTS, 2))
        return Reading(self.clock.now_s(), float(self._counts[0]), float(self._counts[1]))

    def write(self, volt: float) -> float:
        if not math.isfinite(volt):
            raise ValueError(f"volt: must be a finite number, got {volt}")
        volt = min(max(float(volt), -DAC_LIMIT_VOLT), DAC_LIMIT_VOLT)
        with self._card_errors("cannot be driven"):
            self._start_watchdog()
            self._write_volt(volt)
            # Only now: a card that takes no voltage must not be kept from taking away the last one.
            if not self._card.watchdog_reload():
                self._write_volt(0.0)
                raise self._expired()
        return volt

    def test_watchdog(self) -> bool:
        """The card says that it has expired; what its outputs do then is not measured."""
        wait_s = self._connection.watchdog_s
        with self._card_errors("cannot be driven"):
            self._write_volt(0.0)
            self._start_watchdog()
            self._card.watchdog_reload()
        time.sleep(SILENCE * wait_s)
        if not self._is_expired():
            raise self._failure(
                f"its watchdog did not act although no voltage was written for {SILENCE * wait_s:g} s: the motor would keep "
                "its voltage if this program died. Does this card have one?"
            )
        with self._card_errors("cannot be set up after the test of its watchdog"):
            self._card.watchdog_stop()
            self._watched = False
            self._card.watchdog_clear()
            self._write_volt(0.0)
            if self._connection.enable_channel is not None:
                self._enable(True)
        return True

    def close(self) -> None:
        if self._card is None:
            return
        known, problems = self._failed, []
        # A card whose watchdog has expired is at zero volts by itself, takes nothing more, and is left like that: to clear it
        # might bring the voltage back.
        if not self._is_expired():
            steps: list[Callable[[], None]] = [lambda: self._write_volt(0.0)]
            if self._connection.enable_channel is not None:
                steps.append(lambda: self._enable(False))
            problems = self._attempt(*steps)
            if problems and self._watched:
                # The watchdog is the one that still can; it must not be stopped before it has.
                self._wait_for_the_watchdog()
        problems += self._attempt(*([self._card.watchdog_stop] if self._watched else []), self._card.close)
        self._card, self._watched = None, False
        if problems and not known:
            raise problems[0]

    def _open_card(self) -> None:
        connection = self._connection
        try:
            self._module = importlib.import_module(connection.module)
        except (ImportError, OSError) as error:
            # OSError: the package is there and the driver that it loads is not.
            raise PlantError(
                f"{connection.module} cannot be imported ({error}): it comes with Quanser's SDK and from no package registry. "
                f"Without it, `module: {STAND_IN}` in the rig file or `--plant auto` is the stand-in."
            ) from error
        try:
            self._card = self._module.HIL(connection.card_type, connection.card_id)
        except self._module.HILError as error:
            raise self._failure(
                f"cannot be opened ({error.get_error_message()}): is it plugged in, and does no other program use it?"
            ) from error
        if not self._card.is_valid():
            raise self._failure("did not open, although no error was reported")

    def _start_watchdog(self) -> None:
        if not self._watched:
            self._card.watchdog_start(self._connection.watchdog_s)
            self._watched = True

    def _disable_on_expiration(self) -> None:
        """The amplifier goes off with the card: its line low, or let go of, which is all that some cards can do."""
        for state in (LOW, TRISTATE):
            self._line_state[0] = state
            try:
                self._card.watchdog_set_digital_expiration_state(
                    checked(self._enable_line, CHANNELS, 1), 1, checked(self._line_state, STATES, 1)
                )
                return
            except self._module.HILError:
                if state == TRISTATE:
                    raise

    def _write_volt(self, volt: float) -> None:
        self._volts[0] = volt
        self._card.write_analog(checked(self._output, CHANNELS, 1), 1, checked(self._volts, VOLTS, 1))

    def _enable(self, on: bool) -> None:
        self._switch[0] = on
        self._card.write_digital(checked(self._enable_line, CHANNELS, 1), 1, checked(self._switch, DIGITAL, 1))

    def _is_expired(self) -> bool:
        try:
            return self._watched and bool(self._card.watchdog_is_expired())
        except self._module.HILError:
            return False

    def _wait_for_the_watchdog(self) -> None:
        end_s = time.perf_counter() + 2.0 * self._connection.watchdog_s
        while time.perf_counter() < end_s and not self._is_expired():
            time.sleep(0.1 * self._connection.watchdog_s)

    def _attempt(self, *steps: Callable[[], None]) -> list[PlantError]:
        """Each of the steps, although one before it failed."""
        problems = []
        for step in steps:
            try:
                with self._card_errors("cannot be closed properly"):
                    step()
            except PlantError as problem:
                problems.append(problem)
        return problems

    @contextmanager
    def _card_errors(self, what: str) -> Iterator[None]:
        if self._card is None:
            raise self._failure("is not open")
        try:
            yield
        except self._module.HILError as error:
            if self._is_expired():
                raise self._expired() from error
            raise self._failure(f"{what}: {error.get_error_message()}") from error

    def _expired(self) -> PlantError:
        return self._failure(
            f"watchdog has cut the motor: no voltage was written for {self._connection.watchdog_s:g} s. Open the rig again"
        )

    def _failure(self, problem: str) -> PlantError:
        self._failed = True
        return PlantError(f"card {self._connection.card_type} {self._connection.card_id}: {problem}")


def checked(buffer: np.ndarray, dtype: type[np.generic], n: int) -> np.ndarray:
    """
    :param buffer: for the vendor's library, which would take any memory for what it wants
    :param dtype: that it wants
    :param n: elements
    :return: the same buffer
    """
    if buffer.dtype != np.dtype(dtype) or buffer.shape != (n,) or not buffer.flags.c_contiguous:
        raise TypeError(f"a buffer of {n} {np.dtype(dtype)} is wanted, got {buffer.dtype} of shape {buffer.shape}")
    return buffer
