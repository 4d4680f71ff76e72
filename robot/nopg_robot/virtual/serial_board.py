"""A motor board behind a pseudo-terminal: the cart, the firmware that ``PROTOCOL.md`` asks for, and cables to pull."""

import math
import os
import select
import threading
import time
import tty
from pathlib import Path
from types import TracebackType

from nopg_robot.rig import protocol
from nopg_robot.rig.protocol import Decoder, Flag, Frame
from nopg_robot.virtual.line_accidents import LineAccidents
from nopg_robot.virtual.simulated_cart import SimulatedCart

# As on the lab's amplifier input.
VOLTAGE_LIMIT_MV = 10_000
LONGEST_WATCHDOG_MS = 1000
TICK_S = 0.001
# So long it shows a fault at least, that nobody who asks now and then overlooks a short one.
FAULT_HOLD_S = 0.1
# A line has no end of a connection; a program that drives a cart is never silent for so long.
LEFT_S = 1.0


class Firmware:
    """
    What runs on the board, without any hardware around it: somebody brings frames and tells the time.

    :param cart: that it drives
    :param counter_bits: width of its counters
    """

    def __init__(self, cart: SimulatedCart, counter_bits: int):
        self.cart, self.counter_bits = cart, counter_bits
        #: set by the board's own protection; holds 0 V
        self.fault = False
        #: an encoder lost counts; CONFIGURE forgets it
        self.slipped = False
        #: limit switches that are open
        self.limits = Flag(0)
        #: its watchdog never acts
        self.watchdog_is_broken = False
        #: POLL keeps its watchdog from acting, too
        self.poll_feeds = False
        #: it loses the frames that drive it
        self.ignores_drive = False
        #: changes of the motor's voltage: seconds on the board's clock, volts
        self.applied_voltages: list[tuple[float, float]] = []
        self._applied_mv = 0
        self._heard_s = self._fault_until_s = -math.inf
        self.restart()

    def restart(self) -> None:
        """As after power came on."""
        self._configured = self._expired = False
        self._watchdog_s, self._limit_mv = 0.0, 0
        self._last_command = 0
        # The watchdog runs from the first DRIVE on: until then there is no voltage to take away.
        self._driven_s: float | None = None
        self._apply(0, self.cart.time_s)

    def tick(self, time_s: float) -> None:
        """
        :param time_s: since the board was switched on
        """
        self.cart.advance_to(time_s)
        self.cart.attend(time_s - self._heard_s < LEFT_S)
        silent_s = 0.0 if self._driven_s is None or self.watchdog_is_broken else time_s - self._driven_s
        if self._driven_s is not None and silent_s >= self._watchdog_s:
            self._expired, self._driven_s = True, None
        if self._expired or self._has_fault(time_s) or self._blocked(self._applied_mv):
            self._apply(0, time_s)

    def answer(self, frame: Frame, time_s: float) -> bytes:
        """
        :param frame: that arrived
        :param time_s: when
        :return: bytes to send back
        """
        # A voltage acts from when it arrives.
        self.cart.advance_to(time_s)
        self._heard_s = time_s
        message, sequence = frame.message, frame.sequence
        if isinstance(message, protocol.Hello):
            return self.introduce(sequence)
        if isinstance(message, protocol.Configure):
            return self._configure(sequence, message, time_s)
        if isinstance(message, protocol.Poll):
            if self.poll_feeds and self._driven_s is not None:
                self._driven_s = time_s
            return protocol.encode(sequence, self._state(time_s))
        if isinstance(message, protocol.Stop):
            self._stop(sequence, time_s)
            return protocol.encode(sequence, self._state(time_s))
        if isinstance(message, protocol.Drive):
            self._drive(sequence, message.voltage_mv, time_s)
        return b""

    def introduce(self, sequence: int) -> bytes:
        """
        :param sequence: number of a HELLO, also of another version's: only so does the computer hear which one this is
        :return: bytes to send back
        """
        name = b"virtual board".ljust(16, b"\0")
        return protocol.encode(sequence, protocol.Info(self.counter_bits, VOLTAGE_LIMIT_MV, name))

    def _configure(self, sequence: int, message: protocol.Configure, time_s: float) -> bytes:
        self._stop(sequence, time_s)
        self._configured, self.slipped = True, False
        watchdog_ms = min(max(message.watchdog_ms, 1), LONGEST_WATCHDOG_MS)
        self._watchdog_s = watchdog_ms / 1000.0
        self._limit_mv = min(message.voltage_limit_mv, VOLTAGE_LIMIT_MV)
        return protocol.encode(sequence, protocol.Configured(watchdog_ms, self._limit_mv))

    def _stop(self, sequence: int, time_s: float) -> None:
        self._apply(0, time_s)
        self._expired, self._driven_s, self._last_command = False, None, sequence

    def _drive(self, sequence: int, voltage_mv: int, time_s: float) -> None:
        if self.ignores_drive or not self._configured or not protocol.is_newer(sequence, self._last_command):
            return
        self._last_command = sequence
        if self._expired or self._has_fault(time_s):
            return
        self._driven_s = time_s
        taken_mv = min(max(voltage_mv, -self._limit_mv), self._limit_mv)
        self._apply(0 if self._blocked(taken_mv) else taken_mv, time_s)

    def _has_fault(self, time_s: float) -> bool:
        # No cart is at both ends: a plug was pulled.
        if self.fault or self.limits == Flag.LIMIT_NEGATIVE | Flag.LIMIT_POSITIVE:
            self._fault_until_s = time_s + FAULT_HOLD_S
        return time_s < self._fault_until_s

    def _blocked(self, voltage_mv: int) -> bool:
        """Whether a limit switch is open at the end that this voltage leads to."""
        return bool(self.limits & (Flag.LIMIT_POSITIVE if voltage_mv > 0 else Flag.LIMIT_NEGATIVE))

    def _apply(self, voltage_mv: int, time_s: float) -> None:
        if voltage_mv != self._applied_mv:
            self._applied_mv = voltage_mv
            self.applied_voltages.append((time_s, voltage_mv / 1000.0))
        self.cart.set_voltage(voltage_mv / 1000.0)

    def _state(self, time_s: float) -> protocol.State:
        cart, pole = (_wrapped(count, self.counter_bits) for count in self.cart.counts)
        flags = Flag.ENABLED * self._configured | Flag.WATCHDOG_EXPIRED * self._expired
        flags |= Flag.FAULT * self._has_fault(time_s) | Flag.SLIPPED * self.slipped | self.limits
        time_us = int(time_s * 1e6) & 0xFFFFFFFF
        return protocol.State(time_us, cart, pole, self._applied_mv, self._last_command, int(flags))


