"""
Policies of very different quality, made from the simulators' own equations: nothing of the data that they are judged by went
into them.

Controllers that work are spoiled by random factors, from slightly to severely. Beside them stand random networks, a constant
action and doing nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm, solve_discrete_are

from nopg_envs.cartpole import PARAMETER_SETS, linearize

# From states, (m, d_s), to actions, (m, d_a).
Controller = Callable[[np.ndarray], np.ndarray]
CART = PARAMETER_SETS["identified"]
CONTROL_HZ = 50.0
# Of the pendulum: θ̈ = 15 sin θ + 3 u.
PENDULUM_GRAVITY, PENDULUM_TORQUE = 15.0, 2.0
# Rad/s at which a pole that passes the top is not caught.
CATCH_SPEED = 4.0
# Pump, push, centering, damping, compensation, energy and catch angle of swing-ups that work at 8 V from ten operator's
# starts, found by trying three hundred.
GOOD_SWING_UPS = (
    (0.42, 2.8, 27.7, 0.11, 0.84, 1.01, 0.41),
    (1.82, 5.47, 7.22, 5.17, 0.95, 1.06, 0.45),
    (0.24, 7.11, 25.5, 0.23, 0.97, 1.07, 0.29),
)


@dataclass(frozen=True)
class Network:
    """
    One hidden layer with random weights.

    :param first: (d_s + 1, h)
    :param second: (h,)
    :param limit: largest action
    """

    first: np.ndarray
    second: np.ndarray
    limit: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        inputs = np.hstack([states, np.ones((len(states), 1))])
        return self.limit * np.tanh(np.tanh(inputs @ self.first) @ self.second)[:, None]


@dataclass(frozen=True)
class Constant:
    """:param action: whatever the state"""

    action: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.full((len(states), 1), self.action)


@dataclass(frozen=True)
class PendulumController:
    """
    Pump energy until the pendulum can reach the top, then hold it there. States are cos θ, sin θ, θ̇.

    :param pump: torque for each unit of energy that is missing, at unit speed
    :param energy: wanted, 1 for that of standing upright
    :param stiffness: torque for each rad near the top
    :param damping: torque for each rad/s near the top
    :param catch_rad: how near that is
    """

    pump: float = 1.0
    energy: float = 1.1
    stiffness: float = 12.0
    damping: float = 3.0
    catch_rad: float = 0.5

    def __call__(self, states: np.ndarray) -> np.ndarray:
        cosine, sine, speed = states.T
        angle = np.arctan2(sine, cosine)
        missing = self.energy * PENDULUM_GRAVITY - (speed**2 / 2.0 + PENDULUM_GRAVITY * cosine)
        # At standstill it begins one way.
        pumping = self.pump * missing * np.where(np.abs(speed) < 0.05, 0.05, speed)
        holding = -self.stiffness * angle - self.damping * speed
        actions = np.where(np.abs(angle) < self.catch_rad, holding, pumping)
        return np.clip(actions, -PENDULUM_TORQUE, PENDULUM_TORQUE)[:, None]


@dataclass(frozen=True)
class BalanceController:
    """
    u = −K (x, θ, ẋ, θ̇). States are x, sin θ, cos θ, ẋ, θ̇.

    :param gain: K, (4,)
    :param limit: largest voltage
    """

    gain: np.ndarray
    limit: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        x, sine, cosine, x_dot, theta_dot = states.T
        volts = -np.stack([x, np.arctan2(sine, cosine), x_dot, theta_dot], axis=1) @ self.gain
        return np.clip(volts, -self.limit, self.limit)[:, None]


@dataclass(frozen=True)
class SwingUpController:
    """
    Pump energy by moving the cart, kept near the centre, and catch the pole where it is nearly upright and slow.

    :param balance: once it is caught
    :param pump: acceleration of the cart for each unit of energy that is missing, m/s²
    :param push: largest acceleration of pumping, m/s²
    :param centering: acceleration towards the centre for each metre, 1/s²
    :param damping: of the cart's speed, 1/s
    :param compensation: share of the motor's own damping that the voltage makes up for
    :param energy: wanted, 1 for that of standing upright
    :param catch_rad: how near to upright a pole is caught
    """

    balance: BalanceController
    pump: float
    push: float
    centering: float
    damping: float
    compensation: float
    energy: float
    catch_rad: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        x, sine, cosine, x_dot, theta_dot = states.T
        fall = CART.inverse_pole_length * CART.gravity
        missing = self.energy * fall - (theta_dot**2 / 2.0 + fall * cosine)
        way = np.where(theta_dot * cosine >= 0.0, 1.0, -1.0)
        pumping = np.clip(self.pump * missing, -self.push, self.push) * way
        acceleration = pumping - self.centering * x - self.damping * x_dot
        volts = (acceleration + self.compensation * CART.cart_damping * x_dot) / CART.input_gain
        near = (np.abs(np.arctan2(sine, cosine)) < self.catch_rad) & (np.abs(theta_dot) < CATCH_SPEED)
        return np.where(near[:, None], self.balance(states), np.clip(volts, -self.balance.limit, self.balance.limit)[:, None])


def balance_gain() -> np.ndarray:
    """K of the identified cart, linearised about upright and sampled, (4,)."""
    a, b = linearize(CART)
    sampled = expm(np.block([[a, b], [np.zeros((1, 5))]]) / CONTROL_HZ)
    a, b = sampled[:4, :4], sampled[:4, 4:]
    cost, effort = np.diag([10.0, 10.0, 0.1, 0.1]), np.array([[0.01]])
    value = solve_discrete_are(a, b, cost, effort)
    return np.asarray(np.linalg.solve(effort + b.T @ value @ b, b.T @ value @ a)[0])


def pendulum_policies(n: int, rng: np.random.Generator) -> dict[str, Controller]:
    """
    :param n: how many
    :param rng: to draw from
    """
    return _mixture(n, 3, PENDULUM_TORQUE, rng, lambda severity: _spoiled_pendulum(severity, rng))


def balance_policies(n: int, limit: float, rng: np.random.Generator) -> dict[str, Controller]:
    """
    :param n: how many
    :param limit: largest voltage
    :param rng: to draw from
    """
    return _mixture(n, 5, limit, rng, lambda severity: _spoiled_balance(severity, limit, rng))


def swing_up_policies(n: int, limit: float, rng: np.random.Generator) -> dict[str, Controller]:
    """
    :param n: how many
    :param limit: largest voltage
    :param rng: to draw from
    """

    def spoiled(severity: float) -> Controller:
        # Small factors: a swing-up works by the skin of its teeth.
        scales = severity / 3.0 * np.array([1.0, 1.0, 1.0, 1.0, 0.3, 0.1, 0.5])
        good = np.array(GOOD_SWING_UPS[int(rng.integers(len(GOOD_SWING_UPS)))])
        return SwingUpController(
            _spoiled_balance(severity / 3.0, limit, rng), *(good * np.exp(scales * rng.standard_normal(7)))
        )

    return _mixture(n, 5, limit, rng, spoiled)


def _mixture(
    n: int, n_inputs: int, limit: float, rng: np.random.Generator, spoiled: Callable[[float], Controller]
) -> dict[str, Controller]:
    """A fifth of all policies know nothing of the task; the others are controllers, the first as good as it gets."""
    n_networks = n // 5 - 2
    policies: dict[str, Controller] = {"nothing": Constant(0.0), "constant": Constant(float(rng.uniform(-limit, limit)))}
    for number in range(n_networks):
        first = rng.standard_normal((n_inputs + 1, 16))
        policies[f"network {number}"] = Network(first, rng.standard_normal(16) / 2.0, limit)
    for severity in np.linspace(0.0, 1.5, n - len(policies)):
        policies[f"controller spoiled by {severity:.3f}"] = spoiled(float(severity))
    return policies


def _factor(severity: float, rng: np.random.Generator) -> float:
    return float(np.exp(severity * rng.standard_normal()))


def _spoiled_pendulum(severity: float, rng: np.random.Generator) -> PendulumController:
    good = PendulumController()
    return PendulumController(
        good.pump * _factor(severity, rng),
        good.energy + 0.15 * severity * float(rng.standard_normal()),
        good.stiffness * _factor(severity, rng),
        good.damping * _factor(severity, rng),
        good.catch_rad * _factor(severity / 2.0, rng),
    )


def _spoiled_balance(severity: float, limit: float, rng: np.random.Generator) -> BalanceController:
    return BalanceController(balance_gain() * np.exp(severity * rng.standard_normal(4)), limit)
