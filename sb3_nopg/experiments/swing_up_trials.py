"""Trials of the cart-pole's swing-up: from hanging to upright and stay there, learned from voltages drawn at random."""

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs import rollouts
from sb3_nopg.experiments.baselines.least_squares_riccati import Arrays, QuadraticCost
from sb3_nopg.experiments.cartpole_evaluation import UPRIGHT_STEPS, upright_steps
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import run_method
from sb3_nopg.experiments.task import Task, dataset_of

ENV_ID = "nopg/QuanserCartPoleSwingUp-v1"
# Episodes this short see the top and the bottom.
EPISODE_STEPS = 100
# Starts that a method is told, as many as NOPG would draw from an environment by itself.
_N_STARTS = 16
#: sin θ for θ: near upright they are the same
UPRIGHT_COST = QuadraticCost(columns=(0, 1, 3, 4), state_weights=(1.0, 100.0, 0.1, 0.1), action_weight=1e-3, cosine=2)


def run(trial: Trial) -> Result:
    """
    :param trial: ``volts``, ``samples``, ``method``, ``seed``, ``updates``
    """
    volts = float(trial["volts"])
    env: Any = make_env(volts)
    task = Task(
        make_env=partial(make_env, volts),
        evaluate=partial(mean_upright_steps, volts=volts),
        gamma=0.99,
        initial_states=hanging_starts(volts).tolist(),
        paper_nopg={"action_bandwidth_factor": 20.0, "n_action_samples": 10},
        max_std=1.0 / volts,
        cost=UPRIGHT_COST,
        also=partial(starts_that_stay_up, volts=volts),
    )
    return run_method(task, trial, dataset_of(held_voltage_data(trial.get("samples") or 2, volts, trial["seed"]), env), None)


def make_env(volts: float) -> gym.Env:
    """
    :param volts: largest voltage
    """
    return gym.make(ENV_ID, voltage_limit_volt=volts)


def hanging_starts(volts: float) -> np.ndarray:
    """
    Where an operator may let the pole hang: other draws than those of evaluations, (16, 5).

    :param volts: largest voltage
    """
    env = gym.make(ENV_ID, start="operator", voltage_limit_volt=volts)
    return np.array([env.reset(seed=seed)[0] for seed in range(_N_STARTS)])


def held_voltage_data(n: int, volts: float, seed: int) -> Arrays:
    """
    Uniform voltages, each held for 2 to 19 steps, in episodes of 100 steps from about hanging or about upright.

    :param n: transitions
    :param volts: largest voltage
    :param seed: of the draws
    """
    env = gym.make(ENV_ID, max_episode_steps=EPISODE_STEPS, voltage_limit_volt=volts)
    return rollouts(env, "held", n_transitions=n, start=hanging_or_upright, seed=seed)


def hanging_or_upright(generator: np.random.Generator) -> tuple[float, float, float, float]:
    """
    :param generator: to draw from
    :return: x, θ, ẋ, θ̇ where an episode starts: half of them about hanging, half about upright
    """
    angle = math.pi if generator.random() < 0.5 else 0.0
    theta, x_dot, theta_dot = generator.normal(size=3) * (0.1, 0.1, 0.3)
    return generator.uniform(-0.2, 0.2), angle + theta, x_dot, theta_dot


def mean_upright_steps(model: Any, volts: float) -> float:
    """
    :param model: has ``predict``
    :param volts: largest voltage
    """
    return float(np.mean(upright_steps(model, volts)))


def starts_that_stay_up(model: Any, volts: float) -> Result:
    """
    :param model: has ``predict``
    :param volts: largest voltage
    :return: ``held``, the share of the starts that end upright for good
    """
    steps = upright_steps(model, volts)
    return {"upright_steps": steps, "held": float(np.mean([n >= UPRIGHT_STEPS for n in steps]))}
