"""No count is lost at speeds that a cart and a pole reach, while the line is as busy as it can be."""

import pytest

from helpers.avr_board import CHIPS, LONGEST_SILENCE_S, AvrBoard
from helpers.avr_line import Line
from nopg_robot.rig.protocol import Configure, Configured, Drive, Flag, Stop

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# The supervisor's limits, 2 m/s and 25 rad/s, are 88 and 16 counts a millisecond. The simulated encoders are bad ones: every
# other edge comes twice as soon.
CART_PER_MS, POLE_PER_MS = 100, 20


def zigzag(time_s, per_ms, turn_s):
    """Full speed forth and back."""
    passed = time_s % (2.0 * turn_s)
    return round(1000.0 * per_ms * min(passed, 2.0 * turn_s - passed))


@pytest.mark.parametrize("chip", CHIPS)
def test_no_count_is_lost(build, chip):
    true = []

    def counts(time_s):
        # Then still, so that everything is counted when we look.
        moving_s = min(max(time_s - 0.2, 0.0), 1.7)
        both = zigzag(moving_s, CART_PER_MS, 0.7), -zigzag(moving_s, POLE_PER_MS, 0.3)
        true.append(both)
        return both

    with AvrBoard(build(), chip, counts=counts) as board, Line(board.port) as line:
        board.wait(0.1)
        assert line.ask(Configure(60, 6000)) == Configured(60, 6000)
        n_answers = 0
        while board.chip_s < 2.0:
            line.send(Drive(3000 if n_answers % 2 else -3000))
            state = line.state()
            assert not state.flags & (Flag.SLIPPED | Flag.WATCHDOG_EXPIRED), n_answers
            n_answers += 1
        state = line.state()
        assert (state.cart, state.pole) == true[-1]
        assert max(cart for cart, _ in true) > 65_536
        assert n_answers > 300
        assert board.n_lost_bytes == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_counts_that_cannot_be_followed_are_told(build, chip):
    """7 m/s, with edges in pairs."""
    counts = lambda time_s: (round(300_000 * min(max(0.0, time_s - 0.1), 0.05)), 0)  # noqa: E731
    with AvrBoard(build(), chip, counts=counts) as board, Line(board.port) as line:
        board.wait(0.2)
        assert line.state().flags & Flag.SLIPPED
        line.ask(Stop())
        assert line.state().flags & Flag.SLIPPED
        line.ask(Configure(60, 6000))
        assert line.state().flags == Flag.ENABLED


@pytest.mark.parametrize("chip", CHIPS)
def test_a_storm_of_edges_ends_at_zero_volts(build, chip):
    """A broken encoder that oscillates takes nearly all of the chip's time. What is left is enough for the guard."""
    storm = []
    counts = lambda time_s: (round(1_000_000 * (time_s - storm[0])) if storm else 0, 0)  # noqa: E731
    with AvrBoard(build(), chip, counts=counts) as board, Line(board.port) as line:
        board.wait(0.15)
        line.ask(Configure(60, 6000))
        line.send(Drive(3000))
        board.wait(0.002)
        assert board.volt == 3.0
        storm.append(board.chip_s)
        board.wait(0.1)
        assert board.volt == 0.0
        assert board.changes[-1].chip_s - board.changes[-1].received_s <= LONGEST_SILENCE_S + 0.002
