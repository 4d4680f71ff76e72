"""The operator's stop: Ctrl-C, the Enter key, a terminate signal, a terminal that goes away."""

import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# By name: no system has all of them. Ctrl-Z is among them because a suspended loop could not cut the motor.
_SIGNALS = {
    "SIGINT": "Ctrl-C",
    "SIGTERM": "terminate signal",
    "SIGHUP": "the terminal was closed",
    "SIGQUIT": "quit signal",
    "SIGTSTP": "Ctrl-Z",
    "SIGBREAK": "Ctrl-Break",
}

# A run that is over lets go of the keyboard within this time.
_KEY_S = 0.05


class StopRequest:
    """
    Within ``with``, signals no longer interrupt the program wherever it happens to be: the control loop sees ``reason`` in its
    next cycle and stops in order. Before the loop runs there is nothing to stop in order, so that a signal interrupts at once;
    so does a second one.

    :param enter_key: whether the Enter key stops too; only sensible where a person sits at a terminal
    :param end_program: called with a run's summary, from another thread, when the loop hangs in a call that never returns: the
        motor is cut and the log sealed, and no signal would be heard any more. None leaves such a program as it is
    """

    def __init__(self, *, enter_key: bool = False, end_program: Callable[[Any], None] | None = None):
        self.end_program = end_program
        self.reason: str | None = None
        self.in_order = False
        self._enter_key = enter_key
        self._before: dict[int, Any] = {}
        self._is_over = threading.Event()
        self._key_thread: threading.Thread | None = None

    def request(self, reason: str) -> None:
        """Ask the loop to stop."""
        if self.reason is None:
            self.reason = reason

    def __enter__(self) -> "StopRequest":
        # Python allows handlers in the main thread alone; elsewhere the caller has its own way of stopping.
        if threading.current_thread() is threading.main_thread():
            for number in _stopping_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        if self._enter_key and sys.stdin is not None and sys.stdin.isatty():
            self._key_thread = threading.Thread(target=self._watch_key, name="stop key", daemon=True)
            self._key_thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._is_over.set()
        if self._key_thread is not None:
            # Before anybody else listens to the keyboard: the next Enter is not for a run that is over.
            self._key_thread.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.reason is not None
        self.request(_SIGNALS[signal.Signals(number).name])
        if again or not self.in_order:
            raise KeyboardInterrupt

    def _watch_key(self) -> None:
        while not self._is_over.is_set():
            if _enter_was_pressed(_KEY_S):
                self.request("Enter key")
                return


def _enter_was_pressed(timeout_s: float) -> bool:
    """Without taking hold of the keyboard: a thread that waits in readline() would swallow what is meant for others."""
    if sys.platform == "win32":
        import msvcrt

        time.sleep(timeout_s)
        return bool(msvcrt.kbhit()) and msvcrt.getwch() in "\r\n"
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return False
    sys.stdin.readline()
    return True


def _stopping_signals() -> list[int]:
    numbers = {name: int(getattr(signal, name)) for name in _SIGNALS if hasattr(signal, name)}
    # Who started this under nohup wants it to outlive the terminal.
    if signal.getsignal(numbers.get("SIGHUP", signal.SIGINT)) == signal.SIG_IGN:
        numbers.pop("SIGHUP", None)
    return list(numbers.values())
