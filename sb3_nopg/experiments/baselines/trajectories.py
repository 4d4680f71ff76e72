"""Transitions as the trajectories that they were recorded in."""

from dataclasses import dataclass

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels


@dataclass(frozen=True, eq=False)
class RecordedTrajectories:
    """
    Which rows of a data set followed each other, episodes side by side and filled up to the longest.

    :param rows: row of the data set at each step of each episode, (episodes, steps); 0 past an episode's end
    :param taken: whether the episode has that step, (episodes, steps)
    :param known: whether the reward of that step is known, (episodes, steps): the steps taken, and those after a true end,
        where there is no more reward. What would have come after a time limit is not known
    """

    rows: np.ndarray
    taken: np.ndarray
    known: np.ndarray


def find_recorded_trajectories(dataset: TransitionDataset) -> RecordedTrajectories:
    """
    :param dataset: recorded in episodes
    :raises InputError: where it knows no episodes, or where steps of one are missing or out of order
    """
    ids = _episode_of_each_row(dataset)
    # Stable, so that an episode's rows stay in the order of time.
    order = np.argsort(ids, kind="stable")
    _, starts, lengths = np.unique(ids[order], return_index=True, return_counts=True)
    steps = np.arange(lengths.max())
    taken = steps < lengths[:, None]
    rows = np.where(taken, order[np.minimum(starts[:, None] + steps, len(order) - 1)], 0)
    _check_unbroken(dataset, rows, taken)
    ended = dataset.terminals[order[starts + lengths - 1]]
    return RecordedTrajectories(rows=rows, taken=taken, known=taken | ended[:, None])


def episode_returns(dataset: TransitionDataset, gamma: float = 1.0) -> np.ndarray:
    """
    What the behaviour earned while the data was recorded.

    :param dataset: recorded in episodes
    :param gamma: discount
    :return: return of each episode, (episodes,)
    """
    trajectories = find_recorded_trajectories(dataset)
    discounts = float(gamma) ** np.arange(trajectories.rows.shape[1])
    return np.asarray((discounts * trajectories.taken * dataset.rewards[trajectories.rows]).sum(axis=1))


def _episode_of_each_row(dataset: TransitionDataset) -> np.ndarray:
    labels = episode_labels(dataset)
    if labels is None:
        raise InputError(
            "dataset",
            "holds one-step samples without trajectories",
            "Importance weights multiply along a path: give episode_ids, or timeouts, of data recorded in episodes",
        )
    return labels


def _check_unbroken(dataset: TransitionDataset, rows: np.ndarray, taken: np.ndarray) -> None:
    """:raises InputError: unless each row of an episode starts where the one before it ended"""
    before, after = rows[:, :-1][taken[:, 1:]], rows[:, 1:][taken[:, 1:]]
    ended, started = dataset.next_observations[before], dataset.observations[after]
    # Room for what float32 rounds away, relative to the size that each dimension has.
    tolerance = 1e-5 * (1e-3 + np.abs(dataset.observations).max(axis=0))
    broken = (np.abs(ended - started) > tolerance).any(axis=1) | dataset.terminals[before]
    if broken.any():
        first = int(broken.argmax())
        raise InputError(
            "dataset",
            f"row {int(after[first])} does not go on where row {int(before[first])} of the same episode ended",
            "Give whole trajectories: nothing left out, in the order of time, and nothing after a terminal",
        )
