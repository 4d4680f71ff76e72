"""The rule that gives every next state a handful of samples, and mirror images."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

from sb3_nopg import InputError, TransitionDataset, add_mirror_images
from sb3_nopg.kernels.bandwidth import select_bandwidths
from sb3_nopg.kernels.effective_neighbors import effective_neighbors


def sharing(samples, queries, bandwidth):
    """Median of 1 / Σ w², by the definition."""
    distance = (((queries[:, None] - samples[None]) / bandwidth) ** 2).sum(axis=-1)
    weights = np.exp(-0.5 * (distance - distance.min(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    return float(np.median(1.0 / (weights**2).sum(axis=1)))


@pytest.mark.parametrize("target", [3.0, 10.0, 30.0])
def test_the_median_state_shares_its_weight_among_so_many(target):
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(600, 3)) * [1.0, 100.0, 0.01]
    queries = samples + 0.1 * samples.std(axis=0) * rng.normal(size=samples.shape)
    bandwidth = effective_neighbors(samples, queries, seed=0, target=target)
    assert sharing(samples, queries, bandwidth) == pytest.approx(target, rel=0.1)
    # One scale for all dimensions, in units of their standard deviations.
    np.testing.assert_allclose(bandwidth / samples.std(axis=0), (bandwidth / samples.std(axis=0))[0])


def test_few_samples_have_an_answer_too():
    samples = np.array([[0.0], [1.0], [2.0]])
    bandwidth = effective_neighbors(samples, samples, seed=0)
    assert 0.0 < float(bandwidth[0]) < 10.0


@pytest.mark.slow
def test_the_rule_by_name():
    rng = np.random.default_rng(1)
    observations, actions = np.c_[rng.normal(size=(300, 2)), np.ones(300)], rng.normal(size=(300, 1))
    rule = "effective_neighbors"
    rules = {"state": rule, "action": rule, "next_state": rule}
    chosen = select_bandwidths(observations, actions, observations + 0.1, **rules)
    np.testing.assert_allclose(chosen.action, actions.std(axis=0))
    assert chosen.state[2] == 1.0, "a constant dimension has a bandwidth for form's sake"
    wider = select_bandwidths(
        observations, actions, observations + 0.1, state=rule, action=rule, next_state=rule, state_factor=2
    )
    np.testing.assert_allclose(wider.state, 2.0 * chosen.state)
    with pytest.raises(InputError, match="effective_neighbors"):
        select_bandwidths(observations, actions, observations, state="no such rule")


def data():
    rng = np.random.default_rng(2)
    return TransitionDataset(
        observations=rng.normal(size=(6, 2)),
        actions=rng.normal(size=(6, 1)),
        rewards=rng.normal(size=6),
        next_observations=rng.normal(size=(6, 2)),
        terminals=np.array([0, 0, 1, 0, 0, 1], dtype=bool),
        episode_ids=np.array([-3, -3, -3, 7, 7, 7]),
    )


def test_mirror_images_follow_the_data_as_episodes_of_their_own():
    single = data()
    both = add_mirror_images(single, [-1, 1], [-1])
    assert len(both) == 12
    np.testing.assert_array_equal(both.observations[:6], single.observations)
    np.testing.assert_array_equal(both.observations[6:], single.observations * [-1, 1])
    np.testing.assert_array_equal(both.next_observations[6:], single.next_observations * [-1, 1])
    np.testing.assert_array_equal(both.actions[6:], -single.actions)
    np.testing.assert_array_equal(both.rewards, np.tile(single.rewards, 2))
    np.testing.assert_array_equal(both.terminals, np.tile(single.terminals, 2))
    assert len(both.episode_starts) == 4
    assert len(set(both.episode_ids)) == 4


@pytest.mark.parametrize("signs", [[1], [1, 0], [1, 2], ["a", "b"], [[1, -1]], 1])
def test_bad_signs_are_named(signs):
    with pytest.raises(InputError, match="observation_signs"):
        add_mirror_images(data(), signs, [-1])
    with pytest.raises(InputError, match="action_signs"):
        add_mirror_images(data(), [1, 1], [-1, 1])


def test_mirrors_that_show_nothing_new_are_refused():
    with pytest.raises(InputError, match="copies"):
        add_mirror_images(data(), [1, 1], [1])
    with pytest.raises(InputError, match="dataset"):
        add_mirror_images({"observations": [0.0]}, [-1, 1], [-1])
    lopsided = dataclasses.replace(data(), action_space=spaces.Box(-5.0, 9.0, (1,)))
    with pytest.raises(InputError, match="both sides of zero"):
        add_mirror_images(lopsided, [-1, 1], [-1])
    assert len(add_mirror_images(lopsided, [-1, 1], [1])) == 12


def test_copies_of_a_state_count_once():
    states = np.random.default_rng(0).normal(size=(300, 2))
    once, often = (effective_neighbors(np.repeat(states, n, axis=0), states + 0.1, seed=0) for n in (1, 20))
    np.testing.assert_allclose(often, once, rtol=1e-9)
