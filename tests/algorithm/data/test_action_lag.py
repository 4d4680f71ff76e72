"""Data whose next state depends on earlier actions are told from data that are Markov."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

import nopg_envs
from helpers.verdict_figures import RETURNS, SUPPORT
from sb3_nopg import TransitionDataset
from sb3_nopg.data.action_lag import find_action_lag
from sb3_nopg.data.info import describe_data
from sb3_nopg.report.verdict import CARE, reach_verdict


def delayed(delay: int, n_episodes: int = 20, n_steps: int = 30, noise: float = 0.02) -> TransitionDataset:
    """A point that is pushed by the action of so many steps ago."""
    rng, columns = np.random.default_rng(0), []
    for episode in range(n_episodes):
        state, past = rng.normal(size=2), [0.0] * delay
        for _ in range(n_steps):
            action = rng.uniform(-1, 1)
            past.append(action)
            after = np.array([state[0] + 0.1 * state[1], 0.9 * state[1] + past[-1 - delay]]) + noise * rng.normal(size=2)
            columns.append((state, [action], -1.0, after, False, episode))
            state = after
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "episode_ids")
    return TransitionDataset(**{name: np.array(x) for name, x in zip(names, zip(*columns, strict=True), strict=True)})


@pytest.mark.parametrize("delay", [0, 1])
def test_a_delay_is_found_and_none_is_invented(delay):
    found = find_action_lag(delayed(delay))
    assert found is not None
    assert found.lag == delay
    remarks = describe_data(delayed(delay))["remarks"]
    assert any("depends on the action before the last one" in remark for remark in remarks) == (delay == 1)


@pytest.mark.slow
def test_the_simulated_rig_lags_and_the_pendulum_does_not():
    rig = nopg_envs.rollouts(
        gym.make("nopg/QuanserCartPoleBalance-v0"), "uniform", n_transitions=1500, start="operator", seed=0
    )
    pendulum = nopg_envs.rollouts(
        gym.make("Pendulum-v1", max_episode_steps=50), "gaussian_mixture", n_transitions=1000, seed=0
    )
    on_the_rig, on_the_pendulum = (find_action_lag(TransitionDataset(**arrays)) for arrays in (rig, pendulum))
    assert on_the_rig is not None
    assert on_the_rig.lag >= 1
    assert on_the_pendulum is not None
    assert on_the_pendulum.lag == 0


def test_a_policys_actions_are_not_taken_for_a_lag():
    """They follow from the states, and so tell a linear model what it cannot know of a nonlinear system."""
    rng, columns = np.random.default_rng(0), []
    for episode in range(20):
        state = rng.uniform(-2, 2, size=2)
        for _ in range(40):
            action = -0.1 * state[0] ** 3
            push = (1.0 - state[0] ** 2) * state[1] - state[0] + action
            after = state + 0.1 * np.array([state[1], push])
            columns.append((state, [action], -1.0, after, False, episode))
            state = after
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "episode_ids")
    data = TransitionDataset(**{name: np.array(x) for name, x in zip(names, zip(*columns, strict=True), strict=True)})
    assert find_action_lag(data) is None


def test_data_that_cannot_tell_say_nothing():
    data = delayed(1)
    assert find_action_lag(dataclasses.replace(data, episode_ids=None)) is None
    assert find_action_lag(delayed(1, n_episodes=4)) is None
    assert find_action_lag(delayed(1, n_episodes=20, n_steps=3)) is None
    still = np.zeros_like(data.observations)
    assert find_action_lag(dataclasses.replace(data, observations=still, next_observations=still)) is None
    # Every second step: no action is known to have come right before another.
    assert find_action_lag(data.filter(np.arange(len(data)) % 2 == 0)) is None


def test_a_lag_asks_for_care():
    found = find_action_lag(delayed(1))
    verdict, reasons = reach_verdict(RETURNS, SUPPORT, [], 100, (), found)
    assert verdict == CARE
    assert found is not None
    assert reasons == (found.remark,)
    assert reach_verdict(RETURNS, SUPPORT, [], 100, (), find_action_lag(delayed(0)))[0] != CARE
