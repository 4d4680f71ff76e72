"""Rigs that might be the one in the laboratory: parameters drawn around those that were identified."""

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
#: by how much each may be off, in its own unit
OFFS = {"voltage_offset": 0.15, "input_delay_s": 0.004}
#: from and to, of rigs of this kind, whatever was identified of one of them
OF_THE_KIND = {"voltage_offset": (-0.15, 0.15), "input_delay_s": (0.004, 0.012)}

Ranges = dict[str, tuple[float, float]]


def plausible_ranges(around: str | dict[str, float] | CartPoleParameters | None = None, fixed: Ranges | None = None) -> Ranges:
    """
    :param around: as for :func:`plausible_parameters`
    :param fixed: as for :func:`plausible_parameters`
    :return: smallest and largest value of each parameter that is drawn
    """
    nominal = parameters_of(around)
    spread = {name: (getattr(nominal, name) * (1.0 - by), getattr(nominal, name) * (1.0 + by)) for name, by in SPREADS.items()}
    return spread | _offs(nominal) | (fixed or {})


def plausible_parameters(
    generator: np.random.Generator,
    around: str | dict[str, float] | CartPoleParameters | None = None,
    fixed: Ranges | None = None,
) -> CartPoleParameters:
    """
    :param generator: drawn from
    :param around: what was identified: a set's name, a YAML file, parameters, or fields that differ from the identified ones
    :param fixed: from and to of parameters that are not to be drawn around that
    :return: one rig, every parameter equally likely within its range
    """
    nominal = parameters_of(around)
    drawn = {name: getattr(nominal, name) * generator.uniform(1.0 - spread, 1.0 + spread) for name, spread in SPREADS.items()}
    drawn |= {name: generator.uniform(*ends) for name, ends in (_offs(nominal) | (fixed or {})).items()}
    return nominal.replace(**{name: float(value) for name, value in drawn.items()})


def _offs(nominal: CartPoleParameters) -> Ranges:
    ends = {name: (getattr(nominal, name) - by, getattr(nominal, name) + by) for name, by in OFFS.items()}
    # No voltage arrives before it is sent.
    ends["input_delay_s"] = (max(0.0, ends["input_delay_s"][0]), ends["input_delay_s"][1])
    return ends
