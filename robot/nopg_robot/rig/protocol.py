"""
Frames between this computer and a motor board on a serial line. ``PROTOCOL.md`` is the specification; this is the code that
both ends of a virtual rig share.
"""

import enum
import struct
import zlib
from dataclasses import dataclass, field, fields
from typing import ClassVar

VERSION = 1
#: bytes between two delimiters, at most; the longest frame of this version has 28
MAX_STUFFED_BYTES = 64

_DELIMITER = b"\0"
_HEADER = struct.Struct("<BBH")
_CRC = struct.Struct("<I")
_SHORTEST = _HEADER.size + _CRC.size


class Flag(enum.IntFlag):
    """Of a board, in :class:`State`."""

    #: it has been configured and takes DRIVE frames
    ENABLED = 1
    #: DRIVE frames stopped; 0 V until STOP or CONFIGURE
    WATCHDOG_EXPIRED = 2
    #: the board has a problem of its own (emergency stop, hot amplifier, ...) and holds 0 V
    FAULT = 4
    #: both channels of an encoder changed at once: counts may be missing; until CONFIGURE
    SLIPPED = 8
    #: the limit switch at the end that negative voltages lead to: none of them until it closes again
    LIMIT_NEGATIVE = 16
    #: the same at the other end
    LIMIT_POSITIVE = 32


class Message:
    """What a frame says: a type byte, and a payload that always has the same length."""

    TYPE: ClassVar[int]
    LAYOUT: ClassVar[struct.Struct]

    def payload(self) -> bytes:
        """Its bytes, little-endian."""
        # fields() and not a recursive copy: messages are flat.
        values = [getattr(self, entry.name) for entry in fields(self)]  # type: ignore[arg-type]
        try:
            return self.LAYOUT.pack(*values)
        except struct.error as error:
            raise ValueError(f"{self} does not fit into a frame: {error}") from error


@dataclass(frozen=True)
class Hello(Message):
    """Who is there?"""

    TYPE = 0x01
    LAYOUT = struct.Struct("<")


@dataclass(frozen=True)
class Info(Message):
    """
    Answer to :class:`Hello`. The header of its frame says which version of the protocol the board speaks.

    :param counter_bits: width of the encoder counters
    :param voltage_limit_mv: most that the board ever applies
    :param firmware: its name, ASCII, filled up with zero bytes
    """

    TYPE = 0x81
    LAYOUT = struct.Struct("<BH16s")
    counter_bits: int
    voltage_limit_mv: int
    firmware: bytes

    @property
    def name(self) -> str:
        return self.firmware.rstrip(b"\0").decode("ascii", errors="replace")


@dataclass(frozen=True)
class Configure(Message):
    """
    Zero volts, the watchdog cleared, and from now on:

    :param watchdog_ms: longest time between two DRIVE frames, 1 to 1000
    :param voltage_limit_mv: largest voltage
    """

    TYPE = 0x02
    LAYOUT = struct.Struct("<HH")
    watchdog_ms: int
    voltage_limit_mv: int


@dataclass(frozen=True)
class Configured(Message):
    """Answer to :class:`Configure`: what is in force now. A board may take less of both than asked, never more."""

    TYPE = 0x82
    LAYOUT = struct.Struct("<HH")
    watchdog_ms: int
    voltage_limit_mv: int


@dataclass(frozen=True)
class Poll(Message):
    """How is the rig?"""

    TYPE = 0x03
    LAYOUT = struct.Struct("<")


@dataclass(frozen=True)
class State(Message):
    """
    Answer to :class:`Poll` and to :class:`Stop`.

    :param time_us: the board's clock when it read the counters; wraps
    :param cart: encoder count, sign-extended from the counter's width
    :param pole: encoder count
    :param applied_mv: at the motor
    :param last_command: sequence number of the last CONFIGURE, DRIVE or STOP that was taken
    :param flags: see :class:`Flag`
    """

    TYPE = 0x83
    LAYOUT = struct.Struct("<IiihHB")
    time_us: int
    cart: int
    pole: int
    applied_mv: int
    last_command: int
    flags: int


@dataclass(frozen=True)
class Drive(Message):
    """Apply a voltage. There is no answer; the next :class:`State` tells."""

    TYPE = 0x04
    LAYOUT = struct.Struct("<h")
    voltage_mv: int


@dataclass(frozen=True)
class Stop(Message):
    """Zero volts, the watchdog cleared and waiting for the next DRIVE."""

    TYPE = 0x05
    LAYOUT = struct.Struct("<")


MESSAGES: dict[int, type[Message]] = {
    kind.TYPE: kind for kind in (Hello, Info, Configure, Configured, Poll, State, Drive, Stop)
}


