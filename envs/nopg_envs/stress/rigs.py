"""Rigs that might be the one in the laboratory, with the sensors and the operator that they may have."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nopg_envs.cartpole.options import TASKS, CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.plausible import plausible_parameters, plausible_ranges
from nopg_envs.cartpole.starts import (
    OPERATOR_ANGLE_RAD,
    OPERATOR_CART_SPEED,
    OPERATOR_POLE_SPEED,
    OPERATOR_RAIL_SHARE,
    State,
    draw_start,
)

# Standard deviation of the noise on x and θ, in counts of their encoders.
LARGEST_NOISE_COUNTS = 1.0
# What an encoder loses once during a flight: a belt that skips a tooth or so, a cable that catches a spike.
LARGEST_CART_SLIP_MM = 5.0
LARGEST_POLE_SLIP_COUNTS = 5

_UNITS = {
    "input_gain": "m/s²/V",
    "cart_damping": "1/s",
    "pole_coupling": "m",
    "inverse_pole_length": "1/m",
    "pole_damping": "1/s",
    "cart_coulomb": "m/s²",
    "pole_coulomb": "rad/s²",
    "voltage_offset": "V",
    "input_delay_s": "s",
}


@dataclass(frozen=True)
class Rig:
    """
    :param parameters: of the cart
    :param sensor_noise: standard deviation of the noise on x and θ, in counts
    :param cart_slip_mm: by which the cart's encoder is off from one moment on
    :param cart_slip_s: that moment
    :param pole_slip_counts: by which the pole's encoder is off from one moment on
    :param pole_slip_s: that moment
    :param start: x, θ, ẋ, θ̇
    :param generator: of the noise
    """

    parameters: CartPoleParameters
    sensor_noise: float
    cart_slip_mm: float
    cart_slip_s: float
    pole_slip_counts: float
    pole_slip_s: float
    start: State
    generator: np.random.Generator


@dataclass(frozen=True)
class Quantity:
    """
    Something that rigs differ in.

    :param name: as `CartPoleParameters` calls it, or as one can guess
    :param unit: of its values
    :param low: end of its range
    :param high: the other end
    :param values: one for each rig, (n_rigs,)
    """

    name: str
    unit: str
    low: float
    high: float
    values: np.ndarray


def draw_rigs(options: CartPoleOptions, n_rigs: int, seconds: float, seed: int) -> list[Rig]:
    """
    :param options: what was identified, and how flights start
    :param n_rigs: how many
    :param seconds: length of a flight, in which encoders slip at some time
    :param seed: of everything; a rig's number and the seed are all that it depends on
    """
    rigs = []
    for number in range(n_rigs):
        generator = np.random.default_rng([seed, number])
        parameters = plausible_parameters(generator, options.nominal)
        noise, cart_slip = generator.uniform((0.0, -1.0), 1.0) * (LARGEST_NOISE_COUNTS, LARGEST_CART_SLIP_MM)
        pole_slip = generator.integers(-LARGEST_POLE_SLIP_COUNTS, LARGEST_POLE_SLIP_COUNTS, endpoint=True)
        cart_slip_s, pole_slip_s = generator.uniform(0.0, seconds, size=2)
        rest_angle = TASKS[options.task].rest_angle_rad
        start = draw_start(options.start, rest_angle, options.theta_limit, parameters, generator)
        slips = (float(cart_slip), float(cart_slip_s), float(pole_slip), float(pole_slip_s))
        rigs.append(Rig(parameters, float(noise), *slips, start, generator))
    return rigs


def quantities(rigs: Sequence[Rig], options: CartPoleOptions) -> list[Quantity]:
    """
    :param rigs: that were drawn
    :param options: that they were drawn with
    :return: all that differs between them, with the range that it was drawn from
    """
    found = [
        Quantity(name, _UNITS[name], *ends, np.array([getattr(rig.parameters, name) for rig in rigs]))
        for name, ends in plausible_ranges(options.nominal).items()
    ]
    for name, unit, low, high in (
        ("sensor_noise", "counts", 0.0, LARGEST_NOISE_COUNTS),
        ("cart_slip_mm", "mm", -LARGEST_CART_SLIP_MM, LARGEST_CART_SLIP_MM),
        ("pole_slip_counts", "counts", -float(LARGEST_POLE_SLIP_COUNTS), float(LARGEST_POLE_SLIP_COUNTS)),
    ):
        found.append(Quantity(name, unit, low, high, np.array([getattr(rig, name) for rig in rigs])))
    starts = np.array([rig.start for rig in rigs]) - (0.0, TASKS[options.task].rest_angle_rad, 0.0, 0.0)
    for name, unit, reach, values in zip(
        ("start_x", "start_theta", "start_x_dot", "start_theta_dot"),
        ("m", "rad", "m/s", "rad/s"),
        (
            OPERATOR_RAIL_SHARE * options.nominal.rail_length_m / 2.0,
            min(OPERATOR_ANGLE_RAD, options.theta_limit / 2.0),
            OPERATOR_CART_SPEED,
            OPERATOR_POLE_SPEED,
        ),
        starts.T,
        strict=True,
    ):
        found.append(Quantity(name, unit, -reach, reach, values))
    # A parameter that is zero, or a start that is always the same, makes no difference.
    return [quantity for quantity in found if np.ptp(quantity.values) > 0.0]


class Sensors:
    """
    What encoders tell beside the truth: noise, and from some moment on a slip.

    :param rigs: whose they are
    :param options: rates
    """

    def __init__(self, rigs: Sequence[Rig], options: CartPoleOptions):
        self._generators = [rig.generator for rig in rigs]
        self._n_physics_steps, self._step_s = options.n_physics_steps, options.step_s
        # Noise is drawn for a second at a time: a call for every rig and step would take longer than the physics.
        self._n_drawn = max(round(options.control_hz), 1)
        counts = np.array([(rig.parameters.cart_count_m, rig.parameters.pole_count_rad) for rig in rigs]).T
        self._noise_scales = np.array([rig.sensor_noise for rig in rigs]) * counts
        # Rows for x and θ, columns for rigs.
        self._slips = np.array([(1e-3 * rig.cart_slip_mm, rig.pole_slip_counts) for rig in rigs]).T
        self._slips[1] *= counts[1]
        self._slip_times_s = np.array([(rig.cart_slip_s, rig.pole_slip_s) for rig in rigs]).T
        self._drawn = np.zeros((0, 0, 2, len(rigs)))

    def at_start(self) -> np.ndarray:
        """Errors of x and θ before the first step, m and rad, (n_rigs, 2)."""
        draws = np.array([generator.standard_normal(2) for generator in self._generators])
        return draws * self._noise_scales.T

    def errors(self, step: int) -> np.ndarray:
        """
        :param step: number of the control period; they are asked for one after the other
        :return: errors of x and θ at each of its physics steps, m and rad, (n_physics_steps, 2, n_rigs)
        """
        if step % self._n_drawn == 0:
            shape = (self._n_drawn, self._n_physics_steps, 2)
            self._drawn = np.stack([generator.standard_normal(shape) for generator in self._generators], axis=-1)
        times_s = (step * self._n_physics_steps + 1 + np.arange(self._n_physics_steps)) * self._step_s
        slipped = times_s[:, None, None] >= self._slip_times_s
        return self._drawn[step % self._n_drawn] * self._noise_scales + slipped * self._slips
