"""The cart-pole's equations of motion and their integration, for one cart or for arrays of them: the slow, obvious form."""

import numpy as np
import numpy.typing as npt

from nopg_envs.cartpole.parameters import CartPoleParameters

# Below these speeds dry friction grows in proportion to the speed: a jump at standstill would make every resting cart chatter.
# Straight lines, not a hyperbolic tangent: whose last digits differ between NumPy and the C library, so that a batch of carts
# would part from a single one.
CART_STICTION_SPEED = 2e-3
POLE_STICTION_SPEED = 2e-2

FloatArray = npt.NDArray[np.float64]


def accelerations(
    parameters: CartPoleParameters,
    theta: FloatArray,
    cart_velocity: FloatArray,
    angular_velocity: FloatArray,
    voltage: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """
    :param parameters: of the cart; its fields may be arrays, one entry a cart
    :param theta: angle from upright, rad
    :param cart_velocity: m/s
    :param angular_velocity: rad/s
    :param voltage: at the motor, V
    :return: acceleration of the cart and of the angle
    """
    return _accelerations(parameters, np.sin(theta), np.cos(theta), cart_velocity, angular_velocity, voltage)


def _accelerations(
    parameters: CartPoleParameters,
    sine: FloatArray,
    cosine: FloatArray,
    cart_velocity: FloatArray,
    angular_velocity: FloatArray,
    voltage: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    p = parameters
    cart_friction = p.cart_damping * cart_velocity + _within(
        p.cart_coulomb / CART_STICTION_SPEED * cart_velocity, p.cart_coulomb
    )
    pole_friction = p.pole_damping * angular_velocity + _within(
        p.pole_coulomb / POLE_STICTION_SPEED * angular_velocity, p.pole_coulomb
    )
    # The pole's angular acceleration were the cart held still; eliminating θ̈ leaves one equation for ẍ.
    torque = p.inverse_pole_length * p.gravity * sine - pole_friction
    drive = p.input_gain * (voltage + p.voltage_offset)
    cart_acceleration = (drive - cart_friction + p.pole_coupling * (cosine * torque - angular_velocity**2 * sine)) / (
        1.0 - p.pole_coupling * p.inverse_pole_length * cosine**2
    )
    return cart_acceleration, torque + p.inverse_pole_length * cosine * cart_acceleration


def _within(value: FloatArray, bound: float) -> FloatArray:
    """What ``np.clip`` makes of it, in two thirds of the time."""
    return np.minimum(np.maximum(value, -bound), bound)


def rk4_step(parameters: CartPoleParameters, state: FloatArray, voltage: FloatArray | float, step_s: float) -> FloatArray:
    """
    One step of the classical Runge-Kutta method with constant voltage.

    Sine and cosine of θ are carried through the step as states of their own, d sin θ/dt = θ̇ cos θ and
    d cos θ/dt = −θ̇ sin θ, and taken afresh from θ in the next step: two evaluations where each stage would need its own,
    and still of fourth order.

    :param parameters: of the cart
    :param state: x, θ, ẋ, θ̇, (…, 4)
    :param voltage: at the motor, V, (…)
    :param step_s: s
    :return: state after the step, (…, 4)
    """

    volts = np.asarray(voltage)
    # Each of the six lies in one piece here, (6, …), which arithmetic goes through several times as fast.
    theta = state[..., 1:2]
    start = np.array([*np.moveaxis(state, -1, 0), np.sin(theta)[..., 0], np.cos(theta)[..., 0]])

    def derivative(at: FloatArray) -> FloatArray:
        _, _, x_dot, theta_dot, sine, cosine = at
        cart, pole = _accelerations(parameters, sine, cosine, x_dot, theta_dot, volts)
        slopes = np.empty_like(start)
        slopes[0], slopes[1], slopes[2], slopes[3] = x_dot, theta_dot, cart, pole
        slopes[4], slopes[5] = theta_dot * cosine, -theta_dot * sine
        return slopes

    k1 = derivative(start)
    k2 = derivative(start + 0.5 * step_s * k1)
    k3 = derivative(start + 0.5 * step_s * k2)
    k4 = derivative(start + step_s * k3)
    return np.stack([*(start + step_s / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4))[:4]], axis=-1)


def linearize(parameters: CartPoleParameters) -> tuple[FloatArray, FloatArray]:
    """
    The cart near upright and at rest, d/dt (x, θ, ẋ, θ̇) = A (x, θ, ẋ, θ̇) + B u.

    Dry friction and the voltage offset are left out: about standstill they are not small changes of anything.

    :param parameters: of the cart
    :return: A, (4, 4), and B, (4, 1)
    """
    p = parameters
    inertia = 1.0 - p.pole_coupling * p.inverse_pole_length
    fall = p.inverse_pole_length * p.gravity
    # Derivatives of ẍ by θ, ẋ, θ̇ and u; each enters θ̈ = a_L g θ − b_p θ̇ + a_L ẍ once more.
    cart = np.array([0.0, p.pole_coupling * fall, -p.cart_damping, -p.pole_coupling * p.pole_damping]) / inertia
    pole = np.array([0.0, fall, 0.0, -p.pole_damping]) + p.inverse_pole_length * cart
    gain = p.input_gain / inertia
    a = np.array([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], cart, pole])
    return a, np.array([[0.0], [0.0], [gain], [p.inverse_pole_length * gain]])
