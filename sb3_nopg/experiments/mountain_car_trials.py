"""Trials of the mountain-car experiment: learn from a few demonstrations, each step of which costs one."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs.demonstrations import demonstration_file
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines import episode_returns
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import nopg_model, run_method
from sb3_nopg.experiments.task import Task

ENV_ID = "MountainCarContinuous-v0"
N_STEPS = 500
_N_EVALUATIONS = 10
# As the environment draws them: at rest, about the bottom of the valley.
_STARTS = [[position, 0.0] for position in np.linspace(-0.6, -0.4, 15).tolist()]


def run(trial: Trial) -> Result:
    """
    :param trial: ``demonstrations``, how many, and ``method``, ``seed``, ``updates``
    """
    dataset = demonstrations(trial.get("demonstrations") or 1, trial["seed"])
    if trial["method"] == "demonstrator":
        return {"return": float(episode_returns(dataset).mean())}
    task = Task(
        make_env=partial(gym.make, ENV_ID),
        evaluate=mean_return,
        gamma=0.99,
        initial_states=_STARTS,
        paper_nopg={"action_bandwidth_factor": 50.0, "n_action_samples": 15},
        max_std=1.0,
    )
    if trial["method"] != "example":
        return run_method(task, trial, dataset, None)
    variant, _, settings = trial["of"].removeprefix("NOPG-").partition(", ")
    model = nopg_model(task, dataset, variant, settings, trial)
    model.learn(trial["updates"], log_interval=10**9)
    model.policy.to("cpu")
    first = np.flatnonzero(dataset.episode_ids == dataset.episode_ids[0])  # type: ignore[index]
    shown = np.concatenate([dataset.observations[first], dataset.next_observations[first[-1:]]])
    return {"demonstrated": shown.tolist(), "learned": drive(model, seed=0).tolist()}


def demonstrations(n_episodes: int, seed: int) -> TransitionDataset:
    """
    Some of the scripted operator's episodes, every step of which is worth -1.

    :param n_episodes: how many
    :param seed: of the choice
    """
    recorded = TransitionDataset.load(demonstration_file("mountain_car_scripted"))
    assert recorded.episode_ids is not None
    known = np.unique(recorded.episode_ids)
    chosen = np.random.default_rng(seed).permutation(known)[:n_episodes]
    rows = np.flatnonzero(np.isin(recorded.episode_ids, chosen))
    arrays: dict[str, Any] = {
        name: getattr(recorded, name)[rows]
        for name in ("observations", "actions", "next_observations", "terminals", "timeouts", "episode_ids")
        if getattr(recorded, name) is not None
    }
    return TransitionDataset(
        **arrays,
        rewards=np.full(len(rows), -1.0),
        observation_space=recorded.observation_space,
        action_space=recorded.action_space,
    )


def drive(model: Any, seed: int) -> np.ndarray:
    """
    :param model: has ``predict``
    :param seed: of the start
    :return: positions and velocities until the goal or for 500 steps, (steps + 1, 2)
    """
    env = gym.make(ENV_ID)
    observation, _ = env.reset(seed=seed)
    path, over, memory = [observation], False, None
    while not over and len(path) <= N_STEPS:
        action, memory = model.predict(observation, state=memory, deterministic=True)
        observation, _, over, _, _ = env.step(action)
        path.append(observation)
    return np.array(path, dtype=np.float64)


def mean_return(model: Any) -> float:
    """
    :param model: has ``predict``
    :return: minus the steps to the goal, 500 at most, over ten starts
    """
    return -float(np.mean([len(drive(model, seed)) - 1 for seed in range(_N_EVALUATIONS)]))
