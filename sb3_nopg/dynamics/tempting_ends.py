"""Whether data and reward make an early end better than going on: who is punished for every step runs for the exit."""

import numpy as np

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.rewards import RewardFunction, rewards_of

# Share of the ends that lie at the sides, and of the other steps that are punished, from which on ends are called tempting.
_MOST = 0.5


def tempting_ends(dataset: TransitionDataset, gamma: float, reward: str | RewardFunction | None = None) -> str | None:
    """
    :param dataset: recorded transitions
    :param gamma: discount
    :param reward: that a user wants instead of the data's
    :return: what to tell the user; None where an end is worth no more than going on
    """
    ends = np.asarray(dataset.terminals)
    if not ends.any() or ends.all() or _share_at_the_sides(dataset) < _MOST:
        return None
    rewards = np.asarray(dataset.rewards, dtype=np.float64)
    if reward is not None:
        rewards = rewards_of(reward, dataset)
    at_end, going_on = float(rewards[ends].mean()), float(rewards[~ends].mean()) / (1.0 - gamma)
    if float((rewards[~ends] < 0.0).mean()) <= _MOST or at_end <= going_on:
        return None
    return (
        f"Ending the task is worth more than going on ({at_end:.3g} at the end, {going_on:.3g} for going on as the data do): "
        "is that what you want? A goal is worth it; a crash is not. If it is one, reward each step that goes on, or "
        "punish the end."
    )


def _share_at_the_sides(dataset: TransitionDataset) -> float:
    """Of the ends, those with a column beyond all that did not end the task."""
    ends = np.asarray(dataset.terminals)
    inner = np.concatenate([dataset.observations, dataset.next_observations[~ends]])
    last = dataset.next_observations[ends]
    return float(((last < inner.min(axis=0)) | (last > inner.max(axis=0))).any(axis=1).mean())
