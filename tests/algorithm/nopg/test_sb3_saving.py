"""Models go to files and back, and go on as if they had not."""

import copy
import io
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy

from helpers.drift import (
    STATES,
    DriftEnv,
    OtherEnv,
    Recorder,
    UntouchableEnv,
    all_policies_and_two_on_a_model,
    both,
    drift_data,
    make,
    make_vec_env,
    parameters_of,
)
from sb3_nopg import NOPG, NOPGD, NOPGS, InputError
from sb3_nopg.bellman.settings import NAMES


@pytest.mark.slow
@all_policies_and_two_on_a_model
def test_a_loaded_model_predicts_the_same_without_the_data(
    transitions: str, algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any], tmp_path: pathlib.Path
):
    settings = {"policy_kwargs": {**policy_kwargs, "final_std_scale": 0.5}, "transitions": transitions}
    model = make(algorithm, policy, **settings).learn(10 if transitions == "samples" else 4)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert type(loaded) is algorithm
    assert type(loaded.policy) is type(model.policy)
    assert loaded.dataset is None
    assert loaded.replay_buffer is None
    assert loaded.candidates == model.candidates
    assert loaded.learned_from == model.learned_from
    np.testing.assert_array_equal(loaded.predict(STATES, deterministic=True)[0], model.predict(STATES, deterministic=True)[0])
    draws = []
    for either in (model, loaded):
        either.set_random_seed(3)
        draws.append(either.predict(STATES, deterministic=False)[0])
    np.testing.assert_array_equal(draws[0], draws[1])


@pytest.mark.slow
@both
def test_the_file_stays_small_however_large_the_data(transitions: str, tmp_path: pathlib.Path):
    settings = {"n_neighbors": 8, "transitions": transitions}
    make(**settings).learn(2).save(tmp_path / "small")
    model = make(NOPG, dataset=drift_data(6_000), **settings).learn(2)
    assert model.dataset.observations.nbytes > 90_000
    model.save(tmp_path / "large")
    small, large = (tmp_path / "small.zip").stat().st_size, (tmp_path / "large.zip").stat().st_size
    # The default networks differ.
    assert large < {"samples": 60_000, "model": 90_000}[transitions]
    assert large < small + 2_000


def test_settings_survive(tmp_path: pathlib.Path):
    settings = dict(
        gamma=0.8,
        learning_rate=3e-3,
        state_bandwidth=[0.5, 0.6],
        action_bandwidth_factor=2.0,
        n_action_samples=3,
        n_neighbors=17,
        solver_tolerance=1e-5,
        precision="float32",
        normalize_observations=False,
        policy_kwargs={"final_std_scale": 0.3},
        resample_interval=9,
        initial_states=STATES,
        seed=5,
        transitions="model",
        horizon=7,
    )
    model_kwargs = {"limits": {0: (-2.0, None)}, "reward": "-s[0]**2", "bandwidth": 1.5}
    make(NOPGS, **settings, model_kwargs=model_kwargs).save(tmp_path / "model")
    loaded = NOPGS.load(tmp_path / "model")
    assert loaded.policy.is_stochastic
    for name, value in settings.items():
        holder = loaded.estimator_kwargs if name in NAMES else vars(loaded)
        np.testing.assert_array_equal(holder[name], value, err_msg=name)
    assert loaded.model_kwargs == model_kwargs


