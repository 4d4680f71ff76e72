"""
Transitions that span several steps: what an action leads to when it has had time to act.

By a delay, or a filter of measured velocities, the next observation knows little of the last action (:mod:`.action_lag`).
A few steps later it does. Actions taken in between count as chance, as they were where the data was recorded at random.
"""

from dataclasses import replace

import numpy as np

from sb3_nopg.datafiles.transform import episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError


class Windows:
    """
    Runs of successive transitions: of ``n_steps``, or fewer where the task ends. A run that something else cuts short, a time
    limit or a gap in the recording, is left out: nobody knows how it would have gone on.

    :param dataset: single transitions, in time's order within episodes
    :param n_steps: how many make a window
    :param ended: where a run is over, (n,); None for where the task is
    :raises InputError: where the data has no such runs
    """

    def __init__(self, dataset: TransitionDataset, n_steps: int, ended: np.ndarray | None = None):
        ended = dataset.terminals if ended is None else ended
        if dataset.n_synthetic and n_steps > 1:
            raise InputError("n_steps", "synthetic transitions have no successors", "Give recorded ones, or n_steps=1")
        labels = episode_labels(dataset)
        if labels is None and n_steps > 1:
            raise InputError("n_steps", "the data knows no episodes", "Give data with episode_ids, or n_steps=1")
        rows = np.arange(len(dataset))
        if labels is None:
            ends = rows
        else:
            follows = (labels[1:] == labels[:-1]) & (dataset.observations[1:] == dataset.next_observations[:-1]).all(axis=1)
            last = np.where(np.append(follows & ~ended[:-1], False), len(dataset), rows)
            ends = np.minimum.accumulate(last[::-1])[::-1]
        whole = rows + n_steps - 1 <= ends
        self.firsts = rows[whole | ended[ends]]
        if len(self.firsts) == 0:
            raise InputError("n_steps", f"no episode has {n_steps} successive steps", "Give longer ones, or fewer steps")
        self.lasts = np.minimum(self.firsts + n_steps - 1, ends[self.firsts])
        self.n_steps = n_steps

    def all_of(self, flags: np.ndarray) -> np.ndarray:
        """
        :param flags: true or false for each transition, (n,)
        :return: whether it is true throughout each window
        """
        before = np.concatenate([[0], np.cumsum(flags)])
        return before[self.lasts + 1] - before[self.firsts] == self.lasts - self.firsts + 1

    def discounted(self, rewards: np.ndarray, gamma: float) -> np.ndarray:
        """
        :param rewards: of each transition, (n,)
        :param gamma: discount of a step
        :return: discounted sum of each window's rewards
        """
        total = np.zeros(len(self.firsts))
        for step in range(self.n_steps):
            rows = np.minimum(self.firsts + step, self.lasts)
            total += np.where(self.firsts + step <= self.lasts, gamma**step * rewards[rows], 0.0)
        return total


def multi_step(dataset: TransitionDataset, n_steps: int, gamma: float, ended: np.ndarray | None = None) -> TransitionDataset:
    """
    Each window as one transition: its first state and action, its rewards discounted, and where it leads. Values of such
    transitions are discounted by γ^n_steps from one to the next.

    :param dataset: single transitions
    :param n_steps: how many make one; with 1, the data as they are
    :param gamma: discount of a step
    :param ended: where a transition is over before that, (n,); None for where the task is
    """
    if n_steps == 1:
        return dataset
    windows = Windows(dataset, n_steps, ended)
    labels = episode_labels(dataset)
    assert labels is not None
    return replace(
        dataset,
        observations=dataset.observations[windows.firsts],
        actions=dataset.actions[windows.firsts],
        rewards=windows.discounted(dataset.rewards, gamma),
        next_observations=dataset.next_observations[windows.lasts],
        terminals=dataset.terminals[windows.lasts],
        timeouts=None,
        episode_ids=labels[windows.firsts],
        synthetic=None,
    )
