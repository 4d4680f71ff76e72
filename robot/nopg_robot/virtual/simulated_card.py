"""A data-acquisition card with a simulated cart on it: what :mod:`nopg_robot.virtual.hil_stub` gives programs access to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nopg_robot.rig.clock import Clock, MonotonicClock
from nopg_robot.virtual.simulated_cart import SimulatedCart

N_CHANNELS = 8
DAC_LIMIT_VOLT = 10.0


@dataclass
class EncoderTask:
    """
    Samples that the card takes by itself.

    :param channels: encoders that it reads
    :param capacity: samples that wait to be fetched, at most
    :param period_s: between two samples
    :param next_s: when the next one is due; None while the task does not run
    :param n_left: samples until its end
    :param samples: that wait
    :param overflowed: some were lost
    """

    channels: list[int]
    capacity: int
    period_s: float = 0.0
    next_s: float | None = None
    n_left: int = 0
    samples: list[list[int]] = field(default_factory=list)
    overflowed: bool = False


class SimulatedCard:
    """
    The card itself, which outlives programs. Its cart stands on encoders 0 (cart) and 1 (pole) and analog output 0.

    ``failing`` names calls that shall fail from now on. ``calls`` lists those that changed something, in order.

    :param cart: that it drives
    :param clock: that time goes by
    :param enable_channel: digital line without which the amplifier gives nothing; None if it needs none
    :param counter_bits: width of its encoder counters
    """

    def __init__(
        self,
        cart: SimulatedCart | None = None,
        clock: Clock | None = None,
        *,
        enable_channel: int | None = None,
        counter_bits: int = 24,
    ):
        self.cart, self.clock = cart or SimulatedCart(), clock or MonotonicClock()
        self.enable_channel, self.counter_bits = enable_channel, counter_bits
        self.start_s = self.clock.now_s()
        self.in_use = False
        self.failing: set[str] = set()
        self.calls: list[tuple[str, Any]] = []
        #: changes of the motor's voltage: time of the card's clock, volts
        self.applied_voltages: list[tuple[float, float]] = []
        self.analog = [0.0] * N_CHANNELS
        self.digital = [0] * N_CHANNELS
        self.digital_outputs: set[int] = set()
        self.offsets = [0] * N_CHANNELS
        self.expiration_volts: dict[int, float] = {}
        self.expiration_states: dict[int, int] = {}
        #: low, high, tristate, no change; some cards know tristate alone
        self.expiration_states_known = {0, 1, 2, 3}
        #: one that never acts
        self.watchdog_is_broken = False
        self.timeout_s: float | None = None
        self.reloaded_s = 0.0
        self.expired = False
        self.tasks: list[EncoderTask] = []

    @property
    def voltage(self) -> float:
        """At the motor now."""
        self.advance()
        return self.cart.voltage

    def advance(self) -> None:
        """Everything that has happened by itself since somebody looked last: samples of tasks, and the watchdog."""
        now_s = self.clock.now_s()
        while (due := self._next_event()) is not None and due[0] <= now_s:
            self._move_cart(due[0])
            due[1]()
        self._move_cart(now_s)

    def apply(self) -> None:
        """What the outputs say, to the motor."""
        enabled = self.enable_channel is None or self.digital[self.enable_channel] != 0
        before = self.cart.voltage
        after = self.cart.set_voltage(self.analog[0] if enabled else 0.0)
        if after != before:
            self.applied_voltages.append((self.start_s + self.cart.time_s, after))

    def count(self, channel: int) -> int:
        """
        :param channel: of an encoder
        :return: what its counter shows
        """
        counted = self.cart.counts[channel] if channel < 2 else 0
        half = 1 << (self.counter_bits - 1)
        return (counted + self.offsets[channel] + half) % (1 << self.counter_bits) - half

    def _move_cart(self, time_s: float) -> None:
        self.cart.advance_to(time_s - self.start_s)

    def _next_event(self) -> tuple[float, Callable[[], None]] | None:
        events: list[tuple[float, Callable[[], None]]] = []
        if self.timeout_s is not None and not self.expired and not self.watchdog_is_broken:
            events.append((self.reloaded_s + self.timeout_s, self._expire))
        for task in self.tasks:
            if task.next_s is not None:
                events.append((task.next_s, partial(self._sample, task)))
        return min(events, key=lambda event: event[0], default=None)

    def _expire(self) -> None:
        self.expired = True
        for channel, volt in self.expiration_volts.items():
            self.analog[channel] = volt
        for channel, state in self.expiration_states.items():
            # Whatever enables an amplifier has a resistor to ground: a line that is let go of is low.
            self.digital[channel] = {1: 1, 3: self.digital[channel]}.get(state, 0)
        self.apply()

    def _sample(self, task: EncoderTask) -> None:
        assert task.next_s is not None
        if len(task.samples) == task.capacity:
            task.overflowed = True
        else:
            task.samples.append([self.count(channel) for channel in task.channels])
        task.n_left -= 1
        task.next_s = task.next_s + task.period_s if task.n_left else None
