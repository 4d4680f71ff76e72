"""
What a step earns: exactly, where a user gives the formula; by a quadratic function of state and action, where that predicts
left-out data best; otherwise by the local affine model at the nodes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.files.expression import evaluate
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.dynamics.affine import Samples, spread_of
from sb3_nopg.dynamics.coordinates import Coordinates

#: of states (m, d_s), actions (m, d_a) and next states (m, d_s), one number a row; NumPy arrays or torch tensors
RewardFunction = Callable[[Any, Any, Any], Any]
# Of a quadratic form's coefficients, with standardised inputs.
_RIDGE = 1e-8
# How often the best angle of a quadratic reward is looked for again.
_RECENTRED = 5
# Step of central differences, as a share of a column's spread.
_STEP = 1e-5


@dataclass(frozen=True)
class StepReward:
    """
    Rewards of m steps, with their slopes.

    :param value: r, (m,)
    :param of_state: ∂r/∂x, (m, d)
    :param of_action: ∂r/∂a, (m, d_a)
    :param of_next_state: ∂r/∂x', (m, d)
    """

    value: th.Tensor
    of_state: th.Tensor
    of_action: th.Tensor
    of_next_state: th.Tensor


class RewardModel(Protocol):
    """A reward that needs no nodes."""

    def __call__(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> th.Tensor: ...
    def with_slopes(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> StepReward: ...
    def to(self, device: th.device) -> "RewardModel": ...


@dataclass(frozen=True)
class QuadraticReward:
    """
    r̂ = vᵀ M v with v = (1, x, a), all standardised, within the range of the rewards that were seen unless it is exact.

    A task that wants a pole upright may punish the square of its angle from there, at most half a turn: angles that cover much
    of the circle are measured from where the reward is best.

    :param mean: of (x, a), of such angles where the reward is best, (d + d_a,)
    :param turns: 1/2π for such angles and nothing for all else, (d + d_a,)
    :param scale: of (x, a), (d + d_a,)
    :param matrix: M, symmetric, (1 + d + d_a, 1 + d + d_a)
    :param low: smallest reward of the data, or −∞
    :param high: largest, or ∞
    """

    mean: th.Tensor
    turns: th.Tensor
    scale: th.Tensor
    matrix: th.Tensor
    low: float
    high: float

    @classmethod
    def fit(cls, samples: Samples, n_actions: int, *, exact: bool = False) -> "QuadraticReward":
        """
        :param samples: with the reward as their only target, and the action as their first inputs
        :param n_actions: d_a
        :param exact: whether the reward is known to be quadratic, beyond the data too
        """
        points, coordinates = th.cat([samples.states, samples.inputs[:, :n_actions]], dim=1), samples.coordinates
        rewards = samples.targets[:, 0]
        low, high = float(rewards.min()), float(rewards.max())
        if exact and low < high:
            low, high = -math.inf, math.inf
        turns, bent = points.new_zeros(points.shape[1]), coordinates.bent.nonzero()[:, 0]
        turns[bent] = coordinates.turns[bent]
        mean = points.mean(dim=0)
        mean[bent] = points[rewards.argmax(), bent]
        scale, matrix = _quadratic_fit(_wrapped(points - mean, turns), rewards)
        for _ in range(_RECENTRED if len(bent) else 0):
            # Towards the best angle of the fitted parabola, all else as it is on average.
            best = -matrix[0, 1 + bent] / matrix.diagonal()[1 + bent].clamp_max(-1e-12)
            mean[bent] += (best * scale[bent]).clamp(-math.pi / 2, math.pi / 2)
            scale, matrix = _quadratic_fit(_wrapped(points - mean, turns), rewards)
        return cls(mean, turns, scale, matrix, low, high)

    def of_plain_inputs(self) -> np.ndarray:
        """N of r̂ = uᵀ N u with u = (1, x, a) as they are, where no angle turns, (1 + d + d_a, 1 + d + d_a)."""
        mean, scale = self.mean.cpu().numpy(), self.scale.cpu().numpy()
        standardise = np.diag(np.concatenate([[1.0], 1.0 / scale]))
        standardise[1:, 0] = -mean / scale
        return np.asarray(standardise.T @ self.matrix.cpu().numpy() @ standardise)

    def to(self, device: th.device) -> "QuadraticReward":
        tensors: dict[str, Any] = {name: getattr(self, name).to(device) for name in ("mean", "turns", "scale", "matrix")}
        return replace(self, **tensors)

    def _vectors(self, states: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return _with_one(_wrapped(th.cat([states, actions], dim=1) - self.mean, self.turns) / self.scale)

    def __call__(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> th.Tensor:
        vectors = self._vectors(states, actions)
        return ((vectors @ self.matrix) * vectors).sum(dim=1).clamp(self.low, self.high)

    def with_slopes(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> StepReward:
        vectors = self._vectors(states, actions)
        half = vectors @ self.matrix
        value = (half * vectors).sum(dim=1)
        within = ((value >= self.low) & (value <= self.high))[:, None]
        slopes = th.where(within, 2.0 * half[:, 1:] / self.scale, th.zeros_like(half[:, 1:]))
        d = states.shape[1]
        return StepReward(value.clamp(self.low, self.high), slopes[:, :d], slopes[:, d:], th.zeros_like(states))


def _quadratic_fit(points: th.Tensor, rewards: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Scale of the points, and M, symmetric."""
    scale = spread_of(points)
    vectors = _with_one(points / scale)
    n = vectors.shape[1]
    i, j = th.triu_indices(n, n)
    features = vectors[:, i] * vectors[:, j]
    moment = features.T @ features / len(features)
    ridge = _RIDGE * th.eye(len(moment), dtype=moment.dtype)
    matrix = vectors.new_zeros(n, n)
    matrix[i, j] = th.linalg.solve(moment + ridge, features.T @ rewards / len(features))
    return scale, (matrix + matrix.T) / 2.0


