"""
The cart that all virtual rigs move: motor, rail with its stops, encoders, and the hand of the person who lifts the pole.

Whoever owns a cart tells it what time it is; other threads may look at it and set its faults.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters, parameters_of
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_envs.cartpole.starts import State

STEP_HZ = 500.0
STEP_S = 1.0 / STEP_HZ
# A computer that slept for an hour must not spend minutes on catching up.
LONGEST_JUMP_S = 10.0

# A swinging pole is brought to rest, which takes half a minute by itself.
HAND_WATCHES_S = 0.5
HAND_STILLS_S = 0.5
HAND_STEADIES_S = 0.2
# A pole that has not counted for so long is not swinging.
SWINGING_S = 0.2
# Longer than the phases that wait for a pole at rest.
HAND_WAITS_S = 1.5
HAND_LIFTS_S = 0.7
HAND_HOLDS_S = 5.0
# Whoever lifts the pole has seen the cart move shortly before: otherwise nobody is about to balance it.
HAND_REMEMBERS_S = 10.0
# Nobody holds a pole quite upright, or lets go of it without a push: the operator's start of nopg_envs.
HAND_ANGLE_RAD = 0.03
PUSH_RAD_S = 0.2
PUSH_M_S = 0.15
# A pole at rest that is not this near to hanging stands.
HANGING_RAD = 0.05
# A simulated cart never quite stands: dry friction that grows from zero speed lets it creep at 0.4 mm/s.
STANDING_M_S = 2e-3


def _from_hanging(theta: float) -> float:
    """Of an angle from upright, in [−π, π)."""
    return theta % (2.0 * math.pi) - math.pi


class OperatorHand:
    """
    What a person does beside a cart without voltage: brings a swinging pole to rest, lifts one that has hung still, holds it
    upright for a while, and lets go. While nobody is connected to the rig the pole is let down and left alone.

    :param seed: of the angles, none of them quite upright
    :param lifts: whether the pole is to be lifted at all
    """

    def __init__(self, seed: int, lifts: bool = True):
        self._generator = np.random.default_rng(seed)
        self._lifts = lifts
        # At first nobody has seen the cart move.
        self._unpowered_s, self._still_s, self._quiet_s = math.inf, 0.0, 0.0
        self._empty_s = 0.0
        self._seen_count = 0
        self._held_s = self._moves_s = self._holds_s = 0.0
        self._from_rad = self._to_rad = 0.0
        self._is_lifting = False
        self._attended = True
        #: whether the pole is in it
        self.holds = False

    def attend(self, connected: bool, state: State) -> None:
        """
        :param connected: whether a program is connected to the rig now; who comes has not seen the cart move
        :param state: of the cart
        """
        if connected == self._attended:
            return
        self._attended, self._unpowered_s = connected, math.inf
        if self.holds and self._is_lifting:
            self._let_down(state)

    def _let_down(self, state: State) -> None:
        theta = state[1]
        self._is_lifting = False
        self._take(theta, theta - _from_hanging(theta), HAND_LIFTS_S, HAND_STEADIES_S)

    def watch(self, state: State, pole_count: int, volt: float) -> None:
        """
        Take hold of the pole when it is time to; called once in each step while the hand is empty.

        :param state: of the cart
        :param pole_count: of the pole's encoder: a pole is still when it counts no more
        :param volt: that the motor is asked for
        """
        _, theta, x_dot, _ = state
        from_hanging = _from_hanging(theta)
        standing = volt == 0.0 and abs(x_dot) < STANDING_M_S
        quiet = pole_count == self._seen_count
        self._seen_count = pole_count
        self._unpowered_s = self._unpowered_s + STEP_S if volt == 0.0 else 0.0
        self._empty_s = self._empty_s + STEP_S if volt == 0.0 else 0.0
        self._quiet_s = self._quiet_s + STEP_S if quiet else 0.0
        self._still_s = self._still_s + STEP_S if standing and quiet and abs(from_hanging) < HANGING_RAD else 0.0
        if self._lifts and self._still_s >= HAND_WAITS_S and self._unpowered_s < HAND_REMEMBERS_S:
            # The pole turns back where it came from, so that nothing winds up.
            upright = theta - from_hanging - math.copysign(math.pi, theta)
            upright += float(self._generator.uniform(-HAND_ANGLE_RAD, HAND_ANGLE_RAD))
            self._is_lifting = True
            self._take(theta, upright, HAND_LIFTS_S, HAND_HOLDS_S)
        elif self._empty_s >= HAND_WATCHES_S and self._quiet_s < SWINGING_S:
            self._is_lifting = False
            self._take(theta, theta - from_hanging, HAND_STILLS_S, HAND_STEADIES_S)
        elif not self._attended and self._empty_s >= HAND_WATCHES_S and abs(from_hanging) > HANGING_RAD:
            # Friction may hold a pole upright, and the next who comes expects it to hang.
            self._let_down(state)

    def _take(self, from_rad: float, to_rad: float, moves_s: float, holds_s: float) -> None:
        self.holds, self._held_s = True, 0.0
        self._from_rad, self._to_rad, self._moves_s, self._holds_s = from_rad, to_rad, moves_s, holds_s

    def move(self, state: State) -> State:
        """
        One step with the pole in the hand; the cart stands.

        :param state: of the cart
        :return: after the step
        """
        self._held_s += STEP_S
        self._unpowered_s += STEP_S
        if self._held_s >= self._moves_s + self._holds_s:
            return self.let_go(state)
        phase = math.pi * min(self._held_s / self._moves_s, 1.0)
        way = self._to_rad - self._from_rad
        theta = self._from_rad + way * (1.0 - math.cos(phase)) / 2.0
        return state[0], theta, 0.0, way * math.sin(phase) / 2.0 * math.pi / self._moves_s if phase < math.pi else 0.0

    def let_go(self, state: State) -> State:
        """
        :param state: of the cart
        :return: after the hand has left; a pole that was lifted is pushed a little
        """
        self.holds, self._empty_s, self._still_s = False, 0.0, 0.0
        if not self._is_lifting:
            return state
        x_dot, theta_dot = self._generator.uniform(-1.0, 1.0, size=2) * (PUSH_M_S, PUSH_RAD_S)
        return state[0], state[1], float(x_dot), float(theta_dot)


class SimulatedCart:
    """
    A cart with a pole on a rail, as :mod:`nopg_envs` simulates it, from the moment at which it was switched on: time 0.

    Faults are plain attributes that may be set at any time: ``motor_sign``, ``frozen_cart``, ``frozen_pole``, ``count_jump``
    and ``rail_ends_m``.

    :param parameters: a set's name, a YAML file, parameters, or a dict of those that differ from the identified ones
    :param start: true x, θ, ẋ, θ̇ when it is switched on; θ is π when the pole hangs
    :param operator: somebody is there to bring the pole to rest and to lift it
    :param lifts_pole: that person does lift it
    :param seed: of that person's hand
    """

    def __init__(
        self,
        parameters: str | dict[str, Any] | CartPoleParameters = "identified",
        *,
        start: Sequence[float] = (0.05, math.pi, 0.0, 0.0),
        operator: bool = True,
        lifts_pole: bool = True,
        seed: int = 0,
    ):
        self.parameters = parameters_of(parameters)
        rail_end = self.parameters.rail_length_m / 2.0
        self._start = _checked_start(start, rail_end)
        # Sensors are simulated here, where they count from the start.
        options = CartPoleOptions(
            task="swing_up",
            parameters=self.parameters,
            control_hz=STEP_HZ,
            physics_hz=STEP_HZ,
            voltage_limit_volt=self.parameters.amplifier_limit_volt,
            encoder_counts=False,
            filtered_velocities=False,
        )
        self._simulator = CartPoleSimulator(options, self.parameters, self._start)
        self._hand = OperatorHand(seed, lifts_pole) if operator else None
        self._n_steps = 0
        # Time that the cart missed because somebody slept.
        self._skipped_s = 0.0
        # A voltage that changes within a step acts there with its mean.
        self._changed_s = self._volt_seconds = 0.0
        self._counted = (0, 0)

        self.time_s = 0.0
        #: asked of the motor now, within what the amplifier gives
        self.voltage = 0.0
        #: largest speed at which the cart hit a stop, m/s
        self.hardest_impact_m_s = 0.0

        #: −1: the motor's leads are swapped
        self.motor_sign = 1
        #: an encoder that counts no more
        self.frozen_cart = False
        self.frozen_pole = False
        #: added to the cart's counts
        self.count_jump = 0
        #: where the cart really stops; something may lie on the rail
        self.rail_ends_m = (-rail_end, rail_end)

    @property
    def state(self) -> State:
        """True x, θ, ẋ, θ̇ now."""
        x, theta, x_dot, theta_dot = self._simulator.state
        ahead_s = self._into_step_s()
        low, high = self.rail_ends_m
        return min(max(x + ahead_s * x_dot, low), high), theta + ahead_s * theta_dot, x_dot, theta_dot

    @property
    def counts(self) -> tuple[int, int]:
        """Of the cart's and the pole's encoder: zero where they were when they were switched on."""
        cart, pole = self._count(self.state)
        self._counted = self._counted[0] if self.frozen_cart else cart, self._counted[1] if self.frozen_pole else pole
        return self._counted[0] + self.count_jump, self._counted[1]

    @property
    def held(self) -> bool:
        """Whether the operator's hand has the pole."""
        return self._hand is not None and self._hand.holds

    def attend(self, connected: bool) -> None:
        """
        :param connected: whether a program is connected: the operator lifts the pole only for one that has moved the cart
        """
        if self._hand is not None:
            self._hand.attend(connected, self._simulator.state)

    def set_voltage(self, volt: float) -> float:
        """
        From now on.

        :param volt: asked of the amplifier
        :return: what it gives
        """
        if not math.isfinite(volt):
            raise ValueError(f"volt: must be a finite number, got {volt}")
        limit = self.parameters.amplifier_limit_volt
        into_step_s = self._into_step_s()
        self._volt_seconds += self.voltage * (into_step_s - self._changed_s)
        self._changed_s = into_step_s
        self.voltage = min(max(float(volt), -limit), limit)
        if self._hand is not None and self.voltage != 0.0 and self._hand.holds:
            self._simulator.state = self._hand.let_go(self._simulator.state)
        return self.voltage

    def advance_to(self, time_s: float) -> None:
        """
        Let time pass.

        :param time_s: since the cart was switched on; a time that has passed changes nothing, and of a long gap only the
            first ``LONGEST_JUMP_S`` happen
        """
        if time_s <= self.time_s:
            return
        self._skipped_s += max(0.0, time_s - self.time_s - LONGEST_JUMP_S)
        self.time_s = time_s
        # 0.006 / 0.002 may come out a rounding error below 3.
        n_due = math.floor((time_s - self._skipped_s) / STEP_S + 1e-6)
        for _ in range(n_due - self._n_steps):
            self._step()

    def _count(self, state: State) -> tuple[int, int]:
        """What encoders without a fault count."""
        cart = (state[0] - self._start[0]) / self.parameters.cart_count_m
        return round(cart), round((state[1] - self._start[1]) / self.parameters.pole_count_rad)

    def _into_step_s(self) -> float:
        """How long the step that has begun has lasted."""
        return min(max(self.time_s - self._skipped_s - self._n_steps * STEP_S, 0.0), STEP_S)

    def _step(self) -> None:
        volt = self.voltage
        if self._changed_s > 0.0:
            volt = (self._volt_seconds + self.voltage * (STEP_S - self._changed_s)) / STEP_S
            self._changed_s = self._volt_seconds = 0.0
        self._n_steps += 1
        if self._hand is not None and self._hand.holds:
            self._simulator.state = self._hand.move(self._simulator.state)
            return
        x_before = self._simulator.state[0]
        self._simulator.hold(self.motor_sign * volt)
        self._stop_at_the_ends(x_before)
        if self._hand is not None:
            self._hand.watch(self._simulator.state, self._count(self._simulator.state)[1], self.voltage)

    def _stop_at_the_ends(self, x_before: float) -> None:
        x, theta, x_dot, theta_dot = self._simulator.state
        low, high = self.rail_ends_m
        end = min(max(x, low), high)
        if end == x:
            return
        # A cart that leans on a stop does not hit it again in each step.
        if x_before != end:
            self.hardest_impact_m_s = max(self.hardest_impact_m_s, abs(x_dot))
        # θ̈ = a_L cosθ ẍ + …: what stops the cart jerks the pole.
        theta_dot -= self.parameters.inverse_pole_length * math.cos(theta) * x_dot
        self._simulator.state = (end, theta, 0.0, theta_dot)


def _checked_start(given: Sequence[float], rail_end: float) -> State:
    if len(given) != 4 or not all(math.isfinite(value) for value in given):
        raise ValueError(f"start: must be four finite numbers (x, theta, x_dot, theta_dot), got {given!r}")
    x, theta, x_dot, theta_dot = (float(value) for value in given)
    if abs(x) > rail_end:
        raise ValueError(f"start: x = {x} m is outside the rail, which ends at ±{rail_end} m")
    return x, theta, x_dot, theta_dot
