"""A word of warning where data and reward make an early end better than going on, or do not tell what actions do."""

import dataclasses
import logging

import numpy as np
import pytest

from nopg_envs.demonstrations import demonstration_file
from sb3_nopg import NOPGD, TransitionDataset
from sb3_nopg.training.log import announce_what_misleads

WORDS = "Ending the task is worth more than going on"


def rail(reward: float, at_end: float, sides: bool = True) -> TransitionDataset:
    """A cart that is pushed about until it leaves its rail, or, without sides, until somebody ends it anywhere."""
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(12):
        position = rng.uniform(-0.5, 0.5)
        for _ in range(25):
            force = rng.uniform(-1, 1)
            moved = position + 0.3 * force
            ended = abs(moved) > 1.0 if sides else rng.random() < 0.1
            if not sides:
                moved = float(np.clip(moved, -1, 1))
            rows.append((position, force, at_end if ended else reward, moved, ended, episode))
            position = moved
            if ended:
                break
    table = np.array(rows)
    return TransitionDataset(
        table[:, :1], table[:, 1:2], table[:, 2], table[:, 3:4], table[:, 4].astype(bool), episode_ids=table[:, 5].astype(int)
    )


def warned(caplog, data: TransitionDataset, gamma: float = 0.99, **settings) -> bool:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="sb3_nopg"):
        announce_what_misleads(data, gamma, **settings)
    return WORDS in caplog.text


@pytest.mark.parametrize(
    ("reward", "at_end", "expected"),
    [
        (-1.0, -1.0, True),  # a crash that saves all further punishment
        (1.0, 0.0, False),  # going on is rewarded
        (-1.0, -200.0, False),  # the crash is punished by more than that
    ],
)
def test_only_an_end_that_pays_is_announced(caplog, reward, at_end, expected):
    assert warned(caplog, rail(reward, at_end)) is expected


def test_what_follows_from_the_discount(caplog):
    data = rail(-1.0, -5.0)
    assert warned(caplog, data, gamma=0.99)
    assert not warned(caplog, data, gamma=0.5)


def test_ends_that_may_come_anywhere_tempt_nobody(caplog):
    assert not warned(caplog, rail(-1.0, -1.0, sides=False))


def test_data_without_ends_say_nothing(caplog):
    data = rail(-1.0, -1.0)
    assert not warned(caplog, data.filter(~data.terminals))


def test_a_users_reward_counts_instead_of_the_datas(caplog):
    assert warned(caplog, rail(1.0, 0.0), reward="0 * s[0] - 1")
    assert not warned(caplog, rail(-1.0, -1.0), reward="0 * s[0] + 1")


def test_actions_that_were_never_varied_are_announced(caplog):
    data = rail(1.0, 0.0)
    for level, told in ((None, False), (0.5, True)):
        caplog.clear()
        actions = data.actions if level is None else np.full_like(data.actions, level)
        with caplog.at_level(logging.WARNING, logger="sb3_nopg"):
            announce_what_misleads(dataclasses.replace(data, actions=actions), 0.9)
        assert ("All recorded actions are 0.5 in column 0" in caplog.text) is told


@pytest.mark.slow
def test_a_goal_is_announced_too_and_training_goes_on(caplog):
    """Who drives up the hill is meant to arrive: the sentence says so."""
    data = TransitionDataset.load(demonstration_file("mountain_car_scripted"))
    with caplog.at_level(logging.WARNING, logger="sb3_nopg"):
        NOPGD("MlpPolicy", None, dataset=data, gamma=0.99, device="cpu", model_kwargs={"reward": "0 * s[0] - 1"})
    assert caplog.text.count(WORDS) == 1
    assert "A goal is worth it" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="sb3_nopg"):
        NOPGD("MlpPolicy", None, dataset=rail(-1.0, -1.0), gamma=0.99, device="cpu", transitions="samples")
    assert WORDS not in caplog.text
