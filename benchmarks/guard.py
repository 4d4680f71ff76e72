"""
How soon the voltage is gone after an accident, read at the motor of virtual rigs, with the 20 ms that rig files ship with; and
what the guard process costs the loop.

    python benchmarks/guard.py [--repeats 10] [--first]

Programs of their own drive virtual rigs over the real wire formats. Then something happens to them:

    hold             a call holds the interpreter, so that no thread of the program runs
    kill             the program is killed
    cable_closed     the connection is closed, as by a reset; of a serial line, the cable is pulled
    cable_silent     nothing passes any more in either direction, and nobody is told
    samples_silent   the model sends no more samples, and still obeys
    console_stop     the operator presses the button of a console that is kept busy
    console_hold     as hold, beside a console that is kept busy

Rigs keep their voltage for ever (TCP) or for a second (serial) unless the accident is one that only they can notice: then they
have the watchdog that is named in ``OWN_WATCHDOG_S``. What happens to the learner is not here: while it learns no motor runs.

With ``--first``, for root, the virtual rigs, the programs and their guards come before all else (``SCHED_FIFO``), as on a
computer that has nothing else to do. Beside a busy console that is always so of the rig, the loop and its guard process, as
the manual advises, and never of the page and its clients.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from machine import conditions
from nopg_robot.console.feed import OperatorConsole
from nopg_robot.console.flight import describe_flight
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
MOST_REPEATED = 20
# Keeps the console busy: pages that read, and programs that ask as often as they can and never read.
CLIENTS = ["reads"] * 3 + ["never_reads"] * 4
CLIENTS_START_S = 2.0
# The accidents that nobody but the rig can notice: what virtual rigs, and boards by their rig file, have by default.
OWN_WATCHDOG_S = {("cable_silent", "tcp"): 0.02, ("cable_closed", "serial"): 0.05}
ACCIDENTS = [(accident, kind) for accident in ("hold", "kill", "cable_closed") for kind in ("tcp", "serial")]
ACCIDENTS += [(accident, "tcp") for accident in ("cable_silent", "samples_silent", "console_stop", "console_hold")]

PROGRAM = """
import contextlib, ctypes, signal, sys, time
sys.path.insert(0, sys.argv[3])
import guard

if sys.argv[4].startswith("console"):
    guard.come_first(inherited=False)
calls, is_struck = iter(range(10**9)), []
signal.signal(signal.SIGUSR1, lambda *_: is_struck.append(True))

def policy(observation):
    if next(calls) == 20:
        print("flies", flush=True)
    if is_struck:
        is_struck.clear()
        print(time.perf_counter(), flush=True)
        # PyDLL does not let go of the interpreter.
        ctypes.PyDLL(None).usleep(int(1e6 * guard.HOLD_S))
    return 0.5

guard.fly(guard.RigFile.load(sys.argv[1]), sys.argv[2], policy, 60.0, console=sys.argv[4].startswith("console"))
"""


def come_first(*, inherited: bool) -> None:
    """
    Before all else that the computer does.

    :param inherited: by threads and processes that this thread starts
    """
    os.sched_setscheduler(0, os.SCHED_FIFO | (0 if inherited else os.SCHED_RESET_ON_FORK), os.sched_param(50))


def come_last() -> None:
    """As any program."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def fly(rig: RigFile, log: str, policy: Any, seconds: float, *, console: bool) -> None:
    with contextlib.ExitStack() as stack:
        display: Any = NullDisplay()
        stop = StopRequest()
        if console:
            display = stack.enter_context(OperatorConsole(linger_s=0.0))
            display.begin_flight(describe_flight(rig, title="benchmark", seconds=seconds), stop)
            print(display.address, flush=True)
        recorder = stack.enter_context(FlightRecorder(log, {}))
        session = stack.enter_context(Session(open_rig(rig), recorder, display, stop))
        session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
        run_episode(session, policy, Observer(), seconds=seconds)


@contextlib.contextmanager
def virtual_rig(kind: str, own_watchdog_s: float | None) -> Iterator[tuple[RigFile, Any]]:
    cart = SimulatedCart(operator=False, start=(-0.35, 3.14159, 0.0, 0.0))
    if kind == "tcp":
        with VirtualQuarcServer(cart, watchdog_s=own_watchdog_s) as server:
            yield rig_file("quanser_ip02_quarc", host=server.address[0], port=server.address[1], virtual=True), server
    else:
        with VirtualSerialBoard(cart=cart) as board:
            yield rig_file("serial_board", port=board.port, virtual=True, watchdog_s=own_watchdog_s or 1.0), board


