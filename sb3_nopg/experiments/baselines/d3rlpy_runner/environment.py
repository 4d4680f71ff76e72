"""A virtual environment with d3rlpy in it, and programs run by its interpreter."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version

from sb3_nopg.common.errors import InputError

D3RLPY_VERSION = "2.8.1"
Progress = Callable[[str], None]


class D3rlpyError(RuntimeError):
    """d3rlpy could not be installed, or failed, or took too long; with the last lines of what it said."""


def make_environment(
    path: str | os.PathLike[str], progress: Progress | None = None, timeout_s: float = 1800.0
) -> pathlib.Path:
    """
    Make a virtual environment with d3rlpy, by ``python -m venv`` and pip as it is configured here. One that is there and
    complete is left as it is.

    :param path: folder of the environment, made again where it holds an incomplete one
    :param progress: called with every line that the installation says
    :param timeout_s: for the installation
    :return: the folder
    :raises D3rlpyError: where it cannot be installed
    """
    folder = pathlib.Path(path).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError("path", f"{folder} is a file", "Give a folder, to be made or made by this function before")
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        # It would be emptied.
        raise InputError("path", f"{folder} holds something other than a virtual environment", "Give a new folder")
    if is_complete(folder):
        return folder
    run([sys.executable, "-m", "venv", "--clear", str(folder)], timeout_s, progress)
    # The same torch as here: any other would be another download of gigabytes. "+cpu" and the like are no part of a release.
    torch = f"torch=={version('torch').split('+')[0]}"
    packages = [torch, f"d3rlpy=={D3RLPY_VERSION}"]
    run([str(interpreter(folder)), "-m", "pip", "install", "--disable-pip-version-check", *packages], timeout_s, progress)
    if not is_complete(folder):
        raise D3rlpyError(
            f"pip installed d3rlpy into {folder}, yet it cannot be imported there. Remove the folder and try again."
        )
    return folder


def interpreter(folder: pathlib.Path) -> pathlib.Path:
    """The Python of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_complete(folder: pathlib.Path) -> bool:
    """Whether d3rlpy can be imported there."""
    return interpreter(folder).exists() and _succeeds(folder, "import d3rlpy")


def sees_a_gpu(folder: pathlib.Path) -> bool:
    """Whether torch does there, which may be another build than the one here."""
    return _succeeds(folder, "import sys, torch; sys.exit(not torch.cuda.is_available())")


def _succeeds(folder: pathlib.Path, program: str) -> bool:
    command = [str(interpreter(folder)), "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=_without_paths())
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise D3rlpyError(f"The interpreter in {folder} does not run: {error}. Remove the folder and try again.") from error


def _without_paths() -> dict[str, str]:
    """What packages of this interpreter would be found by, in another's place of its own."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def run(command: Sequence[str], timeout_s: float, progress: Progress | None = None) -> None:
    """
    :param command: program and arguments
    :param timeout_s: after which it is ended, with all that it started
    :param progress: called with every line that it says
    :raises D3rlpyError: where it cannot be started, fails or takes too long
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=_without_paths(),
            start_new_session=True,
        )
    except OSError as error:
        raise D3rlpyError(f"Cannot start {command[0]}: {error}") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    last_lines: deque[str] = deque(maxlen=20)
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last_lines.append(line.rstrip())
                if progress is not None:
                    progress(line.rstrip())
        code = process.wait()
    finally:
        timer.cancel()
        # Also where the caller was interrupted, or its progress function raised.
        if process.poll() is None:
            _end(process)
            process.wait()
    if late.is_set():
        raise D3rlpyError(f"Not done after {timeout_s:g} s: {' '.join(command)}\n" + "\n".join(last_lines))
    if code != 0:
        raise D3rlpyError(f"Exit code {code}: {' '.join(command)}\n" + "\n".join(last_lines))


def _end(process: subprocess.Popen[str]) -> None:
    """End a program and its children, which would otherwise keep its output open."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        return  # it ended by itself meanwhile
