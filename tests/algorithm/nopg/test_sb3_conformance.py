"""A NOPG model is a Stable-Baselines3 model: construction, training, callbacks, logs, seeds, saving and prediction."""

import copy
import csv
import inspect
import io
import pathlib
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common import callbacks as sb3_callbacks
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch import nn

from sb3_nopg import NOPG, NOPGD, NOPGS, InputError, NOPGPolicy, TransitionDataset
from sb3_nopg.bellman.settings import NAMES, grouped
from sb3_nopg.paper import AS_IN_THE_PAPER
from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
)

ACTION_LOW, ACTION_HIGH = np.array([-1.0, -0.5], dtype=np.float32), np.array([3.0, 0.5], dtype=np.float32)
STATES = np.random.default_rng(5).uniform(-1.0, 1.0, size=(6, 2))
variants = pytest.mark.parametrize("algorithm", [NOPGD, NOPGS])
# With fewer than six updates there is one candidate; with more, several compete, which takes some seconds.
both = pytest.mark.parametrize("transitions", ["samples", "model"])


class DriftEnv(gym.Env):
    """A point pushed towards the origin by two forces whose ranges differ, one of them lopsided. Ten steps an episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), dtype=np.float32)
        self.action_space = spaces.Box(ACTION_LOW, ACTION_HIGH, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.n_steps = self.np_random.uniform(-1.0, 1.0, size=2), 0
        return self.position.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.position = np.clip(self.position + 0.3 * np.asarray(action), -10.0, 10.0)
        self.n_steps += 1
        return self.position.astype(np.float32), -float((self.position**2).sum()), False, self.n_steps >= 10, {}


class UntouchableEnv(DriftEnv):
    """A rig with its motor on: whoever moves it fails the test."""

    def reset(self, **kwargs: Any) -> Any:
        raise AssertionError("training has reset the environment")

    def step(self, action: np.ndarray) -> Any:
        raise AssertionError("training has stepped the environment")


class CountingEnv(DriftEnv):
    """Remembers the states it was reset to, and fails when it is stepped."""

    resets: ClassVar[list[np.ndarray]] = []

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        self.resets.append(observation)
        return observation, info

    def step(self, action: np.ndarray) -> Any:
        raise AssertionError("training has stepped the environment")


class OtherEnv(DriftEnv):
    """Another system: three state variables."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), dtype=np.float32)


def drift_data(n: int = 60, seed: int = 0, episodes: bool = True, **extra: Any) -> TransitionDataset:
    """Episodes of ten random actions."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-1.0, 1.0, size=(n, 2))
    actions = rng.uniform(ACTION_LOW, ACTION_HIGH, size=(n, 2))
    next_states = states + 0.3 * actions
    episode_ids = np.arange(n) // 10 if episodes else None
    rewards = -(next_states**2).sum(axis=1)
    return TransitionDataset(states, actions, rewards, next_states, np.zeros(n, dtype=bool), episode_ids=episode_ids, **extra)


def make(algorithm: type[NOPG] = NOPG, policy: Any = "MlpPolicy", env: Any = None, **settings: Any) -> NOPG:
    """A model that learns fast, on sixty transitions unless told otherwise."""
    arguments = dict(
        **AS_IN_THE_PAPER,
        dataset=drift_data(),
        gamma=0.9,
        state_bandwidth=0.4,
        action_bandwidth=[0.8, 0.3],
        next_state_bandwidth=0.1,
        n_action_samples=4,
        seed=0,
        model_kwargs={"n_nodes": 60},
    )
    return algorithm(policy, env, **grouped({**arguments, **settings}))


def parameters_of(model: NOPG) -> np.ndarray:
    """All parameters, flat; a copy."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()


def make_vec_env(n_envs: int = 4, env_class: type[gym.Env] = DriftEnv) -> VecEnv:
    return DummyVecEnv([lambda: Monitor(env_class())] * n_envs)


environments = pytest.mark.parametrize(
    ("transitions", "env"),
    [("samples", None), ("samples", DriftEnv), ("samples", make_vec_env), ("model", None), ("model", make_vec_env)],
)


class Recorder(BaseCallback):
    """Calls a function after every update and keeps what it returns."""

    def __init__(self, look: Callable[[BaseCallback], Any]):
        super().__init__()
        self.look, self.seen = look, []

    def _on_step(self) -> bool:
        self.seen.append(self.look(self))
        return True


# --- Construction --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("whole_lessons")
def test_works_as_written_with_all_defaults():
    env, data = DriftEnv(), drift_data(40)
    model = NOPG("MlpPolicy", env, dataset=data, gamma=0.9, initial_states=STATES)
    assert model.transitions == "model"
    before, predicted = parameters_of(model), model.estimated_return()
    assert model.learn(20) is model
    assert model.num_timesteps == 20
    assert not np.array_equal(parameters_of(model), before)
    assert model.estimated_return() > predicted


