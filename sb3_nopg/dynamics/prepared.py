"""Recorded transitions as regressions need them: states in coordinates, what was done before, which rows know that."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.affine import Samples
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.friction import DryFriction
from sb3_nopg.dynamics.past import recorded_past
from sb3_nopg.dynamics.stops import Stop, stopped_rows


@dataclass(frozen=True)
class Inputs:
    """
    What beside the state a prediction is made of.

    :param features: of the action
    :param n_earlier: steps before that count
    :param friction: one more input for each coordinate that friction holds
    """

    features: ActionFeatures
    n_earlier: int = 0
    friction: DryFriction | None = None

    def size(self, dim: int) -> int:
        """
        :param dim: number of coordinates, d
        :return: number of inputs, p
        """
        n_held = 0 if self.friction is None else len(self.friction)
        return self.features.size + self.n_earlier * (self.features.n_actions + dim) + n_held

    def __call__(self, states: th.Tensor, actions: th.Tensor, earlier: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param actions: (m, d_a)
        :param earlier: actions and changes of the steps before, (m, n_earlier · (d_a + d))
        :return: (m, p)
        """
        inputs = th.cat([self.features(actions), earlier], dim=1)
        return inputs if self.friction is None else self.friction.beside(states, inputs)


@dataclass(frozen=True)
class Prepared:
    """Recorded transitions as regressions need them; rows as in the data."""

    dataset: TransitionDataset
    coordinates: Coordinates
    states: th.Tensor
    next_states: th.Tensor
    actions: th.Tensor
    earlier: th.Tensor
    n_past: np.ndarray
    rewards: th.Tensor
    terminals: th.Tensor
    labels: np.ndarray | None
    stops: tuple[Stop, ...] = ()

    @classmethod
    def of(cls, dataset: TransitionDataset, coordinates: Coordinates, rewards: np.ndarray) -> "Prepared":
        tensors = [float_tensor(array) for array in (dataset.observations, dataset.next_observations, dataset.actions)]
        states, next_states = (coordinates.encode(tensor) for tensor in tensors[:2])
        labels = episode_labels(dataset)
        earlier, n_past = recorded_past(dataset, labels, coordinates.difference(next_states, states).numpy())
        return cls(
            dataset,
            coordinates,
            states,
            next_states,
            tensors[2],
            float_tensor(earlier),
            n_past,
            float_tensor(rewards),
            th.from_numpy(np.array(dataset.terminals)),
            labels,
        )

    def samples(self, inputs: "Inputs", rows: th.Tensor) -> Samples:
        """For the changes."""
        changes = self.coordinates.difference(self.next_states, self.states)
        return self._samples(inputs, changes, rows)

    def reward_samples(self, inputs: "Inputs") -> Samples:
        """For the rewards."""
        return self._samples(inputs, self.rewards[:, None], self.reward_rows(inputs.n_earlier))

    def _samples(self, inputs: "Inputs", targets: th.Tensor, rows: th.Tensor) -> Samples:
        of_steps = inputs(self.states, self.actions, self.past(inputs.n_earlier))
        return Samples(self.coordinates, self.states, of_steps, targets).rows(rows)

    def past(self, n_earlier: int) -> th.Tensor:
        """Action and change of the steps before each, the last one first, (n, n_earlier · (d_a + d))."""
        return self.earlier[:, : n_earlier * (self.actions.shape[1] + self.coordinates.dim)]

    def rows(self, n_earlier: int) -> th.Tensor:
        """Numbers of the rows to learn changes from: those whose past is known and whose step is whole and free."""
        return th.from_numpy(np.flatnonzero((self.n_past >= n_earlier) & self.free_steps))

    def reward_rows(self, n_earlier: int) -> th.Tensor:
        """Numbers of the rows to learn rewards from: those whose past is known."""
        return th.from_numpy(np.flatnonzero(self.n_past >= n_earlier))

    @property
    def first_rows(self) -> th.Tensor:
        """Numbers of the first rows of episodes, (e,)."""
        return th.from_numpy(np.flatnonzero((self.n_past == 0) & self.free_steps))

    @property
    def free_steps(self) -> np.ndarray:
        """Which rows to learn changes from, (n,): whole steps that no stop has cut."""
        return whole_steps(self.terminals.numpy()) & ~stopped_rows(self.next_states, self.stops).numpy()

    def labels_of(self, rows: th.Tensor) -> np.ndarray | None:
        return None if self.labels is None else self.labels[rows.numpy()]


def whole_steps(terminals: np.ndarray) -> np.ndarray:
    """
    All steps but those that ended the task. Whatever ends one on a rig cuts the step short, and many records know no state
    after it. Where most steps are ends, they are all there is.

    :param terminals: (n,)
    :return: (n,)
    """
    goes_on = ~np.asarray(terminals)
    return goes_on if 2 * goes_on.sum() >= len(goes_on) else np.ones_like(goes_on)


def float_tensor(array: Any) -> th.Tensor:
    """
    :param array: of anything
    :return: a copy in float64
    """
    return th.from_numpy(np.array(array, dtype=np.float64))
