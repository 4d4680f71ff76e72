"""The memory between the control loop and the console: nothing waits, nothing half written is believed."""

import math

import pytest

from nopg_robot.console import channel
from nopg_robot.console.channel import CAPACITY, LONGEST_TEXT, CycleReader, CycleWriter, SharedMemory


@pytest.fixture
def ends():
    memory = SharedMemory()
    yield memory, CycleWriter(memory), CycleReader(memory)
    memory.close()


def write(writer, number, phase="run"):
    writer.write(phase, number, *(number + share / 10.0 for share in range(9)))


def test_cycles_come_out_as_they_went_in(ends):
    _, writer, reader = ends
    assert reader.read() == []
    for number in (1, 2):
        write(writer, number, "self-test")
    first, second = reader.read()
    assert (first.time_s, first.x, first.busy_s, first.misses, first.phase) == (1.0, 1.1, 1.8, 1, "self-test")
    assert second.misses == 2
    assert reader.read() == []


def test_numbers_that_are_none(ends):
    _, writer, reader = ends
    writer.write("run", 0, math.nan, math.inf, *(0.0 for _ in range(7)))
    (cycle,) = reader.read()
    assert math.isnan(cycle.time_s)
    assert cycle.x == math.inf


@pytest.mark.parametrize("n_laps", [1, 3])
def test_a_reader_that_was_away_sees_the_newest_and_counts_the_rest(ends, n_laps):
    _, writer, reader = ends
    n_written = n_laps * CAPACITY + 100
    for number in range(1, n_written + 1):
        write(writer, number)
    found = reader.read()
    assert found[-1].misses == n_written
    assert [cycle.misses for cycle in found] == list(range(n_written - len(found) + 1, n_written + 1))
    assert len(found) > CAPACITY // 4
    assert reader.skipped == n_written - len(found)


def test_what_is_half_written_waits(ends):
    memory, writer, reader = ends
    write(writer, 1)
    write(writer, 2)
    place = channel._RING_AT + 2 * channel._RECORD_BYTES + 20
    whole = memory.bytes[place]
    memory.bytes[place] = whole ^ 0xFF
    assert [cycle.misses for cycle in reader.read()] == [1]
    memory.bytes[place] = whole
    assert [cycle.misses for cycle in reader.read()] == [2]


def test_the_text_is_the_last_one_or_none(ends):
    memory, writer, reader = ends
    assert reader.text() is None
    writer.write_text(b"first and long")
    writer.write_text(b"second")
    assert reader.text() == b"second"
    writer.write_text(bytes(LONGEST_TEXT + 1))
    assert reader.text() == b"second"
    memory.bytes[channel._TEXT_AT + channel._TEXT_HEAD.size] ^= 0xFF
    assert reader.text() is None


def test_the_stop_comes_back(ends):
    _, writer, reader = ends
    assert not writer.stop_asked
    reader.ask_to_stop()
    assert writer.stop_asked
