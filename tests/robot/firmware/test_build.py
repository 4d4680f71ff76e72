"""``make firmware``: what it leaves, what it refuses, and what it says without its compiler."""

import os
import shutil
import subprocess

import pytest

from helpers.avr_board import CHIPS, FIRMWARE
from helpers.repository import REPOSITORY

FLASH_BYTES = {"atmega328p": 32_256, "atmega2560": 253_952}


def make(*arguments, cwd=FIRMWARE, **environment):
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_fits_beside_a_bootloader(build, chip):
    records = (build() / f"{chip}.hex").read_text().split()
    n_bytes = sum(int(record[1:3], 16) for record in records if record[7:9] == "00")
    assert 1000 < n_bytes < FLASH_BYTES[chip]


@pytest.mark.slow
def test_other_settings_make_other_files(build, tmp_path):
    before = (build() / "atmega328p.hex").read_bytes()
    shutil.copytree(build(), tmp_path / "build")
    folder = f"BUILD={tmp_path / 'build'}"
    assert make(folder).returncode == 0
    assert (tmp_path / "build" / "atmega328p.hex").read_bytes() == before
    assert make(folder, "VOLTAGE_LIMIT_MV=5000").returncode == 0
    assert (tmp_path / "build" / "atmega328p.hex").read_bytes() != before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("VOLTAGE_LIMIT_MV=12001", "VOLTAGE_LIMIT_MV must lie between 1 and SUPPLY_MV"),
        ("VOLTAGE_LIMIT_MV=14", "less than one step of the PWM"),
        ("SUPPLY_MV=48000", "SUPPLY_MV"),
        ("LONGEST_SILENCE_MS=5000", "LONGEST_SILENCE_MS must lie between 1 and 1000"),
        ("BAUD_RATE=921600", "BAUD_RATE is more than 2.5 % off"),
        ("BAUD_RATE=9600", "takes longer than the chip's watchdog waits"),
    ],
)
def test_settings_that_cannot_be_right(build, setting, message, tmp_path):
    made = make(setting, f"BUILD={tmp_path}")
    assert made.returncode != 0
    assert message in made.stderr
    assert not list(tmp_path.glob("*.hex"))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_without_the_compiler(tmp_path):
    for program in ("make", "sh", "env"):
        (tmp_path / program).symlink_to(shutil.which(program))
    made = make("firmware", cwd=REPOSITORY, PATH=str(tmp_path))
    assert made.returncode != 0
    assert "avr-gcc is missing" in made.stderr
    assert "apt-get install gcc-avr avr-libc" in made.stderr
