"""
Does the operator's console delay the control loop?

    python benchmarks/console.py [--rounds 5] [--seconds 6] [--first]

The loop of ``control_loop.py`` at 500 Hz, on the simulated rig and over the virtual TCP rig: without a console, with one that
nobody looks at, with three clients that ask for the present ten times a second each, with four that ask as often as they can
and never read an answer, and with the page itself in a browser, where there is a chromium. The cases take turns, round after
round, so that whatever else the computer does meets all of them alike; the figures of a case are those of all of its rounds
together, and beside its p99 stands the median over the rounds of what it was above that of the same round without a console.
All clients are processes of their own.
"""

import os

# One thread, and it must be said before NumPy is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from control_loop import HZ, VOLT, rig_file, untrained_model, virtual_rig
from machine import conditions
from nopg_robot.console.feed import OperatorConsole
from nopg_robot.console.flight import describe_flight
from nopg_robot.control.estimator import State
from nopg_robot.control.observation import Observer
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.control.safety import Checks
from nopg_robot.flight.log import read_flight
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import NullDisplay, Snapshot
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest

CASES = {"none": None, "nobody looks": [], "clients that read": ["reads"] * 3, "clients that never read": ["never_reads"] * 4}
N_CALLS = 50_000
CLIENTS = Path(__file__).parent / "console_clients.py"
RESULT = Path(__file__).parent / "results" / "console.json"


@contextlib.contextmanager
def clients(kinds: list[str], address: str) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, CLIENTS, kind, address], stdin=subprocess.PIPE) for kind in kinds]
    try:
        # They take some time to import what they need.
        time.sleep(0.0 if not kinds else 6.0 if "in_browser" in kinds else 2.0)
        yield
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(5.0 if "in_browser" in kinds else 0.1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def patient(name: str, connection: dict[str, Any]) -> RigFile:
    """A rig file that lets a run go on although a busy computer has missed what the cart did meanwhile."""
    content = rig_file(name, connection).model_dump(mode="json")
    content["limits"].update(jump_m=0.16, jump_rad=1.5, pole_speed_rad_s=60.0)
    return RigFile.from_dict(content)


def lateness(rig: RigFile, policy: OnnxPolicy, seconds: float, case: list[str] | None) -> np.ndarray:
    """
    :param rig: that answers
    :param policy: asked in every cycle
    :param seconds: how long
    :param case: clients of the console; None for no console
    :return: of each cycle, ms
    """
    stop = StopRequest()
    with contextlib.ExitStack() as stack:
        display: Any = NullDisplay()
        if case is not None:
            display = stack.enter_context(OperatorConsole(linger_s=0.0))
            display.begin_flight(describe_flight(rig, title="benchmark", seconds=seconds), stop)
            stack.enter_context(clients(case, display.address))
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "flight.npz"
        recorder = FlightRecorder(path, {})
        with recorder, Session(open_rig(rig), recorder, display, stop) as session:
            session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False, voltage_volt=VOLT))
            episode = run_episode(session, policy, Observer(), seconds=seconds)
            recorder.close({})
        if episode.fault is not None:
            raise SystemExit(f"{rig.name}: {episode.fault.message}")
        return 1e3 * read_flight(path).late_s


def figures(rounds: list[np.ndarray], without: list[np.ndarray]) -> dict[str, float]:
    """
    :param rounds: lateness of the cycles of each, ms
    :param without: of the same rounds without a console
    """
    p50, p99, p999, most = np.percentile(np.concatenate(rounds), (50, 99, 99.9, 100))
    added = [np.percentile(one, 99) - np.percentile(other, 99) for one, other in zip(rounds, without, strict=True)]
    named = {"p50_ms": p50, "p99_ms": p99, "p99.9_ms": p999, "max_ms": most, "added_p99_ms": np.median(added)}
    named["added_p99_of_all_ms"] = p99 - np.percentile(np.concatenate(without), 99)
    return {name: round(float(value), 4) for name, value in named.items()}


def call_times() -> dict[str, float]:
    """What one cycle spends on the console, microseconds; a limit acts in every one of them, the most there is to write."""
    times, rig = [], RigFile.load("simulated")
    with OperatorConsole(linger_s=0.0) as console:
        console.begin_flight(describe_flight(rig, title="benchmark", seconds=60.0), StopRequest())
        counts = {"voltage": 0}
        for number in range(N_CALLS):
            counts["voltage"] += 1
            state = State(0.1, 0.2, 0.3, 0.4)
            shown = Snapshot("run", number / HZ, state, 1.0, 1.0, 0.0, 0.0, 0, counts, "The policy runs, for 60 s.")
            begin = time.perf_counter()
            console.update(shown)
            times.append(time.perf_counter() - begin)
            time.sleep(0.0002)
    p50, p99, p999, most = 1e6 * np.percentile(times, (50, 99, 99.9, 100))
    return {"p50_us": round(p50, 2), "p99_us": round(p99, 2), "p99.9_us": round(p999, 2), "max_us": round(most, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each case has its turn")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each turn lasts")
    parser.add_argument("--first", action="store_true", help="the loop before all else: POSIX' SCHED_FIFO, for root")
    arguments = parser.parse_args()
    cases = dict(CASES)
    if shutil.which("chromium") and shutil.which("chromedriver"):
        cases["the page in chromium"] = ["in_browser"]
    result: dict[str, Any] = {
        "conditions": conditions(("numpy", "onnxruntime")),
        "hz": HZ,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "update": call_times(),
    }
    print("update", json.dumps(result["update"]))
    with tempfile.TemporaryDirectory() as folder:
        untrained_model().export(Path(folder) / "policy.onnx")
        policy = OnnxPolicy(Path(folder) / "policy.onnx")
    policy.warm_up()
    if arguments.first:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    with virtual_rig("tcp", "--port", "0") as address:
        if arguments.first:
            # The virtual rig has inherited it, as it stands for one that needs no processor; the console shall not.
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))
        host, port = address.split(":")
        tcp = {"host": host, "port": int(port), "read_timeout_s": 0.5, "virtual": True}
        rigs = {"simulated": patient("simulated", {}), "virtual TCP": patient("quanser_ip02_quarc", tcp)}
        found: dict[tuple[str, str], list[np.ndarray]] = {(rig, case): [] for rig in rigs for case in cases}
        for _ in range(arguments.rounds):
            for rig, case in found:
                found[rig, case].append(lateness(rigs[rig], policy, arguments.seconds, cases[case]))
    result["lateness"] = {rig: {case: figures(found[rig, case], found[rig, "none"]) for case in cases} for rig in rigs}
    result["conditions"]["load_average_at_the_end"] = [round(load, 2) for load in os.getloadavg()]
    for rig, rows in result["lateness"].items():
        for case, row in rows.items():
            print(f"{rig}, {case}: {json.dumps(row)}")
    target = RESULT.with_stem("console_first") if arguments.first else RESULT
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {target.name}")


if __name__ == "__main__":
    main()