def test_only_policy_and_env_are_required_and_arguments_become_attributes():
    every = inspect.signature(NOPG).parameters.values()
    # The last one takes names of earlier versions, to say where they have gone.
    signature = [parameter for parameter in every if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    assert len(signature) <= 22
    assert [parameter.name for parameter in signature if parameter.default is inspect.Parameter.empty] == ["policy", "env"]
    # SB3's names come first, in the order in which TD3 has them.
    td3_order = [name for name in inspect.signature(TD3).parameters if name in {parameter.name for parameter in signature}]
    assert [parameter.name for parameter in signature[: len(td3_order)]] == td3_order
    model = make()
    # load() calls the constructor without them and then puts attributes of these names in place.
    missing = [p.name for p in signature if p.name not in ("policy", "_init_setup_model") and not hasattr(model, p.name)]
    assert missing == []


@pytest.mark.slow
@both
def test_without_environment_spaces_are_those_given_to_the_data(transitions: str):
    observation_space = spaces.Box(-7.0, 7.0, (2,), dtype=np.float32)
    action_space = spaces.Box(-4.0, 4.0, (2,), dtype=np.float32)
    data = drift_data(observation_space=observation_space, action_space=action_space)
    model = make(dataset=data, transitions=transitions).learn(2)
    assert model.observation_space == observation_space
    assert model.action_space == action_space
    assert model.num_timesteps == 2


@pytest.mark.slow
@both
def test_without_environment_or_given_spaces_the_actions_seen_span_the_action_space(transitions: str):
    data = drift_data()
    model = make(dataset=data, transitions=transitions).learn(2)
    low, high = data.actions.min(axis=0), data.actions.max(axis=0)
    np.testing.assert_allclose([model.action_space.low, model.action_space.high], [low, high], rtol=1e-6)
    assert (model.action_space.low <= low).all()
    assert (model.action_space.high >= high).all()
    assert not model.observation_space.is_bounded()
    assert model.num_timesteps == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "transitions"),
    [(DriftEnv, "samples"), (lambda: Monitor(DriftEnv()), "samples"), (make_vec_env, "samples"), (make_vec_env, "model")],
    ids=["env", "monitored", "vec_env", "vec_env-model"],
)
def test_an_environment_gives_the_spaces(env: Callable[[], Any], transitions: str):
    model = make(env=env(), transitions=transitions).learn(3)
    np.testing.assert_array_equal(model.action_space.low, ACTION_LOW)
    np.testing.assert_array_equal(model.action_space.high, ACTION_HIGH)
    assert model.observation_space == DriftEnv().observation_space
    assert model.num_timesteps == 3
    assert model.n_envs == model.get_env().num_envs


@pytest.mark.slow
@both
def test_an_environment_is_made_from_its_id(transitions: str):
    rng = np.random.default_rng(0)
    data = TransitionDataset(
        rng.uniform(-1, 1, (40, 3)),
        rng.uniform(-2, 2, (40, 1)),
        rng.normal(size=40),
        rng.uniform(-1, 1, (40, 3)),
        np.zeros(40),
    )
    settings = {"initial_states": [[-1.0, 0.0, 0.0]], "action_bandwidth": 1.0, "transitions": transitions}
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


# --- The environment is left alone ---------------------------------------------------------------------------------------


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
@variants
def test_candidates_compete_without_moving_the_environment(algorithm: type[NOPG]):
    model = make(algorithm, env=UntouchableEnv(), transitions="model").learn(8)
    assert {candidate.recipe for candidate in model.candidates} == {"value_iteration", "own", "riccati"}
    assert {candidate.trained_on for candidate in model.candidates} == {"half", "all"}
    assert len(model.judgement.ranking) == len(model.candidates)
    assert sum(candidate.n_updates for candidate in model.candidates) == model._n_updates >= 8


@pytest.mark.slow
@pytest.mark.parametrize("n_envs", [None, 5])
@both
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


# --- Counting ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@environments
def test_timesteps_are_policy_updates(transitions: str, env: Callable[[], Any] | None):
    model = make(env=env and env(), transitions=transitions)
    recorder = Recorder(lambda callback: (callback.num_timesteps, callback.model._n_updates))
    model.learn(3, callback=recorder)
    model.learn(2, callback=recorder, reset_num_timesteps=False)
    model.learn(1, callback=recorder)
    assert recorder.seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, 6)]
    assert model.num_timesteps == 1


def test_continuing_is_the_same_as_not_stopping():
    in_one_go, in_two = make(NOPGS).learn(12), make(NOPGS).learn(5).learn(7, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters_of(in_two), parameters_of(in_one_go))


@both
def test_zero_updates_change_nothing(transitions: str):
    model = make(transitions=transitions)
    before = parameters_of(model)
    assert model.learn(0) is model
    assert model.num_timesteps == 0
    np.testing.assert_array_equal(parameters_of(model), before)


# --- Seeds ---------------------------------------------------------------------------------------------------------------

