"""Which tests are repeated, and which fail at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stalls
from stalls import PATIENCE_FOR_ALL_S, PATIENCE_S, STALL_S, Patience, StallWatch

TESTS = """
import pytest
import stalls

pytestmark = pytest.mark.real_time
attempts, failures = [], []

def stand_still():
    stalls.now.worst_s = 1.0

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
    failures.append(1)
    assert len(failures) == 2, "once"

def test_stalled_and_right():
    stand_still()
"""

# Whether this computer stands still meanwhile must not matter.
WITHOUT_THE_COMPUTER = """
import stalls

class Watch:
    def __enter__(self):
        self.worst_s = 0.0
        stalls.now = self
        return self

    def __exit__(self, *exception):
        pass

stalls.StallWatch = Watch
stalls.wait_for_calm = lambda: None
"""


def test_only_what_fails_during_a_stall_is_repeated(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(WITHOUT_THE_COMPUTER, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real_time\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "stalls", "-p", "no:cacheprovider", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert "test_mended PASSED" in finished.stdout, finished.stdout
    assert "test_wrong_without_a_stall FAILED" in finished.stdout
    assert "test_stalled_and_right PASSED" in finished.stdout
    assert "1 failed, 2 passed" in finished.stdout
    assert "tests were repeated because the computer stood still" in finished.stdout
    assert "1 attempt(s), in which it stood still for up to 0 ms" in finished.stdout


def test_a_process_that_is_not_let_run_is_seen():
    with StallWatch() as watch:
        # One call that does not let the other threads run.
        sum(range(5 * 10**7))
    assert watch.worst_s > STALL_S


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
