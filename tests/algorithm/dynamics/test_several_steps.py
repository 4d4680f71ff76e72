"""How many earlier steps count, and the ridge, by predictions over several steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch as th

from helpers.systems import linear, linear_reward, on_circle, pendulum, pendulum_reward, plain, prepared, record
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.affine import LEAST_RIDGE, AffineMaps
from sb3_nopg.dynamics.prepared import Inputs
from sb3_nopg.dynamics.regression import Form, Kernel, Regressions
from sb3_nopg.dynamics.several_steps import AHEAD, choose_by_several_steps, places_to_start, share_unexplained_ahead

COUNT = 0.05


def counted(states: np.ndarray) -> np.ndarray:
    """As an encoder of coarse steps would show them."""
    return COUNT * np.round(states / COUNT)


def affine(ridge: float) -> tuple[Kernel, ...]:
    return (Kernel(np.inf, Form(ridge=ridge)),) * 2


@pytest.fixture(scope="module")
def coarse():
    return record(linear, linear_reward, observe=counted, n_episodes=60, length=20)


@pytest.mark.slow
def test_states_that_are_seen_coarsely_ask_for_more_of_the_past(coarse):
    """One step hardly tells two earlier ones from one; several do, and predict unseen episodes better by it."""
    model = DynamicsModel.fit(coarse, n_nodes=60)
    assert model.choices.n_earlier_steps == 2
    data = prepared(coarse)
    places = places_to_start(data, 2)
    one, two = (share_unexplained_ahead(data, Inputs(ActionFeatures(1), n), affine(LEAST_RIDGE), places) for n in (1, 2))
    assert two < 0.95 * one


@pytest.mark.slow
def test_a_ridge_that_spoils_several_steps_is_not_taken(coarse):
    data = prepared(coarse)
    places = places_to_start(data, 1)
    inputs = Inputs(ActionFeatures(1), 1)
    found, kernels = choose_by_several_steps(data, inputs, (), affine(1e-3), (1,), 1.0)
    assert found.n_earlier == 1
    left = [share_unexplained_ahead(data, inputs, affine(ridge), places) for ridge in (kernels[0].form.ridge, 1.0)]
    assert left[0] < 0.5 * left[1]


@pytest.mark.slow
def test_what_is_predicted_ahead_is_what_follows():
    """Of a system that is known exactly nothing is left, which the floor of 10⁻⁶ stands for; of another's actions much is."""
    data = prepared(record(linear, linear_reward, n_episodes=30))
    places, inputs = places_to_start(data, 0), Inputs(ActionFeatures(1))
    assert share_unexplained_ahead(data, inputs, affine(LEAST_RIDGE), places) == pytest.approx(1e-6)
    shuffled = replace(data, actions=data.actions[th.randperm(len(data.actions), generator=th.Generator().manual_seed(0))])
    assert share_unexplained_ahead(shuffled, inputs, affine(LEAST_RIDGE), places) > 0.1


def test_places_have_their_steps_before_and_behind_them_in_one_episode():
    lengths = [3, AHEAD + 1, 30, AHEAD + 2, 40]
    parts = [record(linear, linear_reward, n_episodes=1, length=length, seed=length) for length in lengths]
    data = TransitionDataset.merge(*parts)
    data = replace(data, terminals=np.arange(len(data)) == 3 + AHEAD)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    places = places_to_start(prepared(data), 2).numpy()
    expected = [row for start, end in zip(starts, ends, strict=True) for row in range(start + 2, end - AHEAD + 1)]
    assert len(places) == 0 if len(expected) < 50 else places.tolist() == expected
    assert len(expected) >= 50


def test_data_without_episodes_leave_everything_as_it_is():
    data = prepared(replace(record(linear, linear_reward), episode_ids=None, timeouts=None))
    data = replace(data, labels=None)
    kernels, inputs = affine(1e-4), Inputs(ActionFeatures(1))
    assert choose_by_several_steps(data, inputs, (), kernels, (0,), 1.0) == (inputs, kernels)


@pytest.mark.parametrize("value", [np.nan, 1e200])
@pytest.mark.parametrize("has_an_angle", [False, True])
def test_a_prediction_that_goes_nowhere_counts_as_unexplained(monkeypatch, value, has_an_angle):
    def nowhere(self, states, targets=None):
        n = len(states)
        return AffineMaps(states.new_full((n, 2), value), states.new_zeros(n, 2, 2), states.new_zeros(n, 2, 1))

    angles, observe = (None, on_circle) if has_an_angle else ((), plain)
    data = prepared(record(pendulum, pendulum_reward, start=(3.1, 3.0), n_episodes=20, observe=observe), angles)
    monkeypatch.setattr(Regressions, "maps_at", nowhere)
    assert share_unexplained_ahead(data, Inputs(ActionFeatures(1)), affine(LEAST_RIDGE), places_to_start(data, 0)) == np.inf