class VirtualSerialBoard(LineAccidents):
    """
    A board in real time, in a thread of its own, on a port that any serial driver opens. ``with board:`` switches it on.

    The methods below its context manager, and those of :class:`LineAccidents`, are accidents to cause from another thread.

    :param link: path for a symbolic link to the port, whose own name changes each time
    :param cart: that it drives; a new one if not given
    :param counter_bits: width of its encoder counters
    """

    def __init__(self, link: str | None = None, *, cart: SimulatedCart | None = None, counter_bits: int = 16):
        self._link = Path(link) if link is not None else None
        if self._link is not None and self._link.exists() and not self._link.is_symlink():
            raise FileExistsError(f"link: {link} is a file; name a path that does not exist yet")
        self.firmware = Firmware(cart or SimulatedCart(), counter_bits)
        self._board_end, self._computer_end = os.openpty()
        # Bytes as they are, also before a driver has opened the port and set it up.
        tty.setraw(self._computer_end)
        os.set_blocking(self._board_end, False)
        self.port = os.ttyname(self._computer_end)
        if self._link is not None:
            # A link that an earlier board left behind.
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(self.port)
        self._decoder = Decoder()
        self._start_s = time.perf_counter()
        self._lock = threading.Lock()
        self._over, self._pulled, self._unplugged = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="virtual serial board", daemon=True)
        self._hanging = False

    @property
    def cart(self) -> SimulatedCart:
        return self.firmware.cart

    @property
    def applied_voltages(self) -> list[tuple[float, float]]:
        """Changes of the motor's voltage: time (of ``time.perf_counter``) and volts."""
        return [(self._start_s + time_s, volt) for time_s, volt in list(self.firmware.applied_voltages)]

    def __enter__(self) -> "VirtualSerialBoard":
        self._start_s = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._pull_out()

    def hang(self) -> None:
        """It neither listens nor talks any more. Its watchdog is a circuit of its own and still runs."""
        with self._lock:
            self._hanging = True

    def unplug(self) -> None:
        """Pull the cable; the board stays switched on."""
        self._pulled.set()
        self._unplugged.wait()

    def restart(self) -> None:
        """A dip in its supply: it forgets that it was configured."""
        with self._lock:
            self.firmware.restart()

    def send_garbage(self, data: bytes) -> None:
        """
        :param data: sent as it is
        """
        with self._lock:
            self._write(data)

    def _run(self) -> None:
        while not self._over.is_set():
            if self._pulled.is_set() and not self._unplugged.is_set():
                self._pull_out()
            data = self._listen()
            with self._lock:
                time_s = time.perf_counter() - self._start_s
                # It may have begun to hang since it listened.
                for frame in self._decoder.feed(b"" if self._hanging else data):
                    self._send(self.firmware.answer(frame, time_s))
                if self._decoder.other_hello is not None:
                    self._send(self.firmware.introduce(self._decoder.other_hello))
                    self._decoder.other_hello = None
                self.firmware.tick(time_s)

    def _listen(self) -> bytes:
        if self._hanging or self._unplugged.is_set():
            time.sleep(TICK_S)
            return b""
        ready, _, _ = select.select([self._board_end], [], [], TICK_S)
        return os.read(self._board_end, 4096) if ready else b""

    def _send(self, data: bytes) -> None:
        """An answer, with whatever is to happen to it on its way."""
        if data and (arrives := self.after_accidents(data)):
            self._write(arrives)

    def _write(self, data: bytes) -> None:
        if self._unplugged.is_set():
            return
        try:
            os.write(self._board_end, data)
        except BlockingIOError:
            # Nobody reads. A board without flow control loses what its buffer does not hold.
            return

    def _pull_out(self) -> None:
        with self._lock:
            if self._unplugged.is_set():
                return
            os.close(self._board_end)
            os.close(self._computer_end)
            if self._link is not None:
                self._link.unlink(missing_ok=True)
            self._unplugged.set()


def _wrapped(count: int, bits: int) -> int:
    """As a counter of so many bits shows it, in two's complement."""
    half = 1 << (bits - 1)
    return (count + half) % (1 << bits) - half
