"""Patterns that Stable-Baselines3's own documentation teaches, on NOPG: what works, and what is refused with a sentence."""

import csv
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.models import make_nopg
from helpers.repository import REPOSITORY
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.paper import AS_IN_THE_PAPER

HORIZON = 20


class Rail(gym.Env[np.ndarray, np.ndarray]):
    """A cart at x, moved by its speed: x' = x + 0.2 u. The best policy goes to the middle and stays there."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.x, self.n_steps = 0.8, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.n_steps = 0.8, 0
        return np.array([self.x], dtype=np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = -(self.x**2)
        self.x += 0.2 * float(np.clip(action[0], -1.0, 1.0))
        self.n_steps += 1
        return np.array([self.x], dtype=np.float32), reward, False, self.n_steps >= HORIZON, {}


def rail_data() -> TransitionDataset:
    rng = np.random.default_rng(0)
    x, u = rng.uniform(-1, 1, (300, 1)), rng.uniform(-1, 1, (300, 1))
    return TransitionDataset(x, u, -(x[:, 0] ** 2), x + 0.2 * u, np.zeros(300, dtype=bool), action_space=Rail.action_space)


def make_model(env: Any = None, **settings: Any) -> NOPG:
    settings = {
        "dataset": rail_data(),
        "initial_states": [[0.8]],
        "gamma": 0.9,
        "seed": 0,
        "device": "cpu",
        **AS_IN_THE_PAPER,
        **settings,
    }
    return make_nopg("MlpPolicy", env, **settings)


@pytest.mark.slow
def test_eval_callback_keeps_the_best_model_and_stops_at_a_threshold(tmp_path: Path):
    enough = StopTrainingOnRewardThreshold(reward_threshold=-3.0, verbose=0)
    callback = EvalCallback(
        Monitor(Rail()),
        callback_on_new_best=enough,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        eval_freq=5,
        n_eval_episodes=1,
        verbose=0,
    )
    model = make_model(Rail()).learn(200, callback=callback)
    assert model.num_timesteps < 200
    # Doing nothing loses 0.64 a step.
    assert callback.best_mean_reward >= -3.0 > -0.64 * HORIZON
    best = NOPG.load(tmp_path / "best_model")
    assert evaluate_policy(best, Monitor(Rail()), n_eval_episodes=1)[0] == pytest.approx(callback.best_mean_reward)
    evaluations = np.load(tmp_path / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == list(range(5, model.num_timesteps + 1, 5))
    assert evaluations["results"].max() == pytest.approx(callback.best_mean_reward)


class Observer(BaseCallback):
    """All the hooks of SB3's template, and a value of its own in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.predicted: list[float] = []

    def _on_training_start(self) -> None:
        self.calls.append("training start")

    def _on_rollout_start(self) -> None:
        self.calls.append("rollout start")

    def _on_step(self) -> bool:
        self.calls.append("step")
        self.predicted.append(self.model.estimated_return())  # type: ignore[attr-defined]
        self.logger.record("rail/action_at_start", float(self.model.predict(np.array([0.8]))[0][0]))
        return self.num_timesteps < 6

    def _on_training_end(self) -> None:
        self.calls.append("training end")


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_a_custom_callback_sees_updates_and_no_rollouts_and_stops_training(tmp_path: Path, transitions: str):
    callback = Observer()
    model = make_model(transitions=transitions)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(100, callback=callback, log_interval=2)
    model.logger.close()
    assert callback.calls == ["training start", *["step"] * 6, "training end"]
    if transitions == "samples":
        # A model's first candidate starts from value iteration, where little is left to gain in a few updates.
        assert callback.predicted[-1] > callback.predicted[0]
    with open(tmp_path / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["time/total_timesteps"] for row in rows][:2] == ["2", "4"]
    # At the end of training on a model, one more line says which candidate was chosen.
    assert [bool(row.get("candidates/chosen")) for row in rows] == [False, False] + [True] * (transitions == "model")
    assert all(-1.0 <= float(row["rail/action_at_start"]) <= 1.0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_callbacks_combine(tmp_path: Path, transitions: str):
    updates = Observer()
    checkpoints = CheckpointCallback(save_freq=2, save_path=str(tmp_path), name_prefix="rail")
    every_third = EveryNTimesteps(n_steps=3, callback=updates)
    make_model(transitions=transitions).learn(6, callback=CallbackList([checkpoints, every_third]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rail_2_steps.zip", "rail_4_steps.zip", "rail_6_steps.zip"]
    assert updates.calls.count("step") == 2


def test_vec_normalize_is_refused_wherever_it_is_given(tmp_path: Path):
    def normalized() -> VecNormalize:
        return VecNormalize(DummyVecEnv([Rail]))

    with pytest.raises(ValueError, match="VecNormalize") as refused:
        make_model(normalized())
    # For a person: why, and what to do.
    assert "steps that never happen" in str(refused.value)
    assert "Pass the environment without it" in str(refused.value)
    model = make_model(Rail())
    with pytest.raises(ValueError, match="VecNormalize"):
        model.set_env(normalized())
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="VecNormalize"):
        NOPG.load(tmp_path / "model", env=normalized())


def test_the_policy_normalises_what_vec_normalize_would():
    model = make_model()
    observations = rail_data().observations
    normalized = model.policy.normalize(model.policy.obs_to_tensor(observations)[0]).detach().numpy()
    assert normalized.mean() == pytest.approx(0.0, abs=1e-5)
    assert normalized.std() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_save_delete_load_and_go_on(tmp_path: Path, transitions: str):
    model = make_model(Rail(), transitions=transitions).learn(5)
    model.save(tmp_path / "rail")
    asked = np.linspace(-1, 1, 7)[:, None]
    actions, predicted = model.predict(asked)[0], model.estimated_return()
    del model

    loaded = NOPG.load(tmp_path / "rail", env=Rail())
    np.testing.assert_array_equal(loaded.predict(asked)[0], actions)
    loaded.set_dataset(rail_data())
    assert loaded.estimated_return() == pytest.approx(predicted)
    loaded.learn(5, reset_num_timesteps=False)
    assert loaded.num_timesteps == 10
    assert loaded.estimated_return() > predicted


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_evaluate_policy_in_one_environment_and_in_several(transitions: str):
    model = make_model(transitions=transitions).learn(30)
    returns, lengths = evaluate_policy(model, Monitor(Rail()), n_eval_episodes=3, return_episode_rewards=True)
    assert lengths == [HORIZON] * 3
    # Nothing is random here.
    assert len(set(returns)) == 1
    mean, std = evaluate_policy(model, make_vec_env(Rail, n_envs=2), n_eval_episodes=4)
    assert mean == pytest.approx(returns[0], rel=1e-5)
    assert std == pytest.approx(0.0, abs=1e-6)
    untrained, _ = evaluate_policy(make_model(), Monitor(Rail()), n_eval_episodes=1)
    assert mean > untrained


@pytest.mark.slow
def test_the_prediction_loop():
    model = make_model(make_vec_env(Rail, n_envs=2)).learn(5)
    env = model.get_env()
    assert env is not None
    observations = env.reset()
    for _ in range(HORIZON + 1):
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, dones, _ = env.step(actions)
    assert actions.shape == (2, 1)
    assert rewards.shape == dones.shape == (2,)


@pytest.mark.slow
def test_tensorboard_shows_the_predicted_return_at_each_update(tmp_path: Path):
    model = make_model(tensorboard_log=str(tmp_path))
    model.learn(4, log_interval=1, tb_log_name="rail")
    model.learn(2, log_interval=1, tb_log_name="rail", reset_num_timesteps=False)
    model.logger.close()
    (run,) = tmp_path.iterdir()
    assert run.name == "rail_1"
    events = EventAccumulator(str(run)).Reload()
    # Two files of the same second are read in either order.
    scalars = sorted(events.Scalars("train/estimated_return"), key=lambda scalar: scalar.step)
    assert [scalar.step for scalar in scalars] == [1, 2, 3, 4, 5, 6]
    assert scalars[-1].value > scalars[0].value


def logged_by(folder: Path, n_updates: int, **settings: Any) -> set[str]:
    model = make_model(variant="S", **settings)
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(n_updates, log_interval=1)
    # What is told at the end comes with the next entry.
    model.dump_logs()
    model.logger.close()
    with open(folder / "progress.csv", newline="") as file:
        return {name for name in next(csv.reader(file)) if name.split("/")[0] in ("train", "solver", "candidates")}


@pytest.mark.slow
def test_everything_that_is_logged_is_in_the_documentation(tmp_path: Path):
    by_samples = logged_by(tmp_path / "samples", 1)
    by_model = logged_by(tmp_path / "model", 8, transitions="model", model_kwargs={"n_nodes": 60})
    assert {"candidates/chosen", "candidates/score", "train/survival"} <= by_model - by_samples
    text = (REPOSITORY / "docs" / "sb3.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`((?:train|solver|candidates)/\w+)`", text))
    # Both are said in one row there; the number of updates is that of timesteps.
    documented |= {name.replace("/q_", "/visitation_") for name in documented} | {"train/n_updates"}
    assert len(by_samples) > 8
    assert by_samples | by_model == documented
