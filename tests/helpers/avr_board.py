"""The real firmware on a simulated chip, with a simulated cart behind its pins. ``robot/firmware/simulation`` is the chip."""

import contextlib
import enum
import functools
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from helpers.repository import REPOSITORY
from nopg_robot.virtual.simulated_cart import SimulatedCart

FIRMWARE = REPOSITORY / "robot" / "firmware"
CHIPS = ("atmega328p", "atmega2560")
# As in the firmware's Makefile.
SUPPLY_VOLT = 12.0
LONGEST_SILENCE_S = 0.06
#: of a bridge that is well: its fault output is high, all other contacts are closed
WELL = 0x08

# Removed when the tests end.
_BUILT = tempfile.TemporaryDirectory(prefix="firmware-")
_REPORT = struct.Struct("<IfddII")
_INPUTS = struct.Struct("<iiBBxx")


class Contact(enum.IntFlag):
    """What opens or, of the bridge, falls when something is wrong."""

    LIMIT_NEGATIVE = 1
    LIMIT_POSITIVE = 2
    EMERGENCY_STOP = 4
    BRIDGE_FAULT = 8


class _Action(enum.IntEnum):
    NOTHING = 0
    RESTART = 1
    HANG = 2
    UNPLUG = 3


@dataclass(frozen=True)
class Change:
    """
    :param chip_s: when the motor's pins changed, on the chip's clock
    :param received_s: when the last byte had come from the line, on the chip's clock
    :param volt: at the motor from then on
    """

    chip_s: float
    received_s: float
    volt: float


def missing_tools() -> str | None:
    """What keeps this computer from building firmware and chip; None if nothing does."""
    if shutil.which("make") is None or shutil.which("avr-gcc") is None:
        return "avr-gcc is not installed (gcc-avr, avr-libc)"
    compiler = shutil.which("cc")
    if compiler is None:
        return "there is no C compiler for the simulated chip"
    asked = [compiler, "-fsyntax-only", "-include", "simavr/sim_avr.h", "-x", "c", os.devnull]
    if subprocess.run(asked, capture_output=True).returncode:
        return "simavr is not installed (libsimavr-dev, libelf-dev)"
    return None


@functools.cache
def build(*settings: str) -> Path:
    """
    Once for all tests; without the tools a test is left out, with a reason.

    :param settings: of the Makefile, such as ``VOLTAGE_LIMIT_MV=8000``
    :return: where the hex files of both chips and ``simulated_board`` are
    """
    missing = missing_tools()
    if missing is not None:
        # Continuous integration installs them: there, left out means broken.
        if os.environ.get("FIRMWARE_TOOLS") == "installed":
            pytest.fail(missing)
        pytest.skip(missing)
    into = Path(_BUILT.name) / "_".join(("build", *settings)).replace("=", "-")
    for goal in ("all", "simulation"):
        made = subprocess.run(
            ["make", "-C", FIRMWARE, goal, f"BUILD={into}", *settings], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr
    return into


class AvrBoard:
    """
    A chip in real time, in a process of its own, and the cart behind its pins. ``with board:`` switches it on.

    The methods below its context manager are accidents to cause from another thread.

    :param built: see :func:`build`
    :param chip: one of ``CHIPS``
    :param cart: that it drives; a new one if not given
    :param counts: of both encoders at a time on the chip's clock; the cart's if not given
    """

    def __init__(
        self,
        built: Path,
        chip: str = "atmega328p",
        *,
        cart: SimulatedCart | None = None,
        counts: Callable[[float], tuple[int, int]] | None = None,
    ):
        self.cart = cart or SimulatedCart()
        self._counts = counts
        #: changes of the motor's voltage
        self.changes: list[Change] = []
        #: pins of the contacts, see :class:`Contact`; set at any time
        self.contacts = WELL
        #: where switches stand on the rail, m, if there are any
        self.limit_switches_m: tuple[float, float] | None = None
        self.n_lost_bytes = self.n_restarts = 0
        self.chip_s = 0.0
        self._action = _Action.NOTHING
        self._acted = threading.Event()
        self._process = subprocess.Popen(
            [built / "simulated_board", chip, built / f"{chip}.hex"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = self._process.stdout.readline().decode().strip()
        self._thread = threading.Thread(target=self._run, name="chip", daemon=True)

    @property
    def volt(self) -> float:
        """At the motor now."""
        return self.changes[-1].volt if self.changes else 0.0

    def __enter__(self) -> "AvrBoard":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._thread.join()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def restart(self) -> None:
        """Power off and on."""
        self._act(_Action.RESTART)

    def hang(self) -> None:
        """The chip is caught in an endless loop with interrupts off."""
        self._act(_Action.HANG)

    def unplug(self) -> None:
        """Pull the cable to the computer; the board stays switched on."""
        self._act(_Action.UNPLUG)

    def wait(self, seconds: float) -> None:
        """Until so much time has passed for the chip, however slow this computer is."""
        end_s, deadline_s = self.chip_s + seconds, time.perf_counter() + 20.0 * seconds + 10.0
        while self.chip_s < end_s:
            assert time.perf_counter() < deadline_s, "the simulated chip does not get on"
            time.sleep(0.001)

    def _act(self, action: _Action) -> None:
        self._acted.clear()
        self._action = action
        assert self._acted.wait(10.0), "the simulated chip does not get on"

    def _run(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            while len(content := self._process.stdout.read(_REPORT.size)) == _REPORT.size:
                self._take(*_REPORT.unpack(content))

    def _take(
        self,
        is_millisecond: int,
        duty: float,
        chip_s: float,
        received_s: float,
        n_lost_bytes: int,
        n_restarts: int,
    ) -> None:
        self.cart.advance_to(chip_s)
        volt = SUPPLY_VOLT * duty
        if not is_millisecond:
            self.cart.set_voltage(volt)
            self.changes.append(Change(chip_s, received_s, volt))
            return
        self.chip_s, self.n_lost_bytes, self.n_restarts = chip_s, n_lost_bytes, n_restarts
        action, self._action = self._action, _Action.NOTHING
        cart, pole = self.cart.counts if self._counts is None else self._counts(chip_s)
        assert self._process.stdin is not None
        self._process.stdin.write(_INPUTS.pack(cart, pole, self.contacts | self._at_the_ends(), action))
        self._process.stdin.flush()
        if action:
            self._acted.set()

    def _at_the_ends(self) -> int:
        if self.limit_switches_m is None:
            return 0
        low, high = self.limit_switches_m
        x = self.cart.state[0]
        return Contact.LIMIT_NEGATIVE * (x <= low) | Contact.LIMIT_POSITIVE * (x >= high)
