"""Serial frames: what is sent arrives, what is damaged does not, and the specification says what the code does."""

import math
import random
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.repository import REPOSITORY
from nopg_robot.rig import protocol
from nopg_robot.rig.protocol import (
    Configure,
    Configured,
    Decoder,
    Drive,
    Frame,
    Hello,
    Info,
    Message,
    Poll,
    State,
    Stop,
    encode,
    is_newer,
    next_sequence,
    wrap,
)

SPECIFICATION = REPOSITORY / "robot" / "PROTOCOL.md"

# The exchange at the end of the specification.
EXCHANGE = [
    Frame(1, Hello()),
    Frame(1, Info(16, 10_000, b"my board".ljust(16, b"\0"))),
    Frame(2, Configure(50, 5000)),
    Frame(2, Configured(50, 5000)),
    Frame(3, Poll()),
    Frame(3, State(1_250_000, 0, 0, 0, 2, 1)),
    Frame(4, Drive(-1500)),
    Frame(5, Poll()),
    Frame(5, State(1_252_000, -37, 2, -1500, 4, 1)),
    Frame(6, Stop()),
    Frame(6, State(1_254_000, -52, 3, 0, 6, 1)),
]


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


messages: st.SearchStrategy[Message] = st.one_of(
    st.sampled_from([Hello(), Poll(), Stop()]),
    st.builds(Info, unsigned(8), unsigned(16), st.binary(min_size=16, max_size=16)),
    st.builds(Configure, unsigned(16), unsigned(16)),
    st.builds(Configured, unsigned(16), unsigned(16)),
    st.builds(State, unsigned(32), signed(32), signed(32), signed(16), unsigned(16), unsigned(8)),
    st.builds(Drive, signed(16)),
)
frames = st.builds(Frame, unsigned(16), messages)


def slow_cobs(packet: bytes) -> bytes:
    """COBS as textbooks write it, a byte at a time."""
    stuffed, code_at = bytearray([0]), 0
    for byte in packet:
        if byte:
            stuffed.append(byte)
        else:
            stuffed[code_at] = len(stuffed) - code_at
            code_at = len(stuffed)
            stuffed.append(0)
    stuffed[code_at] = len(stuffed) - code_at
    return bytes(stuffed)


