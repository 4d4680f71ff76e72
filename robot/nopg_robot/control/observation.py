"""From the estimated state to what a policy was trained on, by name."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from nopg_robot.control.estimator import State
from nopg_robot.rig.errors import PolicyError

QUANTITIES: dict[str, Callable[[State], float]] = {
    "x": lambda state: state.x,
    "theta": lambda state: state.theta,
    "sin_theta": lambda state: math.sin(state.theta),
    "cos_theta": lambda state: math.cos(state.theta),
    "x_dot": lambda state: state.x_dot,
    "theta_dot": lambda state: state.theta_dot,
}
#: of each of them; "1" for a pure number
UNITS = {"x": "m", "theta": "rad", "sin_theta": "1", "cos_theta": "1", "x_dot": "m/s", "theta_dot": "rad/s"}
#: of nopg_envs' cart-pole, and of flight logs
NAMES = ("x", "sin_theta", "cos_theta", "x_dot", "theta_dot")
#: the same as an environment's ``metadata`` tells it, with units and the action
METADATA = {
    "observation_names": NAMES,
    "observation_units": tuple(UNITS[name] for name in NAMES),
    "action_names": ("voltage",),
    "action_units": ("V",),
}


class Observer:
    """
    :param names: what the policy observes, in its order
    """

    def __init__(self, names: Sequence[str] = NAMES):
        unknown = [name for name in names if name not in QUANTITIES]
        if unknown:
            raise PolicyError(
                f"the policy observes {', '.join(unknown)}, which a rig does not measure; it knows {', '.join(QUANTITIES)}. "
                "Name the observations when exporting: model.export(path, observation_names=[...])"
            )
        self._quantities = [QUANTITIES[name] for name in names]

    def __call__(self, state: State) -> np.ndarray:
        return np.array([quantity(state) for quantity in self._quantities], dtype=np.float32)


class DataRange:
    """
    What the policy has seen in training, with a margin.

    :param names: of the observations
    :param low: smallest value of each in the training data
    :param high: largest value of each
    :param margin: share of a range that an observation may lie outside of it
    """

    def __init__(self, names: Sequence[str], low: Sequence[float], high: Sequence[float], margin: float):
        low_array, high_array = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self._names, self._low, self._high = tuple(names), low_array, high_array
        room = margin * (high_array - low_array)
        self._lowest, self._highest = low_array - room, high_array + room

    def complaint(self, observation: np.ndarray) -> str | None:
        """
        :param observation: as the policy gets it
        :return: which quantity is outside of what, None if all are inside
        """
        outside = (observation < self._lowest) | (observation > self._highest)
        if not outside.any():
            return None
        first = int(np.argmax(outside))
        return (
            f"{self._names[first]} = {observation[first]:.3g} is outside of the training data, "
            f"{self._low[first]:.3g} to {self._high[first]:.3g}"
        )
