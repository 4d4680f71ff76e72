"""Coordinates that stop: found where one explains what a smooth model cannot, and only there."""

from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import (
    TOP_SPEED,
    linear,
    linear_reward,
    on_circle,
    pendulum,
    pendulum_reward,
    pendulum_with_top_speed,
    prepared,
    record,
)
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.dynamics.cross_validation import BANDWIDTHS
from sb3_nopg.dynamics.stop_choice import choose_stops
from sb3_nopg.dynamics.stops import Stop, stopped_rows


def swung(advance=pendulum_with_top_speed, **options):
    return record(advance, pendulum_reward, start=(3.1, 3.0), observe=on_circle, **options)


def stops_of(data: TransitionDataset) -> tuple[Stop, ...]:
    """A model chooses them before all else, which takes several times as long; the tests of one show that it has them."""
    return choose_stops(prepared(data), BANDWIDTHS)


@pytest.fixture(scope="module")
def model():
    return DynamicsModel.fit(swung(), n_nodes=200)


@pytest.mark.slow
def test_both_stops_are_found_and_one_formula_explains_the_rest(model):
    assert model.choices.stops == (Stop(0, False, -TOP_SPEED), Stop(0, True, TOP_SPEED)) == stops_of(swung())
    assert model.choices.is_affine
    assert model.choices.unexplained < 1e-9
    assert "stops: w goes no lower than -3, w goes no higher than 3" in model.describe(["c", "s", "w"])


@pytest.mark.slow
def test_predictions_end_at_the_stop_and_nobody_is_lost_there(model):
    upright_and_fast = np.array([[0.0, 1.0, TOP_SPEED], [0.0, -1.0, -TOP_SPEED]])
    found, _ = model.predict(upright_and_fast, np.array([[1.0], [-1.0]]))
    np.testing.assert_array_equal(found[:, 2], [TOP_SPEED, -TOP_SPEED])
    crossing = model.bounds.cross(model.coordinates.encode(th.tensor(found)))
    assert (crossing.goes_on == 1.0).all()
    assert not crossing.goes_on_slope.any()


