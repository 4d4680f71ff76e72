"""Trials of the cart-pole experiment: keep the pole up, learned from episodes of a random agent."""

import math
from functools import partial
from typing import Any

import gymnasium as gym

import nopg_envs
from sb3_nopg.experiments.baselines import uniform_behavior
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import Task, dataset_of, run_method, total_reward

UPRIGHT = [0.0, 0.0, 1.0, 0.0, 0.0]
# Names of parameter sets of the simulator.
SYSTEMS = {"identified rig": "identified", "data sheet": "datasheet"}
# Where the paper ends an episode.
THETA_LIMIT_RAD = math.radians(3.0)


def make_cartpole(system: str) -> gym.Env:
    """
    :param system: a key of :data:`SYSTEMS`
    """
    return gym.make("nopg/QuanserCartPoleBalance-v0", parameters=SYSTEMS[system], theta_limit_rad=THETA_LIMIT_RAD)


def run(trial: Trial) -> Result:
    """
    :param trial: ``system``, ``samples``, ``method``, ``seed``, ``updates``, and ``evaluation_steps``
    """
    env: Any = make_cartpole(trial["system"])
    behavior = uniform_behavior(env.action_space, trial["seed"])
    n_samples = trial.get("samples") or 2
    arrays = nopg_envs.rollouts(env, behavior, n_transitions=n_samples, start="paper", seed=trial["seed"])
    task = Task(
        make_env=partial(make_cartpole, trial["system"]),
        evaluate=partial(total_reward, env=make_cartpole(trial["system"]), n_steps=trial["evaluation_steps"]),
        gamma=0.99,
        initial_states=[UPRIGHT],
        paper_name="cartpole",
        paper_nopg={"action_bandwidth_factor": 20.0, "n_action_samples": 10},
        max_std=0.2,
    )
    return run_method(task, trial, dataset_of(arrays, env), behavior)
