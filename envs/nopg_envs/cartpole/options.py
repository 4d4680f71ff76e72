"""What one cart-pole environment is asked to be, checked once and shared by the single and the batched form."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from nopg_envs.cartpole.parameters import CartPoleParameters, field_names, parameters_of
from nopg_envs.cartpole.starts import State, check_start, check_state, draw_start
from nopg_envs.checks import flag, real_number

SLOWEST_PHYSICS_HZ = 500.0
# No cart of this kind comes near these; they make the observation space finite.
LARGEST_CART_SPEED = 10.0
LARGEST_POLE_SPEED = 100.0
# Volts without saturation end here: far beyond any amplifier, and before numbers overflow.
LARGEST_VOLTAGE_VOLT = 1e4


@dataclass(frozen=True)
class Task:
    """
    :param rest_angle_rad: angle about which the pole starts
    :param theta_limit_rad: angle that ends an episode, infinite for none
    :param query_theta_rad: reach of a grid of queries when no limit sets it
    :param query_cart_speed: reach of a grid of queries, m/s
    :param query_pole_speed: reach of a grid of queries, rad/s
    :param reward_offset: c of the reward (cos θ + c) / (1 + c), which is 1 upright; from 1 on it is never negative
    """

    rest_angle_rad: float
    theta_limit_rad: float
    query_theta_rad: float
    query_cart_speed: float
    query_pole_speed: float
    reward_offset: float


TASKS = {
    "balance": Task(0.0, 0.2, math.pi, 1.0, 1.5, reward_offset=0.0),
    # Where most rewards are negative, the shortest way off the rail would be the best thing to do.
    "swing_up": Task(math.pi, math.inf, math.pi, 2.0, 15.0, reward_offset=1.0),
}


@dataclass(frozen=True)
class CartPoleOptions:
    """
    :param task: ``"balance"`` or ``"swing_up"``
    :param parameters: a set's name, a YAML file, parameters, or a dict of those that differ from the identified ones
    :param start: ``"paper"`` or ``"operator"``
    :param theta_limit_rad: angle from upright that ends an episode, ``math.inf`` for none; by default the task's: 0.2 for
        balancing (the paper has ``math.radians(3)``), none for swinging up
    :param control_hz: how often a voltage is asked for
    :param physics_hz: how often the equations of motion are integrated and the sensors sampled; a multiple of ``control_hz``
    :param voltage_limit_volt: largest voltage that is passed on
    :param randomize: ranges of parameters, each drawn uniformly at every reset
    :param rig_effects: what each of the next five is unless it is set
    :param coulomb_friction: dry friction of cart and pole, and the offset of the voltage
    :param input_delay: a voltage reaches the motor ``parameters.input_delay_s`` late
    :param encoder_counts: x and θ are observed in whole counts
    :param filtered_velocities: ẋ and θ̇ are observed through the rig's filter instead of directly
    :param voltage_saturation: voltages beyond the limit are cut; otherwise passed on as they are
    :param sensor_noise: standard deviation of noise on x and θ before they are counted, in counts
    """

    task: str = "balance"
    parameters: str | os.PathLike[str] | CartPoleParameters | dict[str, Any] | None = None
    start: str = "paper"
    theta_limit_rad: float | None = None
    control_hz: float = 50.0
    physics_hz: float = 500.0
    voltage_limit_volt: float = 5.0
    randomize: Mapping[str, tuple[float, float]] | None = None
    rig_effects: bool = True
    coulomb_friction: bool | None = None
    input_delay: bool | None = None
    encoder_counts: bool | None = None
    filtered_velocities: bool | None = None
    voltage_saturation: bool | None = None
    sensor_noise: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or self.task not in TASKS:
            raise ValueError(f"task: unknown {self.task!r}; known are {', '.join(TASKS)}")
        check_start(self.start)
        self._settle("parameters", parameters_of(self.parameters))
        self._settle("rig_effects", flag("rig_effects", self.rig_effects))
        for name in ("coulomb_friction", "input_delay", "encoder_counts", "filtered_velocities", "voltage_saturation"):
            asked = getattr(self, name)
            self._settle(name, self.rig_effects if asked is None else flag(name, asked))
        self._settle("randomize", _checked_ranges(self.randomize, self.nominal))
        for name in ("control_hz", "physics_hz", "voltage_limit_volt", "sensor_noise"):
            self._settle(name, real_number(name, getattr(self, name)))
        self._check_rates()
        self._check_limits()

    def _settle(self, name: str, value: Any) -> None:
        # What was asked for is replaced once by what it means; afterwards nothing changes.
        object.__setattr__(self, name, value)

    def _check_rates(self) -> None:
        for name in ("control_hz", "physics_hz"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive, got {getattr(self, name)}")
        if self.physics_hz < SLOWEST_PHYSICS_HZ:
            raise ValueError(f"physics_hz: must be at least {SLOWEST_PHYSICS_HZ:g}, got {self.physics_hz}")
        ratio = self.physics_hz / self.control_hz
        if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-9:
            raise ValueError(
                f"control_hz: {self.control_hz:g} does not divide physics_hz, {self.physics_hz:g}; "
                f"try physics_hz={math.ceil(ratio) * self.control_hz:g}"
            )

    def _check_limits(self) -> None:
        amplifier = self.nominal.amplifier_limit_volt
        if not 0 < self.voltage_limit_volt <= amplifier:
            raise ValueError(
                f"voltage_limit_volt: must be positive, at most the amplifier's {amplifier} V, got {self.voltage_limit_volt}"
            )
        if not 0 <= self.sensor_noise < math.inf:
            raise ValueError(f"sensor_noise: must be a finite number of counts, not negative, got {self.sensor_noise}")
        if self.theta_limit_rad is None:
            self._settle("theta_limit_rad", TASKS[self.task].theta_limit_rad)
        self._settle("theta_limit_rad", real_number("theta_limit_rad", self.theta_limit_rad))
        if not self.theta_limit > TASKS[self.task].rest_angle_rad:
            raise ValueError(f"theta_limit_rad: {self.theta_limit_rad} is terminal at the start of the task {self.task!r}")

    @property
    def nominal(self) -> CartPoleParameters:
        """Parameters before anything is drawn or switched off."""
        assert isinstance(self.parameters, CartPoleParameters)
        return self.parameters

    @property
    def theta_limit(self) -> float:
        """Largest angle that is not terminal, rad."""
        assert self.theta_limit_rad is not None
        return self.theta_limit_rad

    @property
    def n_physics_steps(self) -> int:
        """Physics steps in a control period."""
        return round(self.physics_hz / self.control_hz)

    @property
    def step_s(self) -> float:
        """Length of a physics step, s."""
        return 1.0 / self.physics_hz

    @property
    def reward_offset(self) -> float:
        """c of the reward (cos θ + c) / (1 + c)."""
        return TASKS[self.task].reward_offset

    def voltage_bound(self, parameters: CartPoleParameters) -> float:
        """Voltage beyond which this cart's input is cut, V."""
        return min(self.voltage_limit_volt, parameters.amplifier_limit_volt) if self.voltage_saturation else math.inf

    def check_voltage(self, name: str, volts: float) -> None:
        """
        :param name: of what the caller passed
        :param volts: refused where nothing cuts them and the simulation could not follow
        """
        if not self.voltage_saturation and abs(volts) > LARGEST_VOLTAGE_VOLT:
            raise ValueError(
                f"{name}: {volts:g} V is beyond ±{LARGEST_VOLTAGE_VOLT:g} V, the most that is simulated without saturation; "
                "try voltage_saturation=True"
            )

    def action_space(self) -> spaces.Box:
        return spaces.Box(-self.voltage_limit_volt, self.voltage_limit_volt, shape=(1,), dtype=np.float32)

    def observation_space(self) -> spaces.Box:
        # An episode ends with the period in which the cart leaves the rail: as far outside it can be, and no farther.
        x = self._longest_rail() / 2.0 + LARGEST_CART_SPEED / self.control_hz
        high = np.array([x, 1.0, 1.0, LARGEST_CART_SPEED, LARGEST_POLE_SPEED], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    def state_space(self) -> spaces.Box:
        """Ranges of x, θ, ẋ, θ̇ that a grid of queries covers, on whichever rail is drawn."""
        task = TASKS[self.task]
        theta = min(self.theta_limit, task.query_theta_rad)
        high = np.array([self._shortest_rail() / 2.0, theta, task.query_cart_speed, task.query_pole_speed])
        return spaces.Box(-high, high, dtype=np.float64)

    def begin(
        self, generator: np.random.Generator, asked: Mapping[str, Any] | None = None
    ) -> tuple[CartPoleParameters, State]:
        """
        Everything that is drawn at a reset.

        :param generator: to draw from
        :param asked: ``state`` or ``start``, for this episode only
        :return: the cart of this episode, effects that are off taken out of it, and where it starts
        """
        asked = check_reset_options(asked)
        parameters = self._draw_parameters(generator)
        if "state" in asked:
            return parameters, check_state(asked["state"], parameters, self.theta_limit)
        name = check_start(asked.get("start", self.start))
        return parameters, draw_start(name, TASKS[self.task].rest_angle_rad, self.theta_limit, parameters, generator)

    def _draw_parameters(self, generator: np.random.Generator) -> CartPoleParameters:
        assert self.randomize is not None
        if not self.randomize:
            return self._undrawn
        drawn = {name: float(generator.uniform(low, high)) for name, (low, high) in self.randomize.items()}
        return self.nominal.replace(**(drawn | self._switched_off()))

    @cached_property
    def _undrawn(self) -> CartPoleParameters:
        return self.nominal.replace(**self._switched_off())

    def _switched_off(self) -> dict[str, float]:
        """Parameters that take effects out of the physics."""
        dry_friction = {} if self.coulomb_friction else {"cart_coulomb": 0.0, "pole_coulomb": 0.0, "voltage_offset": 0.0}
        return dry_friction if self.input_delay else {**dry_friction, "input_delay_s": 0.0}

    def _shortest_rail(self) -> float:
        assert self.randomize is not None
        return self.randomize.get("rail_length_m", (self.nominal.rail_length_m,))[0]

    def _longest_rail(self) -> float:
        assert self.randomize is not None
        return max((self.nominal.rail_length_m, *self.randomize.get("rail_length_m", ())))


def check_reset_options(asked: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """
    :param asked: ``state`` or ``start`` or neither
    :return: the same, None as an empty dict
    """
    if not isinstance(asked, Mapping | None):
        raise ValueError(f"options: must be a dict, got {asked!r}")
    asked = asked or {}
    unknown = set(asked) - {"state", "start"}
    if unknown:
        raise ValueError(f"Unknown reset option {sorted(unknown, key=str)}: 'state' and 'start' are understood")
    if len(asked) == 2:
        raise ValueError("options: give 'state' or 'start', not both")
    return asked


def _checked_ranges(given: Mapping[str, Any] | None, parameters: CartPoleParameters) -> dict[str, tuple[float, float]]:
    """
    :param given: ranges by parameter
    :param parameters: that they vary
    :return: the same, if every cart that can be drawn is one
    """
    if not isinstance(given, Mapping | None):
        raise ValueError(f"randomize: must be a dict of ranges by parameter, got {given!r}")
    ranges = {}
    for name, given_range in (given or {}).items():
        if name not in field_names():
            raise ValueError(f"randomize: Unknown parameter {name}; known are {', '.join(field_names())}")
        try:
            low, high = (float(end) for end in given_range)
        except (TypeError, ValueError):
            raise ValueError(f"randomize[{name!r}]: must be (low, high), got {given_range!r}") from None
        if not -math.inf < low <= high < math.inf:
            raise ValueError(f"randomize[{name!r}]: must be finite with low <= high, got {given_range!r}")
        ranges[name] = (low, high)
    try:
        # Every condition on parameters holds between two ends at which it holds.
        for end in (0, 1):
            parameters.replace(**{name: pair[end] for name, pair in ranges.items()})
    except ValueError as error:
        raise ValueError(f"randomize: {error}") from None
    return ranges
