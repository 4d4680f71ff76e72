"""What ``nopg-deploy`` and ``nopg-collect`` share: exit codes, the log's name, and how they fail."""

import datetime
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from nopg_robot.control.safety import Reason
from nopg_robot.flight.journal import journal_path
from nopg_robot.guard.spawn import IS_POSSIBLE
from nopg_robot.plants import Rig, simulated_twin
from nopg_robot.rig.errors import DefectError, PolicyError, RecorderError, RobotError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Limits
from nopg_robot.run.display import LiveDisplay, PlainDisplay, banner
from nopg_robot.run.session import RunSummary

EXIT_CODES = (
    "Exit codes: 0 finished, 1 stopped by the safety supervisor during the run, 2 wrong arguments or files, "
    "3 no connection to the rig, 4 a phase before the run failed, 5 the policy or the rig's driver never answered, "
    "6 the task was not learned, 7 the learner was killed, 70 a defect of this program, 130 stopped by the operator."
)


class ExitCode(IntEnum):
    """For scripts."""

    FINISHED = 0
    SAFETY_STOP = 1
    USAGE = 2
    NO_CONNECTION = 3
    PHASE_FAILED = 4
    HUNG = 5
    NOT_LEARNED = 6
    LEARNER_KILLED = 7
    DEFECT = 70
    OPERATOR = 130


def exit_code(summary: RunSummary) -> ExitCode:
    """
    :param summary: of a run
    """
    if summary.outcome == "finished":
        return ExitCode.FINISHED
    if summary.fault is not None and summary.fault.reason is Reason.OPERATOR:
        return ExitCode.OPERATOR
    if summary.phase == "connect":
        return ExitCode.NO_CONNECTION
    return ExitCode.SAFETY_STOP if summary.phase in ("run", "collect") else ExitCode.PHASE_FAILED


def log_path(asked: Path | None, kind: str) -> Path:
    """
    :param asked: by the operator
    :param kind: of log, the beginning of its name
    """
    if asked is not None:
        return asked
    return Path("flights") / f"{kind}_{datetime.datetime.now().strftime('%Y%m%d_%H%M%S')}.npz"


def written_log(path: Path) -> Path:
    """
    :param path: of a log
    :return: the same, or its journal if it could not be sealed
    """
    return path if path.exists() else journal_path(path)


def rig_named(name: str, *, fast: bool, lifts_pole: bool = True) -> RigFile:
    """
    :param name: path of a rig file, or the name of one that comes with the package
    :param fast: as fast as the computer can, for a simulation
    :param lifts_pole: whether a simulated operator does
    """
    rig = RigFile.load(name)
    if rig.connection.plant == "simulated":
        connection = rig.connection
        return simulated_twin(
            rig, real_time=connection.real_time and not fast, lifts_pole=connection.lifts_pole and lifts_pole
        )
    if fast:
        raise ValueError(f"--fast is for simulations, and {name} names a {rig.connection.plant} rig")
    return rig


def make_display(limits: Limits, *, plain: bool) -> AbstractContextManager[LiveDisplay | PlainDisplay]:
    """
    :param limits: drawn
    :param plain: lines instead of a picture, which is also what a pipe gets
    """
    return PlainDisplay() if plain or not sys.stdout.isatty() else LiveDisplay(limits)


def announce(rig: Rig) -> None:
    """Say what answered, in a way nobody overlooks where it is not what the rig file names."""
    if rig.fallback is not None:
        banner(f"SIMULATION, NO HARDWARE: {rig.fallback}. A simulated cart is used instead.", "bold white on red")
    elif not rig.plant.is_hardware:
        banner("Simulated cart: nothing real moves.", "bold black on yellow")
    elif getattr(rig.file.connection, "watchdog_s", None) is None:
        banner(
            f"THIS RIG HAS NO WATCHDOG: it keeps the last voltage if {'this computer' if IS_POSSIBLE else 'this program'} or "
            "the network dies. Keep a hand on the emergency stop, or give the QUARC model a watchdog and name its time in "
            "connection.watchdog_s.",
            "bold white on red",
        )
    else:
        banner(f"Connected to {rig.file.name}. The cart will move.", "bold white on blue")
    if rig.plant.is_hardware and not IS_POSSIBLE:
        banner("No guard process on this system: if this program hangs, the rig's watchdog must act.", "bold black on yellow")


def end_hung(summary: RunSummary, log: Path, display: AbstractContextManager[object]) -> NoReturn:
    """
    Leave a program whose loop never comes back. The log is sealed, and the summary says who has cut the motor, or that it must
    be switched off; no signal would be heard any more.

    :param summary: of the run
    :param log: of the run
    :param display: that may have hidden the cursor
    """
    try:
        display.__exit__(None, None, None)
        _complain(f"{summary.reason}. The program ends itself. Flight log: {written_log(log)}")
    finally:
        # Anything gentler waits for the thread that hangs.
        os._exit(ExitCode.HUNG)


def run(command: Callable[[], int]) -> int:
    """
    :param command: does the work
    :return: exit code; what a person can put right is one line on the error stream
    """
    try:
        return command()
    except (PolicyError, RecorderError, OSError, ValueError) as error:
        _complain(error)
        return ExitCode.USAGE
    except DefectError as error:
        return _defect(error)
    except RobotError as error:
        _complain(error)
        return ExitCode.NO_CONNECTION
    except KeyboardInterrupt as error:
        # One that says something says that the motor may still be on.
        _complain(". ".join(filter(None, (str(error), "stopped by the operator"))))
        return ExitCode.OPERATOR
    # Python would end with 1, and to a script that is the supervisor.
    except Exception as error:
        return _defect(error)


def forget_typed() -> None:
    """What was typed before a question is no answer to it."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
    else:
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def run_app(app: Callable[[], object]) -> NoReturn:
    """
    :param app: a whole program, which ends by itself; what it does not catch is a defect, and has a code of its own
    """
    try:
        app()
    except Exception as error:
        sys.exit(_defect(error))
    sys.exit(ExitCode.FINISHED)


def _defect(error: Exception) -> ExitCode:
    logging.getLogger(__name__).error("A defect of this program, please report it", exc_info=error)
    _complain(error if isinstance(error, DefectError) else f"{type(error).__name__}: {error}")
    return ExitCode.DEFECT


def _complain(problem: object) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {problem}", style="red", markup=False)
