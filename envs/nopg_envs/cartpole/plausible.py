"""Rigs that might be the one in the laboratory: parameters drawn around those that were identified."""

from dataclasses import fields

import numpy as np

from nopg_envs.cartpole.parameters import CartPoleParameters, parameters_of

#: by how much of its value each may be off: what a fit to a few recordings leaves open, and what changes with the weather
SPREADS = {
    "input_gain": 0.2,
    "cart_damping": 0.2,
    "pole_coupling": 0.2,
    "inverse_pole_length": 0.2,
    "pole_damping": 0.2,
    "cart_coulomb": 0.5,
    "pole_coulomb": 0.5,
}
#: from and to, whatever was identified
RANGES = {"voltage_offset": (-0.15, 0.15), "input_delay_s": (0.004, 0.012)}


def plausible_ranges(around: str | dict[str, float] | CartPoleParameters | None = None) -> dict[str, tuple[float, float]]:
    """
    :param around: as for :func:`plausible_parameters`
    :return: smallest and largest value of each parameter that is drawn
    """
    nominal = parameters_of(around)
    spread = {name: (getattr(nominal, name) * (1.0 - by), getattr(nominal, name) * (1.0 + by)) for name, by in SPREADS.items()}
    return spread | RANGES


def plausible_parameters(
    generator: np.random.Generator, around: str | dict[str, float] | CartPoleParameters | None = None
) -> CartPoleParameters:
    """
    :param generator: drawn from
    :param around: what was identified: a set's name, a YAML file, parameters, or fields that differ from the identified ones
    :return: one rig, every parameter equally likely within its range
    """
    nominal = parameters_of(around)
    drawn = {name: getattr(nominal, name) * generator.uniform(1.0 - spread, 1.0 + spread) for name, spread in SPREADS.items()}
    drawn |= {name: generator.uniform(*ends) for name, ends in RANGES.items()}
    return CartPoleParameters(
        **{field.name: float(drawn.get(field.name, getattr(nominal, field.name))) for field in fields(nominal)}
    )
