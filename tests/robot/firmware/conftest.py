"""Builds the firmware once, and the chip that runs it."""

import pytest

from helpers import avr_board


@pytest.fixture(scope="session")
def build():
    """Of :func:`helpers.avr_board.build`; what needs it is left out without the tools."""
    return avr_board.build
