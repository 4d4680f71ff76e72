"""An environment, or data, or both make a model; training leaves the environment alone."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from helpers.drift import (
    ACTION_HIGH,
    ACTION_LOW,
    STATES,
    CountingEnv,
    DriftEnv,
    UntouchableEnv,
    both,
    drift_data,
    make,
    make_vec_env,
    parameters_of,
)
from sb3_nopg import NOPG, NOPGD, NOPGS, InputError, TransitionDataset


@pytest.mark.slow
def test_works_as_written_with_all_defaults():
    env, data = DriftEnv(), drift_data(40)
    model = NOPG("MlpPolicy", env, dataset=data, gamma=0.9, initial_states=STATES)
    assert model.transitions == "model"
    before, predicted = parameters_of(model), model.estimated_return()
    assert model.learn(8) is model
    assert model.num_timesteps == 8
    assert not np.array_equal(parameters_of(model), before)
    assert model.estimated_return() > predicted


def test_only_policy_and_env_are_required_and_arguments_become_attributes():
    every = inspect.signature(NOPG).parameters.values()
    # The last one takes names of earlier versions, to say where they have gone.
    signature = [parameter for parameter in every if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    # Stable-Baselines3's own `_init_setup_model` is nobody's setting.
    assert sum(not parameter.name.startswith("_") for parameter in signature) <= 22
    assert [parameter.name for parameter in signature if parameter.default is inspect.Parameter.empty] == ["policy", "env"]
    # SB3's names come first, in the order in which TD3 has them.
    td3_order = [name for name in inspect.signature(TD3).parameters if name in {parameter.name for parameter in signature}]
    assert [parameter.name for parameter in signature[: len(td3_order)]] == td3_order
    model = make()
    # load() calls the constructor without them and then puts attributes of these names in place.
    missing = [p.name for p in signature if p.name not in ("policy", "_init_setup_model") and not hasattr(model, p.name)]
    assert missing == []


def test_without_environment_spaces_are_those_given_to_the_data():
    observation_space = spaces.Box(-7.0, 7.0, (2,), dtype=np.float32)
    action_space = spaces.Box(-4.0, 4.0, (2,), dtype=np.float32)
    data = drift_data(observation_space=observation_space, action_space=action_space)
    model = make(dataset=data).learn(2)
    assert model.observation_space == observation_space
    assert model.action_space == action_space
    assert model.num_timesteps == 2


def test_without_environment_or_given_spaces_the_actions_seen_span_the_action_space():
    data = drift_data()
    model = make(dataset=data).learn(2)
    low, high = data.actions.min(axis=0), data.actions.max(axis=0)
    np.testing.assert_allclose([model.action_space.low, model.action_space.high], [low, high], rtol=1e-6)
    assert (model.action_space.low <= low).all()
    assert (model.action_space.high >= high).all()
    assert not model.observation_space.is_bounded()
    assert model.num_timesteps == 2


@pytest.mark.parametrize(
    "env",
    [DriftEnv, lambda: Monitor(DriftEnv()), make_vec_env],
    ids=["env", "monitored", "vec_env"],
)
def test_an_environment_gives_the_spaces(env: Callable[[], Any]):
    model = make(env=env()).learn(3)
    np.testing.assert_array_equal(model.action_space.low, ACTION_LOW)
    np.testing.assert_array_equal(model.action_space.high, ACTION_HIGH)
    assert model.observation_space == DriftEnv().observation_space
    assert model.num_timesteps == 3
    assert model.n_envs == model.get_env().num_envs


def test_an_environment_is_made_from_its_id():
    rng = np.random.default_rng(0)
    data = TransitionDataset(
        rng.uniform(-1, 1, (40, 3)),
        rng.uniform(-2, 2, (40, 1)),
        rng.normal(size=40),
        rng.uniform(-1, 1, (40, 3)),
        np.zeros(40),
    )
    settings = {"initial_states": [[-1.0, 0.0, 0.0]], "action_bandwidth": 1.0}
    model = make(env="Pendulum-v1", dataset=data, **settings).learn(2)
    assert model.action_space.high.tolist() == [2.0]
    assert model.get_env().num_envs == 1


def test_neither_environment_nor_data_is_too_little():
    with pytest.raises(InputError, match=r"env.*dataset"):
        NOPG("MlpPolicy", None)


@both
def test_an_environment_alone_is_enough_to_predict_but_not_to_learn(transitions: str):
    model = make(env=DriftEnv(), dataset=None, transitions=transitions)
    assert model.predict(STATES)[0].shape == (6, 2)
    with pytest.raises(InputError, match="set_dataset"):
        model.learn(1)


def test_discrete_actions_are_refused():
    with pytest.raises(InputError, match="action_space"):
        NOPG("MlpPolicy", "CartPole-v1")


def test_unknown_policy_names_and_foreign_policy_classes_are_refused():
    with pytest.raises(InputError, match="LinearPolicy"):
        make(policy="CnnPolicy")
    with pytest.raises(InputError, match="NOPGPolicy"):
        make(policy=TD3.policy_aliases["MlpPolicy"])


def test_vec_normalize_is_refused_when_it_is_passed_and_when_it_is_set():
    normalized = VecNormalize(make_vec_env(1))
    with pytest.raises(InputError, match="VecNormalize"):
        make(env=normalized)
    model = make(env=DriftEnv())
    with pytest.raises(InputError, match="VecNormalize"):
        model.set_env(normalized)


def test_the_stand_in_for_a_missing_environment_refuses_to_move():
    model = make().learn(1)
    env = model.get_env()
    assert env.reset().shape == (1, 2)
    with pytest.raises(RuntimeError, match="set_env"):
        env.step(np.zeros((1, 2), dtype=np.float32))
    with pytest.raises(RuntimeError, match="set_env"):
        evaluate_policy(model, env, n_eval_episodes=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transitions", "algorithm", "given", "vectorized"),
    [
        ("samples", NOPGD, "initial_states", False),
        ("samples", NOPGS, "episodes", True),
        ("model", NOPGS, "initial_states", True),
        ("model", NOPGD, "episodes", False),
    ],
)
def test_training_never_moves_an_environment_that_need_not_move(
    transitions: str, algorithm: type[NOPG], given: str, vectorized: bool
):
    env = make_vec_env(3, UntouchableEnv) if vectorized else UntouchableEnv()
    start = {"initial_states": STATES} if given == "initial_states" else {}
    settings = {"resample_interval": 2, "transitions": transitions, **start}
    model = make(algorithm, env=env, dataset=drift_data(episodes=given == "episodes"), **settings)
    model.learn(3).learn(3, reset_num_timesteps=False)
    model.set_env(make_vec_env(3, UntouchableEnv) if vectorized else UntouchableEnv())
    model.learn(3)
    model.estimated_return()
    assert model.num_timesteps == 3


@pytest.mark.slow
def test_candidates_compete_without_moving_the_environment():
    model = make(NOPGS, env=UntouchableEnv(), transitions="model").learn(8)
    assert {candidate.recipe for candidate in model.candidates} == {"value_iteration", "own", "riccati"}
    assert {candidate.trained_on for candidate in model.candidates} == {"half", "all"}
    assert len(model.judgement.ranking) == len(model.candidates)
    assert sum(candidate.n_updates for candidate in model.candidates) == model._n_updates >= 8


@pytest.mark.slow
@pytest.mark.parametrize(("n_envs", "transitions"), [(None, "samples"), (5, "samples"), (5, "model")])
def test_resets_give_the_start_states_where_nothing_else_does(n_envs: int | None, transitions: str):
    CountingEnv.resets.clear()
    env = CountingEnv() if n_envs is None else make_vec_env(n_envs, CountingEnv)
    model = make(env=env, dataset=drift_data(episodes=False), transitions=transitions)
    assert CountingEnv.resets == [], "constructing a model moves nothing"
    model.learn(2)
    model.learn(2)
    assert 16 <= len(CountingEnv.resets) <= 20
    start_states = model.estimator.problem.queries.states[-len(CountingEnv.resets) :].numpy()
    if transitions == "model":
        start_states = model.estimator.start_states
    np.testing.assert_allclose(start_states, np.array(CountingEnv.resets), rtol=1e-6)
    assert len(np.unique(start_states, axis=0)) == len(start_states)


@pytest.mark.slow
@both
def test_start_states_from_resets_follow_the_seed(transitions: str):
    data, settings = drift_data(episodes=False), {"env": DriftEnv(), "transitions": transitions}
    models = [make(dataset=data, seed=seed, **settings) for seed in (1, 1, 2)]
    returns = [model.learn(1).estimated_return() for model in models]
    assert returns[0] == returns[1] != returns[2]
    models[0].set_dataset(models[0].dataset)
    assert models[0].estimated_return() == pytest.approx(returns[0], rel=1e-7), "drawn anew, they are the same"
