"""
A stand-in for Quanser's ``quanser.hardware``: the calls that :mod:`nopg_robot.plants.hil` makes, and a hardware-timed encoder
reader beside them, on a card whose cart is simulated. Rig files choose it by ``module: nopg_robot.virtual.hil_stub``.

The vendor's calls take any buffer and read its memory as if it had the right type. These refuse what those would corrupt.
"""

import enum
from typing import Any

from nopg_robot.virtual.simulated_card import DAC_LIMIT_VOLT, N_CHANNELS, EncoderTask, SimulatedCard


class Clock(enum.IntEnum):
    """That time the samples of a task."""

    SYSTEM_CLOCK_1 = -1
    HARDWARE_CLOCK_0 = 0


class ErrorCode(enum.IntEnum):
    """Reasons to refuse a call; their numbers are this stand-in's own."""

    NOT_OPEN = -1
    IN_USE = -2
    BAD_CHANNEL = -3
    BUFFER_TOO_SHORT = -4
    WATCHDOG_EXPIRED = -5
    NOT_AN_OUTPUT = -6
    BAD_VALUE = -7
    BAD_TASK = -8
    BUFFER_OVERFLOW = -9
    FAILED = -10


_MESSAGES = {
    ErrorCode.NOT_OPEN: "The card has not been opened.",
    ErrorCode.IN_USE: "The card is in use by another program.",
    ErrorCode.BAD_CHANNEL: "The card has no such channel.",
    ErrorCode.BUFFER_TOO_SHORT: "The buffer is shorter than the number of channels or samples.",
    ErrorCode.WATCHDOG_EXPIRED: "The watchdog has expired: the card is protected until the watchdog is cleared.",
    ErrorCode.NOT_AN_OUTPUT: "The digital line has not been configured as an output.",
    ErrorCode.BAD_VALUE: "An argument has a value that makes no sense.",
    ErrorCode.BAD_TASK: "There is no such task, or it has not been started.",
    ErrorCode.BUFFER_OVERFLOW: "Samples were lost because they were not read in time.",
    ErrorCode.FAILED: "The operation failed.",
}


class HILError(Exception):
    """
    :param error_code: negative, as the vendor's are
    """

    def __init__(self, error_code: int):
        super().__init__(error_code)
        self.error_code = int(error_code)

    def get_error_message(self) -> str:
        return _MESSAGES[ErrorCode(self.error_code)]


_cards: dict[tuple[str, str], SimulatedCard] = {}


def plug_in(card_type: str, card_id: str, card: SimulatedCard | None = None) -> SimulatedCard:
    """
    :param card_type: under which programs find it
    :param card_id: of cards of that type
    :param card: a new one if not given
    :return: the card
    """
    _cards[card_type, card_id] = card or SimulatedCard()
    return _cards[card_type, card_id]


