"""
The guard process: how soon it takes the voltage away from a program that is held up or killed, and what it costs the loop.

    python benchmarks/guard.py [--repeats 10]

Programs of their own drive virtual rigs over the real wire formats. A call then holds the interpreter, so that no thread of
the program runs, or the program is killed. The rigs would keep their voltage for ever (TCP) or for a second (serial).
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from machine import conditions
from nopg_robot.control.observation import Observer
from nopg_robot.control.safety import Checks
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.guard.spawn import OutsideGuard
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest
from nopg_robot.virtual.serial_board import VirtualSerialBoard
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

RESULT = Path(__file__).parent / "results" / "guard.json"
# What rig files have that do not say: one control period.
GUARD_S = 0.02
HOLD_S = 0.6
N_WORDS = 5000

PROGRAM = """
import ctypes, sys, time
sys.path.insert(0, sys.argv[3])
import guard

calls = iter(range(10**9))

def policy(observation):
    if next(calls) == 20:
        print(time.perf_counter(), flush=True)
        # PyDLL does not let go of the interpreter.
        ctypes.PyDLL(None).usleep(int(1e6 * guard.HOLD_S) if sys.argv[4] == "hold" else 0)
    return 0.5

guard.fly(guard.RigFile.load(sys.argv[1]), sys.argv[2], policy, 60.0)
"""


def fly(rig: RigFile, log: str, policy: Any, seconds: float) -> None:
    with FlightRecorder(log, {}) as recorder, Session(open_rig(rig), recorder, NullDisplay(), StopRequest()) as session:
        session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
        run_episode(session, policy, Observer(), seconds=seconds)


@contextlib.contextmanager
def virtual_rig(kind: str) -> Iterator[tuple[RigFile, Any]]:
    cart = SimulatedCart(operator=False, start=(-0.35, 3.14159, 0.0, 0.0))
    if kind == "tcp":
        with VirtualQuarcServer(cart, watchdog_s=None) as server:
            yield rig_file("quanser_ip02_quarc", host=server.address[0], port=server.address[1], virtual=True), server
    else:
        with VirtualSerialBoard(cart=cart) as board:
            yield rig_file("serial_board", port=board.port, watchdog_s=1.0), board


def rig_file(name: str, **connection: Any) -> RigFile:
    content = yaml.safe_load(RigFile.load(name).to_yaml())
    content["connection"].update(connection, read_timeout_s=0.7 * GUARD_S)
    content["limits"].update(stale_s=1.0, jump_m=0.1)
    content["timing"] = {"miss_s": 1.0, "watchdog_s": GUARD_S}
    return RigFile.from_dict(content)


def zero_after_ms(kind: str, accident: str) -> float:
    """From the accident to zero volts at the motor; on a busy computer a run may have ended before it, and is repeated."""
    while (time_ms := _zero_after_ms(kind, accident)) is None:
        print("a run ended before its accident: again")
    return time_ms


def _zero_after_ms(kind: str, accident: str) -> float | None:
    with virtual_rig(kind) as (rig, device), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rig.yaml"
        path.write_text(rig.to_yaml(), encoding="utf-8")
        arguments = [str(path), f"{folder}/log.npz", str(Path(__file__).parent), accident]
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert program.stdout is not None
        held = program.stdout.readline()
        if not held:
            return None
        struck_s = float(held)
        if accident == "kill":
            time.sleep(0.05)
            struck_s = time.perf_counter()
            program.kill()
        volts_before = [volt for time_s, volt in device.applied_voltages if time_s < struck_s]
        time.sleep(HOLD_S + 0.2)
        program.kill()
        program.wait()
        if device.cart.voltage != 0.0:
            raise RuntimeError(f"{accident}, {kind}: the motor still has {device.cart.voltage} V")
        if volts_before[-1] == 0.0:
            return None
        return 1e3 * next(time_s - struck_s for time_s, volt in device.applied_voltages if volt == 0.0 and time_s > struck_s)


def tell_us() -> dict[str, float]:
    """What the loop spends on its guard in each cycle."""
    times_us = []
    with tempfile.TemporaryFile() as file:
        guard = OutsideGuard(Lifeline(file.fileno(), b"0"))
        for _ in range(N_WORDS):
            begin_s = time.perf_counter()
            guard.allow(10.0)
            times_us.append(1e6 * (time.perf_counter() - begin_s))
            time.sleep(0.0005)
        guard.close()
    return {f"p{share}": round(float(np.percentile(times_us, share)), 1) for share in (50, 99)}


def start_ms() -> float:
    with tempfile.TemporaryFile() as file:
        begin_s = time.perf_counter()
        guard = OutsideGuard(Lifeline(file.fileno(), b"0"))
        took_s = time.perf_counter() - begin_s
        guard.close()
    return 1e3 * took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    result: dict[str, Any] = {**conditions(("numpy",)), "timing_watchdog_ms": 1e3 * GUARD_S, "rows": {}}
    result["rows"]["start_ms"] = sorted(round(start_ms(), 1) for _ in range(asked.repeats))
    for accident in ("hold", "kill"):
        for kind in ("tcp", "serial"):
            times_ms = sorted(round(zero_after_ms(kind, accident), 1) for _ in range(asked.repeats))
            result["rows"][f"{accident}_{kind}_zero_after_ms"] = times_ms
            print(accident, kind, times_ms)
    result["rows"]["tell_us"] = tell_us()
    print("tell", result["rows"]["tell_us"])
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULT}")


if __name__ == "__main__":
    main()