random_settings = pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (NOPGD, {}),
        (NOPGS, {}),
        (NOPGS, {"n_next_state_samples": 3}),
        (NOPGS, {"resample_interval": 6}),
        (NOPGD, {"env": DriftEnv}),
        (NOPGD, {"transitions": "model"}),
        (NOPGS, {"transitions": "model"}),
    ],
    ids=["D", "S", "S-next-states", "S-resampled", "D-env", "D-model", "S-model"],
)


def trained_with_seed(algorithm: type[NOPG], seed: int, env: Callable[[], Any] | None = None, **settings: Any) -> NOPG:
    n_updates = 8 if settings.get("transitions") == "model" else 20
    return make(algorithm, env=env and env(), seed=seed, **settings).learn(n_updates)


@pytest.mark.slow
@random_settings
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(algorithm: type[NOPG], settings: dict[str, Any]):
    first, second, other = (trained_with_seed(algorithm, seed, **settings) for seed in (3, 3, 4))
    np.testing.assert_array_equal(parameters_of(first), parameters_of(second))
    assert first.estimated_return() == second.estimated_return()
    assert not np.allclose(parameters_of(first), parameters_of(other))


@pytest.mark.slow
@both
def test_other_random_numbers_drawn_meanwhile_change_nothing(transitions: str):
    first, second = (make(NOPGS, n_next_state_samples=2, transitions=transitions) for _ in range(2))
    first.learn(5)
    th.rand(17)
    np.random.random(17)  # noqa: NPY002
    second.learn(5)
    np.testing.assert_array_equal(parameters_of(first), parameters_of(second))


def test_set_random_seed_repeats_the_policy_s_draws():
    model = make(NOPGS)
    draws = []
    for seed in (7, 7, 8):
        model.set_random_seed(seed)
        draws.append(model.predict(STATES)[0])
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])


# --- Callbacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_a_function_stops_training_by_returning_false(transitions: str):
    model = make(transitions=transitions)

    def three_are_enough(local_variables: dict[str, Any], _: dict[str, Any]) -> bool:
        return local_variables["self"].num_timesteps < 3

    assert model.learn(10, callback=three_are_enough) is model
    assert model.num_timesteps == 3
    assert model._n_updates == 3


@pytest.mark.slow
@environments
def test_callbacks_find_what_they_look_for_in_locals(transitions: str, env: Callable[[], Any] | None):
    model = make(env=env and env(), transitions=transitions)

    def look(callback: BaseCallback) -> tuple[Any, ...]:
        found = callback.locals
        assert found["self"] is model
        assert found["total_timesteps"] == 2
        assert not found["dones"].any()
        assert callback.training_env is model.get_env()
        assert callback.logger is model.logger
        return found["new_obs"].shape, found["dones"].shape, len(found["infos"]), {type(info) for info in found["infos"]}

    recorder = Recorder(look)
    model.learn(2, callback=recorder)
    assert recorder.seen == [((model.n_envs, 2), (model.n_envs,), model.n_envs, {dict})] * 2


@pytest.mark.slow
@both
def test_callbacks_are_told_of_the_start_and_the_end(transitions: str):
    class Witness(BaseCallback):
        events: ClassVar[list[str]] = []

        def _on_training_start(self) -> None:
            self.events.append("start")

        def _on_step(self) -> bool:
            self.events.append("step")
            return len(self.events) < 3

        def _on_training_end(self) -> None:
            self.events.append("end")

    make(transitions=transitions).learn(10, callback=Witness())
    assert Witness.events == ["start", "step", "step", "end"]


