"""The guard process, as the program sees it: started, fed, and told goodbye."""

import contextlib
import importlib
import logging
import os
import select
import subprocess
import sys
from pathlib import Path

from nopg_robot.guard import process
from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.rig.errors import PlantError

_log = logging.getLogger(__name__)
#: elsewhere open connections cannot be handed on to another process
IS_POSSIBLE = os.name == "posix"
START_S = 10.0
END_S = 2.0
# The smallest that Linux makes.
PIPE_BYTES = 4096


class OutsideGuard:
    """
    A process of its own session, so that Ctrl-C at the terminal does not reach it: it ends after the program, not before.

    :param lifeline: of an open plant
    """

    def __init__(self, lifeline: Lifeline):
        heard, self._heart = os.pipe()
        _make_small(self._heart)
        self._report, told = os.pipe()
        address = [] if lifeline.address is None else [lifeline.address[0], str(lifeline.address[1])]
        command = [sys.executable, "-I", "-S", str(Path(process.__file__)), str(heard), str(told), str(lifeline.descriptor)]
        try:
            self._process = subprocess.Popen(
                [*command, lifeline.zero.hex(), *address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(heard, told, lifeline.descriptor),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._heart)
            os.close(self._report)
            raise PlantError(f"the guard process cannot be started: {error}") from error
        finally:
            os.close(heard)
            os.close(told)
        _share_priority(self._process.pid)
        # The loop never waits for its guard.
        os.set_blocking(self._heart, False)
        if not select.select([self._report], [], [], START_S)[0] or os.read(self._report, 1) != process.READY:
            self.close()
            raise PlantError("the guard process does not start: the motor stays off")
        os.set_blocking(self._report, False)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def allow(self, seconds: float) -> str | None:
        """
        The next word comes within so long, or the motor is cut.

        :param seconds: 0 for a motor without voltage, which may wait
        :return: what is wrong with the guard or was cut by it, None if nothing
        """
        try:
            os.write(self._heart, process.WORD.pack(seconds))
        except BlockingIOError:
            return "the guard process does not listen any more"
        except OSError:
            return "the guard process has died"
        return self.news()

    def news(self) -> str | None:
        """What the guard process did without being asked, None if nothing."""
        try:
            told = os.read(self._report, 16)
        except BlockingIOError:
            return None
        if process.NOT_CUT in told:
            return "the guard process could not send 0 V"
        return "the guard process has cut the motor" if told else "the guard process has died"

    def close(self) -> None:
        """Goodbye. Called again, it does nothing."""
        if self._heart < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._heart, process.WORD.pack(-1.0))
        os.close(self._heart)
        os.close(self._report)
        self._heart = self._report = -1
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _make_small(pipe: int) -> None:
    """
    A guard process that is suspended hears nothing, and that shows only when the pipe is full: with a page of words, after two
    seconds at 500 of them a second, not after half a minute.

    :param pipe: its end to write to
    """
    try:
        fcntl = importlib.import_module("fcntl")
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        # Other systems than Linux have their own size.
        return


def _share_priority(pid: int) -> None:
    """
    A loop in real time wants a guard that no other program holds up either. Children do not inherit its priority where they
    were told not to (chrt --reset-on-fork), so that learning and browsers do not have it.

    :param pid: of the guard process
    """
    if not hasattr(os, "sched_getscheduler"):
        return
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    if policy in (os.SCHED_FIFO, os.SCHED_RR):
        try:
            os.sched_setscheduler(pid, policy, os.sched_getparam(0))
        except OSError as error:
            _log.warning("the guard process does not get the loop's priority (%s): other programs may hold it up", error)
