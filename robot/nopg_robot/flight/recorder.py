"""The flight recorder: every cycle of a run on disk, without the control loop ever waiting for it."""

import datetime
import importlib.metadata
import json
import logging
import os
import platform
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np

from nopg_envs.atomic_files import write_atomically
from nopg_robot.flight.journal import (
    COLUMNS,
    FORMAT_VERSION,
    PHASE_LENGTH,
    Journal,
    JournalError,
    journal_path,
    pack_event,
    pack_header,
    pack_sample,
    read_journal,
)
from nopg_robot.rig.errors import RecorderError

FLUSH_S = 0.2
# A disk that takes longer than this for one flush has failed: no more than this is ever waiting in memory.
LONGEST_STALL_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One cycle of the control loop.

    :param time_s: when the sensors were read, by the plant's clock
    :param phase: of the run, at most 16 ASCII characters
    :param raw_cart: as the rig sent it
    :param raw_pole: as the rig sent it
    :param x: m, 0 = rail centre
    :param theta: rad, 0 = upright
    :param x_dot: m/s
    :param theta_dot: rad/s
    :param asked_volt: by whoever is in command, NaN if it was no number
    :param applied_volt: from now to the next cycle; positive drives to +x, whatever the sign of the rig's motor
    :param late_s: from the cycle's deadline to its begin
    :param busy_s: from the cycle's begin to the voltage being written
    :param acted: whether a new action was taken
    :param episode: its number
    """

    time_s: float
    phase: str
    raw_cart: float
    raw_pole: float
    x: float
    theta: float
    x_dot: float
    theta_dot: float
    asked_volt: float
    applied_volt: float
    late_s: float
    busy_s: float
    acted: bool
    episode: int


_values_of = attrgetter(*(field.name for field in fields(Sample)))


class Noted(Protocol):
    """What is written down of an intervention."""

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def time_s(self) -> float: ...


class FlightRecorder:
    """
    Writes ``path`` + ``.journal`` while the run goes on, and ``path`` itself when it is closed.

    Records wait in memory until a thread writes them, every 0.2 s. Once that has failed, `record` and `note` raise.

    :param path: of the log, ending in ``.npz``; must not exist
    :param header: what the run is: ``rig`` (the rig file as YAML text), ``policy`` (metadata and digest), …; columns,
        versions, time and command line are added
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]):
        self.path = Path(path)
        self._journal = journal_path(path)
        self._error: BaseException | None = None
        self._closed = False
        self._pending: deque[bytes] = deque()
        self._phases: dict[str, bytes] = {}
        self._stream = self._begin(header)
        self._flushed_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_flushing, name="flight recorder", daemon=True)
        self._thread.start()

    def record(self, sample: Sample) -> None:
        """Takes microseconds."""
        self._check()
        time_s, phase, *others = _values_of(sample)
        try:
            self._pending.append(pack_sample((time_s, self._phases.get(phase) or self._encode_phase(phase), *others)))
        except struct.error as error:
            raise RecorderError(f"{self.path}: a sample that cannot be written, {sample}: {error}") from error

    def note(self, intervention: Noted) -> None:
        """
        :param intervention: of the safety supervisor
        """
        self._check()
        self._append(type="intervention", reason=intervention.reason, message=intervention.message, time_s=intervention.time_s)

    def end_episode(self, episode: int, reason: str, terminal: bool) -> None:
        """
        :param episode: number that its samples have
        :param reason: why it ended
        :param terminal: whether the task itself ended there, by the pole's angle or the rail's end; not by a time limit or a
            failure of the rig
        """
        self._check()
        self._append(type="episode_end", episode=episode, reason=reason, terminal=terminal)

    def close(self, summary: Mapping[str, Any]) -> None:
        """
        Write the rest and seal the log. Called again, it does nothing.

        :param summary: of the run
        """
        if self._closed:
            return
        self._append(type="summary", summary=dict(summary))
        self._closed = True
        self._stop.set()
        self._thread.join(LONGEST_STALL_S)
        if self._thread.is_alive():
            raise RecorderError(f"{self._journal}: the disk does not answer; what it has written is readable there")
        self._flush()
        try:
            self._stream.close()
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            raise RecorderError(f"{self._failure()}; what was written until then is readable there") from self._error
        seal_journal(self.path)

    def __enter__(self) -> "FlightRecorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self.close({} if kind is None else {"error": f"{kind.__name__}: {error}"})
        except RecorderError as failure:
            if kind is None:
                raise
            # What ended the run is what the caller must see.
            _log.error("%s", failure)

    def _begin(self, header: Mapping[str, Any]) -> IO[bytes]:
        if self.path.suffix != ".npz":
            raise RecorderError(f"{self.path}: the name of a flight log must end in .npz")
        if self.path.exists():
            raise RecorderError(f"{self.path}: there is such a file already; choose another name")
        if self._journal.exists():
            raise RecorderError(f"{self._journal}: left by a run that did not end in order, and readable; move it away")
        try:
            content = pack_header(_full_header(header))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what has failed is not tried again behind our back. Exclusive: two runs never share a journal.
            stream = self._journal.open("xb", buffering=0)
        except (OSError, TypeError, ValueError) as error:
            raise RecorderError(f"{self.path}: the flight log cannot be begun: {error}") from error
        try:
            _write(stream, content)
        except OSError as error:
            stream.close()
            raise RecorderError(f"{self._journal}: cannot be written: {error}") from error
        return stream

    def _append(self, **event: Any) -> None:
        try:
            self._pending.append(pack_event(event))
        except (TypeError, ValueError) as error:
            raise RecorderError(f"{self.path}: {event['type']} cannot be written as JSON: {error}") from error

    def _check(self) -> None:
        if self._error is not None:
            raise RecorderError(self._failure()) from self._error
        if self._closed:
            raise RecorderError(f"{self.path}: the flight log is closed")
        if time.monotonic() - self._flushed_s > LONGEST_STALL_S:
            raise RecorderError(f"{self._journal}: the disk has not taken anything for {LONGEST_STALL_S:g} s")

    def _failure(self) -> str:
        return f"{self._journal}: writing failed: {self._error}"

    def _encode_phase(self, phase: str) -> bytes:
        if not phase.isascii() or not 0 < len(phase) <= PHASE_LENGTH:
            raise RecorderError(f"{self.path}: phase: must be 1 to {PHASE_LENGTH} ASCII characters, got {phase!r}")
        return self._phases.setdefault(phase, phase.encode())

    def _keep_flushing(self) -> None:
        while not self._stop.wait(FLUSH_S) and self._error is None:
            self._flush()

    def _flush(self) -> None:
        """Everything that waits, on disk; after an error nothing more, as it would stand behind half a record."""
        if self._error is not None:
            return
        content = b"".join([self._pending.popleft() for _ in range(len(self._pending))])
        try:
            if content:
                # An open file can be written to long after somebody has deleted it.
                os.stat(self._journal)
                _write(self._stream, content)
        except (OSError, ValueError, MemoryError) as error:
            self._error = error
        self._flushed_s = time.monotonic()


