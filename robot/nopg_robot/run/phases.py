"""
What happens before and after a policy runs: is the rig alive, where are its stops, is the pole where it should be.

Each phase goes through the same loop and supervisor as the policy, at low voltage, with a time limit of its own, and ends with
a :class:`PhaseError` that says what to look at.
"""

import math
from collections import deque

from nopg_robot.control.estimator import State
from nopg_robot.control.safety import Checks
from nopg_robot.rig.errors import PhaseError
from nopg_robot.rig.sections import SelfTest
from nopg_robot.run.latency import WINDOW_S, PushLatency
from nopg_robot.run.loop import ControlLoop

# A cart against its stop may still be seen to move by a count or two.
_STILL_M = 5e-4
# The pole's first answer to a push that is surely no noise.
_POLE_ANSWER_RAD = 0.01
_SETTLED_M_S = 0.02
_SEEN_TO_MOVE_M = 1e-3
# A cart that has not moved until then stands at a stop, or does not move at all.
_LATE_S = 1.1
# Below this voltage dry friction may hold the cart.
_LEAST_MOVING_VOLT = 0.7
_SLOWING_DISTANCE_M = 0.06
# A pole that spins faster than this drags the cart along.
_CALM_RAD_S = 2.5
_CALM_S = 0.3


def wait_for_hanging_pole(loop: ControlLoop) -> None:
    """Zero volts until the pole hangs still; there its angle is π, whatever the encoder said."""
    start = loop.rig.start
    loop.begin(
        "hang",
        "Let the pole hang down, free and still, and see that it does: its encoder cannot tell.",
        Checks(rail=False, angle=False, frozen=False, voltage_volt=0.0),
    )
    still = _Lasting(start.still_s)

    def hangs_still(state: State, time_s: float) -> bool:
        return still.holds(abs(state.theta_dot) < start.still_rad_s and abs(state.x_dot) < _SETTLED_M_S, time_s)

    if not loop.drive(_no_voltage, hangs_still, start.timeout_s):
        raise PhaseError("hang", f"the pole did not hang still within {start.timeout_s:g} s; hold it, then let it go")
    loop.estimator.set_angle(math.pi)


def self_test(loop: ControlLoop) -> float:
    """
    A push each way at low voltage: motor and cart encoder agree on the direction, the pole answers as poles do, and the cart
    is seen to move soon enough.

    :return: time from a push to its counts, s
    """
    test = loop.rig.self_test
    loop.begin(
        "self-test",
        "Testing motor and sensors at low voltage.",
        Checks(rail=False, angle=False, frozen=False, voltage_volt=test.voltage_volt),
    )
    # The first push may meet a stop, the second, away from it, must not.
    pushes = {direction: _push(loop, direction) for direction in (1, -1)}
    moved = {direction: travel for direction, (travel, _, _) in pushes.items() if abs(travel) >= test.min_travel_m}
    if not moved:
        raise PhaseError(
            "self-test",
            f"{test.voltage_volt:g} V moved the cart by less than {1e3 * test.min_travel_m:g} mm either way; "
            "is the amplifier on, the emergency stop released, the cart encoder connected?",
        )
    # A computer that was held up for a moment spoils one push, samples that are old spoil both.
    latency_s = min(latency_s for _, _, latency_s in pushes.values())
    if latency_s < math.inf:
        _check_latency(test, latency_s)
    for direction, travel in moved.items():
        if travel * direction < 0:
            raise PhaseError(
                "self-test",
                f"{direction * test.voltage_volt:+g} V moved the cart by {1e3 * travel:+.1f} mm: the wrong way. "
                "Check the wiring, then motor.sign and sensors.cart_sign in the rig file",
            )
    # A cart that runs the wrong way is not seen to move either, and has been told by now.
    if latency_s == math.inf:
        raise PhaseError(
            "self-test",
            f"the cart never moved by {1e3 * _seen_to_move_m(test):g} mm within {1e3 * WINDOW_S:g} ms, so that its "
            "latency cannot be measured. Does it run freely, and is self_test.voltage_volt enough for it?",
        )
    # Of the first push that it answers: before that one it hung still.
    answers = [(each, pushes[each][1]) for each in moved if pushes[each][1] != 0.0]
    if not answers:
        raise PhaseError("self-test", "the cart moved and the pole's encoder did not; is it connected?")
    direction, answer = answers[0]
    # A hanging bob stays behind the cart: θ − π goes against the push. One that is held upright goes with it.
    if answer * direction > 0:
        # A hand moves as poles do, so that nothing tells which of the two it is.
        raise PhaseError(
            "self-test",
            "does the pole hang? It answered the push like one that is held upright. Let it hang down, free and still, and "
            "start again. Only if you have seen it hang, its encoder counts the wrong way: change sensors.pole_sign in the "
            "rig file",
        )
    return latency_s


