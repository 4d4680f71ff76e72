"""Frames to a board and back, one at a time, as a test wants them and no driver would send them."""

import os
import time
import tty
from types import TracebackType

from nopg_robot.rig import protocol
from nopg_robot.rig.protocol import Decoder, Frame, Message, Poll, State


class Line:
    """
    :param port: of the board
    """

    def __init__(self, port: str):
        self._file = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        tty.setraw(self._file)
        self._decoder = Decoder()
        self.sequence = 65_500
        self.frames: list[Frame] = []

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self._file)

    def send_bytes(self, content: bytes) -> None:
        """As they are."""
        while content:
            try:
                content = content[os.write(self._file, content) :]
            except BlockingIOError:
                time.sleep(0.001)

    def send(self, message: Message, sequence: int | None = None) -> int:
        """
        :param message: to send
        :param sequence: its number; the next one if not given
        :return: its number
        """
        if sequence is None:
            sequence = self.sequence = protocol.next_sequence(self.sequence)
        self.send_bytes(protocol.encode(sequence, message))
        return sequence

    def ask(self, message: Message, sequence: int | None = None) -> Message:
        """
        :param message: to send
        :param sequence: its number; the next one if not given
        :return: the answer, which carries the same number
        """
        asked = self.send(message, sequence)
        answer = self.receive()
        assert answer is not None, f"no answer to {message}"
        assert answer.sequence == asked
        return answer.message

    def state(self) -> State:
        answer = self.ask(Poll())
        assert isinstance(answer, State)
        return answer

    def receive(self, timeout_s: float = 5.0) -> Frame | None:
        """The next frame; None if there is none in that time."""
        end_s = time.perf_counter() + timeout_s
        while not self.frames and time.perf_counter() < end_s:
            try:
                self.frames += self._decoder.feed(os.read(self._file, 4096))
            except BlockingIOError:
                time.sleep(0.0005)
        return self.frames.pop(0) if self.frames else None
