"""
Whether what happens next depends on actions before the last one: then the observation is not the whole state.

A delay, or a filter of measured velocities, hides part of what an action does from the very next observation. A model of
single transitions takes that part for noise: it sees too little of what actions can do, and policies learned from it act too
hard.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels

_MAX_LAG, _N_PARTS = 3, 5
# An earlier action counts if it leaves this share of what was unexplained at the most. Where it has no influence the share is
# about one; on the simulated rig, whose measured velocities lag, it is 0.2 for the first.
_TELLING_SHARE = 0.5
# What a linear model explains to this share is not worth a closer look.
_EXPLAINED = 1e-3
_ROWS_A_FEATURE = 5
# Share of the actions' variance that the nearest states may explain.
_MOST_PREDICTABLE, _N_NEAREST, _N_PREDICTED = 0.5, 5, 2000


@dataclass(frozen=True)
class ActionLag:
    """
    :param lag: how many actions before the last one count
    :param unexplained: share of the next states' variance that a linear model leaves unexplained on episodes it has not
        seen, with the last action, with one more, …
    """

    lag: int
    unexplained: tuple[float, ...]

    @property
    def remark(self) -> str:
        """In plain words, where there is a lag."""
        actions = "the action before the last one" if self.lag == 1 else f"the {self.lag} actions before the last one"
        return (
            f"The next state depends on {actions} too: a linear model that knows about it leaves "
            f"{self.unexplained[self.lag]:.0%} of the changes unexplained instead of {self.unexplained[0]:.0%}. By a delay or "
            "a filter, the observation is not the whole state, and estimates from single transitions see too little of what "
            "an action does. Add earlier actions to the observation."
        )


def find_action_lag(dataset: TransitionDataset) -> ActionLag | None:
    """
    :param dataset: recorded transitions, in time's order within episodes
    :return: None where the data does not tell: no or too few episodes, or too short ones, or actions that follow from the
        states, which then stand for what a linear model cannot say of those
    """
    labels = episode_labels(dataset)
    if labels is None or len(np.unique(labels)) < _N_PARTS:
        return None
    rows = rows_with_a_past(dataset, labels, _MAX_LAG)
    states, actions = dataset.observations.astype(np.float64), dataset.actions.astype(np.float64)
    n_features = 1 + states.shape[1] + (1 + _MAX_LAG) * actions.shape[1]
    if len(rows) < _ROWS_A_FEATURE * n_features:
        return None
    if _predictability(states, actions) > _MOST_PREDICTABLE:
        return None
    changes = dataset.next_observations.astype(np.float64)[rows] - states[rows]
    spread = changes.std(axis=0)
    if not (spread > 0).any():
        return None
    changes = changes[:, spread > 0] / spread[spread > 0]
    part = np.unique(labels[rows], return_inverse=True)[1] % _N_PARTS
    features, unexplained = [np.ones((len(rows), 1)), states[rows]], []
    for steps_ago in range(_MAX_LAG + 1):
        features.append(actions[rows - steps_ago])
        unexplained.append(_unexplained(np.concatenate(features, axis=1), changes, part))
    if not np.all(np.isfinite(unexplained)):
        return None
    # The last that tells: with a pure delay of two steps, the action one step ago does not.
    telling = [
        lag
        for lag in range(1, _MAX_LAG + 1)
        if unexplained[lag - 1] > _EXPLAINED and unexplained[lag] < _TELLING_SHARE * unexplained[lag - 1]
    ]
    return ActionLag(max(telling, default=0), tuple(unexplained))


def rows_with_a_past(data: TransitionDataset, labels: np.ndarray, n_earlier: int) -> np.ndarray:
    """
    :param data: recorded transitions
    :param labels: episode of each, (n,)
    :param n_earlier: predecessors that are asked for
    :return: transitions whose predecessors are the rows before them
    """
    follows = (labels[1:] == labels[:-1]) & (data.observations[1:] == data.next_observations[:-1]).all(axis=1)
    rows = np.arange(len(data))
    first = np.maximum.accumulate(np.where(np.concatenate([[False], follows]), 0, rows))
    return rows[rows - first >= n_earlier]


def _predictability(states: np.ndarray, actions: np.ndarray) -> float:
    """Largest share of an action dimension's variance that the mean over the nearest other states explains."""
    chosen = np.random.default_rng(0).permutation(len(states))[:_N_PREDICTED]
    spread = states.std(axis=0)
    scaled = states[:, spread > 0] / spread[spread > 0]
    if not scaled.shape[1]:
        return 0.0
    nearest = np.asarray(scipy.spatial.cKDTree(scaled).query(scaled[chosen], k=_N_NEAREST + 1)[1])[:, 1:]
    errors = np.square(actions[chosen] - actions[nearest].mean(axis=1)).mean(axis=0)
    variance = actions.var(axis=0)
    varies = variance > 0
    return float(np.max(1.0 - errors[varies] / variance[varies], initial=0.0))


def _unexplained(features: np.ndarray, targets: np.ndarray, part: np.ndarray) -> float:
    """Mean square error of a linear model on the part of the data that it was not fitted to, over all parts."""
    errors = np.empty_like(targets)
    for held_out in range(_N_PARTS):
        seen = part != held_out
        fit = np.linalg.lstsq(features[seen], targets[seen], rcond=None)[0]
        errors[~seen] = targets[~seen] - features[~seen] @ fit
    return float(np.square(errors).mean())


def actions_follow_from_states(data: TransitionDataset) -> bool:
    """
    :param data: recorded transitions
    :return: whether states near each other had the same actions, so that earlier actions stand for what states cannot say
    """
    return _predictability(data.observations.astype(np.float64), data.actions.astype(np.float64)) > _MOST_PREDICTABLE
