"""Ask an environment for transitions and get plain arrays back, as ``TransitionDataset(**arrays)`` takes them."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def grid(env: gym.Env, levels: Sequence[int]) -> dict[str, np.ndarray]:
    """
    One transition from every point of a grid over states and actions, from one end of each range to the other; a single level
    is the middle.

    The environment must start anywhere (``reset(options={"state": ...})``) and know its ``state_space``.

    :param env: environment to query
    :param levels: number of levels for each state dimension, then for each action dimension
    :return: arrays by name; unordered one-step samples, so there are no episodes
    """
    state_space = getattr(env.unwrapped, "state_space", None)
    if not isinstance(state_space, spaces.Box) or not isinstance(env.action_space, spaces.Box):
        raise ValueError("grid() needs an environment with a Box `state_space` and a Box `action_space`")
    low = np.concatenate([state_space.low, env.action_space.low]).astype(np.float64)
    high = np.concatenate([state_space.high, env.action_space.high]).astype(np.float64)
    if len(levels) != len(low) or not all(isinstance(n, int | np.integer) and n > 0 for n in levels):
        raise ValueError(f"levels must be {len(low)} positive counts, states then actions; got {tuple(levels)}")

    axes = [np.linspace(lo, hi, n) if n > 1 else [(lo + hi) / 2] for lo, hi, n in zip(low, high, levels, strict=True)]
    columns: dict[str, list[Any]] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations", "terminals")
    }
    for point in product(*axes):
        state, action = np.array(point[: len(state_space.low)]), np.array(point[len(state_space.low) :])
        observation, _ = env.reset(options={"state": state})
        next_observation, reward, terminated, _, _ = env.step(action)
        for name, value in zip(columns, (observation, action, reward, next_observation, terminated), strict=True):
            columns[name].append(value)
    return {name: np.array(values) for name, values in columns.items()}