@dataclass(frozen=True)
class Frame:
    """
    :param sequence: 1 to 65535; an answer has that of its question
    :param message: what it says
    """

    sequence: int
    message: Message


def next_sequence(sequence: int) -> int:
    """The number after this one; 0 is never used."""
    return sequence % 0xFFFF + 1


def is_newer(sequence: int, than: int) -> bool:
    """Whether a number was given out after another, less than half a round ago."""
    return 0 < (sequence - than) & 0xFFFF < 0x8000


def encode(sequence: int, message: Message) -> bytes:
    """Bytes for the line. A delimiter stands before the frame too, so that noise on an idle line does not spoil it."""
    return wrap(message.TYPE, sequence, message.payload())


def wrap(kind: int, sequence: int, payload: bytes, version: int = VERSION) -> bytes:
    """
    Any payload as a sound frame, whether or not somebody understands it.

    :param kind: type byte
    :param sequence: its number
    :param payload: at most 50 bytes
    :param version: of the protocol
    """
    packet = _HEADER.pack(version, kind, sequence) + payload
    packet += _CRC.pack(zlib.crc32(packet))
    # COBS: each zero byte is replaced by the distance to the next one. Blocks of 254 bytes cannot occur in packets so short.
    blocks = packet.split(_DELIMITER)
    return _DELIMITER + b"".join(bytes((len(block) + 1,)) + block for block in blocks) + _DELIMITER


@dataclass
class Dropped:
    """How many frames a decoder threw away, by what was wrong with them."""

    stuffing: int = 0
    crc: int = 0
    length: int = 0
    too_long: int = 0
    version: int = 0
    unknown_type: int = 0

    @property
    def total(self) -> int:
        return self.stuffing + self.crc + self.length + self.too_long + self.version + self.unknown_type


@dataclass
class Decoder:
    """
    Bytes in, frames out, whatever the bytes are. It holds no more than one frame's bytes.

    ``dropped`` counts what was not a frame, ``other_version`` is the version of the last frame of another protocol, and
    ``other_hello`` the number of its last HELLO, which a board answers in its own version.
    """

    dropped: Dropped = field(default_factory=Dropped)
    other_version: int | None = None
    other_hello: int | None = None
    _rest: bytes = b""
    _skipping: bool = False

    def feed(self, data: bytes) -> list[Frame]:
        """
        :param data: as it came, in pieces of any size
        :return: frames that it completed
        """
        *complete, rest = data.split(_DELIMITER)
        frames = []
        for piece in complete:
            stuffed, self._rest = self._rest + piece, b""
            if self._skipping:
                self._skipping = False
            # Two delimiters in a row are no frame, and nothing wrong either.
            elif stuffed and (frame := self._decode(stuffed)) is not None:
                frames.append(frame)
        if not self._skipping:
            self._rest += rest
            if len(self._rest) > MAX_STUFFED_BYTES:
                self.dropped.too_long += 1
                self._rest, self._skipping = b"", True
        return frames

    def _decode(self, stuffed: bytes) -> Frame | None:
        if len(stuffed) > MAX_STUFFED_BYTES:
            self.dropped.too_long += 1
            return None
        packet = _unstuff(stuffed)
        if packet is None:
            self.dropped.stuffing += 1
        elif len(packet) < _SHORTEST:
            self.dropped.length += 1
        elif zlib.crc32(packet[: -_CRC.size]) != _CRC.unpack_from(packet, len(packet) - _CRC.size)[0]:
            self.dropped.crc += 1
        else:
            return self._read(packet)
        return None

    def _read(self, packet: bytes) -> Frame | None:
        """A packet as its sender meant it; but it may be somebody else's."""
        version, kind, sequence = _HEADER.unpack_from(packet)
        payload = packet[_HEADER.size : -_CRC.size]
        message_type = MESSAGES.get(kind)
        if version != VERSION:
            self.dropped.version += 1
            self.other_version = version
            if kind == Hello.TYPE and not payload:
                self.other_hello = sequence
        elif message_type is None:
            self.dropped.unknown_type += 1
        elif len(payload) != message_type.LAYOUT.size:
            self.dropped.length += 1
        else:
            return Frame(sequence, message_type(*message_type.LAYOUT.unpack(payload)))
        return None


def _unstuff(stuffed: bytes) -> bytes | None:
    """Undo COBS; None where a block would reach beyond the end."""
    blocks, position, length = [], 0, len(stuffed)
    while position < length:
        end = position + stuffed[position]
        if end > length:
            return None
        blocks.append(stuffed[position + 1 : end])
        position = end
    return _DELIMITER.join(blocks)
