"""
The rig's own watchdog, seen at work before anything depends on it: fall silent for a moment and see the motor cut.

A board or a card says so itself, under a command that moves nothing. Of a model behind a network only the cart can tell: it
must come to rest under a voltage that nobody repeats.
"""

import math

from nopg_robot.control.safety import Checks
from nopg_robot.rig.errors import PhaseError
from nopg_robot.run.loop import ControlLoop

# Below this a cart that is pushed leans on a stop.
_MOVING_M_S = 0.03
_RESTING_M_S = 0.02
# A cart without voltage loses more than half of its speed in this time.
_COAST_S = 0.5
_SLOWER = 0.5
# The guards of this program wait a little longer than the test does.
_SPARE_S = 0.25


def ask_the_rig(loop: ControlLoop) -> bool:
    """
    :return: whether nothing is left to see: the rig has shown its watchdog, or has none, which the operator was told
    """
    loop.begin("watchdog", "Does the rig's own watchdog act?", Checks(rail=False, angle=False, frozen=False, voltage_volt=0.0))
    return loop.test_watchdog() or _watchdog_s(loop) is None


def watch_the_cart(loop: ControlLoop) -> None:
    """At the self-test's voltage, one way, or the other way where a stop is."""
    test = loop.rig.self_test
    loop.begin(
        "watchdog",
        "Falling silent for a moment: the rig must cut the motor by itself.",
        Checks(rail=False, angle=False, frozen=False, voltage_volt=test.voltage_volt),
    )
    if not any(_stops_by_itself(loop, direction * test.voltage_volt) for direction in (1, -1)):
        raise PhaseError(
            "watchdog",
            "whether the rig cuts the motor by itself could not be seen: the cart came to rest when commands stopped and did "
            "not move again either way. Does it run freely, and does the model take commands again after its watchdog acted?",
        )


def _watchdog_s(loop: ControlLoop) -> float | None:
    return getattr(loop.rig.connection, "watchdog_s", None)


def _stops_by_itself(loop: ControlLoop, volt: float) -> bool:
    """
    :param volt: to push with
    :return: False where a stop, and not the rig, may have held the cart
    """
    test, silence_s = loop.rig.self_test, (_watchdog_s(loop) or 0.0) + _COAST_S
    _drive(loop, volt, test.push_s)
    speed_m_s = abs(loop.estimator.state.x_dot)
    if speed_m_s < _MOVING_M_S:
        _rest(loop)
        return False
    loop.guarded.hush(silence_s + _SPARE_S)
    # Asked for, but not sent.
    _drive(loop, volt, silence_s)
    loop.guarded.speak()
    left_m_s = abs(loop.estimator.state.x_dot)
    _rest(loop)
    if left_m_s > _SLOWER * speed_m_s:
        raise PhaseError(
            "watchdog",
            f"the cart still ran at {left_m_s:.2f} m/s after {silence_s:g} s without a command: the rig does not take the "
            f"voltage away, although the rig file says after {silence_s - _COAST_S:g} s. Give it a watchdog, or say null in "
            "connection.watchdog_s and keep a hand on the emergency stop",
        )
    # A cart at a stop does not move now.
    begin_m = loop.estimator.state.x
    _drive(loop, volt, test.push_s)
    travel_m = loop.estimator.state.x - begin_m
    _rest(loop)
    return math.copysign(travel_m, travel_m * volt) >= test.min_travel_m


def _drive(loop: ControlLoop, volt: float, seconds: float) -> None:
    loop.drive(lambda state: volt, lambda state, time_s: time_s >= seconds, seconds)


def _rest(loop: ControlLoop) -> None:
    timeout_s = loop.rig.self_test.timeout_s
    if not loop.drive(lambda state: 0.0, lambda state, time_s: abs(state.x_dot) < _RESTING_M_S, timeout_s):
        raise PhaseError("watchdog", f"the cart did not come to rest within {timeout_s:g} s at zero volts")
