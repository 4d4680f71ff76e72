"""Voltages to learn from: held ones at random, alone or on top of a policy's."""

from typing import Any

import numpy as np
from gymnasium import spaces

from nopg_envs.behaviours import Behaviour, held
from nopg_robot.run.session import Policy

# Share of the voltage limit by which a cart at the end of its way is pulled back on average: voltages that know nothing of
# the rail run off it within half a second.
PULL = 0.8
# Share of the voltage limit that exploration adds to a policy's voltage at most.
ADDED = 0.2
# Of voltages to and fro: control periods, about half a swing of a Quanser's pole at 50 Hz, and shares of the voltage limit.
_SWING_STEPS, _SWING_SHARES = (12, 30), (0.4, 1.0)


def held_voltages(limit_volt: float, reach_m: float, generator: np.random.Generator, *, to_and_fro: bool = False) -> Policy:
    """
    Random voltages, each held for a while, and shifted towards the middle of the rail.

    :param limit_volt: largest voltage
    :param reach_m: how far from the middle the cart may be
    :param generator: drawn from
    :param to_and_fro: each against the one before and for about half a swing, which makes a hanging pole swing high;
        otherwise every voltage equally likely, for 2 to 19 control periods
    """
    draw = (_to_and_fro if to_and_fro else held)(_range(limit_volt), generator)

    def act(observation: np.ndarray) -> np.ndarray:
        pull = PULL * limit_volt * float(np.clip(observation[0] / reach_m, -1.0, 1.0))
        return np.clip(draw(observation) - pull, -limit_volt, limit_volt)

    return act


def exploring(policy: Policy, limit_volt: float, generator: np.random.Generator) -> Policy:
    """
    :param policy: volts for an observation
    :param limit_volt: largest voltage
    :param generator: drawn from
    :return: the same with held random voltages on top
    """
    draw = held(_range(ADDED * limit_volt), generator)

    def act(observation: np.ndarray) -> Any:
        return np.clip(policy(observation) + draw(observation), -limit_volt, limit_volt)

    return act


def _range(limit_volt: float) -> spaces.Box:
    return spaces.Box(-limit_volt, limit_volt, (1,), dtype=np.float64)


def _to_and_fro(voltages: spaces.Box, generator: np.random.Generator) -> Behaviour:
    voltage, n_left, sign = np.zeros(1), 0, 1.0

    def draw(observation: np.ndarray) -> np.ndarray:
        nonlocal voltage, n_left, sign
        if n_left == 0:
            sign = -sign
            voltage = sign * voltages.high * generator.uniform(*_SWING_SHARES, size=1)
            n_left = int(generator.integers(*_SWING_STEPS, endpoint=True))
        n_left -= 1
        return voltage

    return draw