def slow_crc32(data: bytes) -> int:
    """As the specification gives it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0xEDB88320 if crc & 1 else crc >> 1
    return ~crc & 0xFFFFFFFF


class TestFrames:
    @pytest.mark.slow
    @given(st.lists(frames, max_size=6), st.data())
    def test_frames_cross_the_line_in_pieces_of_any_size(self, sent: list[Frame], data: st.DataObject) -> None:
        stream = b"".join(encode(frame.sequence, frame.message) for frame in sent)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
        decoder, received = Decoder(), []
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            received += decoder.feed(stream[begin:end])
        assert received == sent
        assert decoder.dropped.total == 0

    @pytest.mark.slow
    @given(frames)
    def test_bytes_are_those_of_slow_and_obvious_code(self, frame: Frame) -> None:
        kind = next(number for number, known in protocol.MESSAGES.items() if known is type(frame.message))
        packet = bytes([1, kind, frame.sequence & 0xFF, frame.sequence >> 8]) + frame.message.payload()
        packet += slow_crc32(packet).to_bytes(4, "little")
        assert encode(frame.sequence, frame.message) == b"\0" + slow_cobs(packet) + b"\0"

    def test_one_byte_at_a_time(self) -> None:
        decoder = Decoder()
        stream = b"".join(encode(frame.sequence, frame.message) for frame in EXCHANGE)
        assert [frame for byte in stream for frame in decoder.feed(bytes([byte]))] == EXCHANGE

    def test_a_value_that_does_not_fit_is_an_error_of_the_caller(self) -> None:
        with pytest.raises(ValueError, match="voltage_mv=40000"):
            encode(1, Drive(40_000))

    def test_name_of_a_firmware(self) -> None:
        assert Info(16, 0, b"my board".ljust(16, b"\0")).name == "my board"
        assert "\N{REPLACEMENT CHARACTER}" in Info(16, 0, b"\xff" * 16).name

    def test_sequence_numbers_go_round_without_zero(self) -> None:
        assert next_sequence(0) == 1
        assert next_sequence(65534) == 65535
        assert next_sequence(65535) == 1
        assert is_newer(1, than=65535)
        assert is_newer(100, than=99)
        assert not is_newer(99, than=99)
        assert not is_newer(98, than=99)
        assert not is_newer(65535, than=1)


class TestSpecification:
    def test_exchange(self) -> None:
        section = SPECIFICATION.read_text(encoding="utf-8").split("## A whole exchange")[1]
        written = [bytes.fromhex(match) for match in re.findall(r"\| `([0-9a-f ]+)` \|", section)]
        assert written == [encode(frame.sequence, frame.message) for frame in EXCHANGE]

    def test_single_frame(self) -> None:
        text = SPECIFICATION.read_text(encoding="utf-8")
        on_the_line = re.search(r"on the line ([0-9a-f ]+)\n", text)
        assert on_the_line is not None
        assert bytes.fromhex(on_the_line[1]) == encode(4, Drive(-1500))
        crc = zlib.crc32(bytes.fromhex("01 04 04 00 24 fa"))
        assert f"{crc:#010x}" in text
        assert slow_crc32(b"123456789") == 0xCBF43926

    def test_types(self) -> None:
        table = re.findall(r"\| 0x([0-9a-f]{2}) \| (\w+) \|", SPECIFICATION.read_text(encoding="utf-8"))
        assert {(int(number, 16), name) for number, name in table} == {
            (number, kind.__name__.upper()) for number, kind in protocol.MESSAGES.items()
        }

    def test_sizes(self) -> None:
        cycle = (Drive(0), Poll(), State(0, 0, 0, 0, 0, 0))
        text = SPECIFICATION.read_text(encoding="utf-8")
        assert f"is {sum(len(encode(1, message)) for message in cycle)} bytes" in text
        longest = max(kind.LAYOUT.size for kind in protocol.MESSAGES.values()) + 8
        assert f"at most\n{longest} bytes" in text
        assert f"At most {protocol.MAX_STUFFED_BYTES} bytes may stand" in text


class TestDamage:
    GOOD = encode(7, State(1, 2, 3, 4, 5, 1))

    def test_crc(self) -> None:
        decoder = Decoder()
        for position in range(2, len(self.GOOD) - 1):
            for bit in range(8):
                damaged = bytearray(self.GOOD)
                damaged[position] ^= 1 << bit
                assert decoder.feed(bytes(damaged)) == []
        assert decoder.dropped.crc > 100
        assert decoder.feed(self.GOOD) == [Frame(7, State(1, 2, 3, 4, 5, 1))]

    @pytest.mark.parametrize(
        ("stream", "reason"),
        [
            (wrap(0x83, 7, b"\1" * 16), "length"),
            (wrap(0x83, 7, b"\1" * 18), "length"),
            (b"\0\3\1\1\0", "length"),
            (wrap(0x7F, 7, b""), "unknown_type"),
            (wrap(0x03, 7, b"", version=2), "version"),
            (wrap(0x83, 7, b"\1" * 90), "too_long"),
            (b"\0" + b"\1" * 64 + b"\1" * 10_000 + b"\0", "too_long"),
            (b"\0\x20\1\1\0", "stuffing"),
        ],
    )
    def test_each_reason_is_counted_once(self, stream: bytes, reason: str) -> None:
        for size in (1, 7, len(stream)):
            decoder = Decoder()
            for begin in range(0, len(stream), size):
                assert decoder.feed(stream[begin : begin + size]) == []
            assert getattr(decoder.dropped, reason) == 1
            assert decoder.dropped.total == 1
            assert len(decoder.feed(self.GOOD)) == 1

    def test_version_of_another_protocol_is_known(self) -> None:
        decoder = Decoder()
        decoder.feed(wrap(0x81, 1, b"whatever it may say", version=9))
        assert decoder.other_version == 9

    def test_noise_before_a_frame_does_not_cost_the_frame(self) -> None:
        decoder = Decoder()
        assert len(decoder.feed(b"\x55\xaa\x13" + self.GOOD)) == 1
        assert decoder.dropped.total == 1

    def test_half_a_frame_costs_only_itself(self) -> None:
        decoder = Decoder()
        assert len(decoder.feed(self.GOOD[: len(self.GOOD) // 2] + self.GOOD)) == 1

    def test_memory_is_bounded(self) -> None:
        decoder = Decoder()
        for _ in range(1000):
            decoder.feed(b"\x11" * 1000)
            assert len(decoder._rest) <= protocol.MAX_STUFFED_BYTES
        assert decoder.dropped.too_long == 1


N_FUZZED = 400_000


def allowed_to_pass(n_inputs: int, bits: int = 32) -> int:
    """Number of damaged frames that a CRC lets through by chance, exceeded once in a million tests."""
    mean = n_inputs * 2.0**-bits
    term = probability = math.exp(-mean)
    n = 0
    while 1.0 - probability > 1e-6:
        n += 1
        term *= mean / n
        probability += term
    return n


def mutate(generator: random.Random, stream: bytes) -> bytes:
    """One to three accidents."""
    data = bytearray(stream)
    for _ in range(1 + (generator.random() < 0.3) + (generator.random() < 0.1)):
        position = int(generator.random() * len(data))
        accident = int(generator.random() * 6)
        if accident == 0:
            data[position] ^= 1 << generator.getrandbits(3)
        elif accident == 1:
            data[position] = generator.getrandbits(8)
        elif accident == 2:
            data.insert(position, generator.getrandbits(8))
        elif accident == 3 and len(data) > 1:
            del data[position]
        elif accident == 4:
            data[position : position + 4] = generator.randbytes(4)
        else:
            # Two halves of different frames.
            other = generator.choice(STREAMS)
            data[position:] = other[position:] or b"\0"
    return bytes(data)


def forge(generator: random.Random) -> bytes:
    """A frame with a good header and the right length, whose payload and CRC are anything."""
    kind = generator.choice(KINDS)
    packet = bytes((protocol.VERSION, kind.TYPE)) + generator.randbytes(2 + kind.LAYOUT.size + 4)
    return b"\0" + b"".join(bytes((len(block) + 1,)) + block for block in packet.split(b"\0")) + b"\0"


STREAMS = [encode(frame.sequence, frame.message) for frame in EXCHANGE]
KINDS = list(protocol.MESSAGES.values())


class TestFuzz:
    def test_the_odds(self) -> None:
        # One in so many inputs would be far beyond chance for 32 bits, and nothing unusual for 16.
        assert allowed_to_pass(N_FUZZED) <= 1
        assert allowed_to_pass(N_FUZZED, bits=16) > 15

    @pytest.mark.slow
    def test_many_inputs(self) -> None:
        """Nothing is raised, and nothing is taken that was not sent."""
        generator = random.Random(1)
        sent = {(frame.sequence, frame.message) for frame in EXCHANGE}
        decoder, wrong, whole = Decoder(), 0, 0
        for number in range(N_FUZZED):
            if number % 2:
                data = forge(generator)
            elif number % 10:
                data = mutate(generator, generator.choice(STREAMS))
            else:
                data = generator.randbytes(number % 100)
            for frame in decoder.feed(data):
                if (frame.sequence, frame.message) in sent:
                    whole += 1
                else:
                    wrong += 1
        assert wrong <= allowed_to_pass(N_FUZZED)
        # Accidents to the delimiters leave a frame whole; most do not.
        assert 0 < whole < N_FUZZED / 4
        # All but the CRC is right in half of the inputs: without it they would be taken.
        assert decoder.dropped.crc > N_FUZZED / 2
        assert min(decoder.dropped.stuffing, decoder.dropped.length, decoder.dropped.too_long) > N_FUZZED / 1000
        decoder.feed(b"\0")
        assert decoder.feed(STREAMS[0]) == [EXCHANGE[0]]

    @pytest.mark.slow
    @settings(max_examples=300)
    @given(st.lists(st.binary(max_size=300), max_size=10))
    def test_any_bytes_in_any_pieces(self, pieces: list[bytes]) -> None:
        decoder, again = Decoder(), Decoder()
        received = [frame for piece in pieces for frame in decoder.feed(piece)]
        # How the bytes were cut makes no difference.
        assert received == again.feed(b"".join(pieces))
        assert decoder.dropped == again.dropped
