"""Times of samples: what a board's clock adds to the computer's, and what it must not be trusted with."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopg_robot.control.estimator import StateEstimator
from nopg_robot.plants.base import Reading
from nopg_robot.plants.board_clock import WRAPS_AT_US, BoardClock
from nopg_robot.rig.file import RigFile

SAMPLE_S = 0.002
TRANSFER_S = 0.0004


def times(clock, numbers, *, late=(), held_up_s=0.0015, rate=1.0):
    """When each of some samples was taken, if the answers to some of them were read late."""
    return [
        clock.taken_at(
            round(1e6 + rate * 2000 * number),
            number * SAMPLE_S,
            number * SAMPLE_S + TRANSFER_S + (held_up_s if number in late else 0.0),
        )
        for number in numbers
    ]


@pytest.mark.parametrize("late", [{0}, {10}, {0, 1, 10, 19}])
def test_a_late_look_at_an_answer_does_not_move_its_sample(late):
    taken = times(BoardClock(), range(20), late=late)
    assert [later - earlier for earlier, later in itertools.pairwise(taken)] == pytest.approx([SAMPLE_S] * 19)


@pytest.mark.parametrize("rate", [0.99, 1.01])
def test_a_clock_that_drifts_is_followed(rate):
    """A minute at one per cent too slow or too fast, and then an answer that waits for 0.1 s."""
    clock, last = BoardClock(), 30_000
    before, held_up, after = times(clock, [*range(last), last, last + 60], late={last}, held_up_s=0.1, rate=rate)[-3:]
    # Within the room that the answers before left, and the hundredth that the clock is wrong by.
    assert held_up - before == pytest.approx(SAMPLE_S, abs=TRANSFER_S)
    assert after - held_up == pytest.approx(60 * SAMPLE_S, abs=TRANSFER_S + 0.6 * SAMPLE_S)


def test_speed_is_right_although_the_computer_was_held_up():
    """An answer waits for 0.1 s in a buffer, and the computer misses the fifty samples after it."""
    file = RigFile.load("serial_board")
    sensors, speed_m_s = file.sensors, 0.6

    def last_speeds(taken_at):
        estimator = StateEstimator(sensors, file.sample_s)
        speeds = []
        for number in [*range(200), *range(251, 256)]:
            asked_s = number * file.sample_s
            answered_s = asked_s + TRANSFER_S + (0.1 if number == 199 else 0.0)
            count = speed_m_s * asked_s / (sensors.cart_sign * sensors.cart_scale_m)
            time_s = taken_at(round(1e6 * asked_s), asked_s, answered_s)
            speeds.append(estimator.update(Reading(time_s, count, 0.0)).x_dot)
        return speeds[-6:]

    assert max(abs(speed - speed_m_s) for speed in last_speeds(BoardClock().taken_at)) < 0.02
    # What the computer alone would have said, so that the test is about something.
    assert max(last_speeds(lambda time_us, asked_s, answered_s: answered_s)) > 3.0 * speed_m_s


def test_the_clock_wraps():
    clock = BoardClock()
    start_us = WRAPS_AT_US - 3000
    taken = [
        clock.taken_at((start_us + number * 2000) % WRAPS_AT_US, number * SAMPLE_S, number * SAMPLE_S + 0.001)
        for number in range(5)
    ]
    assert [later - earlier for earlier, later in itertools.pairwise(taken)] == pytest.approx([SAMPLE_S] * 4)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.integers(0, WRAPS_AT_US - 1),
            st.floats(0.0, 10.0, allow_nan=False),
            st.floats(0.0, 1.0, allow_nan=False),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_a_board_says_times_stay_in_bounds_and_in_order(samples):
    clock = BoardClock()
    now_s, before_s = 0.0, 0.0
    for time_us, pause_s, transfer_s in samples:
        asked_s = now_s + pause_s
        now_s = asked_s + transfer_s
        taken_s = clock.taken_at(time_us, asked_s, now_s)
        assert asked_s <= taken_s <= now_s
        assert taken_s >= before_s
        before_s = taken_s
