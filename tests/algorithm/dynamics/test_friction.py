"""Dry friction: it is found where there is some, and only there, and predictions become better by it."""

import math

import numpy as np
import pytest
import torch as th

from helpers.systems import (
    FRICTION,
    bends_along_the_first,
    cart,
    held_by_friction,
    linear,
    linear_reward,
    on_circle,
    pendulum,
    pendulum_reward,
    pendulum_with_friction,
    predicted_changes,
    prepared,
    record,
    truth,
)
from sb3_nopg import DynamicsModel
from sb3_nopg.dynamics.affine import AffineRegression, Samples
from sb3_nopg.dynamics.friction import DryFriction, Held
from sb3_nopg.dynamics.quality import model_errors
from sb3_nopg.dynamics.stepping import Stepper
from sb3_nopg.dynamics.trajectories import step_through

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    return record(held_by_friction, start=(1.0, 0.3), n_episodes=40)


@pytest.fixture(scope="module")
def model(data):
    return DynamicsModel.fit(data, n_nodes=100)


def test_friction_is_found_by_the_speed_that_it_holds(model):
    (held,) = model.choices.held
    assert held.coordinate == 1
    assert FRICTION / 3 < held.size < 3 * FRICTION
    assert "dry friction: holds v below about" in model.describe(["x", "v"])


def test_predictions_of_other_episodes_are_better_by_it(model):
    others = record(held_by_friction, start=(1.0, 0.3), n_episodes=20, seed=7)
    truly = th.tensor(others.next_observations - others.observations)
    samples = Samples(model.coordinates, th.tensor(others.observations), th.tensor(others.actions), truly)
    affine = AffineRegression(samples).predict(samples.states, samples.inputs)
    error, affine_error = ((found - truly)[:, 1].square().mean() for found in (predicted_changes(model, others), affine))
    assert float(error) < 0.3 * float(affine_error)


@pytest.mark.parametrize(("action", "moves"), [(0.2 * FRICTION / 0.15, False), (3.0 * FRICTION / 0.15, True)])
def test_what_stands_still_stays_under_small_actions_and_not_under_large_ones(model, action, moves):
    still, n_steps = np.zeros((1, 2)), 5
    found = step_through(model, lambda seen, t: np.full((1, 1), action), th.tensor(still), n_steps).states[-1, 0]
    expected = truth(held_by_friction, lambda states: np.full((1, 1), action), still, n_steps)[-1, 0]
    assert (expected[0] > 0.1) == moves
    np.testing.assert_allclose(found.numpy(), expected, rtol=0.1, atol=0.01)


@pytest.mark.parametrize(
    "other",
    [
        record(linear, linear_reward, n_episodes=40),
        record(linear, linear_reward, n_episodes=40, noise=0.02),
        record(cart, start=(0.8, 0.8), n_episodes=40),
        record(pendulum, pendulum_reward, start=(3.1, 3.0), n_episodes=40, observe=on_circle),
        record(bends_along_the_first, start=(1.0, 1.0, 1.0), n_episodes=40),
    ],
    ids=["linear", "noisy", "cubic spring", "pendulum", "bent"],
)
def test_systems_without_friction_get_none(other):
    found = DynamicsModel.fit(other, n_nodes=60)
    assert not found.choices.held
    assert found.nodes.friction is None
    assert "friction" not in found.describe()


def test_a_model_of_a_part_takes_it_over(data, model):
    part = DynamicsModel.fit(data.split([0.5, 0.5])[0], like=model, n_nodes=60)
    assert part.choices.held == model.choices.held
    assert not th.equal(part.nodes.friction.of_inputs, model.nodes.friction.of_inputs)


def test_an_angle_that_goes_all_around():
    data = record(pendulum_with_friction, pendulum_reward, start=(3.1, 2.0), n_episodes=60, observe=on_circle)
    found = DynamicsModel.fit(data, n_nodes=400, n_earlier_steps=0)
    assert [held.coordinate for held in found.choices.held] == [0]
    states = found.coordinates.encode(th.tensor(data.observations[:50]))
    applied = th.tensor(data.actions[:50])
    stepper = Stepper(found)
    after, _ = stepper.step(stepper.begin(states.numpy()), applied.numpy())
    expected, _ = found.predict(data.observations[:50], data.actions[:50])
    np.testing.assert_allclose(stepper.observe(after.states), expected, atol=1e-12)


def test_its_slopes_are_autograd_s():
    generator = th.Generator().manual_seed(0)
    parts = [th.rand(2, generator=generator, dtype=th.float64) + 0.5]
    parts += [th.randn(*shape, generator=generator, dtype=th.float64) for shape in ((2,), (2, 3), (2, 3), (2, 3), (2, 4))]
    friction = DryFriction(*parts)
    states = th.randn(6, 3, generator=generator, dtype=th.float64)
    inputs = th.randn(6, 4, generator=generator, dtype=th.float64)
    by_states, by_inputs = friction.slopes(states, inputs)
    for row in range(6):
        expected = th.autograd.functional.jacobian(lambda x, u: friction(x[None], u[None])[0], (states[row], inputs[row]))
        th.testing.assert_close(by_states[row], expected[0])
        th.testing.assert_close(by_inputs[row], expected[1])
    np.testing.assert_allclose(friction.in_numpy()(states.numpy(), inputs.numpy()), friction(states, inputs).numpy())


def test_the_affine_prediction_is_that_of_the_regression():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    coordinates = prepared(data).coordinates
    states, after = (coordinates.encode(th.tensor(part)) for part in (data.observations, data.next_observations))
    samples = Samples(coordinates, states, th.tensor(data.actions), coordinates.difference(after, states))
    friction = DryFriction.fit(samples, [Held(0, 0.7)])
    speed = states[:, 0] + AffineRegression(samples).predict(states, samples.inputs)[:, 0]
    th.testing.assert_close(friction(states, samples.inputs)[:, 0], th.tanh(speed / 0.7))


def test_the_affine_model_that_it_is_held_against_knows_no_friction(data):
    (after,) = model_errors(data, steps=(1,), bandwidth=math.inf, n_nodes=60).after
    assert after.model.rmse < 0.8 * after.one_affine.rmse


@pytest.mark.parametrize("n", [8, 10, 13])
def test_a_handful_of_rows_has_no_say_in_it(n):
    found = DynamicsModel.fit(record(held_by_friction, start=(1.0, 0.3), n_episodes=1, length=n), n_nodes=20)
    assert not found.choices.held
