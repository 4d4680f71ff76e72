"""What is told about a data set."""

import json

import numpy as np
import pytest

from helpers.data_files import trajectories
from helpers.datasets import make_dataset
from sb3_nopg import TransitionDataset
from sb3_nopg.data.info import describe_data


def test_description_counts_what_is_there():
    dataset = trajectories((4, 3, 5))
    told = describe_data(dataset)
    json.dumps(told, allow_nan=False)
    assert (told["transitions"], told["observation_dims"], told["action_dims"]) == (12, 2, 1)
    assert (told["terminals"], told["timeouts"], told["duplicates"]) == (1, 2, 0)
    assert told["observations"][1]["max"] == dataset.observations[:, 1].max()
    assert told["actions"][0]["mean"] == pytest.approx(dataset.actions.mean())
    assert told["episodes"]["count"] == 3
    assert told["episodes"]["lengths"] == {"min": 3, "median": 4.0, "max": 5}
    returns = [dataset.rewards[dataset.episode_ids == episode].sum() for episode in range(3)]
    assert told["episodes"]["returns"]["max"] == pytest.approx(max(returns))
    assert told["episodes"]["time_gaps"] == 0
    assert told["remarks"] == []


def test_constants_and_duplicates_are_told():
    dataset = make_dataset(
        observations=np.stack([np.arange(12) // 2 % 3, np.ones(12)], axis=1),
        next_observations=np.zeros((12, 2)),
        actions=np.zeros((12, 1)),
        rewards=np.full(12, -1.0),
    )
    told = describe_data(dataset)
    assert told["duplicates"] == 9
    assert (told["constant_observation_dims"], told["constant_action_dims"], told["constant_reward"]) == ([1], [0], True)
    text = " ".join(told["remarks"])
    for part in (
        "9 transitions (75.0%) repeat",
        "Observation dimension(s) [1]",
        "Action dimension(s) [0]",
        "rewards are equal",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("lengths", "terminal", "suspicious"),
    [
        ((5, 5, 5), (0, 1, 2), True),
        ((5, 3, 5, 4), (0, 1, 2, 3), True),
        ((5, 3, 4), (0, 1, 2), False),
        ((5, 5, 5), (0,), False),
        ((5, 5, 5), [], False),
    ],
)
def test_time_limits_recorded_as_ends_are_suspicious(lengths, terminal, suspicious):
    whole = trajectories(lengths)
    flags = np.zeros(len(whole), dtype=bool)
    flags[np.cumsum(lengths)[np.array(terminal, dtype=int)] - 1] = True
    dataset = TransitionDataset(
        whole.observations, whole.actions, whole.rewards, whole.next_observations, flags, episode_ids=whole.episode_ids
    )
    assert any("time limit recorded" in remark for remark in describe_data(dataset)["remarks"]) == suspicious


def test_gaps_and_early_ends_are_told():
    whole = trajectories((6, 6))
    dataset = whole.filter(~np.isin(np.arange(12), [2, 8, 9]))
    assert describe_data(dataset)["episodes"]["time_gaps"] == 2
    early = TransitionDataset(
        whole.observations,
        whole.actions,
        whole.rewards,
        whole.next_observations,
        np.arange(12) == 3,
        episode_ids=whole.episode_ids,
    )
    assert describe_data(early)["episodes"]["terminals_before_the_end"] == 1
    assert describe_data(make_dataset())["episodes"] is None


def test_dense_data_cover_more_than_thin_data():
    dense, thin = (describe_data(make_dataset(n=n))["coverage"] for n in (2_000, 20))
    assert dense["nearest_neighbor_median"] < thin["nearest_neighbor_median"]
    assert dense["effective_samples"] > thin["effective_samples"] >= 1
