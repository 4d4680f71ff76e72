"""
What stands between a policy and the motor.

Pure decisions: nothing here reads a clock, a sensor or a file. The supervisor only ever takes voltage away: what comes out is
no larger than what was asked for and has its sign, or is zero.
"""

import math
from dataclasses import dataclass

from nopg_robot.control.jump_check import JumpCheck
from nopg_robot.control.safety_checks import (
    AngleCheck,
    Check,
    DeadlineCheck,
    FrozenCheck,
    RailCheck,
    Reason,
    SeldomWarning,
    SensorCheck,
    Situation,
    SpeedCheck,
    check_requests,
    voltage_of,
)
from nopg_robot.rig.sections import Limits, Readings, Timing

__all__ = ["Checks", "Decision", "Intervention", "Reason", "SafetySupervisor", "Situation"]


# A run of the longest allowed time has ended by itself before this is over.
_GRACE_S = 0.5


@dataclass(frozen=True)
class Checks:
    """
    What applies in a phase of a run; everything unless said otherwise. What is not here always applies.

    :param rail: brake before the end of the rail and cut at it; x must count from the centre
    :param angle: the pole must stay upright
    :param frozen: encoders must count, with ``angle`` also while a pole is balanced with little voltage; not where the cart is
        pushed against a stop
    :param voltage_volt: lower limit of this phase
    """

    rail: bool = True
    angle: bool = True
    frozen: bool = True
    voltage_volt: float | None = None

    def __post_init__(self) -> None:
        if self.voltage_volt is not None and not 0.0 <= self.voltage_volt < math.inf:
            raise ValueError(f"voltage_volt: must be a finite number, not negative, got {self.voltage_volt}")


@dataclass(frozen=True, slots=True)
class Intervention:
    """
    :param reason: for scripts
    :param message: for people
    :param time_s: of the cycle
    """

    reason: Reason
    message: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """
    :param volt: to apply
    :param interventions: of this cycle, a fault among them only in the cycle that found it
    :param fault: the first of the run; the voltage stays at zero from then on
    """

    volt: float
    interventions: tuple[Intervention, ...]
    fault: Intervention | None


