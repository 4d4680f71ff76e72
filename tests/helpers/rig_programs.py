"""Programs that drive a rig, to be held up and killed: a policy that pushes steadily, in the session of any deployment."""

import os
import subprocess
import sys
from pathlib import Path

from nopg_robot.rig.file import RigFile

PROGRAM = """
import ctypes, sys, time
from nopg_robot.run.deployment import describe
from nopg_robot.run.display import NullDisplay
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.control.observation import Observer
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.control.safety import Checks
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest

calls = iter(range(10**9))
hold_after, hold_s = int(sys.argv[3]), float(sys.argv[4])

def policy(observation):
    if next(calls) == hold_after:
        print("held", time.perf_counter(), flush=True)
        # Unlike CDLL, PyDLL does not let go of the interpreter: no other thread of this program runs meanwhile.
        ctypes.PyDLL(None).usleep(int(1e6 * hold_s))
    return 1.0

file = RigFile.load(sys.argv[1])
with StopRequest() as stop, FlightRecorder(sys.argv[2], describe(file)) as recorder:
    with Session(open_rig(file), recorder, NullDisplay(), stop) as session:
        session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
        print("flying", flush=True)
        episode = run_episode(session, policy, Observer(), seconds=60.0)
        print(episode.fault.message, flush=True)
"""


def start(rig: RigFile, folder: Path, *, hold_after: int = -1, hold_s: float = 0.0) -> subprocess.Popen[str]:
    """
    :param rig: to drive with 1 V
    :param folder: for the rig file and the log, ``log.npz``
    :param hold_after: the policy's call that holds up the whole interpreter
    :param hold_s: for so long
    :return: a program in a session of its own, as if it had a terminal for itself
    """
    (folder / "rig.yaml").write_text(rig.to_yaml(), encoding="utf-8")
    arguments = [folder / "rig.yaml", folder / "log.npz", hold_after, hold_s]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
