"""A motor board on a serial port that speaks the protocol of ``PROTOCOL.md``."""

import importlib
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.plants.base import Plant, Reading
from nopg_robot.plants.board_clock import BoardClock
from nopg_robot.rig.clock import MonotonicClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.protocol import (
    VERSION,
    Configure,
    Configured,
    Decoder,
    Drive,
    Flag,
    Hello,
    Info,
    Message,
    Poll,
    State,
    Stop,
    encode,
    next_sequence,
)
from nopg_robot.rig.sections import SerialConnection

# A wait on the port looks at the clock so often; bytes that arrive end it at once.
LOOK_S = 0.001
# Boards that restart when the port is opened need a second or two: HELLO until one answers.
HELLO_EVERY_S = 0.2
# Answers in a row that do not know of the latest DRIVE. One may be lost to noise; so many mean a broken wire.
MAX_LOST_DRIVES = 3
STOP_TIMEOUT_S = 0.1
# To see the board's watchdog act: less than what breaks any cart away.
TEST_MV = 100
# It has until then, of the time that the board took; and if POLLs before that feed it, it does not act until then.
SILENCE, QUESTIONS = 1.3, (0.5, 0.8, 1.1)

Answer = TypeVar("Answer", bound=Message)


class SerialPlant(Plant):
    """
    Asks for every sample and knows the answer by its number: nothing that waited in a buffer is ever taken for new.

    ``ignored`` counts answers that came late, twice or unasked, and ``decoder.dropped`` frames that arrived damaged.

    :param connection: of the rig file
    :param counter_bits: width of the counters that the rig file promises; the board must agree
    :param voltage_limit_volt: that the board shall hold to by itself; its own limit if not given
    """

    name = "serial"
    is_hardware = True

    def __init__(
        self, connection: SerialConnection, *, counter_bits: int | None = None, voltage_limit_volt: float | None = None
    ):
        self._connection = connection
        self._counter_bits, self._voltage_limit_volt = counter_bits, voltage_limit_volt
        self.clock = MonotonicClock()
        self._board_clock = BoardClock()
        # What the board took; it may allow less than the rig file.
        self._watchdog_s = connection.watchdog_s
        self.decoder = Decoder()
        self.ignored = 0
        self._port: Any = None
        self._sequence = 0
        self._last_command, self._lost_drives = 0, 0
        self._limit_mv = 0
        self._flags = Flag(0)
        # Once the rig is known to be lost, closing it has nothing new to say.
        self._failed = False

    def open(self) -> None:
        self._failed = False
        self._open_port()
        info = self._greet()
        if self._counter_bits is not None and self._counter_bits != info.counter_bits:
            raise self._failure(
                f"{info.name} has counters of {info.counter_bits} bits, the rig file says sensors.counter_bits: "
                f"{self._counter_bits}"
            )
        self._configure(info)

    def read(self) -> Reading:
        timeout_s = self._connection.read_timeout_s
        asked_s = self.clock.now_s()
        state = self._ask(Poll(), State, timeout_s, resend_s=timeout_s / 2.0, n_tries=2)
        answered_s = self.clock.now_s()
        if state is None:
            raise self._failure(
                f"no answer within {1e3 * timeout_s:g} ms ({self.decoder.dropped.total} damaged frames so far): "
                "is the board alive, and the baud rate right?"
            )
        self._check(state)
        time_s = self._board_clock.taken_at(state.time_us, asked_s, answered_s)
        return Reading(time_s, float(state.cart), float(state.pole))

    def write(self, volt: float) -> float:
        if not math.isfinite(volt):
            raise ValueError(f"volt: must be a finite number, got {volt}")
        # Towards zero: what is sent is never more than what was asked.
        voltage_mv = min(max(int(volt * 1000.0), -self._limit_mv), self._limit_mv)
        self._last_command = self._send(Drive(voltage_mv))
        # At a limit switch the board takes none towards it.
        towards = Flag.LIMIT_POSITIVE if voltage_mv > 0 else Flag.LIMIT_NEGATIVE
        return 0.0 if self._flags & towards else voltage_mv / 1000.0

    def close(self) -> None:
        if self._port is None:
            return
        known = self._failed
        try:
            state = self._ask(Stop(), State, STOP_TIMEOUT_S, resend_s=STOP_TIMEOUT_S / 3.0, n_tries=3)
            if (state is None or state.applied_mv != 0) and not known:
                raise self._failure(
                    f"the board did not confirm zero volts; its watchdog takes the voltage away after {self._watchdog_s:g} s"
                )
        except PlantError:
            if not known:
                raise
        finally:
            self._close_port()

    def lifeline(self) -> Lifeline:
        # STOP is taken whatever its number.
        return Lifeline(self._port.fileno(), encode(1, Stop()))

    def test_watchdog(self) -> bool:
        wait_s = self._watchdog_s
        # One may be lost to noise.
        for _ in range(2):
            self._last_command = self._send(Drive(min(TEST_MV, self._limit_mv)))
        silent_s = self.clock.now_s()
        for question in QUESTIONS:
            self.clock.sleep_until(silent_s + question * wait_s)
            self._state_now()
        # A millisecond of its clock and one of ours.
        self.clock.sleep_until(silent_s + SILENCE * wait_s + 0.002)
        state = self._state_now()
        if not state.flags & Flag.WATCHDOG_EXPIRED or state.applied_mv != 0:
            raise self._failure(
                f"the board's watchdog did not act: {1e-3 * state.applied_mv:g} V on the motor after {SILENCE * wait_s:g} s "
                "without a command. The motor would keep its voltage if this program died; mend the firmware"
            )
        state = self._ask(Stop(), State, STOP_TIMEOUT_S, resend_s=STOP_TIMEOUT_S / 3.0, n_tries=3) or state
        if state.applied_mv != 0 or state.flags & Flag.WATCHDOG_EXPIRED:
            raise self._failure("the board does not go back to work after STOP")
        self._last_command, self._lost_drives = state.last_command, 0
        return True

    def _state_now(self) -> State:
        timeout_s = max(self._connection.read_timeout_s, STOP_TIMEOUT_S)
        state = self._ask(Poll(), State, timeout_s, resend_s=timeout_s / 3.0, n_tries=3)
        if state is None:
            raise self._failure("no answer while its watchdog was tested: is the board alive?")
        self._check_board(state)
        return state

    def _open_port(self) -> None:
        port = self._connection.port
        try:
            serial = importlib.import_module("serial")
        except ImportError as error:
            raise PlantError('a serial rig needs pyserial: pip install "sb3-nopg[robot]"') from error
        try:
            self._port = serial.Serial(
                port,
                self._connection.baud,
                timeout=LOOK_S,
                write_timeout=max(self._connection.read_timeout_s, LOOK_S),
                exclusive=True,
            )
        except (OSError, ValueError) as error:
            raise PlantError(
                f"{port} cannot be opened ({error}): is the board plugged in, is connection.port right, and does no other "
                "program use it?"
            ) from error
        self.decoder, self.ignored = Decoder(), 0
        self._board_clock = BoardClock()
        # Answers to an earlier run that are still on their way have other numbers.
        self._sequence = random.randrange(1, 0x10000)

    def _close_port(self) -> None:
        with suppress(PlantError), self._port_errors():
            # Bytes that nobody takes could hold up the closing of the port.
            self._port.reset_output_buffer()
        with suppress(PlantError), self._port_errors():
            self._port.close()
        self._port = None

    def _greet(self) -> Info:
        timeout_s = self._connection.connect_timeout_s
        info = self._ask(Hello(), Info, timeout_s, resend_s=HELLO_EVERY_S, n_tries=None)
        if info is not None:
            return info
        other = self.decoder.other_version
        if other is not None:
            raise self._failure(f"the board speaks version {other} of the protocol, this program version {VERSION}")
        raise self._failure(
            f"no board answered within {timeout_s:g} s: is it the right port, the right baud rate, and does the firmware "
            "speak the protocol of PROTOCOL.md?"
        )

    def _configure(self, info: Info) -> None:
        # Rounded down, but for the last bits of a product such as 0.029 * 1000.
        watchdog_ms = max(1, math.floor(self._connection.watchdog_s * 1000.0 + 1e-6))
        limit_mv = info.voltage_limit_mv
        if self._voltage_limit_volt is not None:
            limit_mv = min(limit_mv, int(self._voltage_limit_volt * 1000.0 + 1e-6))
        asked = Configure(watchdog_ms, limit_mv)
        taken = self._ask(asked, Configured, self._connection.connect_timeout_s, resend_s=HELLO_EVERY_S, n_tries=None)
        if taken is None:
            raise self._failure("the board does not take its configuration")
        if not 1 <= taken.watchdog_ms <= watchdog_ms or taken.voltage_limit_mv > limit_mv:
            raise self._failure(f"the board was asked for {asked} and took {taken}")
        self._watchdog_s = taken.watchdog_ms / 1000.0
        # The last of them is what the board took, if it was asked more than once.
        self._last_command, self._lost_drives = self._sequence, 0
        self._limit_mv = min(taken.voltage_limit_mv, 0x7FFF)

    def _check_board(self, state: State) -> None:
        self._flags = Flag(state.flags)
        if state.flags & Flag.FAULT:
            raise self._failure(
                "the board reports a fault of its own and holds 0 V: look at its emergency stop, amplifier and limit switches"
            )
        if not state.flags & Flag.ENABLED:
            raise self._failure("the board has restarted since it was configured: look at its power supply")

    def _check(self, state: State) -> None:
        self._check_board(state)
        if state.flags & Flag.SLIPPED:
            raise self._failure(
                "an encoder made a step that it cannot make, so that counts may be missing: look at its cable and plug"
            )
        if state.flags & Flag.WATCHDOG_EXPIRED:
            raise self._failure(f"the board's watchdog has cut the motor: no command reached it for {self._watchdog_s:g} s")
        self._lost_drives = 0 if state.last_command == self._last_command else self._lost_drives + 1
        if self._lost_drives >= MAX_LOST_DRIVES:
            raise self._failure(f"the board answers but has not taken the last {self._lost_drives} commands")

    def _ask(
        self, question: Message, kind: type[Answer], timeout_s: float, *, resend_s: float, n_tries: int | None
    ) -> Answer | None:
        """
        :param question: sent again when it stays without an answer for ``resend_s``
        :param kind: of the answer
        :param timeout_s: for all of it
        :param resend_s: time between two tries
        :param n_tries: how often it is sent at most; then a frame that arrives damaged is reason enough to ask again
        :return: the answer to any of the tries
        """
        deadline_s = self.clock.now_s() + timeout_s
        sent: set[int] = set()
        resend_at_s, n_damaged = -math.inf, 0
        now_s = -math.inf
        # One look at the port after the deadline: this process may have slept while the answer came.
        while now_s < deadline_s:
            now_s = self.clock.now_s()
            damaged = n_tries is not None and self.decoder.dropped.total > n_damaged
            if (now_s >= resend_at_s or damaged) and (n_tries is None or len(sent) < n_tries):
                sent.add(self._send(question))
                resend_at_s, n_damaged = now_s + resend_s, self.decoder.dropped.total
            answer: Answer | None = None
            for frame in self.decoder.feed(self._receive()):
                if answer is None and isinstance(frame.message, kind) and frame.sequence in sent:
                    answer = frame.message
                else:
                    self.ignored += 1
            if answer is not None:
                return answer
        return None

    def _send(self, message: Message) -> int:
        self._sequence = next_sequence(self._sequence)
        with self._port_errors():
            self._port.write(encode(self._sequence, message))
        return self._sequence

    def _receive(self) -> bytes:
        with self._port_errors():
            data: bytes = self._port.read(1)
            if data and (waiting := self._port.in_waiting):
                data += self._port.read(waiting)
        return data

    @contextmanager
    def _port_errors(self) -> Iterator[None]:
        """Whatever pyserial lets through (its own errors, the system's, termios'), the rig is gone."""
        if self._port is None:
            raise PlantError(f"{self._connection.port} is not open")
        try:
            yield
        except Exception as error:
            raise self._failure(f"the connection broke ({error}): was the cable pulled?") from error

    def _failure(self, problem: str) -> PlantError:
        self._failed = True
        return PlantError(f"{self._connection.port}: {problem}")
