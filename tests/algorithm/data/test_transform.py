"""Data sets made from others: put together, cut down, with other rewards and in other units."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data_files import trajectories
from helpers.datasets import ARRAYS, assert_same_bits, full_dataset, make_dataset
from sb3_nopg import InputError, TransitionDataset


def rows_of(dataset, rows):
    return {name: getattr(dataset, name)[rows] for name in ARRAYS}


def assert_rows(dataset, source, rows):
    for name, expected in rows_of(source, rows).items():
        np.testing.assert_array_equal(getattr(dataset, name), expected, err_msg=name)


# --- merging


def test_merged_episodes_are_kept_apart():
    first, second = trajectories((4, 3), seed=0), trajectories((2, 5), seed=1)
    merged = TransitionDataset.merge(first, second)
    np.testing.assert_array_equal(merged.episode_ids, np.repeat([0, 1, 2, 3], [4, 3, 2, 5]))
    for name in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"):
        np.testing.assert_array_equal(getattr(merged, name), np.concatenate([getattr(first, name), getattr(second, name)]))
    assert merged.action_space == first.action_space


def test_episodes_told_by_time_limits_only_are_kept_apart_too():
    parts = [make_dataset(n=12, timeouts=np.arange(12) == 6, seed=seed) for seed in (0, 1)]
    # Terminals at 2 and 11, a time limit at 6.
    np.testing.assert_array_equal(TransitionDataset.merge(*parts).episode_starts, [0, 3, 7, 12, 15, 19])


def test_samples_without_episodes_stay_samples_of_their_own():
    two = TransitionDataset.merge(make_dataset(n=12), make_dataset(n=14, seed=1))
    assert two.episode_ids is None
    assert two.timeouts is None
    mixed = TransitionDataset.merge(full_dataset(), make_dataset(n=14))
    assert len(mixed.episode_starts) == len(full_dataset().episode_starts) + 14


def test_what_does_not_belong_together_is_not_merged():
    with pytest.raises(InputError, match="observation_dim"):
        TransitionDataset.merge(trajectories(), make_dataset())
    other = full_dataset()
    scaled = other.with_units(action_scale=2.0)
    with pytest.raises(InputError, match="action_space: not the same"):
        TransitionDataset.merge(other, scaled)
    with pytest.raises(InputError, match="none given"):
        TransitionDataset.merge()


# --- choosing


def test_filter_by_mask_and_by_formula():
    dataset = full_dataset(n=30)
    mask = dataset.observations[:, 0] > 0
    assert_rows(dataset.filter(mask), dataset, mask)
    assert_same_bits(dataset.filter("s[0] > 0"), dataset.filter(mask))
    assert_same_bits(dataset.filter("x > 0", observation_names=["x", "y", "z"]), dataset.filter(mask))
    assert_same_bits(
        dataset.filter("not terminal and (episode == 0 or r < -1)"),
        dataset.filter(~dataset.terminals & ((dataset.episode_ids == 0) | (dataset.rewards < -1))),
    )


def test_episodes_survive_when_the_rows_that_told_of_them_go():
    dataset = make_dataset(n=12, timeouts=np.arange(12) == 6)
    np.testing.assert_array_equal(dataset.filter("not timeout and not terminal").episode_ids, [0, 0, 1, 1, 1, 2, 2, 2, 2])


def test_lost_beginnings_are_announced(caplog):
    dataset = trajectories((4, 3))
    dataset.filter(np.arange(7) < 5)
    assert caplog.text == ""
    dataset.filter(np.arange(7) != 0)
    assert "1 episode(s) lost their first transition" in caplog.text


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("s[0] + 1", "float64"),
        (np.ones(3, dtype=bool), "shape"),
        ("s[0] > 99", "no transition is left"),
        ("s[9] > 0", "last column"),
    ],
)
def test_filters_that_choose_nothing_are_refused(where, message):
    with pytest.raises(InputError, match=message):
        full_dataset().filter(where)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(2, 6), min_size=4, max_size=9), n_parts=st.integers(1, 4), seed=st.integers(0, 9))
def test_split_is_a_partition_that_cuts_no_episode(lengths, n_parts, seed):
    dataset = trajectories(lengths)
    parts = dataset.split([1 / n_parts] * n_parts, seed=seed)
    ids = [set(part.episode_ids.tolist()) for part in parts]
    assert set.union(*ids) == set(range(len(lengths)))
    assert sum(map(len, ids)) == len(lengths)
    assert sum(map(len, parts)) == len(dataset)
    for part in parts:
        assert_rows(part, dataset, np.isin(dataset.episode_ids, part.episode_ids))


def test_split_keeps_to_its_shares_and_its_seed():
    dataset = trajectories([2] * 50)
    large, small = dataset.split((0.8, 0.2), seed=3)
    assert (len(large), len(small)) == (80, 20)
    assert_same_bits(large, dataset.split((0.8, 0.2), seed=3)[0])
    assert large.episode_ids.tolist() != dataset.split((0.8, 0.2), seed=4)[0].episode_ids.tolist()
    assert [len(part) for part in make_dataset(n=40).split((0.5, 0.5), by="transition")] == [20, 20]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fractions": (0.5, 0.6)}, "add up to one"),
        ({"fractions": (1.5, -0.5)}, "not positive"),
        ({"fractions": ()}, "add up"),
        ({"fractions": (0.5, 0.5), "by": "day"}, "by: 'day'"),
        ({"fractions": [0.1] * 10}, "10 parts of 2 episode"),
    ],
)
def test_splits_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        trajectories((4, 3)).split(**arguments)


def test_data_without_episodes_cannot_be_split_by_them():
    with pytest.raises(InputError, match='Use by="transition"'):
        make_dataset().split((0.5, 0.5))


def test_subsample_keeps_order_and_count():
    dataset = full_dataset(n=60)
    chosen = dataset.subsample(20, seed=1)
    rows = [int(np.flatnonzero((dataset.observations == state).all(axis=1))[0]) for state in chosen.observations]
    assert rows == sorted(set(rows))
    assert len(rows) == 20
    assert rows != list(range(20))
    by_episode = trajectories([3] * 10).subsample(4, by="episode", seed=1)
    assert (len(by_episode), len(by_episode.episode_starts)) == (12, 4)
    for n in (0, 61, True, 2.5):
        with pytest.raises(InputError, match="from 1 to 60"):
            dataset.subsample(n)


# --- rewards and units


def test_rewards_by_formula_and_by_function():
    dataset = full_dataset()
    s, a, s2 = dataset.observations, dataset.actions, dataset.next_observations
    expected = np.cos(s2[:, 1]) - 0.1 * a[:, 0] ** 2 + np.where(s[:, 2] > 0, dataset.rewards, -1.0)
    formula = "cos(s2[1]) - 0.1*a[0]**2 + (r if s[2] > 0 else -1)"
    np.testing.assert_array_equal(dataset.relabel(formula).rewards, expected)
    named = dataset.relabel("cos(next_th) - 0.1*u**2 + where(w > 0, r, -1)", ["x", "th", "w"], ["u", "v"])
    np.testing.assert_array_equal(named.rewards, expected)
    called = dataset.relabel(lambda states, actions, next_states: np.cos(next_states[:, 1]) * actions[:, 1])
    np.testing.assert_array_equal(called.rewards, np.cos(s2[:, 1]) * a[:, 1])
    np.testing.assert_array_equal(dataset.relabel("-1").rewards, np.full(12, -1.0))
    np.testing.assert_array_equal(dataset.relabel("terminal").rewards, dataset.terminals)
    np.testing.assert_array_equal(called.observations, dataset.observations)


def test_rewards_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match=r"rewards: .*NaN"):
        full_dataset().relabel("log(s[0] - 100)")
    with pytest.raises(InputError, match="rewards: has 3 rows"):
        full_dataset().relabel(lambda s, a, s2: np.zeros(3))
    with pytest.raises(InputError, match="1 name"):
        full_dataset().relabel("x", observation_names=["x"])


def test_units_change_data_and_spaces_alike():
    dataset = full_dataset()
    scaled = dataset.with_units(observation_scale=[2.0, 0.5, 4.0], action_scale=10.0)
    np.testing.assert_array_equal(scaled.observations, dataset.observations * [2, 0.5, 4])
    np.testing.assert_array_equal(scaled.next_observations, dataset.next_observations * [2, 0.5, 4])
    np.testing.assert_array_equal(scaled.actions, dataset.actions * 10)
    np.testing.assert_array_equal(scaled.rewards, dataset.rewards)
    assert scaled.observation_space == spaces.Box(
        np.array([-np.inf, -2, -32]), np.array([np.inf, 2.25, np.inf]), dtype=np.float64
    )
    assert scaled.action_space == spaces.Box(np.float32([-10, -20]), np.float32([30, 35]))
    assert full_dataset(dtype=np.float32).with_units(3.0).observations.dtype == np.float32


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, [1.0, 2.0], "metres"])
def test_impossible_units_are_refused(scale):
    with pytest.raises(InputError, match="observation_scale"):
        full_dataset().with_units(observation_scale=scale)
