"""Rigs as they might be: every parameter within its range, and all of the range."""

import dataclasses

import numpy as np
import pytest

from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.cartpole.plausible import plausible_parameters, plausible_ranges


@pytest.mark.parametrize(
    ("around", "damping"),
    [(None, 6.46), ("long_pole", PARAMETER_SETS["long_pole"].cart_damping), ({"cart_damping": 9.0}, 9.0)],
)
def test_parameters_lie_in_their_ranges_and_fill_them(around, damping):
    ranges, generator = plausible_ranges(around), np.random.default_rng(0)
    drawn = [plausible_parameters(generator, around) for _ in range(300)]
    for field in dataclasses.fields(CartPoleParameters):
        values = np.array([getattr(one, field.name) for one in drawn])
        low, high = ranges.get(field.name, (values[0], values[0]))
        assert low <= values.min()
        assert values.max() <= high
        # Ends are reached to a twentieth; what is not drawn stays as it is.
        assert values.min() - low <= 0.05 * (high - low)
        assert high - values.max() <= 0.05 * (high - low)
    assert ranges["cart_damping"] == pytest.approx((0.8 * damping, 1.2 * damping))