def _wrapped(way: th.Tensor, turns: th.Tensor) -> th.Tensor:
    return way - 2.0 * math.pi * th.round(way * turns)


@dataclass(frozen=True)
class GivenReward:
    """
    A user's own formula, used as it is.

    :param coordinates: of the states
    :param function: of states, actions and next states, in the data's units
    :param steps: of central differences where the function takes no tensors, in state, action and next state, (2 d_s + d_a,)
    """

    coordinates: Coordinates
    function: RewardFunction
    steps: np.ndarray

    def to(self, device: th.device) -> "GivenReward":
        return replace(self, coordinates=self.coordinates.to(device))

    def __call__(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> th.Tensor:
        parts = self.coordinates.decode(states), actions, self.coordinates.decode(next_states)
        return th.as_tensor(_predicted(self.function, *(part.cpu().numpy() for part in parts))).to(states)

    def with_slopes(self, states: th.Tensor, actions: th.Tensor, next_states: th.Tensor) -> StepReward:
        """By central differences: a formula may be anything."""
        parts = [self.coordinates.decode(states), actions, self.coordinates.decode(next_states)]
        widths = [part.shape[1] for part in parts]
        point = th.cat(parts, dim=1).cpu().numpy()
        n, n_columns = point.shape
        moved = np.repeat(point[None], 2 * n_columns, axis=0)
        for column, step in enumerate(self.steps):
            moved[2 * column, :, column] += step
            moved[2 * column + 1, :, column] -= step
        value = _predicted(self.function, *np.split(point, np.cumsum(widths)[:-1], axis=1))
        moved_values = _call(self.function, *np.split(moved.reshape(-1, n_columns), np.cumsum(widths)[:-1], axis=1))
        slopes = th.as_tensor(_slopes(value, moved_values.reshape(-1, 2, n), self.steps)).T.to(states)
        of_state, of_action, of_next = slopes.split(widths, dim=1)
        pull_back = self.coordinates.pull_back
        return StepReward(
            th.as_tensor(value).to(states), pull_back(states, of_state), of_action, pull_back(next_states, of_next)
        )


def _slopes(value: np.ndarray, moved: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """
    Central differences; at the edge of where a formula has a value, differences to the side where it has one.

    :param value: at the points, (n,)
    :param moved: a step above and a step below in each column, (c, 2, n)
    :param steps: (c,)
    :return: (c, n)
    """
    has_value = np.isfinite(moved)
    above, below = np.where(has_value, moved, value).swapaxes(0, 1)
    return (above - below) / (np.maximum(has_value.sum(axis=1), 1) * steps[:, None])


def given_reward(
    reward: str | RewardFunction,
    coordinates: Coordinates,
    observations: np.ndarray,
    actions: np.ndarray,
    quantities: Quantities | None = None,
) -> GivenReward:
    """
    :param reward: an expression over ``s``, ``a`` and ``s2`` like ``"cos(s2[1]) - 0.1 * a[0]**2"``, or a function
    :param coordinates: of the states
    :param observations: of the data, (n, d_s)
    :param actions: of the data, (n, d_a)
    :param quantities: names of the columns, which the expression may use
    """
    spread = np.concatenate([np.ptp(observations, axis=0), np.ptp(actions, axis=0), np.ptp(observations, axis=0)])
    steps = _STEP * np.where(spread > 0, spread, 1.0)
    return GivenReward(coordinates, reward_function(reward, quantities), steps.astype(np.float64))


def reward_function(reward: str | RewardFunction, quantities: Quantities | None = None) -> RewardFunction:
    """
    :param reward: an expression, or a function
    :param quantities: names of the columns, which an expression may use, with ``next_`` before them for the next state's
    :return: a function
    """
    if not isinstance(reward, str):
        if not callable(reward):
            raise InputError("reward", f"{reward!r} is neither text nor a function", "Give a formula over s, a and s2")
        return reward
    text = reward

    def function(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
        named: dict[str, np.ndarray] = {}
        if quantities is not None:
            named = quantities.variables(observations=states, actions=actions, next_observations=next_states)
        return evaluate(text, {**named, "s": states, "a": actions, "s2": next_states}, len(states))

    return function


def rewards_of(reward: str | RewardFunction, dataset: TransitionDataset) -> np.ndarray:
    """
    :param reward: an expression, which may use the names of the data's columns, or a function
    :param dataset: recorded transitions
    :return: what it says of them, (n,)
    """
    parts = (dataset.observations, dataset.actions, dataset.next_observations)
    return recorded_rewards(reward_function(reward, dataset.quantities), *parts)


def recorded_rewards(
    reward: str | RewardFunction, states: np.ndarray, actions: np.ndarray, next_states: np.ndarray
) -> np.ndarray:
    """
    :return: what the formula says of recorded transitions, (n,)
    :raises InputError: where it says nothing for some row
    """
    columns = (np.asarray(part, dtype=np.float64) for part in (states, actions, next_states))
    values = _call(reward_function(reward), *columns)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(
            "reward",
            f"it is {values[wrong[0]]} in row {wrong[0]} of the data, and in {len(wrong)} rows",
            "Fix the formula there",
        )
    return values


def _predicted(function: RewardFunction, states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    """The same of steps that nobody recorded: policies go beyond the data."""
    values = _call(function, states, actions, next_states)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        row = wrong[0]
        s, a, s2 = (part[row].tolist() for part in (states, actions, next_states))
        raise InputError(
            "reward",
            f"it is {values[row]} at s = {s}, a = {a}, s2 = {s2}, where a predicted trajectory goes",
            "Make the formula finite beyond the data too",
        )
    return values


def _call(function: RewardFunction, states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    try:
        values = np.asarray(function(states, actions, next_states), dtype=np.float64)
    except InputError:
        raise
    except Exception as error:
        raise InputError("reward", f"the function fails ({error!r})", "It gets arrays (n, d) and returns (n,)") from error
    if values.shape == (len(states), 1):
        values = values[:, 0]
    if values.shape != (len(states),):
        raise InputError("reward", f"{values.shape} for {len(states)} rows", "Return one number a row")
    return values


def _with_one(points: th.Tensor) -> th.Tensor:
    return th.cat([points.new_ones(len(points), 1), points], dim=1)