CONTINUED = {
    "D": (NOPGD, {}),
    "S": (NOPGS, {}),
    "S-without-seed": (NOPGS, {"seed": None}),
    "D-next-states-without-seed": (NOPGD, {"seed": None, "n_next_state_samples": 2}),
    "S-resampled": (NOPGS, {"resample_interval": 4}),
    "S-decaying-std": (NOPGS, {"policy_kwargs": {"final_std_scale": 0.2}}),
    "D-schedule": (NOPGD, {"learning_rate": lambda progress: 0.02 * progress}),
    "S-model": (NOPGS, {"transitions": "model", "seed": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "settings"), CONTINUED.values(), ids=CONTINUED.keys())
def test_training_continues_after_loading_as_if_it_had_not_stopped(
    algorithm: type[NOPG], settings: dict[str, Any], tmp_path: pathlib.Path
):
    model = make(algorithm, solver_tolerance=1e-11, **settings).learn(10)
    model.save(tmp_path / "model")
    # A function is a pickle.
    loaded = algorithm.load(tmp_path / "model", trust=callable(settings.get("learning_rate")))
    loaded.set_dataset(model.dataset)
    recorder = Recorder(lambda callback: callback.num_timesteps)
    loaded.learn(5, callback=recorder, reset_num_timesteps=False)
    model.learn(5, reset_num_timesteps=False)
    assert recorder.seen == [11, 12, 13, 14, 15]
    assert loaded._n_updates == model._n_updates == 15
    # The first solves after loading start from nothing, so they end elsewhere within their tolerance.
    np.testing.assert_allclose(parameters_of(loaded), parameters_of(model), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@both
def test_data_and_environment_can_be_given_to_load(transitions: str, tmp_path: pathlib.Path):
    model = make(env=DriftEnv(), transitions=transitions).learn(3)
    model.save(tmp_path / "model")
    with_data = NOPG.load(tmp_path / "model", dataset=model.dataset)
    assert with_data.learn(2, reset_num_timesteps=False).num_timesteps == 5
    with_env = NOPG.load(tmp_path / "model", env=DriftEnv())
    mean_reward, _ = evaluate_policy(with_env, with_env.get_env(), n_eval_episodes=2)
    assert mean_reward < 0.0
    with_both = NOPG.load(tmp_path / "model", env=UntouchableEnv(), dataset=model.dataset)
    assert with_both.learn(2, reset_num_timesteps=False).num_timesteps == 5
    np.testing.assert_allclose(parameters_of(with_both), parameters_of(with_data), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("transitions", "saved", "variant"), [("samples", NOPGD, "D"), ("model", NOPGS, "S")])
def test_the_common_class_loads_either_variant(transitions: str, saved: type[NOPG], variant: str, tmp_path: pathlib.Path):
    make(saved, transitions=transitions).save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model", dataset=drift_data())
    assert (loaded.policy.is_stochastic, loaded.transitions) == (variant == "S", transitions)
    assert loaded.learn(1).num_timesteps == 1


@both
def test_a_model_saved_before_it_had_data_normalises_by_the_data_it_is_loaded_with(transitions: str, tmp_path: pathlib.Path):
    data = drift_data()
    make(env=DriftEnv(), dataset=None, transitions=transitions).save(tmp_path / "model")
    given_to_load = NOPG.load(tmp_path / "model", dataset=data)
    given_later = NOPG.load(tmp_path / "model")
    given_later.set_dataset(data)
    for model in (given_later, given_to_load):
        np.testing.assert_allclose(model.policy.observation_std.numpy(), data.observations.std(axis=0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_loaded_model_counts_its_environments(n_envs: int, tmp_path: pathlib.Path):
    make(env=make_vec_env(n_envs)).learn(1).save(tmp_path / "model")
    for arguments in ({}, {"env": make_vec_env(n_envs)}, {"env": make_vec_env(2)}):
        loaded = NOPG.load(tmp_path / "model", dataset=drift_data(), **arguments)
        recorder = Recorder(lambda callback: [len(callback.locals[name]) for name in ("new_obs", "dones", "infos")])
        loaded.learn(1, callback=recorder)
        assert recorder.seen == [[loaded.n_envs] * 3]
        assert loaded.get_env().num_envs == loaded.n_envs


def test_a_wrong_environment_is_refused_with_sb3_s_error(tmp_path: pathlib.Path):
    model = make(env=DriftEnv())
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        NOPG.load(tmp_path / "model", env=OtherEnv())
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        model.set_env(OtherEnv())
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(gym.make("Pendulum-v1"))


def test_an_environment_can_be_set_afterwards():
    data = drift_data(observation_space=DriftEnv().observation_space, action_space=DriftEnv().action_space)
    model = make(dataset=data).learn(2)
    model.set_env(DriftEnv())
    evaluate_policy(model, model.get_env(), n_eval_episodes=1)
    assert model.learn(2, reset_num_timesteps=False).num_timesteps == 4


def test_loading_does_not_bring_back_data_to_learn_from(tmp_path: pathlib.Path):
    make().learn(2).save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    with pytest.raises(InputError, match="set_dataset"):
        loaded.learn(1)
    assert loaded.predict(STATES)[0].shape == (6, 2), "a refusal leaves the model usable"


def test_models_go_through_file_objects():
    model, file = make().learn(2), io.BytesIO()
    model.save(file)
    file.seek(0)
    np.testing.assert_array_equal(NOPG.load(file).predict(STATES)[0], model.predict(STATES)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transitions", "n_neighbors", "clone"),
    [
        ("samples", None, copy.deepcopy),
        ("samples", 20, copy.deepcopy),
        ("samples", 20, lambda model: pickle.loads(pickle.dumps(model))),
        ("model", None, lambda model: pickle.loads(pickle.dumps(model))),
    ],
    ids=["deepcopy", "deepcopy-neighbours", "pickle-neighbours", "pickle-model"],
)
def test_models_can_be_copied_whole_like_td3_s(transitions: str, clone: Callable[[NOPG], NOPG], n_neighbors: int | None):
    model = make(NOPGS, n_neighbors=n_neighbors, transitions=transitions).learn(3)
    twin = clone(model)
    before = parameters_of(model)
    twin.learn(3, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters_of(model), before, err_msg="the copy is independent")
    model.learn(3, reset_num_timesteps=False)
    np.testing.assert_allclose(parameters_of(twin), parameters_of(model), rtol=1e-4, atol=1e-5)


def test_parameters_go_from_one_model_to_another(tmp_path: pathlib.Path):
    source, target, from_file = make(NOPGS).learn(5), make(NOPGS, seed=1), make(NOPGS, seed=2)
    assert set(source.get_parameters()) == {"policy", "policy.optimizer"}
    target.set_parameters(source.get_parameters())
    source.save(tmp_path / "model")
    from_file.set_parameters(str(tmp_path / "model"))
    for model in (target, from_file):
        np.testing.assert_array_equal(
            model.predict(STATES, deterministic=True)[0], source.predict(STATES, deterministic=True)[0]
        )
        for name in ("exp_avg", "exp_avg_sq"):
            moments = [m.policy.optimizer.state_dict()["state"][0][name].numpy() for m in (source, model)]
            np.testing.assert_array_equal(*moments)
    with pytest.raises(ValueError, match="parameters"):
        target.set_parameters({"policy": source.get_parameters()["policy"]}, exact_match=True)
