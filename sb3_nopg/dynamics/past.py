"""
What the steps before a state did, where the state alone does not say enough.

A filter that velocities come from, or a delay of the action, make what happens next depend on what happened before. Two
recorded states say more of that than one: an earlier step counts by its action and by what it changed, (a, x' − x). Earlier
actions alone would do for voltages drawn at random, and fail as soon as a controller draws them.
"""

import numpy as np
import torch as th

from sb3_nopg.action_lag import rows_with_a_past
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.dynamics.regression import AffineRegression, Samples

MOST_EARLIER = 2


def recorded_past(dataset: TransitionDataset, labels: np.ndarray | None, changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    :param dataset: recorded transitions
    :param labels: episode of each; None where that is not known
    :param changes: x' − x, (n, d)
    :return: action and change of the steps before each, the last one first, (n, most · (d_a + d)), zero where they are not
        known, and how many are known, (n,)
    """
    steps = np.concatenate([np.asarray(dataset.actions, dtype=np.float64), changes], axis=1)
    n_past = np.zeros(len(steps), dtype=np.int64)
    parts = []
    for steps_ago in range(1, MOST_EARLIER + 1):
        shifted = np.zeros_like(steps)
        if labels is not None:
            rows = rows_with_a_past(dataset, labels, steps_ago)
            n_past[rows] = steps_ago
            shifted[rows] = steps[rows - steps_ago]
        parts.append(shifted)
    return np.concatenate(parts, axis=1), n_past


class UsualPast:
    """
    What the steps before a state did where that was not recorded: nobody acted, and nothing moved or, in data whose episodes
    begin in motion, what goes with the state.

    :param samples: whose states to take
    :param earlier: actions and changes before each, (n, q)
    :param n_earlier: steps
    :param rest: an action that is none, (d_a,)
    :param begins_at_rest: whether nothing moves before an episode
    """

    def __init__(self, samples: Samples, earlier: th.Tensor, n_earlier: int, rest: th.Tensor, *, begins_at_rest: bool):
        self._n_earlier, self._rest, self._regression = n_earlier, rest, None
        if n_earlier and not begins_at_rest:
            n_actions, d = len(rest), samples.states.shape[1]
            steps = earlier.reshape(len(earlier), n_earlier, n_actions + d)
            actions, changes = steps[..., :n_actions].flatten(1), steps[..., n_actions:].flatten(1)
            self._regression = AffineRegression(Samples(samples.coordinates, samples.states, actions, changes))

    def __call__(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :return: action and change of each earlier step, the last one first, (m, q)
        """
        m, d = states.shape
        actions = self._rest.expand(m, self._n_earlier, -1)
        changes = states.new_zeros(m, self._n_earlier, d)
        if self._regression is not None:
            changes = self._regression.predict(states, actions.flatten(1)).view(m, self._n_earlier, d)
        return th.cat([actions, changes], dim=2).flatten(1)
