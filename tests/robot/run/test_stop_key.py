"""The Enter key, on a terminal: it stops the run that is on, and nothing else."""

import os
import subprocess
import sys
import time

import pytest

pty = pytest.importorskip("pty")

PROGRAM = """
import sys, time
from nopg_robot.run.stop import StopRequest

def flight(name):
    with StopRequest(enter_key=True) as stop:
        print(name, flush=True)
        end_s = time.monotonic() + 20
        while stop.reason is None and time.monotonic() < end_s:
            time.sleep(0.01)
        print(stop.reason, flush=True)

flight("first")
with StopRequest(enter_key=True):
    print("second", flush=True)
    time.sleep(0.2)
print("asked", flush=True)
print("answer:", input(), flush=True)
flight("third")
"""


@pytest.mark.slow
def test_enter_is_for_the_flight_that_is_on_and_an_answer_for_the_question():
    ours, theirs = pty.openpty()
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=theirs, stdout=subprocess.PIPE, text=True)
    os.close(theirs)

    def line() -> str:
        return program.stdout.readline().strip()

    def press(keys: bytes) -> None:
        time.sleep(0.1)
        os.write(ours, keys)

    try:
        assert line() == "first"
        press(b"\n")
        assert line() == "Enter key"
        # A flight that ends by itself lets go of the keyboard.
        assert line() == "second"
        assert line() == "asked"
        press(b"y\n")
        assert line() == "answer: y"
        assert line() == "third"
        press(b"\n")
        assert line() == "Enter key"
    finally:
        program.kill()
        program.communicate()
        os.close(ours)
