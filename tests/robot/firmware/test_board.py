"""
The rules of PROTOCOL.md on the real firmware, one frame at a time. Times are the chip's own, so that a slow computer does not
matter.
"""

import random

import pytest

from helpers.avr_board import CHIPS, LONGEST_SILENCE_S, WELL, AvrBoard, Contact
from helpers.avr_line import Line
from nopg_robot.rig import protocol
from nopg_robot.rig.protocol import Configure, Configured, Drive, Flag, Hello, Info, Poll, State, Stop
from nopg_robot.virtual.simulated_cart import SimulatedCart

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

LIMIT_MV = 6000
# One step of the PWM: 12 V / 800.
STEP_VOLT = 0.015
TICK_S = 0.001


@pytest.fixture(params=CHIPS)
def board(request, build):
    with AvrBoard(build(), request.param, cart=SimulatedCart(operator=False)) as board:
        yield board
        assert board.n_lost_bytes == 0


@pytest.fixture
def line(board):
    with Line(board.port) as line:
        # Its start, and the first look at its contacts.
        board.wait(0.15)
        yield line


@pytest.fixture
def driven(board, line):
    """A line to a board that has been told to give 3 V, with a watchdog that leaves tests time to think."""
    assert line.ask(Configure(60, LIMIT_MV)) == Configured(60, LIMIT_MV)
    line.send(Drive(3000))
    assert line.state().applied_mv == 3000
    return line


def silence_s(board):
    """:return: from the last byte that the chip received to 0 V, after a voltage"""
    board.wait(0.1)
    assert board.volt == 0.0
    assert board.changes[-2].volt != 0.0
    return board.changes[-1].chip_s - board.changes[-1].received_s


def test_who_is_there(board, line):
    info = line.ask(Hello())
    assert isinstance(info, Info)
    assert (info.counter_bits, info.voltage_limit_mv) == (32, LIMIT_MV)
    assert info.name in ("nopg ATmega328P", "nopg ATmega2560")


def test_power_up_is_zero_volts_and_takes_no_command(board, line):
    line.send(Drive(3000))
    state = line.state()
    assert (state.applied_mv, state.flags, state.last_command) == (0, 0, 0)
    assert board.changes == []


def test_power_up_again(board, driven):
    board.restart()
    restarted_s = board.chip_s
    board.wait(0.15)
    assert board.volt == 0.0
    assert board.changes[-1].chip_s <= restarted_s + TICK_S
    assert driven.state().flags == 0
    driven.send(Drive(3000))
    assert driven.state().applied_mv == 0


@pytest.mark.parametrize("asked_mv", [1000, -1000, 6000, -6000, 15, -15])
def test_a_voltage(board, driven, asked_mv):
    driven.send(Drive(asked_mv))
    # Rounded towards zero to a step.
    applied_mv = int(asked_mv / 15) * 15
    assert driven.state().applied_mv == applied_mv
    # Pins are reported by another way than answers, and may come later.
    board.wait(0.002)
    assert board.volt == pytest.approx(applied_mv / 1000, abs=1e-6)


@pytest.mark.parametrize("configured_mv", [6000, 10_000, 65_535])
def test_never_above_the_limit_of_the_build(board, line, configured_mv):
    for asked_mv in (6001, 20_000, 32_767, -6001, -32_768):
        assert line.ask(Configure(60, configured_mv)) == Configured(60, LIMIT_MV)
        line.send(Drive(asked_mv))
        assert line.state().applied_mv == (LIMIT_MV if asked_mv > 0 else -LIMIT_MV)
    assert max(abs(change.volt) for change in board.changes) == pytest.approx(LIMIT_MV / 1000)


def test_never_above_the_computers_own_limit(board, line):
    assert line.ask(Configure(60, 2500)) == Configured(60, 2500)
    line.send(Drive(-6000))
    assert line.state().applied_mv == -2490
    line.ask(Configure(60, 0))
    line.send(Drive(6000))
    assert line.state().applied_mv == 0


