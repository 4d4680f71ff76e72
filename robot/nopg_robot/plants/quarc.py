"""
A QUARC model behind a TCP port, big-endian doubles both ways.

The model streams x, θ or x, θ, ẋ, θ̇ at its own rate and applies the newest voltage that it was sent. Samples carry no time:
they are counted, and a stream that falls behind shows (:mod:`nopg_robot.plants.sample_clock`).

A connection that breaks leaves the last voltage on the motor of a model without a watchdog. Whoever writes zero volts then, or
closes, connects again to send them, and always says what the operator must do.
"""

import math
import select
import socket
import time
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.plants.base import Plant, Reading
from nopg_robot.plants.sample_clock import SampleClock
from nopg_robot.rig.clock import Clock, MonotonicClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import QuarcConnection

DOUBLE = np.dtype(">f8")
# Samples that were on their way when the connection was made arrive within this time.
SETTLE_S = 0.05
GOODBYE_S = 0.2
# To connect again, for zero volts only: while it waits, nobody else can write.
RECONNECT_S = 1.0
# A position in any unit lies between these; eight bytes from the middle of two doubles hardly ever do.
LARGEST_POSITION = 1e9
SMALLEST_POSITION = 1e-100
CHUNK_BYTES = 1 << 16


class QuarcPlant(Plant):
    """
    :param connection: from a rig file
    """

    name = "quarc"
    is_hardware = True

    def __init__(self, connection: QuarcConnection):
        self.clock: Clock = MonotonicClock()
        self._connection = connection
        self._where = f"{connection.host}:{connection.port}"
        # To connect again: looking up a name again may take for ever when the network is down.
        self._address = (connection.host, connection.port)
        self._socket: socket.socket | None = None
        # Beginnings of a packet and of a command whose rest is still to come or to go.
        self._received = bytearray()
        self._unsent = b""
        # What went wrong first; from then on nothing but zero volts is sent.
        self._failed: str | None = None
        self._is_broken = self._connected_anew = False
        self._n_received, self._sample_clock = 0, SampleClock()

    def open(self) -> None:
        if self._socket is not None:
            raise PlantError(f"{self._where} is open already")
        self._received.clear()
        self._unsent, self._failed = b"", None
        self._is_broken = self._connected_anew = False
        self._n_received, self._sample_clock = 0, SampleClock()
        self._address = (self._connection.host, self._connection.port)
        self._socket = self._connect()
        try:
            self._address = self._numeric_address()
            self._send(0.0, self._connection.connect_timeout_s)
            self._settle()
        except PlantError:
            with suppress(PlantError):
                self.close()
            raise

    def read(self) -> Reading:
        x, theta, *velocities = self._newest(self._connection.read_timeout_s)
        time_s = self._sample_clock.taken_at(self._n_received, self.clock.now_s())
        return Reading(time_s, x, theta, (velocities[0], velocities[1]) if velocities else None, self._n_received)

    def write(self, volt: float) -> float:
        if not math.isfinite(volt):
            raise PlantError(f"{volt} is not a voltage; nothing was sent to {self._where}")
        if volt == 0.0:
            self._send_zero(self._connection.read_timeout_s)
        elif self._failed is not None:
            raise PlantError(f"{self._failed}; nothing but zero volts is sent to {self._where} after that")
        else:
            self._send(float(volt), self._connection.read_timeout_s)
        return float(volt)

    def lifeline(self) -> Lifeline:
        # A double of zeros is 0 V. Twice as many end the one that this program may have begun, and make another.
        zero = bytes(2 * DOUBLE.itemsize)
        return Lifeline(self._open_socket().fileno(), zero, self._address)

    def close(self) -> None:
        if self._socket is None:
            return
        problem, confirmed = None, False
        try:
            self._send_zero(GOODBYE_S)
            confirmed = self._leave()
        except PlantError as error:
            problem = error
        finally:
            self._socket.close()
            self._socket = None
        if problem is not None:
            raise PlantError(f"zero volts could not be sent ({problem}): switch the amplifier off") from problem
        # A model that hangs up when it has come to the end of what was sent, over the connection that it had, has the zero.
        if self._connected_anew or (self._failed is not None and not confirmed):
            how = "over a new connection" if self._connected_anew else "over the old connection"
            answer = "the model hung up in order" if confirmed else "nobody confirmed them"
            raise PlantError(f"zero volts were sent {how} and {answer}: if the cart moves, switch the amplifier off")

    def _send_zero(self, timeout_s: float) -> None:
        """Over a connection that is broken it may not arrive; over another it may."""
        try:
            self._send(0.0, timeout_s)
        except PlantError:
            if not self._is_broken:
                raise
        if not self._is_broken:
            return
        again = self._connect(RECONNECT_S)
        self._open_socket().close()
        self._socket, self._unsent = again, b""
        self._is_broken, self._connected_anew = False, True
        self._send(0.0, timeout_s)

    def _connect(self, timeout_s: float | None = None) -> socket.socket:
        timeout_s = timeout_s or self._connection.connect_timeout_s
        try:
            found = socket.create_connection(self._address, timeout=timeout_s)
        except (socket.gaierror, UnicodeError) as error:
            raise self._failure(f"{self._where}: no computer of this name is known; check connection.host") from error
        except ConnectionRefusedError as error:
            raise self._failure(
                f"{self._where} refuses the connection: is the QUARC model running, and is this its port?"
            ) from error
        except TimeoutError as error:
            raise self._failure(
                f"{self._where} does not answer within {timeout_s:g} s: check connection.host, the "
                "network cable and the firewall"
            ) from error
        except OSError as error:
            raise self._failure(f"{self._where} cannot be reached ({error}): check connection.host and the network") from error
        # A voltage must not wait for more to be sent with it.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setblocking(False)
        return found

    def _numeric_address(self) -> tuple[str, int]:
        """
        :return: host and port of the other side, without a name
        """
        try:
            host, port, *more = self._open_socket().getpeername()
        except OSError as error:
            raise self._broken(f"the connection to {self._where} broke: {error}") from error
        # An address that is valid on one network card only must name it.
        scope = f"%{more[1]}" if more and more[1] and "%" not in host else ""
        return f"{host}{scope}", port

    def _settle(self) -> None:
        """Discard what the model sent before somebody listened, and see that it still sends."""
        settled_s = time.monotonic() + SETTLE_S
        while (rest_s := settled_s - time.monotonic()) > 0.0:
            if select.select([self._open_socket()], [], [], rest_s)[0]:
                self._drain()
        self._newest(self._connection.connect_timeout_s)

    def _newest(self, timeout_s: float) -> list[float]:
        """
        :param timeout_s: to wait for a packet if none is there
        :return: the doubles of the newest packet
        """
        deadline_s = time.monotonic() + timeout_s
        packets = self._drain()
        # A packet may come in pieces.
        while not len(packets):
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0.0 or not select.select([self._open_socket()], [], [], rest_s)[0]:
                begun = f", only {len(self._received)} bytes of one" if self._received else ""
                raise self._failure(f"{self._where} sent no sample for {timeout_s:g} s{begun}: has the QUARC model stopped?")
            packets = self._drain()
        return packets[-1].tolist()

    def _drain(self) -> npt.NDArray[np.float64]:
        """
        :return: all complete packets that wait, oldest first, (n, doubles); the beginning of another stays for later
        """
        link = self._open_socket()
        deadline_s = time.monotonic() + self._connection.read_timeout_s
        while True:
            try:
                chunk = link.recv(CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise self._broken(f"the connection to {self._where} broke: {error}") from error
            if not chunk:
                raise self._broken(f"{self._where} closed the connection: did the QUARC model stop?")
            self._received += chunk
            # However fast somebody sends, a control period ends.
            if len(chunk) < CHUNK_BYTES or time.monotonic() > deadline_s:
                break
        packet_bytes = self._connection.doubles * DOUBLE.itemsize
        n_bytes = len(self._received) // packet_bytes * packet_bytes
        complete = bytes(self._received[:n_bytes])
        del self._received[:n_bytes]
        packets = np.frombuffer(complete, DOUBLE).reshape(-1, self._connection.doubles).astype(np.float64)
        self._n_received += len(packets)
        self._check(packets)
        return packets

    def _check(self, packets: npt.NDArray[np.float64]) -> None:
        positions = np.abs(packets[:, :2])
        plausible = (positions == 0.0) | ((positions > SMALLEST_POSITION) & (positions < LARGEST_POSITION))
        # The velocities of a filter may decay to any small number.
        if not (plausible.all() and (np.abs(packets[:, 2:]) < LARGEST_POSITION).all()):
            raise self._failure(
                f"what {self._where} sends is no position: the stream is out of step: does the model send 2 or 4 doubles? "
                f"connection.doubles is {self._connection.doubles}"
            )

    def _send(self, volt: float, timeout_s: float) -> None:
        link = self._open_socket()
        # The rest of a command that was begun goes first, or the model would be out of step; one that was not is out of date.
        begun = self._unsent[: len(self._unsent) % DOUBLE.itemsize]
        self._unsent = begun + np.array(volt, DOUBLE).tobytes()
        deadline_s = time.monotonic() + timeout_s
        while self._unsent:
            try:
                self._unsent = self._unsent[link.send(self._unsent) :]
            except BlockingIOError:
                rest_s = deadline_s - time.monotonic()
                if rest_s <= 0.0 or not select.select([], [link], [], rest_s)[1]:
                    raise self._failure(f"{self._where} takes no commands: has the QUARC model stopped?") from None
            except OSError as error:
                raise self._broken(f"the connection to {self._where} broke: {error}") from error

    def _leave(self) -> bool:
        """
        Closing with samples unread would reset the connection, and some systems then forget the last command.

        :return: whether the other side has come to the end of what was sent, and hung up
        """
        link = self._open_socket()
        deadline_s = time.monotonic() + GOODBYE_S
        try:
            link.shutdown(socket.SHUT_WR)
            while (rest_s := deadline_s - time.monotonic()) > 0.0:
                if select.select([link], [], [], rest_s)[0] and not link.recv(CHUNK_BYTES):
                    return True
        except OSError:
            # The command is under way and the connection gone: nothing is left to wait for.
            return False
        return False

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise PlantError(f"{self._where} is not connected: call open() first")
        return self._socket

    def _failure(self, problem: str) -> PlantError:
        self._failed = self._failed or problem
        return PlantError(problem)

    def _broken(self, problem: str) -> PlantError:
        self._is_broken = True
        return self._failure(problem)
