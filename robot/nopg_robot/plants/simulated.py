"""The simulated cart as a rig: in real time, or as fast as the computer can."""

import math

from nopg_robot.plants.base import Plant, Reading
from nopg_robot.rig.clock import Clock, MonotonicClock, SimulatedClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import Sensors, SimulatedConnection
from nopg_robot.virtual.simulated_cart import SimulatedCart


class SimulatedPlant(Plant):
    """
    Encoder counts of a cart that moves by equations.

    :param connection: from a rig file
    :param sensors: from a rig file; counters wrap around where it says so
    :param cart: to move; by default the one that ``connection`` describes, with somebody who lifts its pole
    """

    name = "simulated"
    is_hardware = False

    def __init__(self, connection: SimulatedConnection, sensors: Sensors | None = None, cart: SimulatedCart | None = None):
        self.cart = _cart_of(connection) if cart is None else cart
        self.clock: Clock = MonotonicClock() if connection.real_time else SimulatedClock()
        self._counter_bits = None if sensors is None else sensors.counter_bits
        # Time of the clock when the cart was switched on.
        self._origin_s: float | None = None

    def open(self) -> None:
        # The cart does not move while nobody is connected to it.
        self._origin_s = self.clock.now_s() - self.cart.time_s
        self.cart.set_voltage(0.0)
        self.cart.attend(True)

    def read(self) -> Reading:
        now_s = self._advance()
        cart, pole = self.cart.counts
        return Reading(now_s, self._wrapped(cart), self._wrapped(pole))

    def write(self, volt: float) -> float:
        if not math.isfinite(volt):
            raise PlantError(f"{volt} is not a voltage; the motor keeps {self.cart.voltage:g} V")
        self._advance()
        return self.cart.set_voltage(volt)

    def close(self) -> None:
        if self._origin_s is not None:
            self._advance()
            self._origin_s = None
        self.cart.set_voltage(0.0)
        self.cart.attend(False)

    def _advance(self) -> float:
        """
        :return: time now, by the clock
        """
        if self._origin_s is None:
            raise PlantError("the simulated cart is not connected: call open() first")
        now_s = self.clock.now_s()
        self.cart.advance_to(now_s - self._origin_s)
        return now_s

    def _wrapped(self, count: int) -> int:
        if self._counter_bits is None:
            return count
        half = 1 << (self._counter_bits - 1)
        return (count + half) % (2 * half) - half


def _cart_of(connection: SimulatedConnection) -> SimulatedCart:
    try:
        return SimulatedCart(
            connection.parameters, operator=connection.operator, lifts_pole=connection.lifts_pole, seed=connection.seed
        )
    except (OSError, ValueError) as error:
        raise PlantError(f"connection.parameters: {error}") from error