class SafetySupervisor:
    """
    Faults end a run: the first one latches and the voltage is zero for ever after. If one cycle has several, the order is
    that of :meth:`begin`: who asked for the end comes first, sensors that lie before states that may be lies.

    At the rail, voltage towards a stop is withheld as soon as coasting, speed times ``coasting_time_s``, would take the cart
    past ``rail_margin_m`` before that stop, and the run is cut when it is past it. The identified IP02 cart (0.155 s to lose
    its speed, velocities 20 ms late, voltages 6 ms) with the shipped limits, cart and pole at rest at the start, is held to
    meeting a stop at 0.25 m/s at most, with 5 V or with 8 V; homing does so at 0.22 m/s. A pole that already spins at up to
    24 rad/s moves the cart by itself: 0.7 m/s, or a wider margin. That is no proof but a search among thousands of runs of
    random and adversarial policies, the worst of which met it at 0.06 m/s with 5 V, 0.13 m/s with 8 V, and 0.58 m/s with a
    spinning pole.

    :param limits: section of the rig file
    :param timing: section of the rig file
    :param sample_s: time between decisions
    :param checks: of the first phase
    :param readings: how exact they are
    """

    def __init__(
        self,
        limits: Limits,
        timing: Timing,
        sample_s: float,
        checks: Checks | None = None,
        readings: Readings | None = None,
    ):
        if not 0.0 < sample_s < math.inf:
            raise ValueError(f"sample_s: must be a positive number of seconds, got {sample_s}")
        self._limits, self._readings = limits, readings or Readings()
        self._end_m = limits.rail_length_m / 2.0 - limits.rail_margin_m
        self._growth_volt = limits.slew_volt_per_s * sample_s
        # Lateness and warnings have nothing to do with phases.
        self._deadlines, self._warnings = DeadlineCheck(timing), SeldomWarning()
        self._volt = 0.0
        self._fault: Intervention | None = None
        self.begin(Checks() if checks is None else checks)

    @property
    def fault(self) -> Intervention | None:
        """The first of the run."""
        return self._fault

    def begin(self, checks: Checks) -> None:
        """
        A phase of the run begins, or positions are counted from somewhere else: x, θ and what was frozen are forgotten.

        :param checks: that apply from now on
        """
        limits = self._limits
        self._checks = checks
        self._phase_began_s: float | None = None
        self._limit_volt = min(limits.voltage_volt, math.inf if checks.voltage_volt is None else checks.voltage_volt)
        self._search: list[Check] = [check_requests, SensorCheck(limits), JumpCheck(limits, self._readings)]
        if checks.frozen:
            self._search.append(FrozenCheck(limits, balanced=checks.angle))
        if checks.rail:
            self._search.append(RailCheck(limits))
        if checks.angle:
            self._search.append(AngleCheck(limits))
        self._search += [SpeedCheck(limits), self._deadlines]

    def latch(self, reason: Reason, message: str, time_s: float) -> Intervention:
        """
        A fault that was found elsewhere.

        :param reason: for scripts
        :param message: for people
        :param time_s: of the cycle
        :return: the fault that is latched: this one, or the first
        """
        if self._fault is None:
            self._fault = Intervention(reason, message, time_s)
            self._volt = 0.0
        return self._fault

    def decide(self, situation: Situation) -> Decision:
        """
        Called once a cycle.

        :param situation: of this cycle
        """
        if self._fault is not None:
            return Decision(0.0, (), self._fault)
        if self._phase_began_s is None:
            self._phase_began_s = situation.time_s
        # Phases at low voltage have time limits of their own.
        elif (
            self._checks.voltage_volt is None and situation.time_s - self._phase_began_s > self._limits.max_seconds + _GRACE_S
        ):
            message = f"{self._limits.max_seconds:g} s in one phase are enough"
            return self._cut(Reason.TIME_LIMIT, message, situation.time_s)
        for check in self._search:
            problem = check(situation, self._volt)
            if problem is not None:
                return self._cut(*problem, situation.time_s)
        try:
            asked_volt = voltage_of(situation.asked)
        except ValueError as error:
            return self._cut(Reason.POLICY_OUTPUT, str(error), situation.time_s)

        interventions: list[Intervention] = []
        if situation.outside_data is not None and self._limits.outside_data != "ignore":
            if self._limits.outside_data == "stop":
                return self._cut(Reason.OUTSIDE_DATA, situation.outside_data, situation.time_s)
            if self._warnings.is_due(situation.outside_data, situation.time_s):
                interventions.append(Intervention(Reason.OUTSIDE_DATA, situation.outside_data, situation.time_s))
        self._volt = self._reduce(asked_volt, situation, interventions)
        return Decision(self._volt, tuple(interventions), None)

    def _cut(self, reason: Reason, message: str, time_s: float) -> Decision:
        fault = self.latch(reason, message, time_s)
        return Decision(0.0, (fault,), fault)

    def _reduce(self, asked_volt: float, situation: Situation, interventions: list[Intervention]) -> float:
        """
        :param asked_volt: a finite number
        :param situation: of this cycle
        :param interventions: to which is added what was done
        :return: voltage that may be applied
        """
        size, time_s = abs(asked_volt), situation.time_s
        if size > self._limit_volt:
            message = f"{asked_volt:.3g} V asked for, limit {self._limit_volt:g} V"
            interventions.append(Intervention(Reason.VOLTAGE, message, time_s))
            size = self._limit_volt
        if self._checks.rail and size > 0.0:
            direction = math.copysign(1.0, asked_volt)
            state = situation.state
            # As seen by a cart that is driven towards larger x.
            if direction * (state.x + state.x_dot * self._limits.coasting_time_s) > self._end_m:
                message = f"x {state.x:.3f} m at {state.x_dot:.3f} m/s: nothing more towards that stop"
                interventions.append(Intervention(Reason.RAIL_BRAKE, message, time_s))
                size = 0.0
        # Towards zero is always free; after a change of sign it grows from zero.
        before = abs(self._volt) if self._volt * asked_volt > 0.0 else 0.0
        if size > before + self._growth_volt:
            message = f"from {self._volt:.3g} V to {asked_volt:.3g} V in one cycle, limit {self._growth_volt:.3g} V"
            interventions.append(Intervention(Reason.SLEW, message, time_s))
            size = before + self._growth_volt
        return math.copysign(size, asked_volt) if size > 0.0 else 0.0
