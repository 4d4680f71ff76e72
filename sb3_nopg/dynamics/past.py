"""
What the steps before a state did, where the state alone does not say enough.

A filter that velocities come from, or a delay of the action, make what happens next depend on what happened before. Two
recorded states say more of that than one: an earlier step counts by its action and by what it changed, (a, x' − x). Earlier
actions alone would do for voltages drawn at random, and fail as soon as a controller draws them.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class HeldPast:
    """
    What the steps before a state did if one action was held all the while: affine in that action.

    :param value: with an action of zero, (m, q)
    :param action_slope: (m, q, d_a)
    """

    value: th.Tensor
    action_slope: th.Tensor

    def under(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: (m, d_a)
        :return: (m, q)
        """
        return self.value + (self.action_slope @ actions[..., None])[..., 0]


class UsualPast:
    """
    What came before a state, as far as the state and the actions before tell: a regression over all data.

    :param samples: states, with the actions before as inputs and the changes before as targets, the last step first each
    :param n_earlier: steps
    :param n_actions: d_a
    """

    def __init__(self, samples: Samples, n_earlier: int, n_actions: int):
        self.n_earlier, self._n_actions = n_earlier, n_actions
        self._regression = AffineRegression(samples) if n_earlier else None

    @classmethod
    def of(cls, samples: Samples, earlier: th.Tensor, n_earlier: int, n_actions: int) -> "UsualPast":
        """
        :param samples: whose states to take
        :param earlier: actions and changes before each, (n, q)
        :param n_earlier: steps
        :param n_actions: d_a
        """
        d = samples.states.shape[1]
        steps = earlier.reshape(len(earlier), n_earlier, n_actions + d)
        actions, changes = steps[..., :n_actions].flatten(1), steps[..., n_actions:].flatten(1)
        return cls(Samples(samples.coordinates, samples.states, actions, changes), n_earlier, n_actions)

    def held(self, states: th.Tensor) -> HeldPast:
        """
        :param states: (m, d)
        """
        m, d, n_actions = len(states), states.shape[1], self._n_actions
        if self._regression is None:
            return HeldPast(states.new_zeros(m, 0), states.new_zeros(m, 0, n_actions))
        maps = self._regression.maps_at(states)
        changes = maps.value.view(m, self.n_earlier, d)
        slopes = maps.action_slope.reshape(m, self.n_earlier, d, self.n_earlier, n_actions).sum(dim=3)
        same = th.eye(n_actions, dtype=states.dtype).expand(m, self.n_earlier, -1, -1)
        value = th.cat([changes.new_zeros(m, self.n_earlier, n_actions), changes], dim=2)
        return HeldPast(value.flatten(1), th.cat([same, slopes], dim=2).flatten(1, 2))
