"""How the commands of ``nopg`` end: exit codes, and one line for what went wrong."""

import functools
import logging
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn, ParamSpec, TypeVar

import typer

from sb3_nopg.common.errors import ExportError, InputError, SolverError, one_line

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

EXIT_CODES = "Exit codes: 0 fine, 1 it ran but did not succeed, 2 wrong arguments or files, 70 a defect, 130 interrupted."


class ExitCode(IntEnum):
    """For scripts."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    DEFECT = 70
    INTERRUPTED = 130


class UnsuccessfulError(RuntimeError):
    """The command did what it was asked to, and the result is not what was hoped for."""


class _Notes(logging.Handler):
    """What the package logs goes to the error stream, so that a pipe gets only results."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def note(message: str) -> None:
    """
    :param message: worth knowing, but no reason to stop
    """
    typer.echo(f"Note: {message}", err=True)


@contextmanager
def notes_of_the_package() -> Iterator[None]:
    """Show what the package logs, as notes."""
    notes, logger = _Notes(), logging.getLogger("sb3_nopg")
    # Other handlers would say it again.
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = propagated


@contextmanager
def gathered_notes() -> Iterator[list[str]]:
    """What the package logs meanwhile, one text each, for a result that is to tell it."""
    gathered: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("sb3_nopg")
    handler.emit = lambda record: gathered.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield gathered
    finally:
        logger.removeHandler(handler)


def one_line_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """
    What a person can put right ends the command with one line on the error stream and an exit code; anything else is a
    defect and shows where.

    :param command: of the command line
    """

    @functools.wraps(command)
    def wrapped(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            with notes_of_the_package():
                return command(*arguments, **options)
        except KeyboardInterrupt:
            raise ended("interrupted", ExitCode.INTERRUPTED) from None
        except (SolverError, ExportError, UnsuccessfulError) as error:
            raise ended(error, ExitCode.FAILED) from None
        except _mistakes() as error:
            raise ended(error, ExitCode.USAGE) from None

    return wrapped


def _mistakes() -> tuple[type[Exception], ...]:
    """What a person can put right."""
    # Only now: help must not wait for it.
    import gymnasium as gym

    return InputError, OSError, ImportError, MemoryError, gym.error.Error


def run_app(app: Callable[[], object]) -> NoReturn:
    """
    :param app: a whole program, which ends by itself; what it does not catch is a defect: it shows where, and ends with a code
        of its own, because Python's means that a policy did not succeed
    """
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(ExitCode.DEFECT)
    sys.exit(ExitCode.FINE)


def ended(error: object, code: ExitCode) -> typer.Exit:
    """
    :param error: to tell in one line
    :param code: to end with
    :return: to raise
    """
    typer.echo(f"Error: {one_line(error, longest=None)}", err=True)
    return typer.Exit(code)


def check_output(option: str, path: pathlib.Path, suffixes: tuple[str, ...] = ()) -> None:
    """
    Fail before the work, not after it, where the result could not be written.

    :param option: that named it
    :param path: of the result
    :param suffixes: that its name may have; () for any
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(option, f"{path} does not end in {' or '.join(suffixes)}", "The ending chooses the format")
    if path.is_dir():
        raise InputError(option, f"{path} is a folder", "Give the name of a file")
    folder = path.absolute().parent
    # A new folder is made where it is missing, in the first of its parents that exists.
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(option, f"{path} cannot be written", "Choose a place that can be written to")
