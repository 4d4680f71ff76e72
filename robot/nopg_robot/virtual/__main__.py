# ruff: noqa: T201
"""``python -m nopg_robot.virtual tcp|serial``: a rig of software, to deploy to before there is a real one."""

import argparse
import math
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from nopg_robot.rig.file import RigFile
from nopg_robot.virtual.tcp import VirtualQuarcServer

# As in the rig file of the simulated rig: a desktop pauses now and then, and nothing real moves.
PATIENT_S = 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    """
    :param arguments: of the command line
    :return: exit code: 0 after Ctrl-C or a terminate signal, 2 if the rig cannot be started
    """
    asked = _parser().parse_args(arguments)
    # Started in the background of a shell, a program is told to ignore Ctrl-C: whoever sends it that signal means it still.
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asked.run(asked)
    except KeyboardInterrupt:
        # This is how it ends.
        return 0
    except OSError as error:
        print(f"nopg_robot.virtual: {error}", file=sys.stderr)
        return 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _end(signal_number: int, frame: object) -> NoReturn:
    # Otherwise nothing would be closed, and a link to a port that is gone stay behind.
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nopg_robot.virtual", description="A rig of software, to deploy to before there is a real one."
    )
    kinds = parser.add_subparsers(required=True)
    tcp = kinds.add_parser("tcp", help="a QUARC model behind a TCP port")
    tcp.add_argument("--port", type=_port, default=9095, help="0 chooses a free one (default: %(default)s)")
    tcp.add_argument("--doubles", type=int, choices=(2, 4), default=2, help="4: with velocities (default: %(default)s)")
    tcp.add_argument(
        "--watchdog-s",
        type=_seconds_or_none,
        default=0.02,
        help="zero volts when no command came for so long; none: the last voltage stays (default: %(default)s)",
    )
    tcp.set_defaults(run=_run_tcp)
    serial = kinds.add_parser("serial", help="a microcontroller board behind a pseudo-terminal")
    serial.add_argument("--link", help="a second path at which the port shall be found, the same each time")
    serial.set_defaults(run=_run_serial)
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"must be between 0 and 65535, got {text}")
    return port


def _seconds_or_none(text: str) -> float | None:
    seconds = None if text == "none" else float(text)
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds or none, got {text}")
    return seconds


def _run_tcp(asked: argparse.Namespace) -> None:
    with VirtualQuarcServer(port=asked.port, doubles=asked.doubles, watchdog_s=asked.watchdog_s) as server:
        host, port = server.address
        _introduce(
            f"Virtual QUARC model at {host}:{port}",
            "quanser_ip02_quarc",
            f"plant: quarc\n  host: {host}\n  port: {port}\n  doubles: {asked.doubles}\n"
            f"  watchdog_s: {'null' if asked.watchdog_s is None else asked.watchdog_s}\n  virtual: true",
        )
        _wait()


def _run_serial(asked: argparse.Namespace) -> None:
    # Pseudo-terminals do not exist on Windows, where the other rig runs as well.
    from nopg_robot.virtual.serial_board import VirtualSerialBoard

    with VirtualSerialBoard(link=asked.link) as board:
        port = asked.link or board.port
        _introduce(
            f"Virtual serial board at {port}",
            "serial_board",
            f"plant: serial\n  port: {port}\n  watchdog_s: {PATIENT_S}\n  virtual: true",
        )
        _wait()


def _introduce(what: str, rig: str, connection: str) -> None:
    limits = RigFile.load(rig).limits
    print(f"{what}, until Ctrl-C. Copy the rig file {rig}.yaml, put these sections into the copy, in the place of its own,\n")
    print(f"connection:\n  {connection}\n  read_timeout_s: 0.1\n")
    print(f"limits:\n  voltage_volt: {limits.voltage_volt}\n  rail_length_m: {limits.rail_length_m}\n  stale_s: {PATIENT_S}\n")
    print(f"timing:\n  miss_s: 0.02\n  watchdog_s: {PATIENT_S}\n")
    # Whoever waits for this line through a pipe must not wait for a full buffer.
    print("and run: nopg-deploy policy.onnx --rig YOUR_COPY.yaml", flush=True)


def _wait() -> None:
    # Windows would not let Ctrl-C through to a wait without end.
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