@pytest.mark.parametrize("watchdog_ms", [10, 50])
def test_silence(board, line, watchdog_ms):
    line.ask(Configure(watchdog_ms, LIMIT_MV))
    line.send(Drive(3000))
    board.wait(0.002)
    assert board.volt == 3.0
    # A frame takes the firmware 0.1 ms, and it counts whole milliseconds: up to one early.
    assert watchdog_ms / 1000 - TICK_S <= silence_s(board) <= watchdog_ms / 1000 + 0.0003
    assert line.state().flags == Flag.ENABLED | Flag.WATCHDOG_EXPIRED
    line.send(Drive(3000))
    assert line.state().applied_mv == 0


@pytest.mark.parametrize("asked_ms", [61, 1000, 65_535])
def test_silence_is_never_longer_than_three_control_periods(board, line, asked_ms):
    assert line.ask(Configure(asked_ms, LIMIT_MV)) == Configured(60, LIMIT_MV)
    line.send(Drive(3000))
    board.wait(0.002)
    assert silence_s(board) <= LONGEST_SILENCE_S + 0.0003


def test_only_commands_feed_the_watchdog(board, line):
    line.ask(Configure(50, LIMIT_MV))
    number = line.send(Drive(3000))
    board.wait(0.002)
    begin_s = board.changes[-1].chip_s
    while board.volt and board.chip_s < begin_s + 0.2:
        line.ask(Hello())
        line.ask(Poll())
        # The same number again, and an older one.
        line.send(Drive(3000), number)
        line.send(Drive(3000), number - 1)
    assert board.volt == 0.0
    assert board.changes[-1].chip_s - begin_s <= 0.051


@pytest.mark.parametrize("message", [Stop(), Configure(60, LIMIT_MV)])
def test_after_the_watchdog(board, driven, message):
    board.wait(0.1)
    assert driven.state().flags & Flag.WATCHDOG_EXPIRED
    driven.ask(message)
    driven.send(Drive(1500))
    state = driven.state()
    assert (state.applied_mv, state.flags, state.last_command) == (1500, Flag.ENABLED, driven.sequence - 1)


def test_stop(board, driven):
    late = protocol.next_sequence(driven.sequence)
    driven.sequence = late
    state = driven.ask(Stop())
    assert isinstance(state, State)
    assert (state.applied_mv, state.last_command) == (0, driven.sequence)
    driven.send(Drive(3000), late)
    assert driven.state().applied_mv == 0
    # Not running before the next DRIVE.
    board.wait(0.1)
    assert driven.state().flags == Flag.ENABLED