@pytest.mark.slow
@both
def test_eval_callback_evaluates_saves_the_best_and_logs(transitions: str, tmp_path: pathlib.Path):
    model = make(env=DriftEnv(), transitions=transitions)
    callback = EvalCallback(
        Monitor(DriftEnv()),
        eval_freq=2,
        n_eval_episodes=2,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model.learn(6, callback=callback)
    evaluations = np.load(tmp_path / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == [2, 4, 6]
    assert evaluations["results"].shape == (3, 2)
    assert callback.best_mean_reward == evaluations["results"].mean(axis=1).max()
    best = NOPG.load(tmp_path / "best_model")
    assert best.num_timesteps in (2, 4, 6)
    assert best.predict(STATES)[0].shape == (6, 2)


@pytest.mark.parametrize("env", [None, UntouchableEnv])
def test_eval_callback_uses_its_own_environment_only(env: type[gym.Env] | None):
    callback = EvalCallback(Monitor(DriftEnv()), eval_freq=1, n_eval_episodes=1, verbose=0)
    make(env=env and env()).learn(2, callback=callback)
    assert np.isfinite(callback.last_mean_reward)


@pytest.mark.slow
@both
def test_a_reward_threshold_stops_training(transitions: str):
    stop = StopTrainingOnRewardThreshold(reward_threshold=-1e6)
    callback = EvalCallback(Monitor(DriftEnv()), callback_on_new_best=stop, eval_freq=4, n_eval_episodes=1, verbose=0)
    assert make(transitions=transitions).learn(20, callback=callback).num_timesteps == 4


def test_no_improvement_stops_training():
    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1, min_evals=0)
    callback = EvalCallback(Monitor(DriftEnv()), callback_after_eval=stop, eval_freq=1, n_eval_episodes=1, verbose=0)
    callback.best_mean_reward = np.inf  # nothing will be better
    assert make().learn(20, callback=callback).num_timesteps == 3


def test_a_maximum_of_episodes_is_never_reached_without_episodes():
    assert make(env=make_vec_env()).learn(4, callback=StopTrainingOnMaxEpisodes(1)).num_timesteps == 4


@pytest.mark.slow
@both
def test_checkpoints_are_written_with_and_without_the_data(transitions: str, tmp_path: pathlib.Path):
    model = make(transitions=transitions)
    model.learn(6, callback=CheckpointCallback(2, str(tmp_path), name_prefix="m", save_replay_buffer=True))
    names = [f"m_{step}_steps.zip" for step in (2, 4, 6)] + [f"m_replay_buffer_{step}_steps.pkl" for step in (2, 4, 6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    checkpoint = NOPG.load(tmp_path / "m_4_steps.zip")
    assert checkpoint.num_timesteps == 4
    checkpoint.load_replay_buffer(tmp_path / "m_replay_buffer_4_steps.pkl")
    assert checkpoint.learn(2, reset_num_timesteps=False).num_timesteps == 6
    if transitions == "samples":
        # A model's candidates are not in SB3's files, but in those of NOPGCheckpointCallback.
        np.testing.assert_allclose(parameters_of(checkpoint), parameters_of(model), rtol=1e-3, atol=1e-4)


def test_every_n_timesteps_and_lists_of_callbacks():
    recorder, other = Recorder(lambda callback: callback.num_timesteps), Recorder(lambda callback: callback.n_calls)
    make().learn(7, callback=[EveryNTimesteps(3, recorder), other])
    assert recorder.seen == [3, 6]
    assert other.seen == [1, 2, 3, 4, 5, 6, 7]
    make().learn(2, callback=CallbackList([other]))
    assert other.seen[-2:] == [8, 9]


@pytest.mark.slow
@both
def test_log_every_n_timesteps(transitions: str, tmp_path: pathlib.Path):
    model = make(transitions=transitions)
    rows = learn_with_log(model, tmp_path, 6, callback=LogEveryNTimesteps(3), log_interval=None)
    assert [row["time/total_timesteps"] for row in rows] == ["3", "6"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tqdm.TqdmExperimentalWarning")
@pytest.mark.parametrize(
    ("callback", "env", "transitions"),
    [
        (None, None, "samples"),
        (lambda *_: True, make_vec_env, "model"),
        ([Recorder(lambda _: None)], None, "model"),
        (Recorder(lambda _: None), make_vec_env, "samples"),
    ],
    ids=["none", "function", "list", "one"],
)
def test_progress_bar_counts_updates(
    monkeypatch: pytest.MonkeyPatch, transitions: str, env: Callable[[], Any] | None, callback: Any
):
    bars = []

    class WatchedBar(sb3_callbacks.tqdm):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            bars.append(self)

    monkeypatch.setattr(sb3_callbacks, "tqdm", WatchedBar)
    model = make(env=env and env(), transitions=transitions)
    model.learn(5, callback=callback, progress_bar=True)
    model.learn(3, callback=callback, progress_bar=True, reset_num_timesteps=False)
    assert [(bar.total, bar.n) for bar in bars] == [(5, 5), (3, 3)]
    assert model.num_timesteps == 8


# --- Logger --------------------------------------------------------------------------------------------------------------


def learn_with_log(model: NOPG, folder: pathlib.Path, *args: Any, **kwargs: Any) -> list[dict[str, str]]:
    """Rows of the csv file that SB3's logger writes during ``learn``."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(*args, **kwargs)
    model.logger.close()
    with open(folder / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_log_holds_all_that_tells_how_training_goes(tmp_path: pathlib.Path):
    model = make(NOPGS, n_neighbors=20, solver_tolerance=1e-7)
    rows = learn_with_log(model, tmp_path, 20, log_interval=5)
    assert [int(row["time/total_timesteps"]) for row in rows] == [5, 10, 15, 20]

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    assert (np.diff(column("train/estimated_return")) > 0.0).all()
    assert (column("train/gradient_norm") > 0.0).all()
    assert ((column("train/truncation_error") > 0.0) & (column("train/truncation_error") < 1.0)).all()
    assert (column("train/n_neighbors") == 20).all()
    assert (column("train/learning_rate") == 1e-2).all()
    assert ((column("train/policy_std") > 0.0) & (column("train/policy_std") < 1.0)).all()
    for name in ("q", "visitation"):
        assert (column(f"solver/{name}_residual") <= 1e-7).all()
        assert (column(f"solver/{name}_iterations") >= 1).all()
    stages = [name for name in rows[0] if name.startswith("time/") and name.endswith("_seconds")]
    assert {"time/policy_seconds", "time/solve_seconds", "time/gradient_seconds", "time/step_seconds"} <= set(stages)
    for name in stages:
        assert (column(name) > 0.0).all()


@pytest.mark.slow
def test_the_log_tells_how_the_nodes_equations_were_solved(tmp_path: pathlib.Path):
    model = make(NOPGD, transitions="model", horizon=0)
    *rows, _ = learn_with_log(model, tmp_path, 9, log_interval=1)
    assert len(rows) == 9
    assert all(float(row["solver/q_residual"]) <= 1e-4 for row in rows)


@pytest.mark.slow
def test_the_log_tells_how_the_candidates_do(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    model = make(NOPGS, transitions="model", learning_rate=0.02)
    with caplog.at_level("INFO"):
        *rows, choice = learn_with_log(model, tmp_path, 18, log_interval=1)
    assert choice["candidates/chosen"] == model.candidates[0].recipe
    assert float(choice["candidates/score"]) == pytest.approx(model.candidates[0].score)
    assert [int(row["time/total_timesteps"]) for row in rows] == list(range(1, 19))
    named = [row["train/candidate"] for row in rows]
    assert list(dict.fromkeys(named))[:3] == ["value_iteration (half)", "own (half)", "riccati (half)"]
    assert named[-1] == f"{model.candidates[0].recipe} (all)"
    for name in ("train/estimated_return", "train/gradient_norm", "time/update_seconds"):
        assert all(np.isfinite(float(row[name])) for row in rows), name
    assert all(0.0 < float(row["train/policy_std"]) < 1.0 for row in rows)
    assert all(0.0 <= float(row["train/survival"]) <= 1.0 for row in rows)
    for candidate in model.candidates:
        assert str(candidate) in caplog.text
    assert model.judgement.text() in caplog.text


@pytest.mark.slow
@both
def test_a_deterministic_policy_logs_no_standard_deviation(transitions: str, tmp_path: pathlib.Path):
    rows = learn_with_log(make(NOPGD, transitions=transitions), tmp_path, 2, log_interval=1)
    # On a model, the last line is about the choice.
    assert len(rows) == 2 + (transitions == "model")
    assert "train/policy_std" not in rows[0]


def test_the_logged_return_is_that_of_the_policy_before_its_update(tmp_path: pathlib.Path):
    model = make(solver_tolerance=1e-10)
    expected = [model.estimated_return()]
    recorder = Recorder(lambda callback: expected.append(callback.model.estimated_return()))
    rows = learn_with_log(model, tmp_path, 3, callback=recorder, log_interval=1)
    np.testing.assert_allclose([float(row["train/estimated_return"]) for row in rows], expected[:3], rtol=1e-7)


@pytest.mark.slow
@both
def test_tensorboard_runs_are_numbered_and_continued(transitions: str, tmp_path: pathlib.Path):
    model = make(tensorboard_log=str(tmp_path), transitions=transitions)

    def runs() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    model.learn(2, log_interval=1)
    assert runs() == ["NOPG_1"]
    model.learn(2, log_interval=1)
    assert runs() == ["NOPG_1", "NOPG_2"]
    model.learn(2, log_interval=1, reset_num_timesteps=False)
    assert runs() == ["NOPG_1", "NOPG_2"]
    model.learn(1, log_interval=1, tb_log_name="other")
    assert runs() == ["NOPG_1", "NOPG_2", "other_1"]
    assert all(list((tmp_path / name).glob("events.out.tfevents*")) for name in runs())


@pytest.mark.slow
@both
def test_verbose_prints_and_silence_does_not(transitions: str, capsys: pytest.CaptureFixture[str]):
    make(verbose=1, transitions=transitions).learn(2, log_interval=1)
    printed = capsys.readouterr().out
    assert "estimated_return" in printed
    assert "cpu" in printed
    make(verbose=0, transitions=transitions).learn(2, log_interval=1)
    assert capsys.readouterr().out == ""


# --- Saving and loading --------------------------------------------------------------------------------------------------

POLICY_CASES = {
    "D-mlp": (NOPGD, "MlpPolicy", {"net_arch": [8, 8], "activation_fn": nn.Tanh}),
    "S-mlp": (NOPGS, "MlpPolicy", {"net_arch": [], "max_std": 0.3}),
    "D-linear": (NOPGD, "LinearPolicy", {"diagonal": True, "initial_gain": [[0.5, 0.0], [0.0, -0.2]]}),
    "S-linear": (NOPGS, "LinearPolicy", {"std": [0.2, 0.1]}),
}
all_policies = pytest.mark.parametrize(
    ("algorithm", "policy", "policy_kwargs"), POLICY_CASES.values(), ids=POLICY_CASES.keys()
)
# Of what a policy is, none depends on how it was trained; two are trained on a model as well.
all_policies_and_two_on_a_model = pytest.mark.parametrize(
    ("transitions", "algorithm", "policy", "policy_kwargs"),
    [
        *(pytest.param("samples", *case, id=f"samples-{name}") for name, case in POLICY_CASES.items()),
        *(pytest.param("model", *POLICY_CASES[name], id=f"model-{name}") for name in ("S-mlp", "D-linear")),
    ],
)


@pytest.mark.slow
@all_policies_and_two_on_a_model
def test_a_loaded_model_predicts_the_same_without_the_data(
    transitions: str, algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any], tmp_path: pathlib.Path
):
    settings = {"policy_kwargs": policy_kwargs, "final_std_scale": 0.5, "transitions": transitions}
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
    model = make(NOPG, dataset=drift_data(20_000), **settings).learn(2)
    assert model.dataset.observations.nbytes > 300_000
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
        final_std_scale=0.3,
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
    "S-decaying-std": (NOPGS, {"final_std_scale": 0.2}),
    "D-schedule": (NOPGD, {"learning_rate": lambda progress: 0.02 * progress}),
    "D-model": (NOPGD, {"transitions": "model"}),
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
@pytest.mark.parametrize(("saved", "variant"), [(NOPGD, "D"), (NOPGS, "S")])
@both
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
@pytest.mark.parametrize(("transitions", "n_envs"), [("samples", 1), ("samples", 4), ("model", 4)])
def test_a_loaded_model_counts_its_environments(transitions: str, n_envs: int, tmp_path: pathlib.Path):
    make(env=make_vec_env(n_envs), transitions=transitions).learn(1).save(tmp_path / "model")
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


@pytest.mark.slow
@both
def test_an_environment_can_be_set_afterwards(transitions: str):
    data = drift_data(observation_space=DriftEnv().observation_space, action_space=DriftEnv().action_space)
    model = make(dataset=data, transitions=transitions).learn(2)
    model.set_env(DriftEnv())
    evaluate_policy(model, model.get_env(), n_eval_episodes=1)
    assert model.learn(2, reset_num_timesteps=False).num_timesteps == 4


@pytest.mark.slow
@both
def test_loading_does_not_bring_back_data_to_learn_from(transitions: str, tmp_path: pathlib.Path):
    make(transitions=transitions).learn(2).save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    with pytest.raises(InputError, match="set_dataset"):
        loaded.learn(1)
    assert loaded.predict(STATES)[0].shape == (6, 2), "a refusal leaves the model usable"


@pytest.mark.slow
@both
def test_models_go_through_file_objects(transitions: str):
    model, file = make(transitions=transitions).learn(2), io.BytesIO()
    model.save(file)
    file.seek(0)
    np.testing.assert_array_equal(NOPG.load(file).predict(STATES)[0], model.predict(STATES)[0])


@pytest.mark.slow
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize(("transitions", "n_neighbors"), [("samples", None), ("samples", 20), ("model", None)])
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


# --- Data attached later -------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
@both
def test_replay_buffers_go_to_files_and_back(transitions: str, tmp_path: pathlib.Path):
    model = make(env=DriftEnv(), transitions=transitions).learn(2)
    model.save_replay_buffer(tmp_path / "buffer")
    other = make(env=DriftEnv(), dataset=drift_data(30, seed=2), transitions=transitions)
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


# --- Prediction ----------------------------------------------------------------------------------------------------------


@all_policies
def test_predictions_have_the_shape_of_the_question(algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any]):
    model = make(algorithm, policy, env=DriftEnv(), policy_kwargs=policy_kwargs).learn(2)
    for predict in (model.predict, model.policy.predict):
        expected, state = predict(STATES.astype(np.float32), deterministic=True)
        assert state is None
        assert expected.shape == (6, 2)
        assert expected.dtype == np.float32
        one = predict(STATES[0].astype(np.float32), deterministic=True)[0]
        assert one.shape == (2,)
        np.testing.assert_allclose(one, expected[0], rtol=1e-5, atol=1e-6)
        for question in (STATES, STATES.tolist()):
            answer = predict(question, deterministic=True)[0]
            assert answer.shape == (6, 2)
            np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)
        assert predict([0, 1])[0].shape == (2,)


@all_policies
def test_actions_stay_in_their_space_and_only_draws_differ(algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any]):
    model = make(algorithm, policy, env=DriftEnv(), policy_kwargs=policy_kwargs).learn(2)
    states = np.random.default_rng(0).normal(scale=5.0, size=(200, 2))
    for deterministic in (True, False):
        actions = model.predict(states, deterministic=deterministic)[0]
        assert (actions >= ACTION_LOW).all()
        assert (actions <= ACTION_HIGH).all()
        again = model.predict(states, deterministic=deterministic)[0]
        repeats = deterministic or algorithm is NOPGD
        assert np.array_equal(actions, again) == repeats


@pytest.mark.slow
@variants
@both
def test_evaluate_policy(transitions: str, algorithm: type[NOPG]):
    model = make(algorithm, env=DriftEnv(), transitions=transitions).learn(2)
    rewards, lengths = evaluate_policy(model, Monitor(DriftEnv()), n_eval_episodes=3, return_episode_rewards=True)
    assert lengths == [10, 10, 10]
    assert len(rewards) == 3
    mean, _ = evaluate_policy(model, make_vec_env(2), n_eval_episodes=4, deterministic=False)
    assert np.isfinite(mean)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_lessons")
@both
def test_training_makes_the_policy_better_in_the_environment(transitions: str):
    model = make(env=DriftEnv(), dataset=drift_data(200), transitions=transitions)
    env = Monitor(DriftEnv())
    env.reset(seed=0)
    before, _ = evaluate_policy(model, env, n_eval_episodes=5)
    model.learn(60 if transitions == "samples" else 20)
    env.reset(seed=0)
    after, _ = evaluate_policy(model, env, n_eval_episodes=5)
    assert after > before + 1.0


# --- Policies ------------------------------------------------------------------------------------------------------------


def test_default_networks():
    for algorithm, expected_class, n_outputs in (
        (NOPGD, DeterministicMlpPolicy, 2),
        (NOPGS, GaussianMlpPolicy, 4),
    ):
        model = make(algorithm)
        assert type(model.policy) is expected_class
        layers = list(model.policy.network)
        assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear]
        assert [layers[0].out_features, layers[2].out_features] == [50, n_outputs]
    assert type(make(NOPGD, "LinearPolicy").policy) is DeterministicLinearPolicy
    assert type(make(NOPGS, "LinearPolicy").policy) is GaussianLinearPolicy
    assert type(make(NOPGS).policy) is GaussianMlpPolicy


@pytest.mark.parametrize(
    ("net_arch", "expected"), [([], [nn.Linear]), ([8, 8], [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear])]
)
@variants
def test_networks_as_asked_for(algorithm: type[NOPG], net_arch: list[int], expected: list[type[nn.Module]]):
    model = make(algorithm, policy_kwargs={"net_arch": net_arch, "activation_fn": nn.Tanh})
    assert [type(layer) for layer in model.policy.network] == expected
    assert [layer.out_features for layer in model.policy.network if isinstance(layer, nn.Linear)][:-1] == net_arch
    before = parameters_of(model)
    assert not np.array_equal(parameters_of(model.learn(2)), before)


def test_deterministic_mlp_is_a_tanh_scaled_to_the_action_space():
    policy = make(env=DriftEnv()).policy
    observations = th.as_tensor(STATES, dtype=th.float32)
    squashed = th.tanh(policy.network(policy.normalize(observations)))
    expected = ACTION_LOW + 0.5 * (squashed.detach().numpy() + 1.0) * (ACTION_HIGH - ACTION_LOW)
    np.testing.assert_allclose(policy.predict(STATES)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gaussian_mlp_has_a_tanh_mean_and_a_sigmoid_standard_deviation():
    policy = make(NOPGS, env=DriftEnv(), policy_kwargs={"max_std": 0.25}).policy
    observations = th.as_tensor(STATES, dtype=th.float32)
    output = policy.network(policy.normalize(observations)).detach().numpy()
    center, half_range = (ACTION_HIGH + ACTION_LOW) / 2, (ACTION_HIGH - ACTION_LOW) / 2
    mean, std = (part.detach().numpy() for part in policy.action_distribution(observations))
    np.testing.assert_allclose(mean, center + half_range * np.tanh(output[:, :2]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, 0.25 * half_range / (1.0 + np.exp(-output[:, 2:])), rtol=1e-5)
    th.manual_seed(0)
    draws = np.stack([policy._predict(observations).detach().numpy() for _ in range(3000)])
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5.0 * std.max() / np.sqrt(3000))
    np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.1)


def test_linear_policy_is_a_gain_on_raw_observations():
    gain = [[0.7, -0.2], [0.1, 0.3]]
    model = make(policy="LinearPolicy", env=DriftEnv(), policy_kwargs={"initial_gain": gain})
    actions = model.predict(STATES)[0]
    np.testing.assert_allclose(actions, np.clip(STATES @ np.array(gain).T, ACTION_LOW, ACTION_HIGH), rtol=1e-5, atol=1e-6)
    model.learn(3)
    np.testing.assert_allclose(
        model.predict(STATES)[0],
        np.clip(STATES @ model.policy.gain.detach().numpy().T, ACTION_LOW, ACTION_HIGH),
        rtol=1e-5,
        atol=1e-6,
    )
    # Not squashed: what the gain asks for is not bounded, only what predict() hands to an environment is.
    assert float(model.policy.action_distribution(th.full((1, 2), 100.0))[0].detach().abs().max()) > 3.0


def test_diagonal_gain_stays_diagonal():
    model = make(policy="LinearPolicy", policy_kwargs={"diagonal": True}).learn(5)
    gain = model.policy.gain.detach().numpy()
    assert np.count_nonzero(gain) == 2
    assert np.count_nonzero(np.diag(gain)) == 2


def test_observations_are_normalised_by_the_data_unless_told_not_to():
    data = drift_data()
    policy = make(dataset=data).policy
    np.testing.assert_allclose(policy.observation_mean.numpy(), data.observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(policy.observation_std.numpy(), data.observations.std(axis=0), rtol=1e-5)
    raw = make(dataset=data, normalize_observations=False).learn(2).policy
    assert raw.observation_mean.tolist() == [0.0, 0.0]
    assert raw.observation_std.tolist() == [1.0, 1.0]


def test_units_of_the_observations_do_not_matter():
    data = drift_data()
    scaled = TransitionDataset(
        data.observations * [1024.0, 1 / 64],
        data.actions,
        data.rewards,
        data.next_observations * [1024.0, 1 / 64],
        data.terminals,
        episode_ids=data.episode_ids,
    )
    model = make(dataset=data).learn(10)
    other = make(dataset=scaled, state_bandwidth=[0.4 * 1024.0, 0.4 / 64]).learn(10)
    np.testing.assert_allclose(other.predict(STATES * [1024.0, 1 / 64])[0], model.predict(STATES)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transitions", "policy"), [("samples", "MlpPolicy"), ("samples", "LinearPolicy"), ("model", "MlpPolicy")]
)
def test_standard_deviation_decays_to_its_share_exactly_at_the_end(transitions: str, policy: str):
    model = make(NOPGS, policy, final_std_scale=0.1, transitions=transitions)
    recorder = Recorder(lambda callback: float(callback.model.policy.std_scale))
    model.learn(9, callback=recorder)
    np.testing.assert_allclose(recorder.seen, 1.0 - 0.9 * np.arange(1, 10) / 9, rtol=1e-6)
    assert model.policy.std_scale == th.tensor(0.1)
    observations = th.as_tensor(STATES, dtype=th.float32)
    decayed = model.policy.action_distribution(observations)[1]
    model.policy.set_std_scale(1.0)
    th.testing.assert_close(decayed, 0.1 * model.policy.action_distribution(observations)[1])


def test_standard_deviation_is_left_alone_by_default():
    assert make(NOPGS).learn(5).policy.std_scale == 1.0


def test_the_learning_rate_schedule_reaches_the_optimiser():
    model = make(learning_rate=lambda progress_remaining: 0.1 * progress_remaining)
    recorder = Recorder(lambda callback: callback.model.policy.optimizer.param_groups[0]["lr"])
    model.learn(4, callback=recorder)
    np.testing.assert_allclose(recorder.seen, [0.1, 0.075, 0.05, 0.025])


def test_the_optimiser_can_be_chosen():
    model = make(policy_kwargs={"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.5}}).learn(2)
    assert type(model.policy.optimizer) is th.optim.SGD
    assert model.policy.optimizer.param_groups[0]["momentum"] == 0.5


@all_policies
def test_a_policy_can_be_saved_by_itself(
    algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any], tmp_path: pathlib.Path
):
    settings = {"policy_kwargs": policy_kwargs, "final_std_scale": 0.4}
    model = make(algorithm, policy, **settings).learn(3)
    model.policy.save(tmp_path / "policy.pth")
    loaded = type(model.policy).load(tmp_path / "policy.pth")
    np.testing.assert_array_equal(loaded.predict(STATES, deterministic=True)[0], model.predict(STATES, deterministic=True)[0])
    observations = th.as_tensor(STATES, dtype=th.float32)
    th.testing.assert_close(loaded.action_distribution(observations), model.policy.action_distribution(observations))


class CubicPolicy(NOPGPolicy):
    """A policy of a user's own: odd polynomials of the normalised state."""

    own_arguments: ClassVar[tuple[str, ...]] = ("degree",)

    def __init__(
        self, observation_space: spaces.Box, action_space: spaces.Box, lr_schedule: Any, degree: int = 3, **kwargs: Any
    ):
        super().__init__(observation_space, action_space, **kwargs)
        self.degree = degree
        self.coefficients = nn.Parameter(th.zeros(action_space.shape[0], observation_space.shape[0]))
        self._build_optimizer(lr_schedule)

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        return self.normalize(observations) ** self.degree @ self.coefficients.T, None


@pytest.mark.slow
@both
def test_a_user_s_own_policy_class(transitions: str, tmp_path: pathlib.Path):
    model = make(policy=CubicPolicy, policy_kwargs={"degree": 1}, transitions=transitions)
    predicted = model.estimated_return()
    assert model.learn(20).estimated_return() > predicted
    model.save(tmp_path / "model")
    # Its class is in a pickle.
    loaded = NOPG.load(tmp_path / "model", trust=True)
    assert loaded.policy.degree == 1
    np.testing.assert_array_equal(loaded.predict(STATES)[0], model.predict(STATES)[0])
    model.policy.save(tmp_path / "policy.pth")
    np.testing.assert_array_equal(CubicPolicy.load(tmp_path / "policy.pth").predict(STATES)[0], model.predict(STATES)[0])
