"""Trials of both pendulum experiments: swing up from hanging, learned from a grid or from a random agent's data."""

from functools import partial
from typing import Any

import gymnasium as gym

import nopg_envs
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines import BehaviorPolicy, mixture_behavior
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import run_method
from sb3_nopg.experiments.task import Task, dataset_of, total_reward

ENV_ID = "nopg/Pendulum-v0"
HANGING = [-1.0, 0.0, 0.0]
#: as the reward has them
COST = QuadraticCost(columns=(1, 2), state_weights=(1.0, 0.1), action_weight=0.001, cosine=0)


def run_on_grid(trial: Trial) -> Result:
    """
    :param trial: ``levels`` of angle, angular velocity and torque, ``method``, ``seed``, ``updates``
    """
    env = gym.make(ENV_ID)
    dataset = dataset_of(nopg_envs.grid(env, trial["levels"]), env)
    return run_method(_task({"action_bandwidth_factor": 50.0, "n_action_samples": 15}), trial, dataset, None)


def run_on_random_data(trial: Trial) -> Result:
    """
    :param trial: ``samples``, ``method``, ``seed``, ``updates``
    """
    dataset, behavior = random_data(trial.get("samples") or 2, trial["seed"])
    return run_method(_task({"action_bandwidth_factor": 25.0, "n_action_samples": 10}), trial, dataset, behavior)


def random_data(n_samples: int, seed: int) -> tuple[TransitionDataset, BehaviorPolicy]:
    """
    Episodes that start upright, where a mixture of Gaussians acts.

    :param n_samples: transitions
    :param seed: of the behaviour
    """
    env: Any = gym.make(ENV_ID)
    behavior = mixture_behavior(env.action_space, seed)
    arrays = nopg_envs.rollouts(env, behavior, n_transitions=n_samples, start="paper", seed=seed)
    return dataset_of(arrays, env), behavior


def _task(paper_nopg: dict[str, Any]) -> Task:
    return Task(
        make_env=partial(gym.make, ENV_ID),
        evaluate=partial(total_reward, env=gym.make(ENV_ID)),
        gamma=0.97,
        initial_states=[HANGING],
        paper_name="pendulum",
        paper_nopg=paper_nopg,
        max_std=0.5,
        cost=COST,
    )
