"""What the regression's kernel looks at, how far it is shrunk, and what a policy in training pays beside its reward."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch as th

from helpers.systems import (
    bends_along_the_first,
    cart,
    linear,
    linear_reward,
    predicted_changes,
    prepared,
    record,
    recorded_changes,
    relative_error,
)
from sb3_nopg import DynamicsModel
from sb3_nopg.dynamics.affine import LEAST_RIDGE, AffineRegression, Samples
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.regression import Form, LocalAffineRegression
from sb3_nopg.prediction.model_estimator import ModelEstimator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    return record(bends_along_the_first, n_episodes=30, start=(1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def model(data):
    return DynamicsModel.fit(data, n_earlier_steps=0, n_nodes=600)


def test_a_kernel_looks_at_what_bends_the_system(model):
    bending = [kernel for kernel in model.choices.kernels if not kernel.is_affine]
    assert bending
    assert all(kernel.form.everywhere == (1, 2) for kernel in bending)
    assert not model.choices.is_affine
    assert "standard deviations of s[0] for s[1]; affine in all else" in model.describe()


def test_that_needs_fewer_samples(data, model):
    elsewhere = record(bends_along_the_first, n_episodes=10, start=(1.0, 1.0, 1.0), seed=5)
    like = copy(model)
    everything = tuple(replace(kernel, form=Form(ridge=kernel.form.ridge)) for kernel in like.choices.kernels)
    like.choices = replace(like.choices, kernels=everything)
    looks_at_all = DynamicsModel.fit(data, n_earlier_steps=0, n_nodes=600, like=like)
    assert relative_error(model, elsewhere) < 0.7 * relative_error(looks_at_all, elsewhere)


def test_maps_have_nodes_of_their_own_where_they_depend_on_little(data, model):
    for field in model.nodes.fields:
        kernels = [model.choices.kernels[number] for number in field.targets if number < 3]
        for number, finite in enumerate(field.between.scale.isfinite().tolist()):
            assert all(finite != (kernel.is_affine or number in kernel.form.everywhere) for kernel in kernels)
        assert len(field.between.nodes) <= len(model.nodes)
    error = (predicted_changes(model, data) - recorded_changes(model, data)).abs().mean(dim=0)
    assert bool((error < 0.1 * recorded_changes(model, data).std(dim=0)).all())


def test_coordinates_outside_the_kernel_do_not_count_as_distance():
    generator = th.Generator().manual_seed(0)
    states = th.rand(400, 2, generator=generator, dtype=th.float64) * 2.0 - 1.0
    pushes = th.randn(400, 1, generator=generator, dtype=th.float64)
    coordinates = prepared(record(linear, linear_reward)).coordinates
    samples = Samples(coordinates, states, pushes, (states[:, :1] * 4.0).sin() + 3.0 * states[:, 1:])
    regression = LocalAffineRegression(samples, 0.2, Form((1,)))
    maps = regression.maps_at(th.tensor([[0.3, -0.9], [0.3, 0.9]], dtype=th.float64))
    # The same neighbours at both ends of the second coordinate, hence one function.
    th.testing.assert_close(maps.state_slope[0], maps.state_slope[1])
    th.testing.assert_close(maps.value[1] - maps.value[0], 1.8 * maps.state_slope[0, :, 1])


def test_what_cannot_be_told_apart_is_shrunk():
    generator = th.Generator().manual_seed(0)
    states = th.randn(500, 1, generator=generator, dtype=th.float64)
    pushes = th.randn(500, 1, generator=generator, dtype=th.float64)
    twice = states + 1e-3 * th.randn(500, 1, generator=generator, dtype=th.float64)
    targets = states + 0.5 * th.randn(500, 1, generator=generator, dtype=th.float64)
    coordinates = prepared(record(cart, n_episodes=5)).coordinates
    samples = Samples(coordinates, th.cat([states, twice], dim=1), pushes, targets)
    free, shrunk = (AffineRegression(samples, ridge).coefficients[1:3, 0].abs().max() for ridge in (LEAST_RIDGE, 1e-4))
    assert float(free) > 2.0
    assert float(shrunk) < 1.0


def test_a_system_without_noise_is_not_shrunk():
    assert DynamicsModel.fit(record(linear, linear_reward)).choices.kernels[0].form.ridge == LEAST_RIDGE


@pytest.mark.parametrize(("reward", "distance"), [(1.0, 0.2), (0.0, 0.2), (-1.0, 0.0)])
def test_wandering_off_costs_where_no_step_costs_anything(reward, distance):
    data = record(cart, lambda states, actions, after: np.full(len(states), reward), n_episodes=5)
    estimator = ModelEstimator.fit(data, data.observations[:3], 0.9, "cpu")
    assert estimator.costs.distance == pytest.approx(distance)


def test_the_costs_of_steps():
    model = DynamicsModel.fit(record(cart, n_episodes=5))
    low, high = model.bounds.low, model.bounds.high
    states = th.stack([(low + high) / 2.0, high])[:, None]  # two steps of one trajectory
    applied = th.tensor([[[-1.0]], [[1.0]]], dtype=th.float64)
    rewards, span = th.tensor([[3.0], [4.0]], dtype=th.float64), th.tensor([2.0], dtype=th.float64)
    costs = Costs(change=0.5, distance=0.2).of_steps(rewards, applied, span, states, model.bounds)
    np.testing.assert_allclose(costs[:, 0].numpy(), [0.0, 0.5 + 0.2 * 4.0])
