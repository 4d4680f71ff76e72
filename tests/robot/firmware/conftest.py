"""Builds the firmware once, and the chip that runs it. Without the tools these tests are left out, with a reason."""

import os

import pytest

from helpers import avr_board


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Of :func:`helpers.avr_board.build`, without its folder."""
    missing = avr_board.missing_tools()
    if missing is not None:
        # Continuous integration installs them: there, left out means broken.
        if os.environ.get("FIRMWARE_TOOLS") == "installed":
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("firmware")
    return lambda *settings: avr_board.build(folder, *settings)
