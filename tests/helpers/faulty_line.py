"""A real board's serial line on which things go wrong: it stands between the computer's end and the board's."""

import os
import select
import threading
import tty
from collections import deque
from types import TracebackType

from helpers.avr_board import AvrBoard
from nopg_robot.rig.protocol import Decoder, Drive

_TICK_S = 0.01
_DELIMITER = b"\0"


class AvrBoardOnALine(AvrBoard):
    """A board that takes the accidents of :class:`nopg_robot.virtual.serial_board.VirtualSerialBoard`, and others."""

    def __enter__(self) -> "AvrBoardOnALine":
        self._board_end = os.open(self.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        self._own_end, self._computer_end = os.openpty()
        tty.setraw(self._computer_end)
        os.set_blocking(self._own_end, False)
        self.port = os.ttyname(self._computer_end)
        self._n_corrupt = self._n_truncate = self._n_duplicate = self._n_reorder = 0
        self.loses_commands = False
        self._garbage: deque[bytes] = deque()
        self._begun = self._held_back = b""
        self._pulled = threading.Event()
        self._line = threading.Thread(target=self._carry, name="line", daemon=True)
        super().__enter__()
        self._line.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.unplug()
        super().__exit__(kind, error, traceback)
        os.close(self._board_end)

    @property
    def applied_voltages(self) -> list[tuple[float, float]]:
        """Changes of the motor's voltage: time on the chip's clock, and volts."""
        return [(change.chip_s, change.volt) for change in list(self.changes)]

    def unplug(self) -> None:
        """Pull the cable; the board stays switched on."""
        self._pulled.set()
        self._line.join()

    def corrupt_next(self, n: int = 1) -> None:
        """Flip a bit in each of the next answers."""
        self._n_corrupt = n

    def truncate_next(self, n: int = 1) -> None:
        """Lose the second half of each of the next answers."""
        self._n_truncate = n

    def duplicate_next(self, n: int = 1) -> None:
        """Each of the next answers arrives twice."""
        self._n_duplicate = n

    def reorder_next(self, n: int = 1) -> None:
        """Each of the next answers arrives after the one that follows it."""
        self._n_reorder = n

    def send_garbage(self, data: bytes) -> None:
        """
        :param data: that arrives at the computer
        """
        self._garbage.append(data)

    def _carry(self) -> None:
        while not self._pulled.is_set():
            ready, _, _ = select.select([self._own_end, self._board_end], [], [], _TICK_S)
            if self._own_end in ready:
                self._pass(self._board_end, self._commands(os.read(self._own_end, 4096)))
            if self._board_end in ready:
                *frames, self._begun = (self._begun + os.read(self._board_end, 4096)).split(_DELIMITER)
                for frame in filter(None, frames):
                    self._answer(_DELIMITER + frame + _DELIMITER)
            while self._garbage:
                self._pass(self._own_end, self._garbage.popleft())
        os.close(self._own_end)
        os.close(self._computer_end)

    def _commands(self, data: bytes) -> bytes:
        """Of what the computer sent, what arrives."""
        kept = b""
        # With its delimiters each piece is a frame, or nothing.
        for piece in data.split(_DELIMITER):
            framed = _DELIMITER + piece + _DELIMITER
            drives = self.loses_commands and any(isinstance(each.message, Drive) for each in Decoder().feed(framed))
            kept += b"" if drives else framed
        return kept if self.loses_commands else data

    def _answer(self, data: bytes) -> None:
        if self._n_corrupt:
            self._n_corrupt -= 1
            # Not the delimiters, and not a bit whose change makes one.
            data = data[:4] + bytes((data[4] ^ 0x80 or 0x40,)) + data[5:]
        if self._n_truncate:
            self._n_truncate -= 1
            data = data[: len(data) // 2]
        if self._n_duplicate:
            self._n_duplicate -= 1
            data += data
        if self._n_reorder:
            self._n_reorder -= 1
            self._held_back += data
            return
        self._pass(self._own_end, data + self._held_back)
        self._held_back = b""

    @staticmethod
    def _pass(end: int, data: bytes) -> None:
        try:
            os.write(end, data)
        except BlockingIOError:
            # Nobody reads. A line without flow control loses what its buffer does not hold.
            return