def _check_latency(test: SelfTest, latency_s: float) -> None:
    if latency_s > test.latency_s:
        raise PhaseError(
            "self-test",
            f"the cart was seen to move {1e3 * latency_s:.0f} ms after its voltage was sent, limit {1e3 * test.latency_s:g} "
            "ms: the supervisor would act on a cart that is somewhere else by now. Look for a slow network, or for something "
            "between here and the rig that keeps samples or commands waiting",
        )


def home(loop: ControlLoop) -> float:
    """
    Both stops at low voltage. Afterwards x = 0 is the middle between them.

    :return: distance between the stops, m
    """
    homing, rail_length_m = loop.rig.homing, loop.rig.limits.rail_length_m
    ends = []
    for direction, side in ((-1, "left"), (1, "right")):
        loop.begin(
            "home",
            f"Looking for the {side} end of the rail.",
            Checks(rail=False, angle=False, frozen=False, voltage_volt=homing.voltage_volt),
        )
        ends.append(_find_stop(loop, direction * homing.voltage_volt, side))
    # Far below the rail's length something is in the way; above it the scale is wrong. Neither is safe to run on.
    span_m = ends[1] - ends[0]
    if abs(span_m - rail_length_m) > homing.span_tolerance_m:
        raise PhaseError(
            "home",
            f"the stops are {1e3 * span_m:.1f} mm apart and the rig file says {1e3 * rail_length_m:.1f} mm; is something on "
            "the rail, or sensors.cart_scale_m wrong?",
        )
    loop.estimator.set_position(span_m / 2.0)
    return span_m


def place_cart(loop: ControlLoop, target_m: float = 0.0) -> None:
    """
    :param target_m: where the cart is to stand, from the middle of the rail
    """
    centring = loop.rig.centring
    _wait_for_calm_pole(loop)
    # From a stop, or from wherever a run ended: inside the margin is where the cart comes from, so that the cut is off.
    loop.begin(
        "place",
        f"Moving the cart to {1e3 * target_m:+.0f} mm.",
        Checks(rail=False, angle=False, voltage_volt=centring.voltage_volt),
    )
    settled = _Lasting(0.1)

    def towards_target(state: State) -> float:
        distance_m = target_m - state.x
        if abs(distance_m) < centring.tolerance_m / 2.0:
            return 0.0
        # Slower near the target, but never so little that friction wins.
        volt = centring.voltage_volt * min(1.0, abs(distance_m) / _SLOWING_DISTANCE_M)
        return math.copysign(max(volt, min(_LEAST_MOVING_VOLT, centring.voltage_volt)), distance_m)

    def is_there(state: State, time_s: float) -> bool:
        near = abs(state.x - target_m) < centring.tolerance_m
        return settled.holds(near and abs(state.x_dot) < _SETTLED_M_S, time_s)

    if not loop.drive(towards_target, is_there, centring.timeout_s):
        raise PhaseError(
            "place",
            f"the cart did not come to rest at {1e3 * target_m:+.0f} mm within {centring.timeout_s:g} s; does it run freely?",
        )


