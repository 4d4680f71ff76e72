"""The paper's first experiment: from a grid of 800 transitions to a swing-up."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy

import nopg_envs
from sb3_nopg import NOPG, TransitionDataset

HANGING = np.array([-1.0, 0.0, 0.0])


@pytest.fixture(scope="module")
def grid_800() -> TransitionDataset:
    return TransitionDataset(**nopg_envs.grid(gym.make("nopg/Pendulum-v0"), (20, 20, 2)))


def returns_of(data: TransitionDataset, variant: str, seeds: range, n_updates: int) -> list[float]:
    returns = []
    for seed in seeds:
        env = gym.make("nopg/Pendulum-v0")
        model = NOPG(
            "MlpPolicy",
            env,
            gamma=0.97,
            dataset=data,
            initial_states=HANGING,
            variant=variant,
            seed=seed,
            device="cpu",
        ).learn(n_updates)
        # 500 steps from hanging; nothing in it is random, so one episode says all.
        returns.append(float(evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)[0]))
    return returns


def test_five_seeds_swing_up_from_the_grid_of_800(grid_800):
    returns = returns_of(grid_800, "D", range(5), n_updates=100)
    assert np.median(returns) > -600, returns  # the paper: -579 ± 2


def test_stochastic_policy_swings_up_too(grid_800):
    returns = returns_of(grid_800, "S", range(3), n_updates=60)
    assert np.median(returns) > -700, returns
