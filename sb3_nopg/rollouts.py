"""
Where a policy will take the system, step by step, by a regression on what was recorded.

The kernel estimate knows how often a policy is where, and what that is worth, but each of its transitions scatters a state by
about a bandwidth. A slow drift, millimetres a step where bandwidths are centimetres, drowns in that: the estimate cannot tell
a policy that stays from one that creeps to the end of the rail. A local-linear regression of s' − s on state, action and the
actions before it has no such scatter. Followed from one predicted state to the next it makes a trajectory, until the task
ends or the trajectory leaves what the data know about.

It predicts the mean: noise is left out, and so is what happens between samples. Whether the task has ended is voted on by the
nearest recorded states, so that one who creeps across an edge that was only ever crossed fast may seem not to have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sb3_nopg.action_lag import find_action_lag, rows_with_a_past
from sb3_nopg.datafiles.transform import episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.local_model import LocalModel, Settings, Transitions
from sb3_nopg.threads import threads_for

#: states (m, d_s) to actions (m, d_a)
Actor = Callable[[np.ndarray], np.ndarray]

# Tried by cross-validation, in standard deviations of each input.
_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0)
_RIDGE, _N_NEIGHBORS = 1e-4, 200
_N_FOLDS, _MOST_JUDGED = 5, 2000
# The widest that errs by no more than this factor above the least: over many steps, what one step's noise moved adds up, and
# more samples average it out.
_NEARLY_AS_GOOD = 1.5
# As many earlier actions as bring the error within this factor of the least.
_GOOD_ENOUGH = 1.1
# Beyond the recorded range by more than this share of it, nothing is known.
_MARGIN = 0.1


@dataclass(frozen=True)
class Rollouts:
    """
    Predicted trajectories of m starts over up to T steps. What follows a trajectory's end is NaN.

    :param states: (T + 1, m, d_s)
    :param actions: (T, m, d_a)
    :param rewards: (T, m)
    :param n_steps: that each was followed, (m,)
    :param ended: whether the task ended there, (m,)
    :param left_by: dimension of the state by which it left the recorded range, -1 if it did not, (m,)
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    n_steps: np.ndarray
    ended: np.ndarray
    left_by: np.ndarray

    @property
    def last_states(self) -> np.ndarray:
        """Where each ends, (m, d_s)."""
        return self.states[self.n_steps, np.arange(len(self.n_steps))]

    @property
    def lasting(self) -> np.ndarray:
        """Which of them went on to the last step, (m,)."""
        return ~self.ended & (self.left_by < 0)

    def columns(self, chosen: slice) -> "Rollouts":
        """
        :param chosen: trajectories to look at
        """
        return Rollouts(
            self.states[:, chosen],
            self.actions[:, chosen],
            self.rewards[:, chosen],
            self.n_steps[chosen],
            self.ended[chosen],
            self.left_by[chosen],
        )

    def total_rewards(self, unknown_reward: float, reward_after_end: float = 0.0) -> np.ndarray:
        """
        Undiscounted, over all T steps.

        :param unknown_reward: of each step after a trajectory has left the recorded range
        :param reward_after_end: of each step after the task has ended
        :return: (m,)
        """
        afterwards = np.where(self.ended, reward_after_end, np.where(self.left_by >= 0, unknown_reward, 0.0))
        return np.nansum(self.rewards, axis=0) + (len(self.rewards) - self.n_steps) * afterwards


