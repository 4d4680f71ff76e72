"""The console as the program that flies sees it: a display among others, which can also ask for the stop."""

import contextlib
import json
import logging
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nopg_robot.console.channel import CycleWriter, SharedMemory
from nopg_robot.run.display import NullDisplay, Snapshot
from nopg_robot.run.loop import ShowsSnapshots
from nopg_robot.run.stop import StopRequest

#: what a stop from the page is called in the flight log
STOP_REASON = "the console"
START_TIMEOUT_S = 20.0
# Pages may look at the last flight for this long after the program has ended.
LINGER_S = 60.0
# A limit may act in every cycle, and its count is looked at by people.
_TEXT_EVERY_S = 0.1

_log = logging.getLogger(__name__)


class ConsoleError(OSError):
    """The console cannot be served; nothing has moved yet."""


class OperatorConsole:
    """
    A process of its own that serves the page. ``with`` it; the address is :attr:`address`.

    In a cycle of the loop, :meth:`update` writes to memory and looks at one byte of it: no lock, no system call, nothing that
    waits. A page, a browser or the whole process may hang or die without the loop noticing.

    :param linger_s: for how long pages may still look after the end
    """

    def __init__(self, linger_s: float = LINGER_S):
        self._linger_s = linger_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: StopRequest | None = None
        self._flight_id = 0
        self._shown: tuple[str, str, int] | None = None
        self._is_hardware: bool | None = None
        self._n_interventions, self._text_s = 0, 0.0
        self.address = ""

    def __enter__(self) -> "OperatorConsole":
        self._memory = SharedMemory()
        self._writer = CycleWriter(self._memory)
        token = secrets.token_urlsafe(32)
        try:
            self._process = _start(self._memory)
            # By the pipe: a command line can be read by everybody on this computer.
            self._tell({"memory": self._memory.name, "token": token, "linger_s": self._linger_s})
            port = _first_line(self._process, START_TIMEOUT_S)
        except OSError as error:
            self._let_go()
            raise ConsoleError(f"the console cannot be started: {error}") from error
        self.address = f"http://127.0.0.1:{port}/{token}/"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._flight_id and kind is not None:
            self.end_flight({"outcome": "failed", "reason": f"{kind.__name__}: {error}"})
        self._let_go()
        assert self._process is not None
        # It ends by itself. Somebody must wait for it, but not the operator.
        threading.Thread(target=self._process.wait, name="console", daemon=True).start()

    @property
    def stop_asked(self) -> bool:
        """Whether somebody has pressed the button, in this flight or before."""
        return self._writer.stop_asked

    def begin_flight(self, flight: Mapping[str, Any], stop: StopRequest) -> None:
        """
        :param flight: what a page must know of it, see :func:`nopg_robot.console.flight.describe_flight`
        :param stop: asked when somebody presses the button
        :raises ConsoleError: if the console has died, or hangs
        """
        self._stop, self._shown, self._is_hardware = stop, None, None
        self._flight_id += 1
        try:
            self._tell({"flight": {**flight, "id": self._flight_id}})
        except OSError as error:
            raise ConsoleError(f"the console does not answer: {error}") from error

    def connected(self, is_hardware: bool) -> None:
        """
        :param is_hardware: whether what answered can move
        """
        self._is_hardware = is_hardware

    def update(self, snapshot: Snapshot) -> None:
        """
        Takes microseconds.

        :param snapshot: of the cycle that has just passed
        """
        if self._stop is not None and self._writer.stop_asked:
            self._stop.request(STOP_REASON)
        state = snapshot.state
        self._writer.write(
            snapshot.phase,
            snapshot.misses,
            snapshot.time_s,
            state.x,
            state.theta,
            state.x_dot,
            state.theta_dot,
            snapshot.asked_volt,
            snapshot.applied_volt,
            snapshot.late_s,
            snapshot.busy_s,
        )
        counts = snapshot.interventions
        news = (snapshot.phase, snapshot.message, len(counts))
        if news != self._shown or self._count_is_due(counts):
            self._shown, self._text_s = news, time.monotonic()
            self._n_interventions = sum(counts.values())
            text = {
                "flight": self._flight_id,
                "is_hardware": self._is_hardware,
                "message": snapshot.message,
                "interventions": dict(counts),
            }
            self._writer.write_text(json.dumps(text).encode())

    def end_flight(self, ending: Mapping[str, Any]) -> None:
        """
        :param ending: how it ended, see :func:`nopg_robot.console.flight.describe_ending`
        """
        try:
            self._tell({"ended": ending})
        except OSError as error:
            _log.error("The console had died, or hung, before the flight was over: %s", error)

    def _count_is_due(self, counts: Mapping[str, int]) -> bool:
        return time.monotonic() - self._text_s > _TEXT_EVERY_S and sum(counts.values()) != self._n_interventions

    def _let_go(self) -> None:
        for stream in () if self._process is None else (self._process.stdin, self._process.stdout):
            # To one that has died nothing more can be said.
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()
        self._memory.close()

    def _tell(self, content: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content).encode() + b"\n")
        self._process.stdin.flush()


class BesideConsole:
    """
    A display and the console. If one of them fails, as a display does whose pipe was closed, the other goes on, and so does
    the console's stop, which is looked at before anything is shown.

    :param display: of the terminal
    :param console: in a flight
    """

    def __init__(self, display: ShowsSnapshots, console: OperatorConsole):
        self._display, self._console = display, console
        self._console_failed = False

    def update(self, snapshot: Snapshot) -> None:
        """
        :param snapshot: of the cycle that has just passed
        """
        try:
            self._console.update(snapshot)
        except Exception as error:
            if not self._console_failed:
                _log.error("The console shows no more: %s: %s", type(error).__name__, error)
            self._console_failed = True
        try:
            self._display.update(snapshot)
        except (Exception, SystemExit) as error:
            self._display = NullDisplay()
            _log.error("The display has failed and is switched off: %s: %s", type(error).__name__, error)


def _start(memory: SharedMemory) -> subprocess.Popen[bytes]:
    detached: dict[str, Any]
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS | subprocess.CREATE_NO_WINDOW
        detached = {"creationflags": flags}
    else:
        # Signals of the terminal are for the program that flies.
        detached = {"start_new_session": True, "pass_fds": memory.handles}
    process = subprocess.Popen(
        [sys.executable, "-m", "nopg_robot.console.server"],
        # The package that this program uses, and no file of the operator's that happens to be called json.py.
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # What it inherited would stay open as long as it lingers, and keep those waiting who read to the end.
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **detached,
    )
    if sys.platform != "win32":
        assert process.stdin is not None
        # One that hangs is noticed, and not waited for.
        os.set_blocking(process.stdin.fileno(), False)
    return process


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """:return: the port that it serves"""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=lambda stream: lines.put(stream.readline()), args=(process.stdout,), daemon=True).start()
    try:
        return int(lines.get(timeout=timeout_s))
    except (queue.Empty, ValueError) as error:
        process.kill()
        process.wait()
        raise OSError(f"its process did not answer within {timeout_s:g} s, or died") from error
