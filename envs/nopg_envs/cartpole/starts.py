"""Where an episode begins."""

import math
from typing import Any

import numpy as np

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.checks import real_array

State = tuple[float, float, float, float]

STARTS = ("paper", "operator")
# An operator puts the cart down somewhere on the middle half of the rail, his hand not quite still, and nudges the pole.
OPERATOR_RAIL_SHARE = 0.5
OPERATOR_ANGLE_RAD = 0.03
OPERATOR_CART_SPEED = 0.15
OPERATOR_POLE_SPEED = 0.2


def check_start(name: Any) -> str:
    """
    :param name: of a start distribution
    :return: the same name, if there is such a distribution
    """
    if not isinstance(name, str) or name not in STARTS:
        raise ValueError(f"start: unknown {name!r}; known are {', '.join(STARTS)}")
    return name


def draw_start(
    name: str,
    rest_angle_rad: float,
    theta_limit_rad: float,
    parameters: CartPoleParameters,
    generator: np.random.Generator,
) -> State:
    """
    :param name: ``"paper"``, at rest at the centre of the rail, or ``"operator"``
    :param rest_angle_rad: angle about which the pole starts
    :param theta_limit_rad: largest angle that is not terminal; starts keep to the inner half
    :param parameters: of the cart
    :param generator: to draw from
    :return: x, θ, ẋ, θ̇
    """
    if name == "paper":
        return 0.0, rest_angle_rad, 0.0, 0.0
    x, theta, x_dot, theta_dot = generator.uniform(-1.0, 1.0, size=4).tolist()
    return (
        x * OPERATOR_RAIL_SHARE * parameters.rail_length_m / 2.0,
        rest_angle_rad + theta * min(OPERATOR_ANGLE_RAD, theta_limit_rad / 2.0),
        x_dot * OPERATOR_CART_SPEED,
        theta_dot * OPERATOR_POLE_SPEED,
    )


def check_state(given: Any, parameters: CartPoleParameters, theta_limit_rad: float) -> State:
    """
    :param given: x, θ, ẋ, θ̇ as a caller passed them
    :param parameters: of the cart
    :param theta_limit_rad: largest angle that is not terminal
    :return: the same as floats, if an episode can begin there
    """
    state = real_array("options['state']", given)
    if state.shape != (4,) or not np.all(np.isfinite(state)):
        raise ValueError(f"options['state'] must be four finite numbers (x, theta, x_dot, theta_dot), got {given!r}")
    x, theta, x_dot, theta_dot = state.tolist()
    if abs(x) > parameters.rail_length_m / 2.0:
        raise ValueError(f"options['state']: x = {x} m is outside the rail, which ends at ±{parameters.rail_length_m / 2.0} m")
    if abs(theta) > theta_limit_rad:
        raise ValueError(
            f"options['state']: theta = {theta} rad is terminal already, the limit is ±{theta_limit_rad} rad "
            f"(±{math.degrees(theta_limit_rad):.3g}°); set theta_limit_rad to start farther out"
        )
    return x, theta, x_dot, theta_dot
