"""A QUARC model made of software: a simulated cart behind a TCP port, with faults that can be switched on while it runs."""

import math
import queue
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from nopg_envs.cartpole.simulator import filter_coefficients
from nopg_robot.rig.clock import MonotonicClock
from nopg_robot.virtual.simulated_cart import SimulatedCart

COMMAND = struct.Struct(">d")
N_OLD_PACKETS = 1000
# Behind by more than this, periods are left out. Whoever counts samples takes what is left out for age.
LONGEST_DELAY_S = 1.0
# Whoever switches a fault on waits at most this long until it is.
ANSWER_S = 5.0


class VirtualQuarcServer:
    """
    Streams x, θ (2 doubles) or x, θ, ẋ, θ̇ (4) to one client at a time and applies the newest voltage that it sends. Positions
    count from where the cart stood and the pole hung when it was switched on; velocities come from the rig's filter.

    Times are those of :class:`nopg_robot.rig.clock.MonotonicClock`. ``with server:`` runs it in a thread of its own.

    :param cart: to move
    :param port: 0 chooses a free one
    :param rate_hz: of the model: it looks for commands and sends a packet so often
    :param doubles: in a packet
    :param watchdog_s: the motor goes to 0 V when no command came for so long, or the client disconnected; None keeps the last
        voltage for ever, as public models do
    """

    def __init__(
        self,
        cart: SimulatedCart | None = None,
        *,
        port: int = 0,
        rate_hz: float = 500.0,
        doubles: Literal[2, 4] = 2,
        watchdog_s: float | None = 0.02,
    ):
        self.cart = SimulatedCart() if cart is None else cart
        #: (time_s, volt) of each change at the motor
        self.applied_voltages: list[tuple[float, float]] = []
        self._period_s, self._doubles, self._watchdog_s = 1.0 / rate_hz, doubles, watchdog_s
        self._clock = MonotonicClock(spin_s=0.0)
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1)
        self._listener.setblocking(False)
        #: host and port
        self.address: tuple[str, int] = self._listener.getsockname()
        self._client: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="virtual QUARC model", daemon=True)
        self._ended = threading.Event()
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        self._command = bytearray()
        self._commanded_s = -math.inf
        self._unsent = b""
        self._old_packets: deque[bytes] = deque(maxlen=N_OLD_PACKETS)
        self._filter = filter_coefficients(self.cart.parameters.velocity_cutoff_rad_s, self._period_s)
        self._measured = (0.0, 0.0, 0.0, 0.0)
        self._deaf = self._mute = self._trickles = False
        # Age of the samples that are sent, and what it grows by, in periods.
        self._behind = self._falls_behind = 0.0

    def __enter__(self) -> "VirtualQuarcServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Zero volts, and nobody listens any more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._disconnect()
        self._listener.close()
        self._apply(0.0)

    # --- Faults -----------------------------------------------------------------------------------------------------------

    def hang(self) -> None:
        """The model neither sends nor reads; the cart moves on."""
        self._ask(lambda: self._switch(deaf=True, mute=True))

    def mute(self) -> None:
        """Nothing is sent; commands are obeyed."""
        self._ask(lambda: self._switch(mute=True))

    def trickle(self) -> None:
        """Packets go out one byte at a time."""
        self._ask(lambda: self._switch(trickles=True))

    def delay(self, seconds: float) -> None:
        """All samples are so old when they are sent, at most two seconds at 500 Hz: something on the way keeps them."""
        self._ask(lambda: self._fall_behind(seconds / self._period_s, 0.0))

    def slow_down(self, share: float) -> None:
        """
        :param share: of the samples that does not leave in time: those that follow are older and older, and none is lost
        """
        self._ask(lambda: self._fall_behind(self._behind, share))

    def resume(self) -> None:
        """As if nothing had been."""
        self._ask(self._switch)

    def drop(self) -> None:
        """The connection is cut hard; another one may be made."""
        self._ask(self._cut)

    def send_half(self) -> None:
        """Half a packet, and then nothing."""
        self._ask(self._send_half)

    def send_garbage(self, n_bytes: int, seed: int = 0) -> None:
        """Random bytes between two packets."""
        self._ask(lambda: self._send(random.Random(seed).randbytes(n_bytes)))

    def send_backlog(self) -> None:
        """All packets of the last time once more, in one go, before the next."""
        self._ask(lambda: self._send(b"".join(self._old_packets)))

    def _switch(self, *, deaf: bool = False, mute: bool = False, trickles: bool = False) -> None:
        self._deaf, self._mute, self._trickles = deaf, mute, trickles

    def _fall_behind(self, periods: float, growth: float) -> None:
        self._behind, self._falls_behind = periods, growth

    def _cut(self) -> None:
        if self._client is not None:
            # Not waiting for anything to arrive makes a reset of a closing.
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._disconnect()

    def _send_half(self) -> None:
        packet = self._old_packets[-1]
        self._send(packet[: len(packet) // 2])
        self._mute = True

    def _ask(self, do: Callable[[], None]) -> None:
        """Do something in the thread that has the socket, and wait until it is done."""
        done = threading.Event()
        self._asked.put(do)
        self._asked.put(done.set)
        if not done.wait(ANSWER_S):
            raise RuntimeError("the virtual rig does not run: use it in a with statement")

    # --- The model's own loop ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        switched_on_s = next_s = self._clock.now_s()
        while not self._ended.is_set():
            # Woken late, it makes up for the periods that it missed: a client must not wait longer and longer for its packets.
            next_s = max(next_s + self._period_s, self._clock.now_s() - LONGEST_DELAY_S)
            self._clock.sleep_until(next_s)
            self.cart.advance_to(next_s - switched_on_s)
            self._exchange()

    def _exchange(self) -> None:
        """One period of the model."""
        if self._client is None:
            self._accept()
        if self._client is not None and not self._deaf:
            self._receive()
        silent_s = self._clock.now_s() - self._commanded_s
        if self._watchdog_s is not None and (silent_s > self._watchdog_s or self._client is None):
            self._apply(0.0)
        packet = self._packet()
        self._old_packets.append(packet)
        while not self._asked.empty():
            self._asked.get()()
        before, self._behind = self._behind, self._behind + self._falls_behind
        if not self._mute and int(before) == int(self._behind) < len(self._old_packets):
            self._send(self._old_packets[-1 - int(self._behind)])

    def _accept(self) -> None:
        try:
            self._client, _ = self._listener.accept()
        except BlockingIOError:
            return
        self.cart.attend(True)
        self._client.setblocking(False)
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._command.clear()
        self._unsent = b""

    def _receive(self) -> None:
        assert self._client is not None
        try:
            chunk = self._client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._disconnect()
            return
        self._command += chunk
        n_commands = len(self._command) // COMMAND.size
        if n_commands == 0:
            return
        (volt,) = COMMAND.unpack_from(self._command, (n_commands - 1) * COMMAND.size)
        del self._command[: n_commands * COMMAND.size]
        self._commanded_s = self._clock.now_s()
        self._apply(volt if math.isfinite(volt) else 0.0)

    def _apply(self, volt: float) -> None:
        before = self.cart.voltage
        if self.cart.set_voltage(volt) != before:
            self.applied_voltages.append((self._clock.now_s(), self.cart.voltage))

    def _packet(self) -> bytes:
        counts, parameters = self.cart.counts, self.cart.parameters
        x, theta = counts[0] * parameters.cart_count_m, counts[1] * parameters.pole_count_rad
        keep, gain = self._filter
        before_x, before_theta, x_dot, theta_dot = self._measured
        x_dot, theta_dot = keep * x_dot + gain * (x - before_x), keep * theta_dot + gain * (theta - before_theta)
        self._measured = (x, theta, x_dot, theta_dot)
        return struct.pack(f">{self._doubles}d", *self._measured[: self._doubles])

    def _send(self, data: bytes) -> None:
        if self._client is None:
            return
        # While the rest of one packet waits for a client that does not read, others are left out: the stream stays in step.
        self._unsent = self._unsent or data
        pause_s = 0.5 * self._period_s / max(len(self._unsent), 1)
        try:
            while self._unsent:
                n_sent = self._client.send(self._unsent[:1] if self._trickles else self._unsent)
                self._unsent = self._unsent[n_sent:]
                if self._trickles:
                    self._clock.sleep_until(self._clock.now_s() + pause_s)
        except BlockingIOError:
            return
        except OSError:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self.cart.attend(False)
        self._client = None
