"""What the rig tests share: a policy that balances, its metadata, and rigs that run as fast as they can."""

import math
from typing import Any

import numpy as np
import scipy.linalg

from nopg_envs.cartpole.dynamics import linearize
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_robot.control.observation import NAMES
from nopg_robot.control.policy import PolicyMetadata
from nopg_robot.plants import simulated_twin
from nopg_robot.rig.file import RigFile

# For a simulated cart, which may be pushed harder than a real one.
QUICK_PHASES: dict[str, dict[str, Any]] = {
    "self_test": {"push_s": 0.2},
    "homing": {"voltage_volt": 2.5, "still_s": 0.15},
    "centring": {"voltage_volt": 2.0},
    "start": {"still_s": 0.3, "hold_s": 0.2},
}


def balancing_gain() -> np.ndarray:
    """Feedback of [x, θ, ẋ, θ̇], volts, from the linearised cart."""
    a, b = linearize(CartPoleParameters())
    solution = scipy.linalg.solve_continuous_are(a, b, np.diag([20.0, 50.0, 1.0, 1.0]), 0.1 * np.eye(1))
    return 10.0 * (b.T @ solution)[0]


_GAIN = balancing_gain()


def balance(observation: np.ndarray) -> np.ndarray:
    """A policy that keeps the pole up."""
    x, sine, cosine, x_dot, theta_dot = (float(value) for value in observation)
    return np.array([-_GAIN @ np.array([x, math.atan2(sine, cosine), x_dot, theta_dot])])


def metadata(**changes: Any) -> PolicyMetadata:
    """Of a policy that fits the shipped rigs."""
    fields: dict[str, Any] = {
        "observation_names": NAMES,
        "observation_units": ("m", "1", "1", "m/s", "rad/s"),
        "action_names": ("voltage",),
        "action_units": ("V",),
        "action_low": (-5.0,),
        "action_high": (5.0,),
        "control_period_s": 0.02,
        "data_low": None,
        "data_high": None,
        "digest": "0" * 64,
        "algorithm": "LQR",
        "created_by": "tests",
    }
    return PolicyMetadata(**{**fields, **changes})


def changed(rig: RigFile, **sections: dict[str, Any]) -> RigFile:
    """
    :param rig: to change
    :param sections: fields of each section that differ
    """
    content = rig.model_dump(mode="json")
    for section, fields in sections.items():
        content[section].update(fields)
    return RigFile.from_dict(content)


def fast_rig(**sections: dict[str, Any]) -> RigFile:
    """The simulated rig in simulated time."""
    return changed(simulated_twin(RigFile.load("simulated"), real_time=False), **sections)


def quick_rig(**sections: dict[str, Any]) -> RigFile:
    """
    The same with short phases and half as many samples, at less than half the cost: for tests of what happens in a session,
    where it does not matter how exactly the cart is moved before.
    """
    rig = fast_rig(**QUICK_PHASES, rates={"sample_hz": 250.0})
    # As gently against the stops as tests of impacts ask for, which look at the whole session.
    return changed(changed(rig, homing={"voltage_volt": 1.8}), **sections)
