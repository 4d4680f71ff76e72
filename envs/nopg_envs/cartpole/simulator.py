"""
One cart as its rig shows it, in plain floats.

For a single cart NumPy would spend its time on calls: this is `dynamics.rk4_step` written out for numbers, with delay and
sensors.
"""

import math
from collections.abc import Sequence
from math import cos, sin

from nopg_envs.cartpole.dynamics import CART_STICTION_SPEED, POLE_STICTION_SPEED
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.starts import State

NO_NOISE = (0.0, 0.0)
# 1.5 · 2⁵²: no fraction survives being added to it. To even like round(), in a third of the time.
ROUND = 6755399441055744.0


def delay_schedule(delay_s: float, step_s: float, n_steps: int) -> tuple[list[int], list[int], float]:
    """
    Which voltage the motor has in each physics step of a control period, 0 being the newest command, 1 the one before, …

    A delay that is no multiple of the step ends inside one. That step gets the mean of both voltages, weighted by time: the
    impulse is exact, the position at the end of the step right to half its length squared times the acceleration.

    :param delay_s: from command to motor
    :param step_s: length of a physics step
    :param n_steps: physics steps in a control period
    :return: command in force at the end of each step, command in force at its beginning, and the share of the latter
    """
    n_late = delay_s / step_s
    # 0.006 / 0.002 may come out a rounding error below 3.
    if abs(n_late - round(n_late)) < 1e-9:
        n_late = round(n_late)
    whole = math.floor(n_late)
    newer = [-((step - whole) // n_steps) for step in range(n_steps)]
    older = [-((step - whole - 1) // n_steps) for step in range(n_steps)]
    return newer, older, float(n_late - whole)


def filter_coefficients(cutoff_rad_s: float, step_s: float) -> tuple[float, float]:
    """
    ω s / (s + ω) by Tustin's rule, v ← keep · v + gain · (y − y_before): exact for a steady ramp at any step.

    :param cutoff_rad_s: ω
    :param step_s: time between samples
    :return: keep and gain
    """
    product = cutoff_rad_s * step_s
    return (2.0 - product) / (2.0 + product), 2.0 * cutoff_rad_s / (2.0 + product)


def filter_weights(cutoff_rad_s: float, step_s: float, n_steps: int) -> tuple[float, list[float]]:
    """
    The velocity filter over a whole control period: a weighted sum of the velocity before it and of the increments in it.

    :param cutoff_rad_s: ω
    :param step_s: time between samples
    :param n_steps: samples in a control period
    :return: weight of the velocity before, and of each increment
    """
    keep, gain = filter_coefficients(cutoff_rad_s, step_s)
    return keep**n_steps, [keep**n_later * gain for n_later in reversed(range(n_steps))]


class CartPoleSimulator:
    """
    :param options: rates, limits and sensors
    :param parameters: of the cart
    :param state: x, θ, ẋ, θ̇ at the start
    :param noise: on x and θ at the start, m and rad
    """

    def __init__(
        self, options: CartPoleOptions, parameters: CartPoleParameters, state: State, noise: Sequence[float] = NO_NOISE
    ):
        p, step_s = parameters, options.step_s
        self.state = state
        self.termination: str | None = None
        self._input_gain, self._voltage_offset = p.input_gain, p.voltage_offset
        self._rail_end, self._theta_limit = p.rail_length_m / 2.0, options.theta_limit
        cart_slope, pole_slope = p.cart_coulomb / CART_STICTION_SPEED, p.pole_coulomb / POLE_STICTION_SPEED
        # The product, which may be a last digit off the parameter, because a batch of carts has it.
        self._cart_friction = (p.cart_damping, cart_slope * CART_STICTION_SPEED, cart_slope)
        self._pole_friction = (p.pole_damping, pole_slope * POLE_STICTION_SPEED, pole_slope)
        self._pole = (p.inverse_pole_length * p.gravity, p.inverse_pole_length, p.pole_coupling)
        self._step_s = step_s

        newer, older, self._older_share = delay_schedule(p.input_delay_s, step_s, options.n_physics_steps)
        self._schedule = list(zip(newer, older, strict=True))
        # The motor stood without voltage before the first command.
        self._commands = [0.0] * (max(older) + 1)

        self._counts = (p.cart_count_m, p.pole_count_rad) if options.encoder_counts else None
        self._filter: tuple[float, list[float]] | None = None
        if options.filtered_velocities:
            self._filter = filter_weights(p.velocity_cutoff_rad_s, step_s, options.n_physics_steps)
        # Velocities as if the cart had moved like this for a while: no bump at the start.
        ((x, theta),) = self._counted([(state[0] + noise[0], state[1] + noise[1])])
        self.measured = (x, theta, state[2], state[3])

    def hold(self, voltage: float, noise: Sequence[Sequence[float]] | None = None) -> None:
        """
        One control period.

        :param voltage: asked of the motor, V
        :param noise: on x and θ at each physics step, m and rad, (n_physics_steps, 2)
        """
        commands, share = self._commands, self._older_share
        commands.insert(0, voltage)
        commands.pop()
        positions = self._integrate([(1.0 - share) * commands[new] + share * commands[old] for new, old in self._schedule])
        self._sense(positions, noise)

    def _integrate(self, voltages: list[float]) -> list[tuple[float, float]]:
        """
        All physics steps of a control period. The innermost lines are `dynamics.accelerations`, written out because calls
        would cost a third more.

        :param voltages: at the motor in each step, V
        :return: x and θ after each step
        """
        fall, inverse_length, coupling = self._pole
        cart_damping, cart_coulomb, cart_slope = self._cart_friction
        pole_damping, pole_coulomb, pole_slope = self._pole_friction
        rail_end, theta_limit, step_s = self._rail_end, self._theta_limit, self._step_s
        half_s, sixth_s = step_s / 2.0, step_s / 6.0
        x, theta, v, w = self.state
        positions = []
        for voltage in voltages:
            drive = self._input_gain * (voltage + self._voltage_offset)
            sine, cosine = sin(theta), cos(theta)
            at_sine, at_cosine, at_v, at_w = sine, cosine, v, w
            v_dots, w_dots = [], []
            # How far each stage's slope is followed to the next stage. The last one leads to none.
            for ahead in (half_s, half_s, step_s, 0.0):
                if at_v > CART_STICTION_SPEED:
                    cart_friction = cart_damping * at_v + cart_coulomb
                elif at_v < -CART_STICTION_SPEED:
                    cart_friction = cart_damping * at_v - cart_coulomb
                else:
                    cart_friction = cart_damping * at_v + cart_slope * at_v
                if at_w > POLE_STICTION_SPEED:
                    pole_friction = pole_damping * at_w + pole_coulomb
                elif at_w < -POLE_STICTION_SPEED:
                    pole_friction = pole_damping * at_w - pole_coulomb
                else:
                    pole_friction = pole_damping * at_w + pole_slope * at_w
                torque = fall * at_sine - pole_friction
                lever = inverse_length * at_cosine
                v_dot = (drive - cart_friction + coupling * (at_cosine * torque - at_sine * (at_w * at_w))) / (
                    1.0 - coupling * (at_cosine * lever)
                )
                w_dot = torque + lever * v_dot
                v_dots.append(v_dot)
                w_dots.append(w_dot)
                at_sine, at_cosine = sine + ahead * (at_w * at_cosine), cosine - ahead * (at_w * at_sine)
                at_v, at_w = v + ahead * v_dot, w + ahead * w_dot
            # Positions follow the stages' velocities, which are sums of the accelerations before them.
            first, second, third, fourth = v_dots
            middle = second + third
            three = first + middle
            x, v = x + step_s * v + sixth_s * step_s * three, v + sixth_s * (three + middle + fourth)
            first, second, third, fourth = w_dots
            middle = second + third
            three = first + middle
            theta, w = theta + step_s * w + sixth_s * step_s * three, w + sixth_s * (three + middle + fourth)
            positions.append((x, theta))
            # Between control steps as well: the end of the rail does not wait.
            if not -rail_end <= x <= rail_end:
                self.termination = "rail"
            elif not -theta_limit <= theta <= theta_limit and self.termination is None:
                self.termination = "angle"
        self.state = (x, theta, v, w)
        return positions

    def _sense(self, positions: list[tuple[float, float]], noise: Sequence[Sequence[float]] | None) -> None:
        """The rig's encoders and velocity filter at each physics step of a control period."""
        if noise is not None:
            positions = [(x + on_x, theta + on_theta) for (x, theta), (on_x, on_theta) in zip(positions, noise, strict=True)]
        if self._filter is None:
            self.measured = (*self._counted(positions[-1:])[0], self.state[2], self.state[3])
            return
        keep, weights = self._filter
        before_x, before_theta, x_dot, theta_dot = self.measured
        x_dot, theta_dot = keep * x_dot, keep * theta_dot
        for weight, (x, theta) in zip(weights, self._counted(positions), strict=True):
            x_dot += weight * (x - before_x)
            theta_dot += weight * (theta - before_theta)
            before_x, before_theta = x, theta
        self.measured = (before_x, before_theta, x_dot, theta_dot)

    def _counted(self, positions: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Positions as the encoders tell them."""
        if self._counts is None:
            return positions
        cart_count, pole_count = self._counts
        return [
            (((x / cart_count + ROUND) - ROUND) * cart_count, ((theta / pole_count + ROUND) - ROUND) * pole_count)
            for x, theta in positions
        ]
