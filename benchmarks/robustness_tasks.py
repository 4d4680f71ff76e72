"""Rows of the robustness yardstick: where the data of a seed comes from, how a policy trained on it is judged, and the bar."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs import grid, rollouts
from nopg_envs.demonstrations import demonstration_file
from robustness_evaluation import (
    BALANCE_STEPS,
    CAR_STEPS,
    balanced_steps,
    minus_steps_to_goal,
    pendulum_return,
)
from sb3_nopg.experiments.baselines.least_squares_riccati import Arrays, QuadraticCost
from sb3_nopg.experiments.cartpole_evaluation import UPRIGHT_STEPS, Policy, upright_steps
from sb3_nopg.experiments.swing_up_trials import hanging_starts, held_voltage_data

CART_POLE = "nopg/QuanserCartPoleBalance-v0"
SWING_UP = "nopg/QuanserCartPoleSwingUp-v1"
PENDULUM = "nopg/Pendulum-v0"
MOUNTAIN_CAR = "MountainCarContinuous-v0"
GRID_LEVELS = {200: (10, 10, 2), 450: (15, 15, 2), 800: (20, 20, 2), 3200: (40, 40, 2)}
GRADIENT_CASES = ("demonstrations", "trajectories", "unordered")
# Random episodes this long start anywhere, so that a thousand transitions know the top and the bottom.
RANDOM_EPISODE_STEPS = 50
REST_LIMIT_RAD = math.radians(3)
# sin θ for θ: near upright they are the same.
UPRIGHT_COST = QuadraticCost(columns=(0, 1, 3, 4), state_weights=(1.0, 100.0, 0.1, 0.1), action_weight=1e-3)


@dataclass(frozen=True)
class Bar:
    """
    What a row asks for; what is None is not asked.

    :param start: every start of every seed is above it
    :param worst: every seed's outcome is above it
    :param median: the median over seeds is above it
    :param mean: the mean over seeds is at least this
    :param full_of_ten: seeds of ten that do everything
    """

    start: float | None = None
    worst: float | None = None
    median: float | None = None
    mean: float | None = None
    full_of_ten: int | None = None

    def __str__(self) -> str:
        parts = {
            "every start above": self.start,
            "every seed above": self.worst,
            "median above": self.median,
            "mean at least": self.mean,
        }
        texts = [f"{name} {value:g}" for name, value in parts.items() if value is not None]
        return "; ".join(texts + ([] if self.full_of_ten is None else [f"{self.full_of_ten} of ten seeds in full"]))

    def met(self, outcomes: list[float], starts: list[float], n_full: int) -> bool:
        """
        :param outcomes: one a seed, −∞ for one that failed with an error
        :param starts: all numbers of all seeds, −∞ for those that failed
        :param n_full: seeds that do everything
        """
        return (
            (self.start is None or min(starts) > self.start)
            and (self.worst is None or min(outcomes) > self.worst)
            and (self.median is None or float(np.median(outcomes)) > self.median)
            and (self.mean is None or float(np.mean(outcomes)) >= self.mean)
            and (self.full_of_ten is None or n_full >= self.full_of_ten / 10 * len(outcomes))
        )


@dataclass(frozen=True)
class Row:
    """
    :param name: short, and the same for ever
    :param size: transitions, demonstrations or trajectories
    :param unit: of a start's number
    :param full: number of a start that cannot be better; None where there is none
    :param outcome: of a seed, from the numbers of its starts
    :param bar: what is asked for
    """

    name: str
    size: int
    unit: str
    full: float | None
    outcome: Callable[[list[float]], float]
    bar: Bar


@dataclass(frozen=True)
class Task(Row):
    """
    A policy is trained, and followed.

    :param env_id: environment to build the model with
    :param env_options: its keywords
    :param gamma: discount
    :param initial_states: where the task starts; None where the data's episodes tell
    :param collect: the data of a seed
    :param evaluate: what a policy gets, one number a start
    :param cost: for least squares and a Riccati equation, where these are of use
    """

    env_id: str
    gamma: float
    collect: Callable[[int], Arrays]
    evaluate: Callable[[Policy], list[float]]
    initial_states: Any = None
    env_options: dict[str, Any] = field(default_factory=dict)
    cost: QuadraticCost | None = None

    def make_env(self) -> gym.Env:
        return gym.make(self.env_id, **self.env_options)


@dataclass(frozen=True)
class GradientTask(Row):
    """
    A gradient is compared with the true one; nothing is trained.

    :param case: kind of data
    """

    case: str


def rows(human_demonstrations: Path | None = None) -> dict[str, Row]:
    """
    All rows of the yardstick by name.

    :param human_demonstrations: a file with demonstrations of the mountain car by a person, for three rows more
    """
    every: list[Row] = [_pendulum_random(n) for n in (500, 1000, 3000)]
    every += [_pendulum_grid(n) for n in GRID_LEVELS]
    every += [_operator(n, bar) for n, bar in ((200, 9), (500, 10), (1500, 10), (5000, 10))]
    every += [_rest(system, n, bar) for system in ("identified", "datasheet") for n, bar in ((5000, 8), (10_000, 10))]
    every += [_swing_up(volts, n, bar) for volts in (8, 5) for n, bar in ((5000, 7), (10_000, 9))]
    scripted = demonstration_file("mountain_car_scripted")
    for kind, file in (("scripted", scripted), ("human", human_demonstrations)):
        if file is not None:
            every += [_mountain_car(kind, file, n, median) for n, median in ((1, -100.0), (2, -80.0), (5, -75.0))]
    every += [GradientTask(f"lqr-{case}", 100, "cosine", None, min, Bar(mean=0.98), case=case) for case in GRADIENT_CASES]
    return {row.name: row for row in every}


def chosen_rows(prefixes: list[str] | None, human_demonstrations: Path | None = None) -> list[str]:
    """
    :param prefixes: of names; None for all rows
    :param human_demonstrations: as for :func:`rows`
    """
    names = list(rows(human_demonstrations))
    if prefixes is None:
        return names
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise ValueError(f"--rows: nothing begins with {prefix!r}; known are {', '.join(names)}")
    # A whole name means that row alone: pendulum-grid-3200 is not asked for by pendulum-grid-320.
    return [name for name in names if name in prefixes or any(name.startswith(p) for p in prefixes if p not in names)]


# --- Pendulum ------------------------------------------------------------------------------------------------------------


def _pendulum(name: str, n: int, collect: Callable[[int], Arrays], bar: Bar) -> Task:
    return Task(
        name,
        n,
        "return",
        None,
        min,
        bar,
        env_id=PENDULUM,
        gamma=0.97,
        initial_states=[[-1.0, 0.0, 0.0]],
        collect=collect,
        evaluate=pendulum_return,
    )


def _pendulum_random(n: int) -> Task:
    return _pendulum(f"pendulum-random-{n}", n, partial(random_pendulum, n), Bar(worst=-420.0, median=-375.0))


def _pendulum_grid(n: int) -> Task:
    return _pendulum(f"pendulum-grid-{n}", n, partial(pendulum_grid, n), Bar(worst=-420.0, median=-380.0))


def random_pendulum(n: int, seed: int) -> Arrays:
    """The random agent's transitions, episodes of 50 steps from anywhere."""
    env = gym.make("Pendulum-v1", max_episode_steps=RANDOM_EPISODE_STEPS)
    return rollouts(env, "gaussian_mixture", n_transitions=n, seed=seed)


