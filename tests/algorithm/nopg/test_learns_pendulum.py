"""The paper's first experiment: from a grid of transitions to a swing-up."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy

import nopg_envs
from sb3_nopg import NOPG, NOPGD, NOPGS, TransitionDataset
from sb3_nopg.paper import AS_IN_THE_PAPER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whole_sizes")]

HANGING = np.array([-1.0, 0.0, 0.0])


def grid(*counts: int) -> TransitionDataset:
    return TransitionDataset(**nopg_envs.grid(gym.make("nopg/Pendulum-v0"), counts))


def return_of(algorithm: type[NOPG], data: TransitionDataset, n_updates: int, **settings: Any) -> float:
    env = gym.make("nopg/Pendulum-v0")
    given = {"gamma": 0.97, "initial_states": HANGING, "seed": 0, "device": "cpu"}
    model = algorithm("MlpPolicy", env, dataset=data, **{**given, **settings})
    model.learn(n_updates)
    assert model.num_timesteps == n_updates
    # 500 steps from hanging; nothing in it is random, so one episode says all.
    return float(evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)[0])


# With fewer updates than one gets without asking; benchmarks/robustness.py makes them all.
def test_defaults_swing_up_from_the_grid_of_450():
    assert return_of(NOPGD, grid(15, 15, 2), 12) > -420.0


def test_a_stochastic_policy_swings_up_on_a_coarse_model():
    assert return_of(NOPGS, grid(15, 15, 2), 12, model_kwargs={"n_nodes": 1500}) > -500.0


def test_the_paper_s_estimator_swings_up_from_the_grid_of_800():
    assert return_of(NOPGD, grid(20, 20, 2), 100, **AS_IN_THE_PAPER) > -600.0  # the paper: -579 ± 2
