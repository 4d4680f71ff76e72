"""Predicted trajectories, against those of systems that are known."""

import dataclasses

import numpy as np
import pytest

from helpers.mass_on_a_rail import STARTS, brake, cart, drive, followed, recorded
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.common.errors import InputError
from sb3_nopg.prediction.rollouts import Actor, Rollouts, roll_out, together

pytestmark = pytest.mark.slow


def fit(data: TransitionDataset) -> DynamicsModel:
    return DynamicsModel.fit(data, n_nodes=400)


def follow(model: DynamicsModel, act: Actor, n_steps: int, starts: np.ndarray = STARTS) -> Rollouts:
    (found,) = roll_out(model, [act], starts, n_steps)
    return found


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_trajectories_are_those_of_the_system(delay):
    model = fit(recorded(delay=delay))
    assert model.choices.n_earlier_steps == delay
    found = follow(model, brake, 40)
    assert found.lasting.all()
    np.testing.assert_array_equal(found.n_steps, 40)
    # Whoever ignores the delay is wrong by more than this.
    np.testing.assert_allclose(found.states, followed(brake, 40, delay), atol=0.03)
    assert np.abs(followed(brake, 40, delay) - followed(brake, 40, 0)).max() > 0.03 or delay == 0


def test_rewards_are_those_of_the_states():
    found = follow(fit(recorded()), brake, 30)
    # Of a parabola that goes down to -15 where data are.
    np.testing.assert_allclose(found.rewards, 1.0 - found.states[:-1, :, 0] ** 2, atol=0.1)
    np.testing.assert_allclose(found.total_rewards(-5.0), found.rewards.sum(axis=0))


def creep(states: np.ndarray) -> np.ndarray:
    """Holds a velocity, and so goes two hundredths a step."""
    return np.clip(5.0 * (0.2 - states[:, 1:]) - 0.5 * np.sin(states[:, :1]), -2.0, 2.0)


def test_a_slow_drift_leaves_the_data_when_it_truly_does():
    dataset = recorded()
    found = follow(fit(dataset), creep, 400)
    reach = dataset.next_observations[:, 0].max()
    truth = followed(creep, 400)[:, :, 0]
    assert not found.lasting.any()
    assert not found.ended.any()
    np.testing.assert_array_equal(found.left_by, 0)
    for number, n_steps in enumerate(found.n_steps):
        # Within the margin that it is followed beyond the data.
        assert reach - 0.1 < truth[n_steps, number] < 1.1 * reach + 0.1
        assert np.isnan(found.states[n_steps + 1 :, number]).all()
        assert np.isfinite(found.states[: n_steps + 1, number]).all()
        assert np.isnan(found.rewards[n_steps:, number]).all()


def test_an_end_of_the_task_ends_a_trajectory():
    found = follow(fit(recorded(limit=1.0)), creep, 100)
    assert found.ended.all()
    np.testing.assert_array_equal(found.left_by, -1)
    truth = followed(creep, 100)[:, :, 0]
    first_out = (np.abs(truth) > 1.0).argmax(axis=0)
    assert np.abs(found.n_steps - first_out).max() <= 3


def test_total_rewards_count_what_is_unknown_and_not_what_is_over():
    rewards = np.array([[1.0, 1.0, 1.0], [2.0, np.nan, np.nan], [3.0, np.nan, np.nan]])
    rollouts = Rollouts(
        states=np.zeros((4, 3, 1)),
        actions=np.zeros((3, 3, 1)),
        rewards=rewards,
        n_steps=np.array([3, 1, 1]),
        ended=np.array([False, True, False]),
        left_by=np.array([-1, -1, 0]),
    )
    np.testing.assert_array_equal(rollouts.lasting, [True, False, False])
    np.testing.assert_allclose(rollouts.total_rewards(-10.0), [6.0, 1.0, 1.0 - 20.0])
    both = together([rollouts, rollouts.columns(slice(1, 2))])
    np.testing.assert_allclose(both.total_rewards(-10.0), [6.0, 1.0, 1.0 - 20.0, 1.0])


def test_policies_are_followed_side_by_side_as_if_alone():
    model = fit(recorded(limit=1.0))
    for seed in (None, 3):
        several = roll_out(model, [brake, drive, lambda states: -brake(states)], STARTS, 30, seed)
        assert [part.lasting.all() for part in several] == [True, False, False]
        (alone,) = roll_out(model, [drive], STARTS, 30, seed)
        for name in ("states", "actions", "rewards", "n_steps", "ended", "left_by"):
            np.testing.assert_allclose(getattr(several[1], name), getattr(alone, name), rtol=1e-12, err_msg=name)


def test_noise_is_what_the_model_misses():
    data = recorded()
    rng = np.random.default_rng(1)
    shaken = data.next_observations + rng.normal(scale=[0.0, 0.05], size=(len(data), 2))
    noisy = fit(dataclasses.replace(data, next_observations=shaken))
    starts = np.tile([[0.2, 0.0]], (200, 1))
    calm, first, second = (roll_out(noisy, [brake], starts, 1, seed)[0].states[1] for seed in (None, 0, 0))
    np.testing.assert_array_equal(first, second)
    assert np.ptp(calm, axis=0).max() < 1e-12
    np.testing.assert_allclose((first - calm).std(axis=0), [0.0, 0.05], atol=0.01)


def test_actions_are_those_that_can_be_done():
    found = follow(fit(recorded()), lambda states: np.full((len(states), 1), 50.0), 3)
    assert 1.9 < np.nanmax(found.actions) <= 2.0


def test_a_dimension_that_never_changes_is_never_the_one_that_is_left():
    data = recorded()
    constant = TransitionDataset(
        observations=np.column_stack([data.observations, np.full(len(data), 7.0)]),
        actions=data.actions,
        rewards=data.rewards,
        next_observations=np.column_stack([data.next_observations, np.full(len(data), 7.0)]),
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    starts = np.column_stack([STARTS, np.full(len(STARTS), 7.0)])
    found = follow(fit(constant), drive, 60, starts)
    assert not found.lasting.any()
    assert np.isin(found.left_by, (0, 1)).all()
    np.testing.assert_array_equal(found.last_states[:, 2], 7.0)


def test_data_without_episodes():
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1.0, 1.0, size=(800, 2)), rng.uniform(-2.0, 2.0, size=(800, 1))
    dataset = TransitionDataset(
        observations=states,
        actions=actions,
        rewards=np.zeros(800),
        next_observations=cart(states, actions),
        terminals=np.zeros(800, dtype=bool),
    )
    model = fit(dataset)
    assert model.choices.n_earlier_steps == 0
    assert model.choices.unexplained < 0.01
    np.testing.assert_allclose(follow(model, brake, 40).states, followed(brake, 40), atol=0.03)


def test_too_few_transitions_are_refused():
    with pytest.raises(InputError, match="too few"):
        fit(recorded(n_episodes=1, length=6))


def test_observations_that_never_change_are_refused():
    still = np.ones((100, 2))
    actions = np.random.default_rng(0).normal(size=(100, 1))
    dataset = TransitionDataset(still, actions, np.zeros(100), still, np.zeros(100, dtype=bool))
    with pytest.raises(InputError, match="ever changes"):
        fit(dataset)
