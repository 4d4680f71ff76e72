"""What the commands share: how they write their files and how they fail."""

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


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """
    The file is there whole or not at all, whatever interrupts the writing.

    :param path: of the result
    :param write: writes to the path it is given
    """
    target = Path(path)
    # The ending stays, as it chooses the format of a plot.
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        write(partial)
        # On the disk before it takes the name of the one before: a power cut must not leave neither.
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


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
