"""
What the safety supervisor looks for, one thing at a time. Every comparison is written so that NaN fails it.

A check returns a reason and a sentence when it finds something, and None otherwise. It is called once a cycle; one that
remembers earlier cycles is a class.
"""

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from nopg_robot.control.estimator import State
from nopg_robot.rig.sections import Limits, Timing


class Reason(str, Enum):
    """Why the supervisor took a voltage away. The first three and a warning of OUTSIDE_DATA do not end a run."""

    VOLTAGE = "voltage"
    SLEW = "slew"
    RAIL_BRAKE = "rail_brake"
    RAIL = "rail"
    ANGLE = "angle"
    CART_SPEED = "cart_speed"
    POLE_SPEED = "pole_speed"
    SENSOR = "sensor"
    STALE = "stale"
    FROZEN_CART = "frozen_cart"
    FROZEN_POLE = "frozen_pole"
    JUMP = "jump"
    DEADLINE = "deadline"
    POLICY_OUTPUT = "policy_output"
    POLICY_ERROR = "policy_error"
    OUTSIDE_DATA = "outside_data"
    OPERATOR = "operator"
    TIME_LIMIT = "time_limit"
    RECORDER = "recorder"
    PLANT = "plant"


@dataclass(frozen=True, slots=True)
class Situation:
    """
    All that a decision rests on.

    :param time_s: of this cycle
    :param state: estimated
    :param raw: the reading's cart and pole, before any scale
    :param reading_age_s: time since the newest reading was taken
    :param asked: what the policy returned, whatever it is; a number, or an array of shape () or (1,), is a voltage
    :param late_s: how long after its time this cycle began
    :param stop: who or what asked for the end, such as "Ctrl-C"
    :param policy_error: what the policy raised
    :param outside_data: in which way the state lies outside the data that the policy was trained on
    :param recorder_error: why the flight log is no longer written
    """

    time_s: float
    state: State
    raw: tuple[float, float]
    reading_age_s: float
    asked: Any
    late_s: float = 0.0
    stop: str | None = None
    policy_error: str | None = None
    outside_data: str | None = None
    recorder_error: str | None = None


Problem: TypeAlias = tuple[Reason, str]
# The second argument is the voltage that was in force since the cycle before.
Check: TypeAlias = Callable[[Situation, float], Problem | None]


def voltage_of(asked: Any) -> float:
    """
    :param asked: what a policy returned
    :return: its voltage; a ValueError says what else it is
    """
    # Only types that are known to be numbers are converted: float() would also take "3", True, or an object of any kind.
    if isinstance(asked, np.ndarray | np.generic):
        if asked.dtype.kind not in "fiu" or asked.shape not in ((), (1,)):
            raise ValueError(f"the policy returned an array of {asked.dtype} and shape {asked.shape}, expected one number")
        asked = asked.item()
    elif isinstance(asked, bool) or not isinstance(asked, float | int):
        raise ValueError(f"the policy returned {type(asked).__name__}, expected a number")
    try:
        volt = float(asked)
    except OverflowError:
        volt = math.inf
    if not math.isfinite(volt):
        raise ValueError(f"the policy returned {volt} V")
    return volt


def check_requests(situation: Situation, applied_volt: float) -> Problem | None:
    """Those who want the run to end."""
    if situation.stop is not None:
        return Reason.OPERATOR, f"stopped by {situation.stop}"
    if situation.policy_error is not None:
        return Reason.POLICY_ERROR, f"the policy failed: {situation.policy_error}"
    if situation.recorder_error is not None:
        return Reason.RECORDER, f"the flight log cannot be written: {situation.recorder_error}"
    return None


class SensorCheck:
    """
    Numbers that are numbers, and new ones.

    :param limits: of the rig
    """

    def __init__(self, limits: Limits):
        self._stale_s = limits.stale_s

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        state = situation.state
        # A sum is finite only if all of its terms are.
        if not math.isfinite(state.x + state.theta + state.x_dot + state.theta_dot):
            return Reason.SENSOR, f"the state is not made of numbers: {state}, from the raw reading {situation.raw}"
        if not situation.reading_age_s <= self._stale_s:
            return Reason.STALE, f"the newest reading is {situation.reading_age_s:.4f} s old, limit {self._stale_s:g} s"
        return None