SOUND = protocol.encode(1, Drive(-6000))
DAMAGED = {
    "garbage": bytes(random.Random(0).randrange(256) for _ in range(2000)),
    "no frame at all": b"\0" * 500,
    "endless frame": b"\x81" * 5000 + b"\0",
    "bad CRC": SOUND[:-3] + bytes([SOUND[-3] ^ 0x10]) + SOUND[-2:],
    "a bit in the voltage": SOUND[:6] + bytes([SOUND[6] ^ 0x01]) + SOUND[7:],
    "half a frame": SOUND[: len(SOUND) // 2] + b"\0",
    "length beyond the end": b"\0\x20\x01\x04\0",
    "another version": protocol.wrap(Drive.TYPE, 1, Drive(-6000).payload(), version=2),
    "unknown type": protocol.wrap(0x44, 1, b"\1\2"),
    "an answer": protocol.encode(1, State(0, 0, 0, -6000, 0, 1)),
    "payload too long": protocol.wrap(Drive.TYPE, 1, b"\x90\xe8\1"),
    "payload too short": protocol.wrap(Drive.TYPE, 1, b"\x90"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_not_a_frame_changes_nothing(board, driven, name):
    # The number is that of the next command, so that only the damage keeps it out.
    newer = protocol.next_sequence(driven.sequence)
    content = DAMAGED[name].replace(SOUND, protocol.encode(newer, Drive(-6000)))
    driven.send(Drive(3000))
    n_changes = len(board.changes)
    driven.send_bytes(content)
    driven.ask(Stop())
    assert all(change.volt >= 0.0 for change in board.changes)
    assert len(board.changes) == n_changes + 1
    # And the next frame is understood at once.
    driven.send(Drive(1500))
    assert driven.state().applied_mv == 1500
    assert driven.frames == []


def test_noise_without_end_never_drives(board, line):
    """Frames of random bytes with sound delimiters, at full speed: 32 bits of CRC let none through."""
    line.ask(Configure(60, LIMIT_MV))
    generator = random.Random(1)
    for _ in range(100):
        line.send_bytes(b"".join(b"\0" + generator.randbytes(generator.randrange(1, 40)) for _ in range(20)))
        board.wait(0.005)
    line.send_bytes(b"\0")
    assert line.state().last_command == line.sequence - 1
    assert board.changes == []


def test_hello_of_another_version_is_answered(board, line):
    line.send_bytes(protocol.wrap(Hello.TYPE, 77, b"", version=9))
    answer = line.receive()
    assert answer is not None
    assert answer.sequence == 77
    assert isinstance(answer.message, Info)


@pytest.mark.parametrize(
    ("contacts", "flags"),
    [
        (WELL | Contact.EMERGENCY_STOP, Flag.FAULT),
        (WELL & ~Contact.BRIDGE_FAULT, Flag.FAULT),
        (
            WELL | Contact.LIMIT_NEGATIVE | Contact.LIMIT_POSITIVE,
            Flag.FAULT | Flag.LIMIT_NEGATIVE | Flag.LIMIT_POSITIVE,
        ),
    ],
    ids=["emergency stop", "bridge", "both limits"],
)
def test_a_fault_of_its_own(board, driven, contacts, flags):
    board.contacts = contacts
    opened_s = board.chip_s
    board.wait(0.01)
    assert board.volt == 0.0
    # One millisecond of the wire here, one of the guard's interrupt.
    assert board.changes[-1].chip_s <= opened_s + 3 * TICK_S
    driven.send(Drive(3000))
    state = driven.state()
    assert (state.applied_mv, state.flags) == (0, Flag.ENABLED | flags)
    board.contacts = WELL
    # Shown for 100 ms, so that nobody who asks misses it.
    board.wait(0.05)
    assert driven.state().flags & Flag.FAULT
    board.wait(0.1)
    driven.ask(Stop())
    driven.send(Drive(3000))
    assert (driven.state().applied_mv, driven.state().flags) == (3000, Flag.ENABLED)


@pytest.mark.parametrize(
    ("contact", "sign", "flag"),
    [(Contact.LIMIT_NEGATIVE, -1, Flag.LIMIT_NEGATIVE), (Contact.LIMIT_POSITIVE, 1, Flag.LIMIT_POSITIVE)],
)
def test_limit_switches(board, driven, contact, sign, flag):
    driven.send(Drive(sign * 3000))
    board.wait(0.002)
    assert board.volt == sign * 3.0
    board.contacts = WELL | contact
    opened_s = board.chip_s
    board.wait(0.005)
    assert board.volt == 0.0
    assert board.changes[-1].chip_s <= opened_s + 3 * TICK_S
    driven.send(Drive(sign * 3000))
    state = driven.state()
    assert (state.applied_mv, state.flags) == (0, Flag.ENABLED | flag)
    # Away from it.
    driven.send(Drive(-sign * 1500))
    assert driven.state().applied_mv == -sign * 1500
    board.contacts = WELL
    board.wait(0.005)
    driven.send(Drive(sign * 3000))
    assert (driven.state().applied_mv, driven.state().flags) == (sign * 3000, Flag.ENABLED)


def test_a_chip_that_hangs_restarts_at_zero_volts(board, driven):
    driven.send(Drive(3000))
    board.wait(0.002)
    assert board.volt == 3.0
    board.hang()
    hung_s = board.chip_s
    board.wait(0.05)
    assert board.volt == 0.0
    # 16 ms of the chip's own watchdog, before that of the protocol.
    assert 0.010 < board.changes[-1].chip_s - hung_s < 0.018
    assert board.n_restarts == 1
    assert driven.state().flags == 0
    driven.send(Drive(3000))
    assert driven.state().applied_mv == 0


def test_the_clock(board, line):
    first, begin_s = line.state(), board.chip_s
    board.wait(1.0)
    last = line.state()
    passed_s = board.chip_s - begin_s
    assert (last.time_us - first.time_us) / 1e6 == pytest.approx(passed_s, abs=0.01)
    times_us = [line.state().time_us for _ in range(200)]
    assert times_us == sorted(set(times_us))
