"""The model of the system: what it chooses on left-out episodes, what it predicts, and data of every kind."""

import math

import numpy as np
import pytest
import torch as th

from helpers.systems import (
    A,
    B,
    cart,
    linear,
    linear_reward,
    on_circle,
    pendulum,
    pendulum_reward,
    record,
    relative_error,
    two_forces,
)
from sb3_nopg import DynamicsModel, InputError, TransitionDataset
from sb3_nopg.dynamics.action_features import ActionFeatures

pytestmark = pytest.mark.slow


def fit(data: TransitionDataset, **settings) -> DynamicsModel:
    return DynamicsModel.fit(data, **{"n_nodes": 100, **settings})


# --- Linear or not ---------------------------------------------------------------------------------------------------------


def test_a_linear_system_is_found_to_be_one():
    model = fit(record(linear, linear_reward))
    assert model.choices.is_affine
    assert model.choices.reward.kernel is None
    assert not model.choices.products
    assert model.nodes.single
    np.testing.assert_allclose(np.eye(2) + model.nodes.fields[0].maps.state_slope[0].numpy(), A, atol=1e-6)
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=1e-6)
    # Nothing drifts: the maps' value at a node is what A says of it.
    expected = model.nodes.fields[0].between.nodes @ th.tensor(A - np.eye(2)).T
    np.testing.assert_allclose(model.nodes.fields[0].maps.value.numpy(), expected.numpy(), atol=1e-6)


def test_a_linear_system_under_noise_is_still_one():
    model = fit(record(linear, linear_reward, noise=0.02, n_episodes=20))
    assert model.choices.is_affine
    assert model.choices.n_earlier_steps == 0
    assert not model.choices.products
    assert 0.0 < model.choices.unexplained < 0.5
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0].numpy(), B, atol=0.01)


def test_a_system_that_bends_is_not_taken_for_linear():
    def bends(states, actions):
        return 0.7 * states + 0.4 * np.sin(3.0 * states[:, ::-1]) + 0.2 * actions

    data = record(bends, n_episodes=20)
    model = fit(data, n_nodes=300, n_earlier_steps=0)
    assert min(kernel.bandwidth for kernel in model.choices.kernels) < 1.0
    assert not model.nodes.single
    elsewhere = record(bends, seed=1)
    one_map = fit(data, bandwidth=math.inf, n_earlier_steps=0)
    assert relative_error(model, elsewhere) < 0.4 * relative_error(one_map, elsewhere)


def test_what_is_unexplained_is_told():
    nothing = record(lambda s, a: np.random.default_rng(len(s)).normal(size=s.shape), noise=1.0)
    assert fit(nothing, n_earlier_steps=0).choices.unexplained > 0.3
    assert fit(record(linear, linear_reward)).choices.unexplained < 1e-10


# --- Products of actions ---------------------------------------------------------------------------------------------------


def test_a_system_that_is_not_affine_in_its_action_is_noticed():
    def squared(states, actions):
        return states + 0.1 * actions**2

    model = fit(record(squared, start=(1.0,)))
    assert model.choices.products
    assert relative_error(model, record(squared, start=(1.0,), seed=1)) < 1e-3
    inputs = model.features(th.tensor([[-0.8], [0.0], [0.8]]).double())
    changes = model.nodes.fields[0].maps.value[0] + inputs @ model.nodes.fields[0].maps.action_slope[0].T
    np.testing.assert_allclose(changes[:, 0].numpy(), [0.064, 0.0, 0.064], atol=1e-4)


def test_products_of_two_actions_are_noticed():
    model = fit(record(two_forces, d_a=2), n_nodes=300, n_earlier_steps=0)
    assert model.choices.products
    assert model.features.size == 5
    assert relative_error(model, record(two_forces, d_a=2, seed=1)) < 0.1


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_system_that_is_affine_in_its_action_needs_none(noise):
    data = record(cart, start=(0.8, 0.8), noise=noise)
    assert not fit(data).choices.products


def test_features_and_their_pull_back():
    features = ActionFeatures(3, True)
    generator = th.Generator().manual_seed(0)
    actions = th.randn(7, 3, generator=generator, dtype=th.float64, requires_grad=True)
    values = features(actions)
    assert values.shape == (7, features.size) == (7, 9)
    gradient = th.randn(values.shape, generator=generator, dtype=th.float64)
    (expected,) = th.autograd.grad(values, actions, gradient)
    th.testing.assert_close(features.pull_back(actions.detach(), gradient), expected, rtol=1e-12, atol=1e-12)


# --- Earlier steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_delay_is_found_where_there_is_one(delay, noise):
    model = fit(record(linear, linear_reward, delay=delay, noise=noise, n_episodes=20))
    assert model.choices.n_earlier_steps == delay
    # Of this action and those of earlier steps, each of which has two changes too, only the one that acts does anything.
    slope = model.nodes.fields[0].maps.action_slope[0].numpy()[:, [0, 1, 4][: 1 + delay]]
    expected = np.zeros((2, 1 + delay))
    expected[:, delay] = B[:, 0]
    np.testing.assert_allclose(slope, expected, atol=1e-6 if noise == 0 else 0.02)


def test_a_nonlinear_system_without_delay_needs_no_earlier_actions():
    assert fit(record(cart, start=(0.8, 0.8))).choices.n_earlier_steps == 0
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    assert fit(data).choices.n_earlier_steps == 0


@pytest.mark.parametrize("at_rest", [True, False])
def test_first_steps_tell_what_came_before_them(at_rest):
    """Whatever was done before an episode, its first step is predicted as well as others from the past that is made up."""
    data = record(linear, linear_reward, delay=1, at_rest=at_rest, noise=0.02, n_episodes=60)
    model = fit(data)
    assert model.choices.n_earlier_steps == 1
    first = np.flatnonzero(np.diff(data.episode_ids, prepend=-1))
    found, _ = model.predict(data.observations[first], data.actions[first])
    missed = (found - data.next_observations[first]).std(axis=0)
    # At rest only the noise is left. Otherwise nobody knows the action before.
    usual = 0.02 if at_rest else 0.12
    assert (missed < 1.5 * usual).all()
    # Either way, the model is the system's.
    np.testing.assert_allclose(
        model.nodes.fields[0].maps.action_slope[0, :, :2].numpy(), np.column_stack([0 * B, B]), atol=0.02
    )


def test_earlier_steps_that_a_user_wants():
    data = record(linear, linear_reward, noise=0.05)
    model = fit(data, n_earlier_steps=2)
    assert model.choices.n_earlier_steps == 2
    assert model.nodes.fields[0].maps.action_slope.shape[2] == 1 + 2 * 3
    np.testing.assert_allclose(model.nodes.fields[0].maps.action_slope[0, :, 0].numpy(), B[:, 0], atol=0.03)
    assert fit(record(linear, linear_reward, delay=1), n_earlier_steps=0).choices.n_earlier_steps == 0


def test_episodes_too_short_for_a_past():
    data = record(linear, linear_reward, length=1, n_episodes=60)
    assert fit(data).choices.n_earlier_steps == 0
    with pytest.raises(InputError) as caught:
        fit(data, n_earlier_steps=1)
    assert caught.value.field == "n_earlier_steps"
