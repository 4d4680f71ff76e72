"""
What the control loop and the console's process share: a piece of memory, with no lock and no system call in it.

The loop writes every cycle over the oldest one, whether anybody reads or not, so that nothing at the other end can ever make
it wait. Each record carries its number and a checksum: a reader that meets one half written sees that, and reads again later.
The way back is one byte, the stop.

Only the standard library is used here: the console's process imports nothing else.
"""

import mmap
import os
import secrets
import struct
import sys
import tempfile
import zlib
from typing import NamedTuple

# Four seconds of a loop at 500 Hz.
CAPACITY = 2048
PHASE_BYTES = 16
LONGEST_TEXT = 4096
_BODY = struct.Struct(f"<Q9dq{PHASE_BYTES}s")
_CHECK = struct.Struct("<I")
_RECORD_BYTES = _BODY.size + _CHECK.size
_TEXT_HEAD = struct.Struct("<II")
_STOP_AT, _TEXT_AT = 0, 64
_RING_AT = _TEXT_AT + _TEXT_HEAD.size + LONGEST_TEXT
_SIZE = _RING_AT + CAPACITY * _RECORD_BYTES


class Cycle(NamedTuple):
    """One cycle of the control loop; see :class:`nopg_robot.run.display.Snapshot`."""

    time_s: float
    x: float
    theta: float
    x_dot: float
    theta_dot: float
    asked_volt: float
    applied_volt: float
    late_s: float
    busy_s: float
    misses: int
    phase: str


class SharedMemory:
    """
    Memory of this process and of one that it starts.

    :param name: what the first one has called it; None makes it
    """

    def __init__(self, name: str | None = None):
        #: to be inherited by the process that is started
        self.handles: tuple[int, ...] = ()
        if sys.platform == "win32":
            self.name = name or f"nopg-console-{secrets.token_hex(16)}"
            self.bytes = mmap.mmap(-1, _SIZE, tagname=self.name)
            return
        handle = _anonymous_file() if name is None else int(name)
        self.name, self.handles = str(handle), (handle,)
        self.bytes = mmap.mmap(handle, _SIZE)
        if name is None:
            # All pages now, and none in the middle of a cycle.
            self.bytes[:] = bytes(_SIZE)

    def close(self) -> None:
        """The other process keeps its own view."""
        self.bytes.close()
        for handle in self.handles:
            os.close(handle)
        self.handles = ()


def _anonymous_file() -> int:
    # In memory: a page of a file on a disk cannot be written while the system saves it.
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("nopg-console")
    else:
        handle, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(handle, _SIZE)
    return handle


class CycleWriter:
    """
    The loop's end.

    :param memory: of a size that :class:`SharedMemory` knows
    """

    def __init__(self, memory: SharedMemory):
        self._bytes = memory.bytes
        self._number = 0
        self._phases: dict[str, bytes] = {}

    @property
    def stop_asked(self) -> bool:
        """Whether somebody has pressed the button."""
        return self._bytes[_STOP_AT] != 0

    def write(self, phase: str, misses: int, *values: float) -> None:
        """
        Takes microseconds.

        :param phase: of the run
        :param misses: so far
        :param values: of :class:`Cycle` from ``time_s`` to ``busy_s``, in this order
        """
        self._number = number = self._number + 1
        name = self._phases.get(phase) or self._phases.setdefault(phase, phase.encode("ascii", "replace")[:PHASE_BYTES])
        body = _BODY.pack(number, *values, misses, name)
        begin = _RING_AT + number % CAPACITY * _RECORD_BYTES
        self._bytes[begin : begin + _RECORD_BYTES] = body + _CHECK.pack(zlib.crc32(body))

    def write_text(self, text: bytes) -> None:
        """
        :param text: that takes the place of the last one; one that is too long is left out
        """
        if len(text) <= LONGEST_TEXT:
            head = _TEXT_HEAD.pack(len(text), zlib.crc32(text))
            self._bytes[_TEXT_AT : _TEXT_AT + len(head) + len(text)] = head + text


class CycleReader:
    """
    The console's end.

    :param memory: that the loop writes to
    """

    def __init__(self, memory: SharedMemory):
        self._bytes = memory.bytes
        self._next = 1
        #: cycles that were overwritten before they were read
        self.skipped = 0

    def ask_to_stop(self) -> None:
        """Seen by the loop in its next cycle; nothing takes it back."""
        self._bytes[_STOP_AT] = 1

    def read(self) -> list[Cycle]:
        """:return: what is new, oldest first"""
        found: list[Cycle] = []
        while len(found) < CAPACITY:
            begin = _RING_AT + self._next % CAPACITY * _RECORD_BYTES
            record = self._bytes[begin : begin + _RECORD_BYTES]
            body = record[: _BODY.size]
            number, *values, misses, phase = _BODY.unpack(body)
            if _CHECK.unpack(record[_BODY.size :])[0] != zlib.crc32(body) or number < self._next:
                # Half written, or not written yet.
                break
            if number > self._next:
                # The loop has come round. The oldest will be overwritten next: some distance to them.
                forward = number - CAPACITY + CAPACITY // 4
                self.skipped += forward - self._next
                self._next = forward
                continue
            found.append(Cycle._make([*values, misses, phase.rstrip(b"\0").decode("ascii")]))
            self._next += 1
        return found

    def text(self) -> bytes | None:
        """:return: the last one; None while it is being written, or if there is none"""
        begin = _TEXT_AT + _TEXT_HEAD.size
        length, check = _TEXT_HEAD.unpack(self._bytes[_TEXT_AT:begin])
        text = self._bytes[begin : begin + length]
        return text if 0 < length <= LONGEST_TEXT and zlib.crc32(text) == check else None
