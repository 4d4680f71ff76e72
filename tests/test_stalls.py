"""Which tests are repeated, and which fail at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stalls
from stalls import PATIENCE_FOR_ALL_S, PATIENCE_S, Patience

TESTS = """
import os
import pytest

pytestmark = pytest.mark.real_time
attempts = []

def stand_still():
    # One call that does not let the other threads run.
    sum(range(5 * 10**7))

@pytest.fixture
def fresh():
    return []

def test_mended(fresh, tmp_path):
    assert not fresh and not list(tmp_path.iterdir())
    fresh.append(1)
    (tmp_path / "file").touch()
    attempts.append(1)
    if len(attempts) < 3:
        stand_still()
        raise ConnectionError("lost")

def test_wrong_without_a_stall():
    assert False

def test_stalled_and_right():
    stand_still()
"""


def test_only_what_fails_during_a_stall_is_repeated(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    # On a computer that stands still by itself, what is wrong would be repeated for long.
    (tmp_path / "conftest.py").write_text(
        "import stalls\nstalls.LONGEST_WAIT_S = 1.0\nstalls.PATIENCE_S = 20.0\n", encoding="utf-8"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real_time\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "stalls", "-p", "no:cacheprovider", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert "test_mended PASSED" in finished.stdout, finished.stdout
    assert "test_wrong_without_a_stall FAILED" in finished.stdout
    assert "test_stalled_and_right PASSED" in finished.stdout
    assert "1 failed, 2 passed" in finished.stdout
    assert "tests were repeated because the computer stood still" in finished.stdout
    assert "attempts, in which it stood still for up to" in finished.stdout


class Clock:
    """Each attempt takes so long."""

    def __init__(self, attempt_s: float):
        self.now_s = 0.0
        self.n_attempts = 0
        self._attempt_s = attempt_s

    def __call__(self) -> float:
        return self.now_s

    def fail(self) -> bool:
        self.now_s += self._attempt_s
        self.n_attempts += 1
        return True


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    monkeypatch.setattr(stalls, "wait_for_calm", lambda: None)


def test_one_test_is_not_repeated_for_ever():
    clock = Clock(attempt_s=PATIENCE_S / 3.5)
    assert Patience(clock).repeat(clock.fail) == clock.n_attempts == 4


def test_all_tests_together_are_not_repeated_for_ever():
    clock = Clock(attempt_s=PATIENCE_S / 3.5)
    patience = Patience(clock)
    attempts = [patience.repeat(clock.fail) for _ in range(20)]
    assert attempts[:3] == [4, 4, 4]
    assert attempts[-1] == 1
    assert clock.now_s < PATIENCE_FOR_ALL_S + 20 * clock._attempt_s


def test_what_passes_costs_no_patience():
    patience = Patience(Clock(attempt_s=1.0))
    assert patience.repeat(lambda: False) == 1
    assert patience.n_repeated == 0
    assert patience.left_s == PATIENCE_FOR_ALL_S