def rig_file(name: str, **connection: Any) -> RigFile:
    """As shipped, but for what would end a run on a busy computer before its accident, and has no part in it."""
    content = yaml.safe_load(RigFile.load(name).to_yaml())
    content["connection"].update(connection)
    content["limits"].update(stale_s=1.0, jump_m=0.1)
    content["timing"] = {"miss_s": 1.0, "watchdog_s": GUARD_S}
    return RigFile.from_dict(content)


def zero_after_ms(accident: str, kind: str) -> tuple[float, int]:
    """
    :return: from the accident to zero volts at the motor, and how many runs had ended before their accident, as they do on a
        busy computer, and were repeated
    """
    for repeated in range(MOST_REPEATED):
        if (time_ms := _zero_after_ms(accident, kind)) is not None:
            return time_ms, repeated
    raise SystemExit(f"{accident}, {kind}: {MOST_REPEATED} runs ended before their accident; this computer is too busy")


def _zero_after_ms(accident: str, kind: str) -> float | None:
    with contextlib.ExitStack() as stack:
        if accident.startswith("console"):
            # For whatever comes next.
            stack.callback(os.sched_setscheduler, 0, os.sched_getscheduler(0), os.sched_getparam(0))
            come_first(inherited=True)
        rig, device = stack.enter_context(virtual_rig(kind, OWN_WATCHDOG_S.get((accident, kind))))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "rig.yaml"
        path.write_text(rig.to_yaml(), encoding="utf-8")
        arguments = [str(path), f"{folder}/log.npz", str(Path(__file__).parent), accident]
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        stack.callback(program.wait)
        stack.callback(program.kill)
        assert program.stdout is not None
        address = program.stdout.readline().strip() if accident.startswith("console") else ""
        if not program.stdout.readline():
            return None
        if address:
            stack.enter_context(clients(CLIENTS, address))
        struck_s = strike(accident, device, program, address)
        if struck_s is None:
            return None
        time.sleep(HOLD_S + 0.2)
        if device.cart.voltage != 0.0:
            raise RuntimeError(f"{accident}, {kind}: the motor still has {device.cart.voltage} V")
        if [volt for time_s, volt in device.applied_voltages if time_s < struck_s][-1] == 0.0:
            return None
        return 1e3 * next(time_s - struck_s for time_s, volt in device.applied_voltages if volt == 0.0 and time_s > struck_s)


@contextlib.contextmanager
def clients(kinds: list[str], address: str) -> Iterator[None]:
    script = Path(__file__).parent / "console_clients.py"
    processes = [
        subprocess.Popen([sys.executable, script, kind, address], stderr=subprocess.DEVNULL, preexec_fn=come_last)
        for kind in kinds
    ]
    try:
        time.sleep(CLIENTS_START_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def strike(accident: str, device: Any, program: subprocess.Popen[str], address: str) -> float | None:
    """
    :return: when it happened; None for a program that had ended before
    """
    struck_s = time.perf_counter()
    if accident == "kill":
        program.kill()
    elif accident == "cable_closed":
        device.drop() if isinstance(device, VirtualQuarcServer) else device.unplug()
    elif accident == "cable_silent":
        device.hang()
    elif accident == "samples_silent":
        device.mute()
    elif accident == "console_stop":
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}stop", data=b"", timeout=10.0):
            pass
    else:
        program.send_signal(signal.SIGUSR1)
        assert program.stdout is not None
        told = program.stdout.readline()
        return float(told) if told else None
    return struck_s


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--first", action="store_true", help="before all else: POSIX' SCHED_FIFO, for root")
    asked = parser.parse_args()
    if asked.first:
        come_first(inherited=True)
    result: dict[str, Any] = {**conditions(("numpy",)), "timing_watchdog_ms": 1e3 * GUARD_S, "rows": {}}
    result["rows"]["start_ms"] = sorted(round(start_ms(), 1) for _ in range(asked.repeats))
    for accident, kind in ACCIDENTS:
        found = [zero_after_ms(accident, kind) for _ in range(asked.repeats)]
        row = {"zero_after_ms": sorted(round(time_ms, 1) for time_ms, _ in found), "repeated": sum(n for _, n in found)}
        result["rows"][f"{accident}_{kind}"] = row
        print(accident, kind, row, flush=True)
    result["rows"]["tell_us"] = tell_us()
    print("tell", result["rows"]["tell_us"])
    result["load_average_at_the_end"] = [round(load, 2) for load in os.getloadavg()]
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULT}")


if __name__ == "__main__":
    main()