@pytest.mark.slow
def test_predictions_away_from_the_stop_are_the_system_s(model):
    others = swung(pendulum, seed=5, n_episodes=6)
    slow = np.abs(others.next_observations[:, 2]) < TOP_SPEED
    found, _ = model.predict(others.observations[slow], others.actions[slow])
    np.testing.assert_allclose(found, others.next_observations[slow], atol=3e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("chosen_anew")
def test_without_the_stop_the_model_would_be_local(model, monkeypatch):
    at_top_speed = stopped_rows(th.tensor(swung().next_observations[:, [2]]), model.choices.stops)
    assert 0.02 < float(at_top_speed.double().mean()) < 0.5
    monkeypatch.setattr("sb3_nopg.dynamics.choices.choose_stops", lambda data, widths: ())
    without = DynamicsModel.fit(swung(), n_nodes=200, n_earlier_steps=0)
    assert not without.choices.is_affine
    assert without.choices.unexplained > 1e-4


@pytest.mark.slow
def test_a_system_that_goes_faster_has_none():
    assert DynamicsModel.fit(swung(pendulum), n_nodes=200).choices.stops == ()


@pytest.mark.slow
def test_starts_beyond_the_stop_do_not_move_it():
    data = record(pendulum_with_top_speed, pendulum_reward, start=(3.1, 4.0), observe=on_circle, n_episodes=24)
    assert float(np.abs(data.observations[:, 2]).max()) > 1.1 * TOP_SPEED
    found, _ = DynamicsModel.fit(data, n_nodes=200).predict(np.array([[0.0, 1.0, TOP_SPEED]]), np.array([[1.0]]))
    assert found[0, 2] == TOP_SPEED


@pytest.mark.slow
def test_a_column_of_two_values_does_not_hide_a_stop():
    data, rng = swung(), np.random.default_rng(0)

    def with_flag(observations):
        return np.column_stack([observations, rng.integers(0, 2, len(observations))])

    told = replace(data, observations=with_flag(data.observations), next_observations=with_flag(data.next_observations))
    assert [stop.coordinate for stop in stops_of(told)] == [0, 0]


@pytest.mark.slow
def test_what_never_changes_in_an_episode_has_no_stop():
    """A set point, often at an end of its range: it stays where it is, and nothing stops it."""
    set_points = np.clip(np.random.default_rng(1).uniform(-1.4, 1.4, 40), -1.0, 1.0)

    def follow(states, actions):
        velocity, point = states.T
        return np.column_stack([0.9 * velocity + 0.1 * (1.0 + 0.5 * np.sin(2.5 * point)) * actions[:, 0], point])

    episodes = []
    for seed, point in enumerate(set_points):
        one = record(lambda s, a, at=point: follow(np.column_stack([s[:, 0], [at] * len(s)]), a), n_episodes=1, seed=seed)
        observed = np.column_stack([one.observations[:, 0], np.full(len(one), point)])
        episodes.append(replace(one, observations=observed, episode_ids=np.full(len(one), seed)))
    data = episodes[0].merge(*episodes)
    assert (np.abs(data.next_observations[:, 1]) == 1.0).mean() > 0.1
    assert stops_of(data) == ()


@pytest.mark.slow
def test_where_the_task_ends_nothing_stops():
    """A reading that stays at one as long as the task goes on, and shows where it is when that ends it."""

    def saturates(states, actions):
        velocity = 0.95 * states[:, 1] + 0.3 * actions[:, 0]
        position = states[:, 0] + 0.3 * velocity
        return np.column_stack([np.where(position > 1.3, position, position.clip(-9.0, 1.0)), velocity])

    data = record(saturates, start=(1.0, 1.0), n_episodes=60, ends=lambda state: state[0] > 1.3)
    model = DynamicsModel.fit(data, n_nodes=200, n_earlier_steps=0)
    assert data.terminals.any()
    assert not any(stop.above for stop in model.choices.stops)
    assert float(model.bounds.cross(th.tensor([[1.39, 0.0]], dtype=th.float64)).goes_on) < 0.5


@pytest.mark.slow
def test_an_end_of_the_task_at_top_speed_is_not_because_of_it(model):
    data = swung()
    fast = np.flatnonzero(data.next_observations[:, 2] == TOP_SPEED)
    terminals = np.zeros(len(data), dtype=bool)
    terminals[fast[0]] = True
    assert stops_of(replace(data, terminals=terminals)) == model.choices.stops


@pytest.mark.slow
@pytest.mark.parametrize("n_stopped", [1, 2])
def test_one_step_is_enough_at_an_end_of_the_observation_space(n_stopped):
    data = swung()
    stopped = np.flatnonzero(np.abs(data.next_observations[:, 2]) == TOP_SPEED)
    kept = np.ones(len(data), dtype=bool)
    kept[stopped[data.next_observations[stopped, 2] > 0.0][n_stopped:]] = False
    kept[stopped[data.next_observations[stopped, 2] < 0.0]] = False
    few = data.filter(kept)
    top = np.array([1.0, 1.0, TOP_SPEED])
    told = replace(few, observation_space=spaces.Box(-top, top, dtype=np.float64))
    assert stops_of(few) == ()
    assert stops_of(told) == (Stop(0, True, TOP_SPEED),)


def against_a_wall(states, actions):
    """A mass whose wall takes its speed away."""
    position, velocity = states.T
    velocity = velocity + 0.15 * actions[:, 0]
    position = position + 0.3 * velocity
    return np.column_stack([position.clip(-1.0), np.where(position < -1.0, 0.0, velocity)])


@pytest.mark.slow
def test_a_wall_is_more_than_a_stop():
    data = record(against_a_wall, start=(1.0, 0.5), n_episodes=40)
    assert (data.next_observations[:, 0] == -1.0).sum() > 10
    assert stops_of(data) == ()


def test_a_place_to_rest_is_no_stop():
    """Every episode ends where it stands for a while, at the least position of all."""

    def comes_to_rest(states, actions):
        moved = linear(states, actions)
        return np.where(moved[:, :1] < 0.2, [[0.2, 0.0]], moved)

    data = record(comes_to_rest, linear_reward, n_episodes=30)
    assert (data.next_observations[:, 0] == 0.2).sum() > 10
    assert stops_of(data) == ()


def test_coarse_sensors_are_no_stops():
    data = record(linear, linear_reward, n_episodes=30)
    coarse = replace(data, observations=np.round(data.observations, 1), next_observations=np.round(data.next_observations, 1))
    assert stops_of(coarse) == ()


@pytest.mark.slow
def test_a_model_like_another_has_its_stops(model):
    part = swung(n_episodes=8, seed=3)
    again = DynamicsModel.fit(part, n_nodes=100, like=model)
    assert again.bounds.highest.tolist() == [TOP_SPEED, np.inf]
    found, _ = again.predict(np.array([[0.0, 1.0, TOP_SPEED]]), np.array([[1.0]]))
    assert found[0, 2] == TOP_SPEED
