"""Settings of the model that cannot be right are refused by name, before any work, wherever they are given."""

import math

import numpy as np
import pytest

from helpers.systems import linear, linear_reward, record
from sb3_nopg import DynamicsModel, InputError
from sb3_nopg.dynamics.model_settings import check_model_settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("limits", {"limits": {0: (50.0, 60.0)}}),
        ("angles", {"angles": [(0, 1)]}),
        ("bandwidth", {"bandwidth": 0.0}),
        ("bandwidth", {"bandwidth": math.nan}),
        ("bandwidth", {"bandwidth": "wide"}),
        ("n_earlier_steps", {"n_earlier_steps": -1}),
        ("n_earlier_steps", {"n_earlier_steps": 3}),
        ("n_earlier_steps", {"n_earlier_steps": 0.5}),
        ("n_nodes", {"n_nodes": 0}),
        ("n_nodes", {"n_nodes": 99.5}),
        ("n_nodes", {"n_nodes": math.inf}),
        ("n_nodes", {"n_nodes": True}),
    ],
)
def test_settings_that_do_not_go_with_the_data_are_refused(field, settings):
    data = record(linear, linear_reward)
    with pytest.raises(InputError) as caught:
        check_model_settings(data, settings)
    assert caught.value.field == field
    with pytest.raises(InputError) as caught:
        DynamicsModel.fit(data, **settings)
    assert caught.value.field == field


def test_too_few_transitions_are_refused():
    data = record(linear, linear_reward, n_episodes=1, length=7)
    with pytest.raises(InputError, match="too few") as caught:
        DynamicsModel.fit(data)
    assert caught.value.field == "dataset"


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 12, 19, 25])
def test_a_handful_of_transitions_is_enough_for_one_affine_model(length):
    model = DynamicsModel.fit(record(linear, linear_reward, n_episodes=1, length=length), n_nodes=50)
    assert model.choices.n_earlier_steps <= 1
    assert bool(model.nodes.fields[0].maps.action_slope.isfinite().all())
    # However little is known, what moves the second coordinate is.
    assert np.sign(float(model.nodes.fields[0].maps.action_slope[0, 1, 0])) == 1.0