def wait_for_upright_pole(loop: ControlLoop) -> None:
    """Zero volts until somebody holds the pole upright."""
    start = loop.rig.start
    loop.begin(
        "lift",
        "Lift the pole upright and hold it lightly: the run begins by itself.",
        Checks(rail=False, angle=False, frozen=False, voltage_volt=0.0),
    )
    upright = _Lasting(start.hold_s)

    def stands(state: State, time_s: float) -> bool:
        return upright.holds(abs(state.theta) < start.upright_rad and abs(state.theta_dot) < 1.0, time_s)

    if not loop.drive(_no_voltage, stands, start.timeout_s):
        raise PhaseError(
            "lift",
            f"the pole was not held within {math.degrees(start.upright_rad):.1f}° of upright within {start.timeout_s:g} s",
        )


def _wait_for_calm_pole(loop: ControlLoop) -> None:
    start = loop.rig.start
    calm = _Lasting(_CALM_S)
    loop.begin("calm", "Bring the pole to rest.", Checks(rail=False, angle=False, frozen=False, voltage_volt=0.0))
    if not loop.drive(
        _no_voltage, lambda state, time_s: calm.holds(abs(state.theta_dot) < _CALM_RAD_S, time_s), start.timeout_s
    ):
        raise PhaseError("calm", f"the pole is still spinning after {start.timeout_s:g} s; hold it, then let it go")


class _Lasting:
    """
    A condition that must hold without a break.

    :param needed_s: for how long
    """

    def __init__(self, needed_s: float):
        self._needed_s = needed_s
        self._since_s: float | None = None

    def holds(self, now: bool, time_s: float) -> bool:
        if not now:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = time_s
        return self._since_s is not None and time_s - self._since_s >= self._needed_s


def _no_voltage(state: State) -> float:
    return 0.0


def _seen_to_move_m(test: SelfTest) -> float:
    return min(_SEEN_TO_MOVE_M, test.min_travel_m)


def _push(loop: ControlLoop, direction: int) -> tuple[float, float, float]:
    """
    :param direction: +1 or -1
    :return: travel of the cart, m; the pole's first clear answer from hanging, rad, 0 if there was none; time until the cart
        was seen to move, s, infinite if it was not
    """
    test = loop.rig.self_test
    begin_m = loop.estimator.state.x
    answer = 0.0
    latency = PushLatency(_seen_to_move_m(test))

    def pushed_long_enough(state: State, time_s: float) -> bool:
        nonlocal answer
        latency.see(loop.clock.now_s(), direction * (state.x - begin_m))
        away = math.remainder(state.theta - math.pi, 2.0 * math.pi)
        if answer == 0.0 and abs(away) > _POLE_ANSWER_RAD:
            answer = away
        return time_s >= test.push_s

    def came_to_rest(state: State, time_s: float) -> bool:
        latency.see(loop.clock.now_s(), direction * (state.x - begin_m))
        # Samples that are old show the cart at rest before they show the push.
        return abs(state.x_dot) < _SETTLED_M_S and (latency.seconds is not None or time_s > _LATE_S)

    loop.drive(lambda state: direction * test.voltage_volt, pushed_long_enough, test.timeout_s)
    travel_m = loop.estimator.state.x - begin_m
    if not loop.drive(_no_voltage, came_to_rest, _LATE_S + test.timeout_s):
        raise PhaseError("self-test", f"the cart did not come to rest within {test.timeout_s:g} s at zero volts")
    if abs(travel_m) < test.min_travel_m:
        travel_m = loop.estimator.state.x - begin_m
    return travel_m, answer, math.inf if latency.seconds is None else latency.seconds


def _find_stop(loop: ControlLoop, volt: float, side: str) -> float:
    """
    :param volt: towards the stop
    :param side: its name
    :return: where the cart stands against it, m
    """
    homing = loop.rig.homing
    n_samples = max(2, round(homing.still_s / loop.rig.sample_s))
    recent: deque[float] = deque(maxlen=n_samples)

    def stands_still(state: State, time_s: float) -> bool:
        recent.append(state.x)
        # A cart that has not begun to move stands still too.
        return len(recent) == n_samples and time_s > 2.0 * homing.still_s and max(recent) - min(recent) < _STILL_M

    if not loop.drive(lambda state: volt, stands_still, homing.timeout_s):
        raise PhaseError(
            "home",
            f"no stop on the {side} side within {homing.timeout_s:g} s at {abs(volt):g} V; is the cart's encoder counting?",
        )
    return loop.estimator.state.x
