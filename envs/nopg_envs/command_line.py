"""What the commands ``fidelity`` and ``identify`` share: their arguments, their files and how they fail."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.recordings import Recording, angle_zero, read_recording


class UsageError(ValueError):
    """Something the person at the keyboard can put right; the message is all they need to see."""


def parameters_named(text: str) -> CartPoleParameters:
    """
    :param text: name of a parameter set, or path of a YAML file
    """
    if text in PARAMETER_SETS:
        return PARAMETER_SETS[text]
    if not Path(text).is_file():
        raise UsageError(f"{text!r} is neither a parameter set ({', '.join(PARAMETER_SETS)}) nor a YAML file")
    try:
        return CartPoleParameters.load(text)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def read_all(paths: list[str], *, raw_angle: bool) -> tuple[list[Recording], list[float]]:
    """
    :param paths: of recordings
    :param raw_angle: leave the encoder's zero as it is
    :return: recordings with the angle's zero put right, and by how much, rad
    """
    recordings = [read_recording(path) for path in paths]
    zeros = [0.0 if raw_angle else angle_zero(recording) for recording in recordings]
    return [recording.with_angle_zero(zero) for recording, zero in zip(recordings, zeros, strict=True)], zeros


def note_on_zeros(recordings: list[Recording], zeros: list[float], *, raw_angle: bool) -> str | None:
    """
    :param recordings: that were read
    :param zeros: of their angles, rad
    :param raw_angle: whether no zero was looked for
    :return: which recordings could not tell the zero of their angle, if any
    """
    # An estimate is never exactly zero.
    unknown = [recording.name for recording, zero in zip(recordings, zeros, strict=True) if zero == 0.0]
    if raw_angle or not unknown:
        return None
    return f"Note: the pole moves too little to estimate the angle's zero, 0 is used: {', '.join(unknown)}"


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