class TrajectoryModel:
    """
    :param dataset: single transitions
    :param like: a model whose choices to take over; None to make them by this data
    :raises InputError: where there are too few transitions, or nothing changes
    """

    def __init__(self, dataset: TransitionDataset, like: "TrajectoryModel | None" = None):
        self.n_earlier_actions: int = _n_earlier_actions(dataset) if like is None else like.n_earlier_actions
        labels = episode_labels(dataset)
        rows = np.arange(len(dataset))
        if self.n_earlier_actions:
            assert labels is not None
            rows = rows_with_a_past(dataset, labels, self.n_earlier_actions)
        n_inputs = dataset.observation_dim + dataset.action_dim * (1 + self.n_earlier_actions)
        if len(rows) <= 2 * (n_inputs + 1) + _N_FOLDS:
            raise InputError("dataset", f"{len(rows)} transitions for {n_inputs} inputs", "Trajectories need more of them")
        actions = dataset.actions.astype(np.float64)
        # The last action first, then the one before it, …
        past = np.concatenate([actions[rows - steps_ago] for steps_ago in range(self.n_earlier_actions + 1)], axis=1)
        transitions = Transitions(
            dataset.observations[rows].astype(np.float64),
            past,
            dataset.rewards[rows].astype(np.float64),
            dataset.next_observations[rows].astype(np.float64),
            dataset.terminals[rows],
        )
        groups = rows if labels is None else labels[rows]
        chosen = _choose_bandwidth(transitions, groups) if like is None else (like.bandwidth, like.error)
        #: in standard deviations of each input
        self.bandwidth: float = chosen[0]
        #: share of the changes' variance that it leaves unexplained where it has not seen them
        self.error: float = chosen[1]
        self._model = LocalModel(transitions, _settings(self.bandwidth), dataset.observation_space)
        self._usual_action = np.tile(actions.mean(axis=0), (self.n_earlier_actions, 1))
        states = np.concatenate([transitions.states, transitions.next_states])
        margin = _MARGIN * (states.max(axis=0) - states.min(axis=0))
        self._low, self._high = states.min(axis=0) - margin, states.max(axis=0) + margin

    def follow(self, act: Actor, starts: np.ndarray, n_steps: int) -> Rollouts:
        """
        :param act: the policy
        :param starts: states to start from, (m, d_s)
        :param n_steps: to follow at most, T
        """
        return self.follow_each([act], starts, n_steps)[0]

    def follow_each(self, actors: Sequence[Actor], starts: np.ndarray, n_steps: int) -> list[Rollouts]:
        """
        :param actors: policies, followed side by side
        :param starts: of each, (m, d_s)
        :param n_steps: to follow at most, T
        """
        n = len(starts)
        everywhere = np.tile(np.asarray(starts, dtype=np.float64), (len(actors), 1))
        # Many steps, each a little work.
        with threads_for(len(everywhere) * _N_NEIGHBORS):
            together = self._follow(actors, everywhere, n_steps)
        return [together.columns(slice(number * n, (number + 1) * n)) for number in range(len(actors))]

    def _follow(self, actors: Sequence[Actor], states: np.ndarray, n_steps: int) -> Rollouts:
        """:param states: to start from, as many for each actor, one after the other"""
        n = len(states)
        past = np.tile(self._usual_action, (n, 1, 1))  # (m, earlier actions, d_a)
        visited = [states.copy()]
        chosen: list[np.ndarray] = []
        earned: list[np.ndarray] = []
        going, ended = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
        left_by, followed = np.full(n, -1), np.zeros(n, dtype=np.int64)
        for _ in range(n_steps):
            if not going.any():
                break
            actions = _actions(actors, states, going)
            inputs = np.concatenate([actions[:, None], past[going]], axis=1)
            predicted, _ = self._model.predict(states[going], inputs.reshape(len(actions), -1))
            past[going] = inputs[:, :-1]
            followed[going] += 1
            states[going], ended[going] = predicted.next_states, predicted.terminals
            left_by = np.where(going & ~ended, self._left_by(states), left_by)
            for values, found in ((visited, states[going]), (chosen, actions), (earned, predicted.rewards)):
                values.append(np.full((n, *found.shape[1:]), np.nan))
                values[-1][going] = found
            going &= ~ended & (left_by < 0)
        return Rollouts(
            _padded(visited, n_steps + 1), _padded(chosen, n_steps), _padded(earned, n_steps), followed, ended, left_by
        )

    def farthest_out(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d_s)
        :return: the dimension in which each is nearest to the end of the recorded range, or farthest beyond it, (m,)
        """
        return self._beyond(states).argmax(axis=1)

    def _left_by(self, states: np.ndarray) -> np.ndarray:
        """The dimension that is farthest outside, -1 where none is, (m,)."""
        return np.where((self._beyond(states) > 0).any(axis=1), self.farthest_out(states), -1)

    def _beyond(self, states: np.ndarray) -> np.ndarray:
        """By which share of the recorded range a state lies outside of it, negative inside, (m, d_s)."""
        width = self._high - self._low
        beyond = np.maximum(self._low - states, states - self._high)
        # A dimension that never changes is nowhere near an end.
        return np.where(width > 0, beyond / np.where(width > 0, width, 1.0), np.where(beyond > 0, beyond, -np.inf))


def _actions(actors: Sequence[Actor], states: np.ndarray, going: np.ndarray) -> np.ndarray:
    """What each actor does where its own trajectories are by now, (how many go on, d_a)."""
    chosen = []
    for act, own_states, own_going in zip(actors, np.split(states, len(actors)), np.split(going, len(actors)), strict=True):
        if own_going.any():
            chosen.append(np.asarray(act(own_states[own_going]), dtype=np.float64).reshape(int(own_going.sum()), -1))
    return np.concatenate(chosen)


def _padded(values: list[np.ndarray], length: int) -> np.ndarray:
    nothing = [np.full_like(values[0], np.nan)] * (length - len(values))
    return np.stack([*values, *nothing])


def _n_earlier_actions(dataset: TransitionDataset) -> int:
    lag = find_action_lag(dataset)
    if lag is None or lag.lag == 0:
        return 0
    return next(n for n, share in enumerate(lag.unexplained) if share <= _GOOD_ENOUGH * min(lag.unexplained))


def _settings(bandwidth: float) -> Settings:
    return Settings(bandwidth, _RIDGE, _N_NEIGHBORS, terminates=None, reward=None)


def _choose_bandwidth(transitions: Transitions, groups: np.ndarray) -> tuple[float, float]:
    """One that predicts well what it has not seen, and the share of the changes' variance that it leaves unexplained."""
    numbers = np.unique(groups, return_inverse=True)[1]
    # Whole episodes are left out, where there are as many as parts: within one, the next row gives the answer away.
    fold = (numbers if numbers.max() + 1 >= _N_FOLDS else np.arange(len(groups))) % _N_FOLDS
    judged = np.random.default_rng(0).permutation(len(groups))[:_MOST_JUDGED]
    changes = transitions.next_states - transitions.states
    variance = changes.var(axis=0)
    if not (variance > 0).any():
        raise InputError("dataset", "every step changes the state alike", "There is nothing to predict trajectories from")
    errors = dict.fromkeys(_BANDWIDTHS, 0.0)
    for number in range(_N_FOLDS):
        truth = transitions.rows(judged[fold[judged] == number])
        seen = transitions.rows(np.flatnonzero(fold != number))
        model = LocalModel(seen, _settings(_BANDWIDTHS[0]))
        for bandwidth in _BANDWIDTHS if len(truth) else ():
            model.settings = _settings(bandwidth)
            predicted, _ = model.predict(truth.states, truth.actions)
            squared = np.square(predicted.next_states - truth.next_states)[:, variance > 0] / variance[variance > 0]
            errors[bandwidth] += float(squared.mean(axis=1).sum()) / len(judged)
    widest = max(bandwidth for bandwidth, error in errors.items() if error <= _NEARLY_AS_GOOD * min(errors.values()))
    return widest, errors[widest]
