"""
What awaits a policy, by predicted trajectories (:mod:`.rollouts`) of several models, each of one half of the episodes: what
one model finds stable by a hair, another does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sb3_nopg.datafiles.transform import episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.rollouts import Actor, Rollouts, TrajectoryModel

if TYPE_CHECKING:
    from sb3_nopg.nopg import NOPG

_N_MODELS, _MOST_STARTS = 4, 64
_ENOUGH_TO_SHARE = 16
# Slow drifts show after many times the horizon 1 / (1 − γ).
_HORIZONS, _MOST_STEPS = 10, 1000


@dataclass(frozen=True)
class Prospects:
    """
    Trajectories of one policy by every model.

    :param score: undiscounted rewards along a trajectory, the mean of all
    :param lasting: share of the trajectories that neither end nor leave the data
    :param ends_by: how many of the others end in each dimension, (d_s,)
    :param rollouts: by each model
    """

    score: float
    lasting: float
    ends_by: np.ndarray
    rollouts: tuple[Rollouts, ...]


class TrajectoryJudge:
    """
    :param dataset: single transitions
    :param starts: where trajectories begin, (m, d_s)
    :param n_steps: how long they are followed
    :param ends_are_bad: whether an end of the task is worse than going on
    :raises InputError: where there are too few transitions, or nothing changes
    """

    def __init__(self, dataset: TransitionDataset, starts: np.ndarray, n_steps: int, ends_are_bad: bool = True):
        whole = TrajectoryModel(dataset)
        self.models = [TrajectoryModel(half, like=whole) for half in _halves(dataset)]
        chosen = starts[np.unique(np.linspace(0, len(starts) - 1, _MOST_STARTS).astype(int))]
        # Each model follows others, unless there are so few that every start is worth a look by all.
        self._starts = [
            chosen[number::_N_MODELS] if len(chosen) >= _ENOUGH_TO_SHARE else chosen for number in range(_N_MODELS)
        ]
        self.n_steps = n_steps
        # After a trajectory has left what is known, the worst reward that was seen, and never more than nothing. The same
        # after a bad end, or crashing would seem a way out of a task in which every step costs.
        self._unknown_reward = min(0.0, float(dataset.rewards.min()))
        self._reward_after_end = self._unknown_reward if ends_are_bad else 0.0

    @classmethod
    def of(cls, model: "NOPG") -> "TrajectoryJudge":
        """
        :param model: with its data attached
        :raises InputError: where they are too few
        """
        n_steps = min(round(_HORIZONS / (1.0 - model.gamma)), _MOST_STEPS)
        data = model.training_data
        return cls(data, model.start_states, n_steps, has_bad_ends(data, model.gamma))

    def prospects(self, act: Actor) -> Prospects:
        """
        :param act: a policy
        """
        return self.prospects_of([act])[0]

    def prospects_of(self, actors: Sequence[Actor]) -> list[Prospects]:
        """
        :param actors: policies, followed side by side, which takes less time than one after the other
        """
        by_model = [
            model.follow_each(actors, starts, self.n_steps) for model, starts in zip(self.models, self._starts, strict=True)
        ]
        return [self._summed_up(followed) for followed in zip(*by_model, strict=True)]

    def _summed_up(self, followed: tuple[Rollouts, ...]) -> Prospects:
        """:param followed: of one policy by each model"""
        return Prospects(
            float(np.concatenate([self._total_rewards(rollouts) for rollouts in followed]).mean()),
            float(np.concatenate([rollouts.lasting for rollouts in followed]).mean()),
            np.sum([_ends_by(model, rollouts) for model, rollouts in zip(self.models, followed, strict=True)], axis=0),
            followed,
        )

    def _total_rewards(self, rollouts: Rollouts) -> np.ndarray:
        return rollouts.total_rewards(self._unknown_reward, self._reward_after_end)


def has_bad_ends(dataset: TransitionDataset, gamma: float) -> bool:
    """
    Whether the task has ended, and that was worse than going on would have been, as far as the mean reward tells.

    :param dataset: single transitions
    :param gamma: discount
    """
    ends, rewards = dataset.terminals, dataset.rewards.astype(np.float64)
    if not ends.any() or ends.all():
        return False
    return float(rewards[ends].mean()) < float(rewards[~ends].mean()) / (1.0 - gamma)


def _ends_by(model: TrajectoryModel, rollouts: Rollouts) -> np.ndarray:
    states = rollouts.last_states[~rollouts.lasting]
    return np.bincount(model.farthest_out(states), minlength=states.shape[1])


def _halves(data: TransitionDataset) -> list[TransitionDataset]:
    """Of the episodes, drawn at random; of the transitions where there are no episodes, or a single one."""
    labels, rng = episode_labels(data), np.random.default_rng(0)
    if labels is None or (labels == labels[0]).all():
        # Rows of one episode are drawn singly: what is left is no episode, and its missing first row is not worth a warning.
        data, labels = replace(data, episode_ids=None, timeouts=None), np.arange(len(data))
    numbers = np.unique(labels, return_inverse=True)[1]
    n_groups = int(numbers.max()) + 1
    halves = []
    for _ in range(_N_MODELS):
        chosen = rng.permutation(n_groups)[: (n_groups + 1) // 2]
        halves.append(data.filter(np.isin(numbers, chosen)))
    return halves