class HIL:
    """
    A program's connection to a card.

    :param card_type: such as ``"q2_usb"``; opened at once if given. A type that nobody plugged in gets a card of its own.
    :param card_identifier: such as ``"0"``
    """

    def __init__(self, card_type: str | None = None, card_identifier: str | None = None):
        self._card: SimulatedCard | None = None
        if card_type is not None and card_identifier is not None:
            self.open(card_type, card_identifier)

    def open(self, card_type: str, card_identifier: str) -> None:
        self.close()
        card = _cards.get((card_type, card_identifier)) or plug_in(card_type, card_identifier)
        if "open" in card.failing:
            raise HILError(ErrorCode.FAILED)
        if card.in_use:
            raise HILError(ErrorCode.IN_USE)
        card.in_use = True
        card.cart.attend(True)
        self._card = card

    def is_valid(self) -> bool:
        return self._card is not None and "is_valid" not in self._card.failing

    def close(self) -> None:
        if self._card is None:
            return
        card, self._card = self._card, None
        card.in_use = False
        card.cart.attend(False)
        card.tasks.clear()
        card.calls.append(("close", None))
        if "close" in card.failing:
            raise HILError(ErrorCode.FAILED)

    def read_encoder(self, channels: Any, num_channels: int, counts: Any) -> None:
        card = self._access("read_encoder")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("counts", counts, "int32", num_channels, writable=True)
        for index, channel in enumerate(numbers):
            buffer[index] = card.count(channel)

    def set_encoder_counts(self, channels: Any, num_channels: int, counts: Any) -> None:
        card = self._access("set_encoder_counts")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("counts", counts, "int32", num_channels)
        for index, channel in enumerate(numbers):
            card.offsets[channel] += buffer[index] - card.count(channel)
        card.calls.append(("set_encoder_counts", tuple(buffer[:num_channels])))

    def write_analog(self, channels: Any, num_channels: int, volts: Any) -> None:
        card = self._access("write_analog")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("volts", volts, "float64", num_channels)
        for index, channel in enumerate(numbers):
            if buffer[index] != buffer[index]:
                raise HILError(ErrorCode.BAD_VALUE)
            card.analog[channel] = min(max(buffer[index], -DAC_LIMIT_VOLT), DAC_LIMIT_VOLT)
        card.calls.append(("write_analog", tuple(buffer[:num_channels])))
        card.apply()

    def set_digital_directions(
        self, input_channels: Any, num_input_channels: int, output_channels: Any, num_output_channels: int
    ) -> None:
        card = self._access("set_digital_directions")
        card.digital_outputs -= set(_channels(input_channels, num_input_channels))
        card.digital_outputs |= set(_channels(output_channels, num_output_channels))

    def write_digital(self, channels: Any, num_channels: int, values: Any) -> None:
        card = self._access("write_digital")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("values", values, "int8", num_channels)
        for index, channel in enumerate(numbers):
            # The vendor's call says nothing here, and the line stays as it is.
            if channel not in card.digital_outputs:
                raise HILError(ErrorCode.NOT_AN_OUTPUT)
            card.digital[channel] = buffer[index]
        card.calls.append(("write_digital", tuple(buffer[:num_channels])))
        card.apply()

    def watchdog_set_analog_expiration_state(self, channels: Any, num_channels: int, voltages: Any) -> None:
        card = self._access("watchdog_set_analog_expiration_state")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("voltages", voltages, "float64", num_channels)
        card.expiration_volts.update((channel, buffer[index]) for index, channel in enumerate(numbers))

    def watchdog_set_digital_expiration_state(self, channels: Any, num_channels: int, states: Any) -> None:
        card = self._access("watchdog_set_digital_expiration_state")
        numbers = _channels(channels, num_channels)
        buffer = _buffer("states", states, "int32", num_channels)
        if any(state not in card.expiration_states_known for state in buffer[:num_channels]):
            raise HILError(ErrorCode.BAD_VALUE)
        card.expiration_states.update((channel, buffer[index]) for index, channel in enumerate(numbers))

    def watchdog_start(self, timeout: float) -> None:
        card = self._access("watchdog_start")
        if not timeout > 0.0:
            raise HILError(ErrorCode.BAD_VALUE)
        card.timeout_s, card.reloaded_s = float(timeout), card.clock.now_s()
        card.calls.append(("watchdog_start", float(timeout)))

    def watchdog_reload(self) -> bool:
        card = self._access("watchdog_reload", even_if_expired=True)
        card.reloaded_s = card.clock.now_s()
        return not card.expired

    def watchdog_is_expired(self) -> bool:
        return self._access("watchdog_is_expired", even_if_expired=True).expired

    def watchdog_stop(self) -> None:
        card = self._access("watchdog_stop", even_if_expired=True)
        card.timeout_s = None
        card.calls.append(("watchdog_stop", None))

    def watchdog_clear(self) -> None:
        card = self._access("watchdog_clear", even_if_expired=True)
        card.expired, card.reloaded_s = False, card.clock.now_s()
        card.calls.append(("watchdog_clear", None))

    def task_create_encoder_reader(self, samples_in_buffer: int, channels: Any, num_channels: int) -> EncoderTask:
        card = self._access("task_create_encoder_reader")
        task = EncoderTask(_channels(channels, num_channels), samples_in_buffer)
        card.tasks.append(task)
        return task

    def task_start(self, task: EncoderTask, clock: Clock, frequency: float, num_samples: int) -> None:
        card = self._task_access("task_start", task)
        if not frequency > 0.0 or num_samples < 1:
            raise HILError(ErrorCode.BAD_VALUE)
        task.period_s, task.n_left = 1.0 / frequency, num_samples
        task.next_s = card.clock.now_s() + task.period_s

    def task_read_encoder(self, task: EncoderTask, num_samples: int, counts: Any) -> int:
        """:return: samples read: fewer than asked once the task has come to its end"""
        card = self._task_access("task_read_encoder", task)
        n_channels = len(task.channels)
        buffer = _buffer("counts", counts, "int32", num_samples * n_channels, writable=True)
        while len(task.samples) < num_samples and task.next_s is not None and not task.overflowed:
            card.clock.sleep_until(task.next_s)
            self._access("task_read_encoder")
        if task.overflowed:
            raise HILError(ErrorCode.BUFFER_OVERFLOW)
        taken, task.samples = task.samples[:num_samples], task.samples[num_samples:]
        for index, count in enumerate(count for sample in taken for count in sample):
            buffer[index] = count
        return len(taken)

    def task_stop(self, task: EncoderTask) -> None:
        self._task_access("task_stop", task)
        task.next_s = None

    def task_delete(self, task: EncoderTask) -> None:
        self._task_access("task_delete", task).tasks.remove(task)

    def _access(self, call: str, *, even_if_expired: bool = False) -> SimulatedCard:
        if self._card is None:
            raise HILError(ErrorCode.NOT_OPEN)
        self._card.advance()
        if call in self._card.failing:
            raise HILError(ErrorCode.FAILED)
        if self._card.expired and not even_if_expired:
            raise HILError(ErrorCode.WATCHDOG_EXPIRED)
        return self._card

    def _task_access(self, call: str, task: EncoderTask) -> SimulatedCard:
        card = self._access(call)
        if not any(task is known for known in card.tasks):
            raise HILError(ErrorCode.BAD_TASK)
        return card


#: format letters of memory that the vendor's library reads correctly; "l" has eight bytes on Linux and four on Windows
_FORMATS = {"uint32": ("IL", 4), "int32": ("il", 4), "float64": ("d", 8), "int8": ("b", 1)}


def _buffer(name: str, buffer: Any, dtype: str, n: int, *, writable: bool = False) -> memoryview:
    letters, size = _FORMATS[dtype]
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise TypeError(f"{name}: must be an array of {dtype}, got {type(buffer).__name__}") from error
    if view.format not in tuple(letters) or view.itemsize != size:
        raise TypeError(f"{name}: must be an array of {dtype}, got format {view.format!r} of {view.itemsize} bytes")
    if not view.c_contiguous or view.ndim != 1:
        raise TypeError(f"{name}: must be contiguous and of one dimension")
    if writable and view.readonly:
        raise TypeError(f"{name}: must be writable")
    if len(view) < n:
        raise HILError(ErrorCode.BUFFER_TOO_SHORT)
    return view


def _channels(channels: Any, n: int) -> list[int]:
    # The vendor's calls take None for no channels.
    if channels is None and n == 0:
        return []
    numbers = list(_buffer("channels", channels, "uint32", n)[:n])
    if any(number >= N_CHANNELS for number in numbers):
        raise HILError(ErrorCode.BAD_CHANNEL)
    return numbers