def seal_journal(path: str | os.PathLike[str]) -> None:
    """
    Turn a journal into a sealed log: arrays and JSON text that NumPy loads without pickles.

    :param path: of the log, not of its journal; also for a journal that a crash has left behind
    """
    target, source = Path(path), journal_path(path)
    try:
        journal = read_journal(source)
        arrays = _sealed_arrays(journal)

        def write(partial: Path) -> None:
            with partial.open("wb") as stream:
                np.savez_compressed(stream, **arrays)
            if target.exists():
                raise FileExistsError("there is such a file already")

        write_atomically(target, write)
    except (OSError, JournalError) as error:
        raise RecorderError(f"{target}: the log could not be sealed: {error}; all of it is readable in {source}") from error
    # Readers take the sealed log where both are there.
    if journal.unread_bytes:
        _log.warning("%s: kept, as its last %d bytes are damaged and not in %s", source, journal.unread_bytes, target.name)
        return
    try:
        source.unlink()
    except OSError as error:
        _log.warning("%s: not removed, though all of it is in %s: %s", source, target.name, error)


def _sealed_arrays(journal: Journal) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: journal.samples[name] for name in journal.samples.dtype.names or ()}
    arrays["phase"] = arrays["phase"].astype(f"U{PHASE_LENGTH}")
    arrays["header_json"] = np.array(json.dumps(journal.header))
    arrays["events_json"] = np.array(json.dumps(journal.events))
    return arrays


def _write(stream: IO[bytes], content: bytes) -> None:
    view = memoryview(content)
    while view:
        # A nearly full disk takes a part, and fails at the next attempt.
        view = view[stream.write(view) :]
    os.fsync(stream.fileno())


def _full_header(header: Mapping[str, Any]) -> dict[str, Any]:
    try:
        package_version = importlib.metadata.version("sb3-nopg")
    except importlib.metadata.PackageNotFoundError:
        package_version = "not installed"
    return {
        "started_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "command_line": sys.argv,
        "versions": {
            "sb3-nopg": package_version,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        **header,
        "columns": [column._asdict() for column in COLUMNS],
        "format_version": FORMAT_VERSION,
    }
