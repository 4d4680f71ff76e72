"""Which episode each transition belongs to, whichever way the data tell."""

from typing import Protocol

import numpy as np


class Recorded(Protocol):
    """Transitions in the order of time, as far as episodes are concerned."""

    def __len__(self) -> int: ...
    @property
    def terminals(self) -> np.ndarray: ...
    @property
    def timeouts(self) -> np.ndarray | None: ...
    @property
    def episode_ids(self) -> np.ndarray | None: ...


def labels_from_ends(ends: np.ndarray) -> np.ndarray:
    """
    :param ends: whether an episode ends with the row, (n,), rows in the order of time
    :return: a number for each row's episode, from 0 on, (n,)
    """
    return np.concatenate([[0], np.cumsum(ends)[:-1]])


def episode_labels(dataset: Recorded) -> np.ndarray | None:
    """
    :param dataset: the data
    :return: a number for each transition's episode, (n,), or None where the data knows no episodes
    """
    if dataset.episode_ids is not None or dataset.timeouts is None:
        return dataset.episode_ids
    ends = dataset.timeouts | dataset.terminals
    return labels_from_ends(ends) if ends.any() else None


def units_of_each(dataset: Recorded) -> np.ndarray:
    """
    :param dataset: the data
    :return: number of what each transition was drawn with, from 0 on, (n,): its episode, or where the data knows none, itself
    """
    labels = episode_labels(dataset)
    return np.arange(len(dataset)) if labels is None else np.unique(labels, return_inverse=True)[1]


def numbered_as_they_begin(labels: np.ndarray) -> np.ndarray:
    """
    :param labels: any number for each row's episode, (n,)
    :return: from 0 on, in the order in which the episodes begin, (n,)
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
