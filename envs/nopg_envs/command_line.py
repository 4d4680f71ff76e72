"""What the commands share: what they check before they begin, and how they fail."""

import os
import sys
from collections.abc import Callable
from pathlib import Path


class UsageError(ValueError):
    """Something the person at the keyboard can put right; the message is all they need to see."""


def check_outputs(*paths: str | None) -> None:
    """Fail before the work, not after it, where a result could not be written."""
    for path in paths:
        if path is None:
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path}: the folder {folder} does not exist")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{path}: cannot be written")


def check_plot(path: str | None) -> None:
    """A plot's ending chooses its format, so it must be one that Matplotlib knows."""
    if path is not None and Path(path).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"{path}: a plot's name must end in .png, .pdf or .svg")


def run(program: str, command: Callable[[], None]) -> int:
    """
    :param program: name to put before a message
    :param command: does the work
    :return: exit code: 0, or 2 after one line that says what to put right
    """
    try:
        command()
    except (OSError, ValueError) as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"{program}: {message}\n")
        return 2
    return 0
