"""Tasks of the robustness yardstick: where the data of a seed comes from, and how a policy trained on it really does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from nopg_envs import grid, rollouts
from nopg_envs.cartpole import CartPoleVectorEnv
from nopg_envs.demonstrations import demonstration_file, names

CART_POLE = "nopg/QuanserCartPoleBalance-v0"
PENDULUM = "nopg/Pendulum-v0"
MOUNTAIN_CAR = "MountainCarContinuous-v0"
GRID_LEVELS = {200: (10, 10, 2), 450: (15, 15, 2), 800: (20, 20, 2), 3200: (40, 40, 2)}
HANGING = (-1.0, 0.0, 0.0)
N_EVALUATIONS, BALANCE_STEPS, SWING_UP_STEPS = 10, 10_000, 500
N_CAR_STARTS, CAR_STEPS = 100, 500
# Random episodes this long start anywhere, so that a thousand transitions know the top and the bottom.
RANDOM_EPISODE_STEPS = 50
# Seeds of held-out data and of evaluation starts, far from those of training data.
HELD_OUT_SEED, EVALUATION_SEED = 100_000, 200_000

Arrays = dict[str, np.ndarray]


class Policy(Protocol):
    def predict(self, observation: Any, *, deterministic: bool) -> tuple[np.ndarray, Any]: ...


@dataclass(frozen=True)
class Task:
    """
    :param name: of the row
    :param size: transitions, or demonstrations
    :param env_id: environment to build the model with
    :param gamma: discount
    :param initial_states: where the task starts; None where the data's episodes tell
    :param collect: the data of a seed
    :param evaluate: what a policy gets, one number a start, by name of the kind of start
    """

    name: str
    size: int
    env_id: str
    gamma: float
    initial_states: np.ndarray | None
    collect: Callable[[int], Arrays]
    evaluate: Callable[[Policy], dict[str, list[float]]]


def tasks() -> list[Task]:
    """All rows of the yardstick."""
    rows = [_balance("operator", n) for n in (1500, 5000)] + [_balance("paper", 1500)]
    rows += [_pendulum("pendulum grid", n, lambda seed, n=n: _grid(n, seed)) for n in GRID_LEVELS]
    rows += [_pendulum("pendulum random", n, lambda seed, n=n: _random_pendulum(n, seed)) for n in (1000, 3000)]
    return rows + [_mountain_car(n) for n in (1, 2, 5)]


def _balance(start: str, n: int) -> Task:
    def collect(seed: int) -> Arrays:
        return rollouts(gym.make(CART_POLE), "uniform", n_transitions=n, start=start, seed=seed)

    return Task(f"cart-pole, {start}'s starts", n, CART_POLE, 0.99, None, collect, _balanced_steps)


def _balanced_steps(policy: Policy) -> dict[str, list[float]]:
    """Steps that the pole stays up, from the paper's starts and from the operator's."""
    steps = {}
    for start in ("paper", "operator"):
        env = CartPoleVectorEnv(num_envs=N_EVALUATIONS, max_episode_steps=BALANCE_STEPS + 1, start=start)
        observations, _ = env.reset(seed=EVALUATION_SEED)
        alive, survived = np.ones(N_EVALUATIONS, dtype=bool), np.zeros(N_EVALUATIONS)
        for _ in range(BALANCE_STEPS):
            actions, _ = policy.predict(observations, deterministic=True)
            observations, _, terminated, _, _ = env.step(actions)
            alive &= ~terminated
            survived += alive
            if not alive.any():
                break
        steps[start] = survived.tolist()
    return steps


def _pendulum(name: str, n: int, collect: Callable[[int], Arrays]) -> Task:
    return Task(name, n, PENDULUM, 0.97, np.array([HANGING]), collect, _swing_up_return)


def _grid(n: int, seed: int) -> Arrays:
    env = gym.make(PENDULUM)
    if seed < HELD_OUT_SEED:
        # The grid is the same for every seed, which draws the policy's first parameters only.
        return grid(env, GRID_LEVELS[n])
    # Checked where the grid has no points.
    rng, space = np.random.default_rng(seed), env.unwrapped.state_space  # type: ignore[attr-defined]
    rows = []
    for _ in range(n):
        before, _ = env.reset(options={"state": rng.uniform(space.low, space.high)})
        before, action = np.array(before), rng.uniform(env.action_space.low, env.action_space.high)  # type: ignore[attr-defined]
        after, reward, terminated, _, _ = env.step(action)
        rows.append((before, action, reward, after, terminated))
    columns = ("observations", "actions", "rewards", "next_observations", "terminals")
    return {column: np.array(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)}


def _random_pendulum(n: int, seed: int) -> Arrays:
    env = gym.make("Pendulum-v1", max_episode_steps=RANDOM_EPISODE_STEPS)
    return rollouts(env, "gaussian_mixture", n_transitions=n, seed=seed)


def _swing_up_return(policy: Policy) -> dict[str, list[float]]:
    env = gym.make(PENDULUM, max_episode_steps=SWING_UP_STEPS)
    return {"hanging": [_episode_return(env, policy, EVALUATION_SEED)]}


def _mountain_car(n_demonstrations: int) -> Task:
    def collect(seed: int) -> Arrays:
        with np.load(demonstration_file(names()[0])) as file:
            columns = ("observations", "actions", "next_observations", "terminals", "episode_ids")
            arrays = {name: file[name] for name in columns}
        episodes = np.random.default_rng(seed).permutation(np.unique(arrays["episode_ids"]))[:n_demonstrations]
        chosen = np.isin(arrays["episode_ids"], episodes)
        return {**{name: array[chosen] for name, array in arrays.items()}, "rewards": np.full(chosen.sum(), -1.0)}

    starts = np.stack([np.linspace(-0.6, -0.4, 11), np.zeros(11)], axis=1)
    return Task("mountain car", n_demonstrations, MOUNTAIN_CAR, 0.99, starts, collect, _steps_to_goal)


def _steps_to_goal(policy: Policy) -> dict[str, list[float]]:
    env = gym.make(MOUNTAIN_CAR, max_episode_steps=CAR_STEPS)
    env = gym.wrappers.TransformReward(env, lambda _: -1.0)
    return {"valley": [_episode_return(env, policy, EVALUATION_SEED + start) for start in range(N_CAR_STARTS)]}


def _episode_return(env: gym.Env, policy: Policy, seed: int) -> float:
    observation, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        action, _ = policy.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    return total