def pendulum_grid(n: int, seed: int) -> Arrays:
    """A grid, which is the same for every seed: those draw the policy's first parameters only."""
    return grid(gym.make(PENDULUM), GRID_LEVELS[n])


# --- Cart-pole -----------------------------------------------------------------------------------------------------------


def _balance(name: str, n: int, full_of_ten: int, starts: str, parameters: str, limit_rad: float) -> Task:
    options = {"parameters": parameters, "theta_limit_rad": limit_rad}
    start = "operator" if starts == "operator" else "paper"
    return Task(
        name,
        n,
        "steps",
        BALANCE_STEPS,
        min,
        Bar(full_of_ten=full_of_ten),
        env_id=CART_POLE,
        env_options=options,
        gamma=0.99,
        collect=partial(random_cart_pole, n, start, options),
        evaluate=partial(balanced_steps, starts=starts, parameters=parameters),
        cost=UPRIGHT_COST,
    )


def _operator(n: int, full_of_ten: int) -> Task:
    return _balance(f"cart-pole-operator-{n}", n, full_of_ten, "operator", "identified", 0.2)


def _rest(parameters: str, n: int, full_of_ten: int) -> Task:
    return _balance(f"cart-pole-rest-{parameters}-{n}", n, full_of_ten, "rest", parameters, REST_LIMIT_RAD)


def random_cart_pole(n: int, start: str, options: dict[str, Any], seed: int) -> Arrays:
    """Uniform voltages until the pole falls, again and again."""
    return rollouts(gym.make(CART_POLE, **options), "uniform", n_transitions=n, start=start, seed=seed)


def _swing_up(volts: int, n: int, full_of_ten: int) -> Task:
    return Task(
        f"swing-up-{volts}v-{n}",
        n,
        "upright steps",
        UPRIGHT_STEPS,
        min,
        Bar(full_of_ten=full_of_ten),
        env_id=SWING_UP,
        env_options={"voltage_limit_volt": float(volts)},
        gamma=0.99,
        initial_states=hanging_starts(float(volts)),
        collect=partial(held_voltage_data, n, float(volts)),
        evaluate=partial(upright_steps, volts=float(volts)),
    )


# --- Mountain car --------------------------------------------------------------------------------------------------------


def _mountain_car(kind: str, file: Path, n: int, median: float) -> Task:
    return Task(
        f"mountain-car-{kind}-{n}",
        n,
        "return",
        None,
        _car_outcome,
        # A seed fails where a start does not lead to the flag.
        Bar(start=float(-CAR_STEPS), median=median),
        env_id=MOUNTAIN_CAR,
        gamma=0.99,
        initial_states=[[position, 0.0] for position in np.linspace(-0.6, -0.4, 11)],
        collect=partial(demonstrations, file, n),
        evaluate=minus_steps_to_goal,
    )


def _car_outcome(returns: list[float]) -> float:
    return float(np.mean(returns))


def demonstrations(file: Path, n: int, seed: int) -> Arrays:
    """Some of the recorded episodes, drawn by the seed, with a reward of −1 a step."""
    with np.load(file) as content:
        columns = ("observations", "actions", "next_observations", "terminals", "episode_ids")
        arrays = {name: content[name] for name in columns}
    # Hands press a little harder than the car can drive.
    arrays["actions"] = np.clip(arrays["actions"], -1.0, 1.0)
    episodes = np.random.default_rng(seed).permutation(np.unique(arrays["episode_ids"]))[:n]
    chosen = np.isin(arrays["episode_ids"], episodes)
    return {**{name: array[chosen] for name, array in arrays.items()}, "rewards": np.full(chosen.sum(), -1.0)}
