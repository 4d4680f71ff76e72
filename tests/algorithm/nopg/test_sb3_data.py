"""Data that are attached later, replay buffers among them."""

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.monitor import Monitor

from helpers.drift import STATES, DriftEnv, OtherEnv, all_policies_and_two_on_a_model, drift_data, make
from sb3_nopg import NOPG, InputError, TransitionDataset


@pytest.mark.slow
@all_policies_and_two_on_a_model
def test_new_data_does_not_change_what_a_policy_does(
    transitions: str, algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any]
):
    data = drift_data(action_space=spaces.Box(-5.0, 5.0, (2,), dtype=np.float32))
    model = make(algorithm, policy, policy_kwargs=policy_kwargs, dataset=data, transitions=transitions).learn(5)
    before = model.predict(STATES, deterministic=True)[0]
    other = drift_data(50, seed=1)
    shifted = TransitionDataset(
        other.observations + 3.0,
        other.actions,
        other.rewards,
        other.next_observations + 3.0,
        other.terminals,
        episode_ids=other.episode_ids,
    )
    model.set_dataset(shifted)
    np.testing.assert_array_equal(model.predict(STATES, deterministic=True)[0], before)
    model.learn(2, reset_num_timesteps=False)
    assert model.num_timesteps == 7
    assert len(model.q_values) == len(model.visitation) == 50


def test_new_data_without_start_states_is_refused_where_there_is_no_environment():
    model = make(dataset=drift_data(action_space=DriftEnv().action_space)).learn(1)
    with pytest.raises(InputError, match="initial_states"):
        model.set_dataset(drift_data(50, episodes=False))
    assert len(model.dataset) == 60


def test_replay_buffers_go_to_files_and_back(tmp_path: pathlib.Path):
    model = make(env=DriftEnv()).learn(2)
    model.save_replay_buffer(tmp_path / "buffer")
    other = make(env=DriftEnv(), dataset=drift_data(30, seed=2))
    other.load_replay_buffer(tmp_path / "buffer")
    assert len(other.dataset) == 60
    np.testing.assert_array_equal(other.dataset.actions, model.dataset.actions)
    assert other.learn(1).num_timesteps == 1


def test_a_buffer_of_another_algorithm_is_learned_from_and_one_of_another_shape_is_refused(tmp_path: pathlib.Path):
    td3 = TD3("MlpPolicy", Monitor(DriftEnv()), buffer_size=50, learning_starts=100, seed=0, device="cpu")
    td3.learn(45)
    td3.save_replay_buffer(tmp_path / "buffer")
    model = make(env=DriftEnv(), dataset=None)
    model.load_replay_buffer(tmp_path / "buffer")
    assert len(model.dataset) == 45
    moved = model.dataset.next_observations - model.dataset.observations
    np.testing.assert_allclose(moved, 0.3 * model.dataset.actions, atol=1e-5, err_msg="actions are in the environment's units")
    assert model.learn(2).num_timesteps == 2

    other = make(env=OtherEnv(), dataset=None)
    with pytest.raises(InputError, match="observations"):
        other.load_replay_buffer(tmp_path / "buffer")
    assert other.dataset is None
