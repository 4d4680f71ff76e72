"""A point that drifts: environments, data and small models for the tests of what NOPG shares with Stable-Baselines3."""

import csv
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import (
    BaseCallback,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn

from sb3_nopg import NOPG, NOPGD, NOPGS, TransitionDataset
from sb3_nopg.bellman.settings import grouped
from sb3_nopg.paper import AS_IN_THE_PAPER

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
        # The system is affine, which a model finds out by itself in other tests.
        model_kwargs={"n_nodes": 40, "bandwidth": np.inf, "n_earlier_steps": 0},
    )
    return algorithm(policy, env, **grouped({**arguments, **settings}))


def parameters_of(model: NOPG) -> np.ndarray:
    """All parameters, flat; a copy."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()


def make_vec_env(n_envs: int = 4, env_class: type[gym.Env] = DriftEnv) -> VecEnv:
    return DummyVecEnv([lambda: Monitor(env_class())] * n_envs)


environments = pytest.mark.parametrize(
    ("transitions", "env"),
    [("samples", None), ("samples", DriftEnv), ("samples", make_vec_env), ("model", make_vec_env)],
)


class Recorder(BaseCallback):
    """Calls a function after every update and keeps what it returns."""

    def __init__(self, look: Callable[[BaseCallback], Any]):
        super().__init__()
        self.look, self.seen = look, []

    def _on_step(self) -> bool:
        self.seen.append(self.look(self))
        return True


def learn_with_log(model: NOPG, folder: pathlib.Path, *args: Any, **kwargs: Any) -> list[dict[str, str]]:
    """Rows of the csv file that SB3's logger writes during ``learn``."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(*args, **kwargs)
    model.logger.close()
    with open(folder / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


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
