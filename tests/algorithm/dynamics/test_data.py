"""The model of the system from data of every kind: one episode, one action level, constant columns, very many rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import B, cart, linear, linear_reward, near_the_middle, record, relative_error
from sb3_nopg import DynamicsModel, TransitionDataset


def fit(data: TransitionDataset, **settings) -> DynamicsModel:
    return DynamicsModel.fit(data, **{"n_nodes": 100, **settings})


@pytest.mark.slow
def test_one_episode():
    model = fit(record(linear, linear_reward, n_episodes=1, length=100))
    assert model.choices.is_affine
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=1e-5)


@pytest.mark.slow
def test_rows_in_no_order():
    data = record(linear, linear_reward)
    order = np.random.default_rng(0).permutation(len(data))
    columns = (data.observations, data.actions, data.rewards, data.next_observations, data.terminals)
    model = fit(TransitionDataset(*(column[order] for column in columns)))
    assert model.choices.n_earlier_steps == 0
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=1e-6)


@pytest.mark.slow
def test_steps_that_were_cut_short_by_an_end_teach_nothing():
    data = record(linear, linear_reward, n_episodes=40, ends=lambda state: abs(state[0]) > 0.8)
    assert 5 < data.terminals.sum() < len(data) / 2
    # As a supervisor stops a motor: somewhere within the step.
    part = np.where(data.terminals, np.random.default_rng(0).uniform(0.1, 0.9, len(data)), 1.0)[:, None]
    after = data.observations + part * (data.next_observations - data.observations)
    model = fit(replace(data, next_observations=after), n_earlier_steps=0, bandwidth=math.inf)
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=1e-5)


@pytest.mark.slow
def test_earlier_steps_count_in_short_episodes_that_end():
    data = record(linear, linear_reward, n_episodes=40, length=5)
    terminals = np.arange(len(data)) % 5 == 4
    assert fit(replace(data, terminals=terminals), n_earlier_steps=2).choices.n_earlier_steps == 2


@pytest.mark.slow
def test_where_most_steps_are_ends_they_are_all_there_is():
    data = record(linear, linear_reward, length=10)
    model = fit(replace(data, terminals=np.arange(len(data)) > 2, episode_ids=None))
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 0.7])
def test_one_action_level(level):
    data = record(linear, linear_reward)
    constant = np.full_like(data.actions, level)
    after = linear(data.observations, constant)
    held = replace(
        data, actions=constant, next_observations=after, rewards=near_the_middle(data.observations, constant, after)
    )
    model = fit(held)
    # What an action does was never seen: nothing.
    assert bool(model.nodes.fields[0].maps.action_slope.isfinite().all())
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope.numpy(), 0.0, atol=1e-9)
    assert relative_error(model, held) < 1e-5


@pytest.mark.slow
def test_columns_that_never_change():
    data = record(linear, linear_reward)

    def wide(states):
        return np.column_stack([np.full(len(states), 3.0), states[:, 0], np.zeros(len(states)), states[:, 1]])

    widened = replace(data, observations=wide(data.observations), next_observations=wide(data.next_observations))
    model, narrow = fit(widened), fit(data)
    assert model.coordinates.dim == 2
    th.testing.assert_close(model.nodes.fields[0].maps.action_slope[0], narrow.nodes.fields[0].maps.action_slope[0])
    np.testing.assert_array_equal(model.coordinates.decode(model.nodes.states)[:, [0, 2]].numpy()[:5], [[3.0, 0.0]] * 5)


@pytest.mark.slow
def test_a_reward_that_never_changes():
    data = replace(record(linear, linear_reward), rewards=np.full(240, -1.0))
    model = fit(data)
    states, actions = model.nodes.states, th.zeros(len(model.nodes), 1, dtype=th.float64)
    np.testing.assert_allclose(model.reward(states, actions, states).numpy(), -1.0, atol=1e-9)


@pytest.mark.slow
def test_more_rows_than_predictions_are_made_of():
    rng = np.random.default_rng(0)
    # Without a fold, still more than the 20 000 that the choice looks at.
    n = 30_000
    states, actions = rng.uniform(-1, 1, size=(n, 2)), rng.uniform(-1, 1, size=(n, 1))
    after = linear(states, actions) + 0.05 * np.sin(3.0 * states)
    many = TransitionDataset(states, actions, near_the_middle(states, actions, after), after, np.zeros(n, bool))
    model = fit(many, n_nodes=300)
    assert len(model.nodes) <= 300
    assert relative_error(model, many.filter(np.arange(n) < 2000)) < 0.1


@pytest.mark.slow
def test_nodes_cover_what_was_recorded_and_the_starts():
    data = record(cart, start=(0.8, 0.8))
    starts = np.array([[0.5, -0.5], [-0.4, 0.2]])
    model = fit(data, initial_states=starts, n_nodes=200)
    assert 100 < len(model.nodes) <= 200
    for start in starts:
        assert float((model.nodes.states - th.tensor(start)).norm(dim=1).min()) < 1e-12
    # No recorded state is far from a node.
    distance = th.cdist(th.tensor(data.observations), model.nodes.states).min(dim=1).values
    assert float(distance.max()) < 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("chosen_anew")
def test_the_same_seed_makes_the_same_model():
    data = record(cart, start=(0.8, 0.8))
    one, same, other = (fit(data, seed=seed, n_earlier_steps=0) for seed in (3, 3, 4))
    assert th.equal(one.nodes.states, same.nodes.states)
    assert th.equal(one.nodes.fields[0].maps.value, same.nodes.fields[0].maps.value)
    assert not (one.nodes.states.shape == other.nodes.states.shape and th.equal(one.nodes.states, other.nodes.states))


@pytest.mark.slow
def test_a_model_like_another():
    whole = fit(record(cart, start=(0.8, 0.8)))
    part = fit(record(cart, start=(0.3, 0.3), n_episodes=5, seed=1), like=whole)
    assert part.choices == whole.choices
    assert part.coordinates.plain == whole.coordinates.plain


@pytest.mark.slow
def test_actions_are_those_of_the_space_or_of_the_data():
    data = record(linear, linear_reward)
    wide = replace(data, action_space=spaces.Box(-3.0, 2.0, (1,)))
    low, high = fit(wide).action_range
    assert (float(low), float(high)) == (-3.0, 2.0)
    low, high = fit(replace(data, action_space=None)).action_range
    assert (float(low), float(high)) == (float(data.actions.min()), float(data.actions.max()))


@pytest.mark.slow
def test_the_worst_that_can_happen():
    data = record(cart, near_the_middle, start=(0.8, 0.8), ends=lambda state: abs(state[0]) > 1.0)
    model = fit(data, n_earlier_steps=0)
    going_on = data.rewards[~data.terminals].min() / (1.0 - 0.9)
    assert model.worst_value(0.9) == pytest.approx(min(going_on, data.rewards[data.terminals].min()))
    cheerful = fit(replace(data, rewards=1.0 + data.rewards - data.rewards.min()), n_earlier_steps=0)
    assert cheerful.worst_value(0.9) == 0.0
