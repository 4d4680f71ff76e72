"""What one Quanser cart-pole differs in from another: named parameter sets, any field of which can be replaced."""

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nopg_envs.checks import real_number
from nopg_envs.plain_yaml import read_yaml


@dataclass(frozen=True)
class CartPoleParameters:
    """
    Equations of motion in the angle θ from upright, positive when the bob tips towards −x, and the voltage u:

        ẍ − m cosθ θ̈ = k_u (u + u₀) − b_v ẋ − f_c sgn ẋ − m sinθ θ̇²
        θ̈ = a_L (g sinθ + cosθ ẍ) − b_p θ̇ − c_p sgn θ̇

    :param input_gain: k_u, acceleration for each volt, m/s²/V
    :param cart_damping: b_v, 1/s
    :param cart_coulomb: f_c, m/s²
    :param pole_coupling: m, the pole's share of the moving mass times the distance of its centre of mass, m
    :param inverse_pole_length: a_L, one over the length of the equivalent simple pendulum, 1/m
    :param pole_damping: b_p, 1/s
    :param pole_coulomb: c_p, rad/s²
    :param voltage_offset: u₀, V
    :param input_delay_s: time from command to motor, s
    :param gravity: g, m/s²
    :param rail_length_m: travel of the cart from stop to stop, m
    :param amplifier_limit_volt: largest voltage the amplifier gives, V
    :param cart_count_m: cart travel for each encoder count, m
    :param pole_count_rad: pole angle for each encoder count, rad
    :param velocity_cutoff_rad_s: of the rig's velocity filter ω s / (s + ω), rad/s
    """

    input_gain: float = 1.189
    cart_damping: float = 6.46
    cart_coulomb: float = 0.433
    pole_coupling: float = 0.0146
    inverse_pole_length: float = 4.529
    pole_damping: float = 0.0765
    pole_coulomb: float = 0.138
    voltage_offset: float = 0.076
    input_delay_s: float = 0.006
    gravity: float = 9.81
    rail_length_m: float = 0.814
    amplifier_limit_volt: float = 24.0
    cart_count_m: float = 22.7485e-6
    pole_count_rad: float = 2.0 * 3.141592653589793 / 4096
    velocity_cutoff_rad_s: float = 50.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = real_number(field.name, getattr(self, field.name))
            if math.isinf(value):
                raise ValueError(f"{field.name}: must be a finite number, got {value}")
            # NumPy's scalars would be written to YAML as Python objects.
            object.__setattr__(self, field.name, value)
            if field.name != "voltage_offset" and value < 0:
                raise ValueError(f"{field.name}: {value} is negative")
        for name in _POSITIVE:
            if getattr(self, name) == 0:
                raise ValueError(f"{name}: must not be zero")
        if self.pole_coupling * self.inverse_pole_length >= 1.0:
            raise ValueError("pole_coupling: the pole would weigh more than cart and pole together")

    def replace(self, **changes: float) -> "CartPoleParameters":
        """The same cart with some fields changed."""
        unknown = set(changes) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ValueError(f"Unknown parameter {', '.join(sorted(unknown))}; known are {', '.join(field_names())}")
        return dataclasses.replace(self, **changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all fields as YAML."""
        Path(path).write_text(yaml.safe_dump(dataclasses.asdict(self), sort_keys=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CartPoleParameters":
        """Read YAML; fields that are not named in it keep their identified values. Errors name the file."""
        try:
            content = read_yaml(path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path}: not a list of parameters")
        try:
            return _replaced(cls(), {name: _number_like(value) for name, value in content.items()})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def field_names() -> list[str]:
    return [field.name for field in dataclasses.fields(CartPoleParameters)]


def _replaced(parameters: CartPoleParameters, changes: dict[Any, Any]) -> CartPoleParameters:
    for name in changes:
        if not isinstance(name, str):
            raise ValueError(f"Unknown parameter {name!r}; known are {', '.join(field_names())}")
    return parameters.replace(**changes)


def _number_like(value: Any) -> Any:
    """YAML 1.1 reads 1e-2, which has no point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


_POSITIVE = (
    "input_gain",
    "inverse_pole_length",
    "gravity",
    "rail_length_m",
    "amplifier_limit_volt",
    "cart_count_m",
    "pole_count_rad",
    "velocity_cutoff_rad_s",
)
# Quanser's two poles for the IP02: full length and mass; and the mass that the motor of the identified rig moves, rotor and
# short pole included.
_SHORT_POLE_M, _SHORT_POLE_KG = 0.3365, 0.127
_LONG_POLE_M, _LONG_POLE_KG = 0.6413, 0.230
_MOVING_MASS_KG = 1.45


def _with_long_pole(short: CartPoleParameters) -> CartPoleParameters:
    """
    What the same cart does with the other pole; nothing here was measured on a rig.

    Both poles are taken as uniform rods, whose equivalent simple pendulum is 4/3 of half their length, so that a_L goes with
    one over the length. Motor and rail push as before, against a heavier whole: accelerations shrink by the ratio of the
    masses. m is mass times half length over that whole. The bearing brakes as before, against the inertia of the rod about
    its end, which goes with mass times length squared.
    """
    length, mass = _LONG_POLE_M / _SHORT_POLE_M, _LONG_POLE_KG / _SHORT_POLE_KG
    whole = _MOVING_MASS_KG / (_MOVING_MASS_KG + _LONG_POLE_KG - _SHORT_POLE_KG)
    return short.replace(
        input_gain=short.input_gain * whole,
        cart_damping=short.cart_damping * whole,
        cart_coulomb=short.cart_coulomb * whole,
        pole_coupling=short.pole_coupling * mass * length * whole,
        inverse_pole_length=short.inverse_pole_length / length,
        pole_damping=short.pole_damping / (mass * length**2),
        pole_coulomb=short.pole_coulomb / (mass * length**2),
    )


PARAMETER_SETS = {
    # Fitted to recordings of a rig with the short pole.
    "identified": CartPoleParameters(),
    # Nominal values, as simulators that were never compared with a rig use them.
    "datasheet": CartPoleParameters(
        input_gain=2.00,
        cart_damping=18.6,
        cart_coulomb=0.16,
        pole_coupling=0.034,
        inverse_pole_length=4.458,
        pole_damping=0.50,
        pole_coulomb=0.0,
        voltage_offset=0.0,
        input_delay_s=0.0,
    ),
    "long_pole": _with_long_pole(CartPoleParameters()),
}


def parameters_of(
    given: "str | os.PathLike[str] | CartPoleParameters | dict[str, Any] | None",
) -> CartPoleParameters:
    """
    :param given: a set's name, a path that ends in .yaml or .yml, parameters, fields that differ from the identified ones, or
        None for those
    """
    if given is None:
        return PARAMETER_SETS["identified"]
    if isinstance(given, CartPoleParameters):
        return given
    if isinstance(given, dict):
        return _replaced(PARAMETER_SETS["identified"], given)
    if isinstance(given, str | os.PathLike) and Path(given).suffix in (".yaml", ".yml"):
        return CartPoleParameters.load(given)
    if not isinstance(given, str) or given not in PARAMETER_SETS:
        raise ValueError(f"Unknown parameter set {given!r}; known are {', '.join(PARAMETER_SETS)}, or a .yaml file")
    return PARAMETER_SETS[given]
