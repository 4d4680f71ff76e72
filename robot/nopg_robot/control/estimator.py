"""From raw readings to where the cart and the pole are and how fast they move."""

import math
from dataclasses import dataclass, replace

from nopg_envs.cartpole.simulator import filter_coefficients
from nopg_robot.plants.base import Reading
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import Sensors, VelocityFilter

TURN_RAD = 2.0 * math.pi
# After so many steps every filter worth having has settled on the mean velocity of a gap.
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True)
class State:
    """
    :param x: of the cart from the rail's centre once homed, m
    :param theta: of the pole from upright, in [−π, π), positive when the bob tips towards −x, rad
    :param x_dot: m/s
    :param theta_dot: rad/s
    """

    x: float
    theta: float
    x_dot: float
    theta_dot: float


UNKNOWN = State(math.nan, math.nan, math.nan, math.nan)


class StateEstimator:
    """
    Unwraps counters, scales, and differentiates.

    Before homing x counts from the first reading, and the pole hung at it. Velocities begin at zero.

    Readings come when they come, the filter keeps its own pace of one step a sample period: its steps and the time that
    passed never part by more than three quarters of a period. So a late reading and an early one after it are a step each; a
    gap of n periods is n steps of equal length; and a second reading at the same time is no step at all, its movement goes
    into the next one. Counting every reading as a period would report a velocity that is not there.

    :param sensors: section of the rig file
    :param sample_s: time between samples
    """

    def __init__(self, sensors: Sensors, sample_s: float):
        if not 0.0 < sample_s < math.inf:
            raise ValueError(f"sample_s: must be a positive number of seconds, got {sample_s}")
        self._sensors, self._sample_s = sensors, sample_s
        self._own_velocities = sensors.velocity.source == "estimator"
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next reading is the first."""
        sensors = self._sensors
        self._cart = _Axis(sensors.cart_sign, sensors.cart_scale_m, sensors, self._sample_s, at_start=0.0)
        self._pole = _Axis(sensors.pole_sign, sensors.pole_scale_rad, sensors, self._sample_s, at_start=math.pi)
        self._filtered_until_s: float | None = None
        self._state: State | None = None

    @property
    def state(self) -> State:
        """As of the last reading."""
        if self._state is None:
            raise RuntimeError("No reading yet: call update() first")
        return self._state

    def update(self, reading: Reading) -> State:
        """
        :param reading: the rig's newest
        :return: all NaN, and nothing else changed, if it is not made of finite numbers
        """
        cart, pole = self._cart, self._pole
        if not (math.isfinite(reading.cart) and math.isfinite(reading.pole) and math.isfinite(reading.time_s)):
            self._state = UNKNOWN
            return UNKNOWN
        n_steps = self._steps_until(reading.time_s)
        cart.count(reading.cart)
        pole.count(reading.pole)
        if self._own_velocities:
            cart.differentiate(n_steps)
            pole.differentiate(n_steps)
            x_dot, theta_dot = cart.velocity, pole.velocity
        elif reading.velocities is None:
            raise PlantError("The rig sends no velocities: set sensors.velocity.source to 'estimator' in the rig file")
        else:
            x_dot, theta_dot = (axis.factor * raw for axis, raw in zip((cart, pole), reading.velocities, strict=True))
        self._state = State(cart.position, wrap_angle(pole.position), x_dot, theta_dot)
        return self._state

    def set_position(self, x_m: float) -> None:
        """
        :param x_m: where the cart is now; velocities stay as they are
        """
        self._state = replace(self.state, x=x_m)
        self._cart.place(x_m)

    def set_angle(self, theta_rad: float) -> None:
        """
        :param theta_rad: where the pole is now; velocities stay as they are
        """
        self._state = replace(self.state, theta=wrap_angle(theta_rad))
        self._pole.place(theta_rad)

    def _steps_until(self, time_s: float) -> int:
        """Steps that the filter is behind."""
        if self._filtered_until_s is None:
            self._filtered_until_s = time_s
            return 0
        periods = (time_s - self._filtered_until_s) / self._sample_s
        # Not simply rounded: readings that always come half a period late would make 0, 2, 0, 2, … steps.
        n_steps = 1 if 0.25 <= periods <= 1.75 else max(0, round(periods))
        self._filtered_until_s += n_steps * self._sample_s
        return n_steps


class _Axis:
    """
    One encoder.

    :param sign: of the rig
    :param scale: m or rad for each raw unit
    :param sensors: width of the counter and velocity filter
    :param sample_s: time between samples
    :param at_start: position at the first reading
    """

    def __init__(self, sign: int, scale: float, sensors: Sensors, sample_s: float, at_start: float):
        self.factor = sign * scale
        self.position, self.velocity = at_start, 0.0
        self._span = None if sensors.counter_bits is None else 2.0**sensors.counter_bits
        self._raw: float | None = None
        # Counts as if the counter had no end, and the ones at which the position is known to be what it is.
        self._unwrapped, self._origin, self._at_origin = 0.0, 0.0, at_start
        self._filtered_until = 0.0
        self._filter = _Differentiator(sensors.velocity, sample_s)

    def count(self, raw: float) -> None:
        """
        :param raw: of the newest reading
        """
        if self._raw is None:
            self._unwrapped = self._origin = raw
            self._filtered_until = raw * self.factor
        elif self._span is None:
            self._unwrapped = raw
        else:
            # The shorter way round; floats hold such integers exactly.
            half = self._span / 2.0
            self._unwrapped += (raw - self._raw + half) % self._span - half
        self._raw = raw
        self.position = self._at_origin + (self._unwrapped - self._origin) * self.factor

    def differentiate(self, n_steps: int) -> None:
        """
        :param n_steps: sample periods over which the movement since the last call is spread
        """
        if n_steps == 0:
            return
        reached = self._unwrapped * self.factor
        increment = (reached - self._filtered_until) / n_steps
        for _ in range(min(n_steps, MOST_STEPS)):
            self.velocity = self._filter.step(increment)
        self._filtered_until = reached

    def place(self, position: float) -> None:
        """
        :param position: at the last reading
        """
        self._origin, self._at_origin = self._unwrapped, position
        self.position = position


class _Differentiator:
    """
    The velocity filter by Tustin's rule, at rest at first.

    Its input are increments of the position, so that nothing depends on where the position is counted from:

        v ← gain · d + earlier_gain · d_before + keep · v_before + keep_earlier · v_before_that

    in the transposed form, which keeps two numbers between steps.

    :param velocity: order, cutoff and damping
    :param sample_s: time between samples
    """

    def __init__(self, velocity: VelocityFilter, sample_s: float):
        omega = velocity.cutoff_rad_s
        if velocity.order == 1:
            self._keep, self._gain = filter_coefficients(omega, sample_s)
            self._earlier_gain = self._keep_earlier = 0.0
        else:
            # s = k (1 − z⁻¹) / (1 + z⁻¹) in ω² s / (s² + 2 ζ ω s + ω²).
            k = 2.0 / sample_s
            middle = 2.0 * velocity.damping * omega * k
            leading = k * k + middle + omega * omega
            self._gain = self._earlier_gain = omega * omega * k / leading
            self._keep = 2.0 * (k * k - omega * omega) / leading
            self._keep_earlier = (middle - k * k - omega * omega) / leading
        self._next, self._next_but_one = 0.0, 0.0

    def step(self, increment: float) -> float:
        """
        :param increment: of the position within one sample period
        :return: velocity
        """
        velocity = self._next + self._gain * increment
        self._next = self._earlier_gain * increment + self._keep * velocity + self._next_but_one
        self._next_but_one = self._keep_earlier * velocity
        return velocity


def wrap_angle(angle_rad: float) -> float:
    """
    :param angle_rad: any angle
    :return: the same direction in [−π, π); left as it is if it lies there
    """
    if -math.pi <= angle_rad < math.pi:
        return angle_rad
    wrapped = (angle_rad + math.pi) % TURN_RAD - math.pi
    # A hair below −π comes out as π.
    return wrapped if wrapped < math.pi else -math.pi
