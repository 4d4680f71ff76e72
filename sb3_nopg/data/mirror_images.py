"""Systems that look the same in a mirror: every transition is two."""

import numpy as np
from numpy.typing import ArrayLike

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset


def add_mirror_images(dataset: TransitionDataset, observation_signs: ArrayLike, action_signs: ArrayLike) -> TransitionDataset:
    """
    The data and their mirror images, for a system of which one knows that left and right are alike.

    A cart-pole is one: with [x, sin θ, cos θ, ẋ, θ̇] the signs are [-1, -1, 1, -1, -1] and [-1]. What the data say of one side
    then counts for the other, and no accident of a small data set makes the policy lean. A system that is not symmetric (a
    slope, an offset of the motor) is learned wrongly by as much as it is not.

    :param dataset: the transitions
    :param observation_signs: 1 or -1 for each dimension, (d_s,)
    :param action_signs: 1 or -1 for each dimension, (d_a,)
    :return: twice as many transitions; mirror images are episodes of their own
    """
    if not isinstance(dataset, TransitionDataset):
        raise InputError("dataset", f"is a {type(dataset).__name__}", "Give a TransitionDataset")
    of_observation = _signs("observation_signs", observation_signs, dataset.observation_dim)
    of_action = _signs("action_signs", action_signs, dataset.action_dim)

    if np.all(of_observation == 1) and np.all(of_action == 1):
        raise InputError("observation_signs", "nothing changes its sign, so that all would be copies", "Name what does")
    space = dataset.action_space
    if space is not None and not np.allclose(
        np.sort([space.low * of_action, space.high * of_action], axis=0), [space.low, space.high]
    ):
        problem = f"the mirror image of {space} is another range"
        raise InputError("action_signs", problem, "Only a range that is the same on both sides of zero can be mirrored")

    def twice(array: np.ndarray, signs: np.ndarray | int = 1) -> np.ndarray:
        return np.concatenate([array, (array * signs).astype(array.dtype)])

    episode_ids = dataset.episode_ids
    return TransitionDataset(
        observations=twice(dataset.observations, of_observation),
        actions=twice(dataset.actions, of_action),
        rewards=twice(dataset.rewards),
        next_observations=twice(dataset.next_observations, of_observation),
        terminals=np.tile(dataset.terminals, 2),
        timeouts=None if dataset.timeouts is None else np.tile(dataset.timeouts, 2),
        episode_ids=None if episode_ids is None else np.concatenate([episode_ids, episode_ids + np.ptp(episode_ids) + 1]),
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        quantities=dataset.quantities,
    )


def _signs(field: str, given: ArrayLike, n_dims: int) -> np.ndarray:
    signs = np.asarray(given)
    if signs.shape != (n_dims,) or signs.dtype.kind not in "iuf" or not np.all(np.abs(signs) == 1):
        raise InputError(field, f"is {given!r}", f"Give {n_dims} numbers, 1 or -1, one for each dimension")
    return signs.astype(np.int64)