class FrozenCheck:
    """
    Encoders that have stopped counting while they should not have.

    The time under voltage need not be in one piece: a policy that balances keeps changing sign. How far the cart moved is the
    distance between its extremes: the trembling of a last digit adds up to nothing.

    A pole that is balanced never stands still: both readings the same for a second, under any voltage at all, are frozen ones.
    The simulated cart under a linear controller keeps both for 0.12 s at most in a minute; without voltage, friction can hold
    a pole upright for several seconds.

    :param limits: of the rig
    :param balanced: whether the pole is kept upright
    """

    BALANCED_S = 1.0

    def __init__(self, limits: Limits, *, balanced: bool = False):
        self._limits = limits
        # Infinitely long where a pole may hang still beside a cart that friction holds.
        self._longest_still_s = max(limits.frozen_s, self.BALANCED_S) if balanced else math.inf
        self._both_still_s = 0.0
        self._time_s: float | None = None
        self._cart, self._pole = math.nan, math.nan
        self._under_voltage_s = 0.0
        self._pole_since_s = self._x_low = self._x_high = 0.0

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        limits, (cart, pole), time_s = self._limits, situation.raw, situation.time_s
        passed_s = 0.0 if self._time_s is None else time_s - self._time_s
        self._time_s = time_s
        if (cart, pole) != (self._cart, self._pole):
            self._both_still_s = 0.0
        elif applied_volt != 0.0:
            self._both_still_s += passed_s
        if self._both_still_s > self._longest_still_s:
            still = f"{self._both_still_s:.2f} s under voltage"
            return Reason.FROZEN_POLE, f"the readings of cart and pole stay at {cart:g} and {pole:g} for {still}"
        if cart != self._cart:
            self._cart, self._under_voltage_s = cart, 0.0
        elif abs(applied_volt) >= limits.frozen_volt:
            self._under_voltage_s += passed_s
        if self._under_voltage_s > limits.frozen_s:
            under_voltage = f"{self._under_voltage_s:.2f} s with {limits.frozen_volt:g} V or more"
            return Reason.FROZEN_CART, f"the cart's reading stays at {cart:g} after {under_voltage}"

        x = situation.state.x
        if pole != self._pole:
            self._pole, self._pole_since_s = pole, time_s
            self._x_low = self._x_high = x
            return None
        self._x_low, self._x_high = min(self._x_low, x), max(self._x_high, x)
        travelled_m, still_s = self._x_high - self._x_low, time_s - self._pole_since_s
        if travelled_m > limits.frozen_travel_m and still_s > limits.frozen_s:
            meanwhile = f"{still_s:.2f} s, in which the cart moved by {travelled_m:.3f} m"
            return Reason.FROZEN_POLE, f"the pole's reading stays at {pole:g} for {meanwhile}"
        return None


class RailCheck:
    """
    The end of the rail that may be used.

    :param limits: of the rig
    """

    def __init__(self, limits: Limits):
        self._end_m = limits.rail_length_m / 2.0 - limits.rail_margin_m

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        if not abs(situation.state.x) <= self._end_m:
            return Reason.RAIL, f"x {situation.state.x:.4f} m is past ±{self._end_m:.4f} m"
        return None


class AngleCheck:
    """
    A pole that has fallen.

    :param limits: of the rig
    """

    def __init__(self, limits: Limits):
        self._limit_rad = limits.angle_rad

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        if not abs(situation.state.theta) <= self._limit_rad:
            return Reason.ANGLE, f"theta {situation.state.theta:.4f} rad is past ±{self._limit_rad:g} rad"
        return None


class SpeedCheck:
    """
    :param limits: of the rig
    """

    def __init__(self, limits: Limits):
        self._cart_limit, self._pole_limit = limits.cart_speed_m_s, limits.pole_speed_rad_s

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        state = situation.state
        if not abs(state.x_dot) <= self._cart_limit:
            return Reason.CART_SPEED, f"x_dot {state.x_dot:.3f} m/s is past ±{self._cart_limit:g} m/s"
        if not abs(state.theta_dot) <= self._pole_limit:
            return Reason.POLE_SPEED, f"theta_dot {state.theta_dot:.2f} rad/s is past ±{self._pole_limit:g} rad/s"
        return None


class DeadlineCheck:
    """
    Cycles that begin too late, too often within a second.

    :param timing: section of the rig file
    """

    def __init__(self, timing: Timing):
        self._timing = timing
        self._missed_at_s: deque[float] = deque()

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        if situation.late_s <= self._timing.miss_s:
            return None
        missed_at_s = self._missed_at_s
        missed_at_s.append(situation.time_s)
        while missed_at_s[0] <= situation.time_s - 1.0:
            missed_at_s.popleft()
        if len(missed_at_s) > self._timing.max_misses:
            return Reason.DEADLINE, (
                f"{len(missed_at_s)} cycles within a second began more than {self._timing.miss_s * 1e3:g} ms late, "
                f"the last one {situation.late_s * 1e3:.1f} ms; {self._timing.max_misses} are allowed"
            )
        return None


class SeldomWarning:
    """The same warning at most once a second. Warnings that differ in their numbers only are the same."""

    NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?")

    def __init__(self) -> None:
        self._given_at_s: dict[str, float] = {}

    def is_due(self, message: str, time_s: float) -> bool:
        """
        :param message: that somebody wants to give
        :param time_s: now
        """
        kind = self.NUMBER.sub("", message)
        if time_s - self._given_at_s.get(kind, -math.inf) < 1.0:
            return False
        self._given_at_s[kind] = time_s
        return True
