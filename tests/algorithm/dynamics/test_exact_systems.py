"""A system that is affine to the last digit, with a quadratic reward, is believed beyond what was recorded."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import A, B, linear, linear_reward, on_circle, pendulum, pendulum_reward, record
from sb3_nopg import NOPG, DynamicsModel
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.training.offline_env import OfflineEnv


@pytest.fixture(scope="module")
def data():
    return record(linear, linear_reward)


@pytest.fixture(scope="module")
def exact(data):
    return DynamicsModel.fit(replace(data, action_space=None))


@pytest.mark.slow
def test_it_is_known_everywhere(exact):
    assert exact.choices.exact
    assert exact.bounds.known_everywhere
    far = th.tensor([[50.0, -50.0]], dtype=th.float64)
    crossing = exact.bounds.cross(far)
    assert float(crossing.goes_on) == 1.0
    assert float(crossing.unknown) == 0.0
    assert not bool(crossing.goes_on_slope.any())
    assert not any(bool(found) for found in exact.bounds.fate(far))
    th.testing.assert_close(exact.bounds.hold(far), far)
    assert bool(exact.bounds.left_alone(far).all())
    # Who runs away is lost in the end.
    assert bool(exact.bounds.fate(1e6 * far)[1].all())


def test_it_predicts_far_beyond_the_data(exact):
    states, actions = np.array([[50.0, -80.0]]), np.array([[30.0]])
    after, reward = exact.predict(states, actions)
    np.testing.assert_allclose(after, states @ A.T + actions @ B.T, rtol=1e-4)
    np.testing.assert_allclose(reward, linear_reward(states, actions, after), rtol=1e-3)


@pytest.mark.slow
def test_actions_are_cut_off_where_their_range_is_known(data):
    known = replace(data, action_space=spaces.Box(-1.0, 1.0, (1,)))
    model = DynamicsModel.fit(known)
    assert model.choices.exact
    assert float(model.clip(th.tensor([[30.0]], dtype=th.float64))) == 1.0


def test_a_half_of_it_is_as_sure(exact, data):
    half = DynamicsModel.fit(replace(data, action_space=None), like=exact)
    assert half.bounds.known_everywhere
    assert not math.isfinite(float(half.applied_range[1]))


@pytest.mark.slow
def test_a_system_that_bends_is_not_believed_beyond_its_data():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    model = DynamicsModel.fit(replace(data, action_space=None), n_nodes=200)
    assert not model.choices.exact
    assert not model.bounds.known_everywhere
    assert not model.bounds.room.any()
    assert float(model.bounds.cross(th.full((1, 2), 1e3, dtype=th.float64)).goes_on) < 1e-6


@pytest.mark.slow
def test_a_pendulum_that_hardly_moves_is_not_taken_for_a_linear_system():
    def gently(states, actions):
        return pendulum(states, 0.02 * actions)

    data = record(gently, pendulum_reward, start=(0.1, 0.1), length=8)
    assert np.abs(data.observations[:, 0]).max() < 0.4
    assert not DynamicsModel.fit(data, n_nodes=100).choices.exact


def test_nobody_is_paid_for_running_away(exact):
    """Far away a reward that was positive becomes negative: the share that is lost must not turn its sign."""
    rewards, applied = th.tensor([[5.0], [-100.0]], dtype=th.float64), th.zeros(2, 1, 1, dtype=th.float64)
    states = th.tensor([[[1.0, 1.0]], [[1e4, 1e4]]], dtype=th.float64)
    costs = Costs(distance=0.2).of_steps(rewards, applied, th.ones(1, dtype=th.float64), states, exact.bounds)
    assert 0.0 < float(costs[0]) <= 5.0
    assert float(costs[1]) == 0.0


@pytest.mark.slow
def test_noise_has_no_bumps(data):
    """One row in a hundred is thrown away by 1: that is no noise to expect at every step."""
    rng = np.random.default_rng(0)
    after = data.next_observations + 1e-3 * rng.standard_normal(data.next_observations.shape)
    after[::100] += 1.0
    model = DynamicsModel.fit(replace(data, next_observations=after), n_earlier_steps=0, bandwidth=math.inf)
    assert float(model.noise.abs().mean()) > 5e-4
    assert float(model.noise.abs().max()) < 0.2


@pytest.mark.slow
def test_an_action_that_never_changes_goes_with_an_environment_s_space(data):
    still = replace(data, actions=np.full_like(data.actions, 0.5), action_space=None)
    observed, pushed = spaces.Box(-9.0, 9.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    env = OfflineEnv(observed, pushed, data.observations[0])
    model = NOPG("MlpPolicy", env, dataset=still, initial_states=data.observations[:2], device="cpu")
    np.testing.assert_allclose(model.dynamics.action_range[1].numpy(), 1.0)
