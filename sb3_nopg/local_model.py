"""A local-linear model of a system's transitions: s' − s and the reward regressed on (s, a), termination by vote."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch as th
from gymnasium import spaces
from scipy.spatial import KDTree

from sb3_nopg.arrays import flags, real_array
from sb3_nopg.datafiles.transform import RewardFunction
from sb3_nopg.errors import InputError
from sb3_nopg.state_surface import StateSurface

#: true where the task has ended with a state, (n, d_s) -> (n,)
TerminationFunction = Callable[[np.ndarray], np.ndarray]

# Neighbours' coordinates held at one time: 64 MB in float64.
_BLOCK_NUMBERS = 2**23
# Real next states that vote on whether the task has ended: few, because ends are few and lie along an edge.
_N_VOTERS = 3


@dataclass(frozen=True)
class Settings:
    """
    :param bandwidth: of the Gaussian weights, in standard deviations of each dimension of (s, a)
    :param ridge: added to the second moments of the weighted neighbours, in units of the bandwidth squared
    :param n_neighbors: real transitions that each regression looks at
    :param terminates: None for a vote
    :param reward: None for a regression
    """

    bandwidth: float
    ridge: float
    n_neighbors: int
    terminates: TerminationFunction | None
    reward: RewardFunction | None


@dataclass(frozen=True)
class Transitions:
    """
    Arrays of a data set in float64, without its checks, so that parts of it can be left out.

    :param states: (n, d_s)
    :param actions: (n, d_a)
    :param rewards: (n,)
    :param next_states: (n, d_s)
    :param terminals: (n,)
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray

    def __len__(self) -> int:
        return len(self.states)

    def rows(self, rows: np.ndarray) -> "Transitions":
        return Transitions(
            self.states[rows], self.actions[rows], self.rewards[rows], self.next_states[rows], self.terminals[rows]
        )


class LocalModel:
    """
    :param real: transitions to learn from
    :param settings: of the regression
    :param observation_space: that next states are kept in, if real ones are: where a state saturates, a plane goes on
    """

    def __init__(self, real: Transitions, settings: Settings, observation_space: spaces.Box | None = None):
        self.settings = settings
        low, high = (-np.inf, np.inf) if observation_space is None else (observation_space.low, observation_space.high)
        self._lowest = np.minimum(low, real.next_states.min(axis=0))
        self._highest = np.maximum(high, real.next_states.max(axis=0))
        self.surface = StateSurface(np.concatenate([real.states, real.next_states]))
        inputs = np.concatenate([real.states, real.actions], axis=1)
        self._input_scale = _scale(inputs)
        self._inputs = inputs / self._input_scale
        self._targets = np.concatenate([real.next_states - real.states, real.rewards[:, None]], axis=1)
        self._reward_range = real.rewards.min(), real.rewards.max()
        # Large leaves, because many neighbours are asked for.
        self._tree = KDTree(self._inputs, leafsize=64)
        self._next_state_scale = _scale(real.next_states)
        self._next_state_tree = KDTree(real.next_states / self._next_state_scale)
        self._terminals = real.terminals
        # As many as a plane needs to be more than determined.
        self._n_needed = min(2 * (inputs.shape[1] + 1), len(inputs) - 1)

    def spacing_of_real(self, quantile: float) -> float:
        """How far from a real transition the neighbours that its regression needs reach, at most in this share of all."""
        distances = self._tree.query(self._inputs, k=[self._n_needed + 1])[0]
        return float(np.quantile(distances, quantile))

    def ended(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d_s)
        :return: whether the task has ended there, (m,)
        """
        if self.settings.terminates is not None:
            return ended_by(self.settings.terminates, states)
        if not self._terminals.any():
            return np.zeros(len(states), dtype=bool)
        n_voters = min(_N_VOTERS, len(self._terminals))
        voters = self._next_state_tree.query(states / self._next_state_scale, k=np.arange(1, n_voters + 1))[1]
        return self._terminals[voters].mean(axis=1) > 0.5

    def predict(self, states: np.ndarray, actions: np.ndarray) -> tuple[Transitions, np.ndarray]:
        """
        :param states: (m, d_s)
        :param actions: (m, d_a)
        :return: what follows, and how far off the real transitions that the regression needs are, (m,)
        """
        queries = np.concatenate([states, actions], axis=1) / self._input_scale
        n_neighbors = min(self.settings.n_neighbors, len(self._inputs))
        n_rows = max(1, _BLOCK_NUMBERS // (n_neighbors * (queries.shape[1] + self._targets.shape[1])))
        blocks = [self._regress(queries[row : row + n_rows], n_neighbors) for row in range(0, len(queries), n_rows)]
        predicted, spacing = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        next_states = np.clip(self.surface.project(states + predicted[:, :-1]), self._lowest, self._highest)
        if self.settings.reward is None:
            rewards = np.clip(predicted[:, -1], *self._reward_range)
        else:
            rewards = real_array("reward", self.settings.reward(states, actions, next_states), ndim=1)
            _check_count("reward", rewards, len(states))
        return Transitions(states, actions, rewards, next_states, self.ended(next_states)), spacing

    def _regress(self, queries: np.ndarray, n_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Weighted least squares around each query z: with weights w, ȳ = E_w[y] and δ = (z_j − E_w[z]) / h,

            ŷ = ȳ + (z − E_w[z])ᵀ/h · (E_w[δδᵀ] + λI)⁻¹ E_w[δ y]
        """
        distances, rows = map(np.asarray, self._tree.query(queries, k=np.arange(1, n_neighbors + 1)))
        # Relative to the nearest, whose weight is then one: far from all of them nothing underflows to 0/0.
        squared = th.from_numpy(distances).square() / self.settings.bandwidth**2
        weights = th.softmax(-0.5 * squared, dim=1)[:, None, :]
        inputs, targets = th.from_numpy(self._inputs[rows]), th.from_numpy(self._targets[rows])
        mean = weights @ inputs
        inputs.sub_(mean).div_(self.settings.bandwidth)
        weighted = inputs.mT * weights
        moments = weighted @ inputs
        moments.diagonal(dim1=1, dim2=2).add_(self.settings.ridge)
        slopes = th.linalg.solve(moments, weighted @ targets)
        offsets = (th.from_numpy(queries)[:, None, :] - mean) / self.settings.bandwidth
        predicted = weights @ targets + offsets @ slopes
        return predicted[:, 0].numpy(), distances[:, min(self._n_needed, n_neighbors) - 1]


def _scale(columns: np.ndarray) -> np.ndarray:
    """Standard deviations; a column that never changes is infinitely far from mattering."""
    spread = columns.std(axis=0)
    return np.where(spread > 0, spread, np.inf)


def ended_by(terminates: TerminationFunction, states: np.ndarray) -> np.ndarray:
    """
    :param terminates: a user's function
    :param states: (m, d_s)
    :return: what it says of them, checked, (m,)
    """
    ended = flags("terminates", terminates(states))
    _check_count("terminates", ended, len(states))
    return ended


def _check_count(name: str, value: np.ndarray, n: int) -> None:
    if len(value) != n:
        raise InputError(name, f"gave {len(value)} value(s) for {n} transitions", "Return one for each row")
