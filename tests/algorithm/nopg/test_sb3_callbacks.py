"""Callbacks of Stable-Baselines3 work."""

import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
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
from stable_baselines3.common.monitor import Monitor

from helpers.drift import (
    STATES,
    DriftEnv,
    Recorder,
    UntouchableEnv,
    both,
    environments,
    learn_with_log,
    make,
    make_vec_env,
    parameters_of,
)
from sb3_nopg import NOPG
from sb3_nopg.common import progress
from sb3_nopg.common.progress import Display


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


def test_callbacks_are_told_of_the_start_and_the_end():
    class Witness(BaseCallback):
        events: ClassVar[list[str]] = []

        def _on_training_start(self) -> None:
            self.events.append("start")

        def _on_step(self) -> bool:
            self.events.append("step")
            return len(self.events) < 3

        def _on_training_end(self) -> None:
            self.events.append("end")

    make().learn(10, callback=Witness())
    assert Witness.events == ["start", "step", "step", "end"]


@pytest.mark.slow
@both
def test_eval_callback_evaluates_saves_the_best_and_logs(transitions: str, tmp_path: pathlib.Path):
    model = make(env=DriftEnv(), transitions=transitions)
    callback = EvalCallback(
        Monitor(DriftEnv()),
        eval_freq=1,
        n_eval_episodes=2,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model.learn(3, callback=callback)
    evaluations = np.load(tmp_path / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == [1, 2, 3]
    assert evaluations["results"].shape == (3, 2)
    assert callback.best_mean_reward == evaluations["results"].mean(axis=1).max()
    best = NOPG.load(tmp_path / "best_model")
    assert best.num_timesteps in (1, 2, 3)
    assert best.predict(STATES)[0].shape == (6, 2)


@pytest.mark.parametrize("env", [None, UntouchableEnv])
def test_eval_callback_uses_its_own_environment_only(env: type[gym.Env] | None):
    callback = EvalCallback(Monitor(DriftEnv()), eval_freq=1, n_eval_episodes=1, verbose=0)
    make(env=env and env()).learn(2, callback=callback)
    assert np.isfinite(callback.last_mean_reward)


def test_a_reward_threshold_stops_training():
    stop = StopTrainingOnRewardThreshold(reward_threshold=-1e6)
    callback = EvalCallback(Monitor(DriftEnv()), callback_on_new_best=stop, eval_freq=4, n_eval_episodes=1, verbose=0)
    assert make().learn(20, callback=callback).num_timesteps == 4


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
    model.learn(3, callback=CheckpointCallback(1, str(tmp_path), name_prefix="m", save_replay_buffer=True))
    names = [f"m_{step}_steps.zip" for step in (1, 2, 3)] + [f"m_replay_buffer_{step}_steps.pkl" for step in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    checkpoint = NOPG.load(tmp_path / "m_2_steps.zip")
    assert checkpoint.num_timesteps == 2
    checkpoint.load_replay_buffer(tmp_path / "m_replay_buffer_2_steps.pkl")
    assert checkpoint.learn(1, reset_num_timesteps=False).num_timesteps == 3
    if transitions == "samples":
        # A model's candidates are not in SB3's files, but in those of NOPGCheckpointCallback.
        np.testing.assert_allclose(parameters_of(checkpoint), parameters_of(model), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_every_n_timesteps_and_lists_of_callbacks():
    recorder, other = Recorder(lambda callback: callback.num_timesteps), Recorder(lambda callback: callback.n_calls)
    make().learn(7, callback=[EveryNTimesteps(3, recorder), other])
    assert recorder.seen == [3, 6]
    assert other.seen == [1, 2, 3, 4, 5, 6, 7]
    make().learn(2, callback=CallbackList([other]))
    assert other.seen[-2:] == [8, 9]


def test_log_every_n_timesteps(tmp_path: pathlib.Path):
    model = make()
    rows = learn_with_log(model, tmp_path, 6, callback=LogEveryNTimesteps(3), log_interval=None)
    assert [row["time/total_timesteps"] for row in rows] == ["3", "6"]


@pytest.mark.slow
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

    class WatchedDisplay(Display):
        @contextmanager
        def phase(self, name: str, total: int | None) -> Iterator[Callable[..., None]]:
            with super().phase(name, total) as advance:
                counted = [name, total, 0]
                bars.append(counted)

                def count(n_done: int | None = None) -> None:
                    counted[2] = counted[2] + 1 if n_done is None else n_done
                    advance(n_done)

                yield count

    monkeypatch.setattr(progress, "Display", WatchedDisplay)
    model = make(env=env and env(), transitions=transitions)
    model.learn(5, callback=callback, progress_bar=True)
    model.learn(3, callback=callback, progress_bar=True, reset_num_timesteps=False)
    assert [bar for bar in bars if bar[0] == "candidates"] == [["candidates", 5, 5], ["candidates", 3, 3]]
    assert model.num_timesteps == 8
