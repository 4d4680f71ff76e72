"""Readings that jump: movements that no cart and no pole can make in the time since the last reading."""

from collections import deque

from nopg_robot.control.estimator import wrap_angle
from nopg_robot.control.safety_checks import Problem, Reason, Situation
from nopg_robot.rig.sections import Limits, Readings

# Readings over which the speed before is taken: so many that a digit may tremble, so few that a speed hardly changes.
_N_BEFORE = 4
# A cart that meets a stop jerks its pole by nine, on the identified rig at its highest speed; a hand may do as much.
_JERK_RAD_S = 15.0


class JumpCheck:
    """
    An encoder that slips shows a movement that the cart did not make, and every slip takes the stops from where the
    supervisor believes them to be. What a cart can do is known: it has the speed of the last few readings, gains no more than
    ``cart_acceleration_m_s2``, and has had the time since the last reading for it. A pole may also be jerked by a stop or a
    hand. After a gap, as much is allowed as the speed limits do.

    :param limits: of the rig
    :param readings: how exact they are
    """

    def __init__(self, limits: Limits, readings: Readings):
        self._cart = _Axis(limits.cart_acceleration_m_s2, 0.0, readings.cart_m, readings.jitter_s)
        self._pole = _Axis(0.0, _JERK_RAD_S, readings.pole_rad, readings.jitter_s)
        self._limits = limits
        self._before: tuple[float, float, float] | None = None

    def __call__(self, situation: Situation, applied_volt: float) -> Problem | None:
        state, limits, before = situation.state, self._limits, self._before
        time_s = situation.time_s
        self._before = (time_s, state.x, state.theta)
        if before is None:
            self._cart.begin(time_s, state.x_dot)
            self._pole.begin(time_s, state.theta_dot)
            return None
        gap_s = time_s - before[0]
        moved, turned = state.x - before[1], wrap_angle(state.theta - before[2])
        most_m = min(max(limits.jump_m, limits.cart_speed_m_s * gap_s), self._cart.can_move(time_s))
        if not abs(moved) <= most_m:
            return Reason.JUMP, f"x jumped by {moved:.4f} m in {1e3 * gap_s:.1f} ms, it can move by {most_m:.4f} m"
        most_rad = min(max(limits.jump_rad, limits.pole_speed_rad_s * gap_s), self._pole.can_move(time_s))
        if not abs(turned) <= most_rad:
            return Reason.JUMP, f"theta jumped by {turned:.4f} rad in {1e3 * gap_s:.1f} ms, it can move by {most_rad:.4f} rad"
        self._cart.move(time_s, moved)
        self._pole.move(time_s, turned)
        return None


class _Axis:
    """
    How far something can have moved since its last reading.

    :param acceleration: largest, for each second
    :param jerk: largest change of the speed at once
    :param resolution: of a reading
    :param jitter_s: how much later than it says a reading may have been taken
    """

    def __init__(self, acceleration: float, jerk: float, resolution: float, jitter_s: float):
        self._acceleration, self._jerk, self._resolution, self._jitter_s = acceleration, jerk, resolution, jitter_s
        # Times, and how far it had come.
        self._recent: deque[tuple[float, float]] = deque(maxlen=_N_BEFORE)
        self._speed_at_first = 0.0

    def begin(self, time_s: float, velocity: float) -> None:
        """
        :param time_s: of the first reading
        :param velocity: then, as the filter has it
        """
        self._recent.append((time_s, 0.0))
        self._speed_at_first = abs(velocity)

    def move(self, time_s: float, way: float) -> None:
        """
        :param time_s: of the next reading
        :param way: from the last one, of either sign
        """
        self._recent.append((time_s, self._recent[-1][1] + way))

    def can_move(self, time_s: float) -> float:
        """
        :param time_s: of the next reading
        :return: largest distance from the last one
        """
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        speed = self._speed_at_first
        if len(self._recent) == _N_BEFORE and last_s > first_s:
            # It had this speed at some moment between the two, and may have gained ever since.
            speed = abs(last - first) / (last_s - first_s)
        speed += self._jerk + self._acceleration * (time_s - first_s)
        return speed * (time_s - last_s + self._jitter_s) + self._resolution
