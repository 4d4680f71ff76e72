"""Rigs as they might be: every parameter within its range, and all of the range."""

import dataclasses
import json

import numpy as np
import pytest

from helpers.repository import REPOSITORY
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.cartpole.plausible import OF_THE_KIND, plausible_parameters, plausible_ranges


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


def test_delay_and_offset_lie_around_what_was_identified():
    """A rig of 20 ms is not tried on quicker ones alone."""
    slow = plausible_ranges({"input_delay_s": 0.020, "voltage_offset": 0.4})
    assert slow["input_delay_s"] == pytest.approx((0.016, 0.024))
    assert slow["voltage_offset"] == pytest.approx((0.25, 0.55))
    assert plausible_ranges({"input_delay_s": 0.001})["input_delay_s"] == pytest.approx((0.0, 0.005))


def test_ranges_that_do_not_depend_on_what_was_identified():
    """The benchmark of rounds on a rig draws these, and the same rig for a seed as ever."""
    rig = plausible_parameters(np.random.default_rng([0, 21]), fixed=OF_THE_KIND)
    committed = json.loads((REPOSITORY / "benchmarks/results/learning_rounds_balance.json").read_text(encoding="utf-8"))
    assert dataclasses.asdict(rig) == committed["trials"][0]["parameters"]
