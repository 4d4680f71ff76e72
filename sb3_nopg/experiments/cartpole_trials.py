"""Trials of the cart-pole experiment: keep the pole up, learned from episodes of a random agent."""

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import nopg_envs
from sb3_nopg.experiments.baselines import uniform_behavior
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost
from sb3_nopg.experiments.cartpole_evaluation import balance_returns, states_near_rest
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import run_method
from sb3_nopg.experiments.task import Task, dataset_of, total_reward

# As many as the paper draws, about the state that data and evaluation start from: drawn there they would all be that state.
_N_STARTS, _START_SEED = 15, 100_000
#: sin θ for θ: within 3° they are the same
COST = QuadraticCost(columns=(0, 1, 3, 4), state_weights=(1.0, 100.0, 0.1, 0.1), action_weight=1e-3)
# Names of parameter sets of the simulator.
SYSTEMS = {"identified rig": "identified", "data sheet": "datasheet"}
# Where the paper ends an episode.
THETA_LIMIT_RAD = math.radians(3.0)


def make_cartpole(system: str) -> gym.Env:
    """
    :param system: a key of :data:`SYSTEMS`
    """
    return gym.make("nopg/QuanserCartPoleBalance-v0", parameters=SYSTEMS[system], theta_limit_rad=THETA_LIMIT_RAD)


def told_starts() -> list[list[float]]:
    """Start states that methods are told, as they are observed, (15, 5)."""
    x, theta, x_dot, theta_dot = states_near_rest(_N_STARTS, _START_SEED).T
    return np.stack([x, np.sin(theta), np.cos(theta), x_dot, theta_dot], axis=1).tolist()


def from_perturbed_starts(model: Any, system: str, n_steps: int) -> Result:
    """
    :param model: has ``predict``
    :param system: a key of :data:`SYSTEMS`
    :param n_steps: at most
    :return: ``perturbed``, the mean return from ten starts about the paper's, and each of them
    """
    returns = balance_returns(model, n_steps, parameters=SYSTEMS[system], theta_limit_rad=THETA_LIMIT_RAD)
    return {"perturbed": float(np.mean(returns)), "perturbed_returns": returns}


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
        initial_states=told_starts(),
        paper_name="cartpole",
        paper_nopg={"action_bandwidth_factor": 20.0, "n_action_samples": 10},
        max_std=0.2,
        cost=COST,
        also=partial(from_perturbed_starts, system=trial["system"], n_steps=trial["evaluation_steps"]),
    )
    return run_method(task, trial, dataset_of(arrays, env), behavior)
