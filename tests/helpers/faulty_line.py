"""A real board's serial line on which things go wrong: it stands between the computer's end and the board's."""

import os
import select
import threading
import tty
from collections import deque
from types import TracebackType

from helpers.avr_board import AvrBoard
from nopg_robot.rig.protocol import Decoder, Drive
from nopg_robot.virtual.line_accidents import LineAccidents

_TICK_S = 0.01
_DELIMITER = b"\0"


class AvrBoardOnALine(AvrBoard, LineAccidents):
    """A board that takes the virtual board's accidents, and others."""

    def __enter__(self) -> "AvrBoardOnALine":
        self._board_end = os.open(self.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        self._own_end, self._computer_end = os.openpty()
        tty.setraw(self._computer_end)
        os.set_blocking(self._own_end, False)
        self.port = os.ttyname(self._computer_end)
        self.loses_commands = False
        self._garbage: deque[bytes] = deque()
        self._begun = b""
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
                    self._pass(self._own_end, self.after_accidents(_DELIMITER + frame + _DELIMITER))
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

    @staticmethod
    def _pass(end: int, data: bytes) -> None:
        try:
            os.write(end, data)
        except BlockingIOError:
            # Nobody reads. A line without flow control loses what its buffer does not hold.
            return
