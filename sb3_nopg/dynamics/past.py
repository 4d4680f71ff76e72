"""
What the steps before a state did, where the state alone does not say enough.

A filter that velocities come from, or a delay of the action, make what happens next depend on what happened before. Two
recorded states say more of that than one: an earlier step counts by its action and by what it changed, (a, x' − x). Earlier
actions alone would do for voltages drawn at random, and fail as soon as a controller draws them.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
import torch as th

from sb3_nopg.data.action_lag import rows_with_a_past
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.affine import AffineMaps, AffineRegression, Samples, spread_of
from sb3_nopg.dynamics.coordinates import Coordinates

MOST_EARLIER = 2
# Of standardised changes, towards what usually goes with a state.
_FIRST_STEPS_RIDGE = 1e-3
# First steps tell of states whose angles differ from theirs by no more than the first, and nothing of those that differ by
# more than the second: chords of the unit circle, of several angles the root of the sum of squares. Of one, 29° and 60°.
_NEAR, _FAR = 0.5, 1.0


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
class _FirstSteps:
    """
    What first steps of episodes tell of the past, and of which states.

    :param change: what they add to the regression's coefficients, (g, n_earlier · d)
    :param low: of their states, (d,); −∞ where an angle goes far
    :param high: likewise
    :param angles: of their states, as points on circles; None without angles
    :param angular: coordinates that are angles, (d,)
    """

    change: th.Tensor
    low: th.Tensor
    high: th.Tensor
    angles: scipy.spatial.cKDTree | None
    angular: th.Tensor

    @classmethod
    def of(cls, states: th.Tensor, coordinates: Coordinates, change: th.Tensor) -> "_FirstSteps":
        beyond, angular = th.where(coordinates.bent, math.inf, 0.0), coordinates.angular
        angles = None
        if bool(angular.any()):
            angles = scipy.spatial.cKDTree(np.unique(_on_circles(states[:, angular]), axis=0))
        return cls(change, states.amin(dim=0) - beyond, states.amax(dim=0) + beyond, angles, angular)

    def nearest(self, states: th.Tensor) -> th.Tensor:
        """Where they reach to: a slope that a few of them show by accident would be carried far too far."""
        return states.clamp(self.low, self.high)

    def nearness(self, states: th.Tensor) -> th.Tensor:
        """By the angles: how far they tell of the states, from 0, not at all, to 1, (m, 1)."""
        if self.angles is None:
            return states.new_ones(len(states), 1)
        chords = th.from_numpy(self.angles.query(_on_circles(states[:, self.angular]))[0])
        return ((_FAR - chords) / (_FAR - _NEAR)).clamp(0.0, 1.0)[:, None]


class UsualPast:
    """
    What the steps before a state did where that was not recorded: no action, and changes that go with the state.

    A rig that is let go has a past that no free motion has. Whatever it was, first steps of episodes show what it leads to:
    the changes are those that predict first steps best, and as usual otherwise. How a hanging pole was let go says nothing of
    one that stands: where angles are far from those of all first steps, changes are as usual. In all but angles that go far,
    what first steps add to the usual holds beyond where they lie as at the edge.

    :param samples: with a past
    :param earlier: actions and changes before each of these, (n, q)
    :param n_earlier: steps
    :param rest: an action that is none, (d_a,)
    """

    def __init__(self, samples: Samples, earlier: th.Tensor, n_earlier: int, rest: th.Tensor):
        self._n_earlier, self._rest, self._regression = n_earlier, rest, None
        self._first_steps: _FirstSteps | None = None
        if n_earlier:
            n_actions, d = len(rest), samples.states.shape[1]
            steps = earlier.reshape(len(earlier), n_earlier, n_actions + d)
            actions, changes = steps[..., :n_actions].flatten(1), steps[..., n_actions:].flatten(1)
            self._regression = AffineRegression(Samples(samples.coordinates, samples.states, actions, changes))
            self._spread = spread_of(changes)

    def fit_first_steps(self, first: Samples, maps: AffineMaps, n_features: int, reach: th.Tensor) -> None:
        """
        :param first: first steps of episodes, the action's features as inputs
        :param maps: of the regression with a past, at their states
        :param n_features: of the action; what follows them are earlier steps
        :param reach: states of all first steps, of which these may be some, (m, d)
        """
        if self._regression is None or not len(first):
            return
        m, d, n_actions = len(first), first.states.shape[1], len(self._rest)
        of_past = maps.action_slope[..., n_features:].unflatten(-1, (self._n_earlier, n_actions + d))
        of_changes = of_past[..., n_actions:].flatten(2)  # (m, d, L d)
        actions = self._rest.expand(m, self._n_earlier, -1)
        known = maps.value + (maps.action_slope[..., :n_features] @ first.inputs[..., None])[..., 0]
        known = known + (of_past[..., :n_actions].flatten(2) @ actions.flatten(1)[..., None])[..., 0]
        scale = spread_of(first.targets)
        missing = (first.targets - known) / scale
        # Σ_i |missing_i − B_i Wᵀ φ_i|² + ridge |W − W₀|²: linear in W.
        features, usual = self._regression.features(first.states, actions.flatten(1)), self._regression.coefficients
        design = features[:, None, :, None] * (of_changes / scale[:, None] * self._spread)[:, :, None, :]
        design = design.flatten(2).flatten(0, 1)  # (m d, g L d)
        away = missing.flatten() - design @ (usual / self._spread).flatten()
        moment = design.T @ design / m + _FIRST_STEPS_RIDGE * th.eye(design.shape[1], dtype=design.dtype)
        found = th.linalg.solve(moment, design.T @ away / m).view_as(usual)
        self._first_steps = _FirstSteps.of(reach, first.coordinates, found * self._spread)

    def __call__(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :return: action and change of each earlier step, the last one first, (m, q)
        """
        m, d = states.shape
        actions = self._rest.expand(m, self._n_earlier, -1)
        changes = states.new_zeros(m, self._n_earlier, d)
        if self._regression is not None:
            found = self._regression.predict(states, actions.flatten(1))
            if self._first_steps is not None:
                features = self._regression.features(self._first_steps.nearest(states), actions.flatten(1))
                found = found + self._first_steps.nearness(states) * (features @ self._first_steps.change)
            changes = found.view(m, self._n_earlier, d)
        return th.cat([actions, changes], dim=2).flatten(1)


def _on_circles(angles: th.Tensor) -> np.ndarray:
    """Points whose distance is the chord between angles. What is no number counts as zero: changes show it anyway."""
    angles = angles.detach()
    return th.cat([angles.cos(), angles.sin()], dim=1).nan_to_num().numpy()
