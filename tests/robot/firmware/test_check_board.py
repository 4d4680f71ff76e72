"""``python -m nopg_robot.commands.check_board`` on the real firmware, as on the day a board is wired."""

import threading

import pytest
from typer.testing import CliRunner

from helpers.avr_board import WELL, AvrBoard, Contact
from nopg_robot.commands.check_board import app
from nopg_robot.virtual.simulated_cart import SimulatedCart

pytest.importorskip("serial")

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def test_shows_counts_contacts_and_volts(build):
    with AvrBoard(build("LONGEST_SILENCE_MS=500"), cart=SimulatedCart(operator=False)) as board:
        board.cart.rail_ends_m = (-10.0, 10.0)
        press = threading.Timer(0.8, lambda: setattr(board, "contacts", WELL | Contact.LIMIT_POSITIVE))
        press.start()
        result = CliRunner().invoke(app, [board.port, "--volt", "1.5", "--seconds", "1.6"])
        press.join()
        assert result.exit_code == 0, result.output
        assert board.volt == 0.0
    lines = result.output.splitlines()
    assert len(lines) >= 5
    before = [line for line in lines if "LIMIT" not in line]
    after = [line for line in lines if "LIMIT_POSITIVE" in line]
    assert "+1.500 V   ENABLED" in before[-1]
    assert "+0.000 V   ENABLED LIMIT_POSITIVE" in after[-1]
    assert int(before[-1].split()[1]) > 1000


def test_no_board(tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path / "nothing")])
    assert result.exit_code == 3
    assert "is the board plugged in" in result.output
