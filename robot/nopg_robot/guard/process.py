"""
The guard process. It runs this file alone, with the standard library and nothing else, so that it starts at once and can do
nothing but wait and cut.

Down a pipe it is told how many seconds the motor may wait for the next word: 0 for a motor without voltage, below 0 for
goodbye. When a word does not come in time, or the pipe ends without a goodbye, it sends zero volts by its own hand, again and
again, and says so. Nothing that comes after that brings the voltage back.
"""

import os
import select
import signal
import socket
import struct
import sys
import time

WORD = struct.Struct("<f")
# Of the report, a byte each.
READY, CUT, NOT_CUT = b"r", b"c", b"n"
CONNECT_S = 1.0
GOODBYE_S = 0.2
# Once it has cut: nobody knows whether what the program had begun to send arrives after it.
REPEAT_S = 0.01
# To a program that is gone: a damaged frame is sent again.
N_LAST_WORDS = 3


class Connection:
    """
    The way to the motor.

    :param descriptor: that the program shares with this process
    :param zero: bytes that mean zero volts
    :param address: to connect again; None where that is not possible
    """

    def __init__(self, descriptor: int, zero: bytes, address: tuple[str, int] | None):
        self._descriptor, self._zero, self._address = descriptor, zero, address
        self._own: socket.socket | None = None
        self._rest = b""

    def cut(self) -> str | None:
        """
        Zero volts.

        :return: what went wrong, None if they are under way
        """
        try:
            self._write()
        except BlockingIOError:
            return "the rig takes no commands"
        except OSError as error:
            return self._cut_anew(error)
        return None

    def leave(self) -> None:
        """Wait until the other side has taken it: closing with samples unread would reset a connection under its last word."""
        try:
            link = self._own or socket.socket(fileno=os.dup(self._descriptor))
            with link:
                link.shutdown(socket.SHUT_WR)
                end_s = time.monotonic() + GOODBYE_S
                while (rest_s := end_s - time.monotonic()) > 0.0:
                    if select.select([link], [], [], rest_s)[0] and not link.recv(1 << 16):
                        return
        except OSError:
            # A serial line, or a connection that is gone already.
            return

    def _write(self) -> None:
        # What was begun is finished first, so that the other side stays in step.
        data = self._rest + self._zero
        self._rest = data[os.write(self._descriptor, data) :] if self._own is None else data[self._own.send(data) :]

    def _cut_anew(self, error: OSError) -> str | None:
        if self._address is None:
            return str(error)
        try:
            self._own, self._rest = socket.create_connection(self._address, timeout=CONNECT_S), b""
            self._write()
        except OSError as another:
            return f"{error}, and a new connection fails: {another}"
        return None


def watch(heart: int, connection: Connection, report: int) -> None:
    """
    :param heart: pipe that the program's words come from
    :param connection: to the motor
    :param report: pipe to the program, which may be gone
    """
    allowed_s, heard_s = 0.0, time.monotonic()
    silent = None
    while True:
        wait_s = REPEAT_S if silent else (max(0.0, heard_s + allowed_s - time.monotonic()) if allowed_s else None)
        if select.select([heart], [], [], wait_s)[0]:
            words = os.read(heart, 1 << 12)
            if not words:
                _bury(connection, allowed_s)
                return
            (allowed_s,), heard_s = WORD.unpack(words[-WORD.size :]), time.monotonic()
            if allowed_s < 0.0:
                return
            if silent is not None:
                # It is back, and what it says goes with a voltage that it had sent before it heard.
                connection.cut()
        elif silent is None:
            problem = connection.cut()
            silent = f"the program was silent for {1e3 * (time.monotonic() - heard_s):.0f} ms"
            # The program first: whoever reads what is said may keep us waiting.
            _tell(report, CUT if problem is None else NOT_CUT)
            _say(f"{silent}: {'0 V were sent to the motor' if problem is None else _alarm(problem)}")
        else:
            connection.cut()


def _bury(connection: Connection, allowed_s: float) -> None:
    """The program is gone, and did not say goodbye."""
    problems = []
    for _ in range(N_LAST_WORDS):
        problems.append(connection.cut())
        time.sleep(REPEAT_S)
    connection.leave()
    done = "0 V were sent to the motor" if None in problems else _alarm(problems[-1])
    _say(f"the program died{' with a voltage on the motor' if allowed_s else ''}: {done}")


def _alarm(problem: str | None) -> str:
    return f"SWITCH THE AMPLIFIER OFF, 0 V could not be sent ({problem})"


def _say(what: str) -> None:
    try:
        os.write(2, f"guard process: {what}\n".encode())
    except OSError:
        # Nobody listens, and there is more important work.
        return


def _tell(report: int, what: bytes) -> None:
    try:
        os.write(report, what)
    except OSError:
        return


def main(arguments: list[str]) -> int:
    """
    :param arguments: descriptors of heart, report and connection; zero volts in hexadecimal; host and port, or nothing
    """
    # Whoever ends the program in order says goodbye; whoever does not must not take its guard along.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    heart, report, descriptor = (int(argument) for argument in arguments[:3])
    address = (arguments[4], int(arguments[5])) if len(arguments) > 4 else None
    connection = Connection(descriptor, bytes.fromhex(arguments[3]), address)
    _tell(report, READY)
    watch(heart, connection, report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
