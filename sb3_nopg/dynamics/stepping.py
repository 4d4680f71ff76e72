"""
The model's steps, one after the other, in NumPy on the processor.

Each is little work for a few dozen states, of which the calls are most, and they cannot be done at once: NumPy makes them in
a fraction of the time that torch or a GPU would take. What follows from a path is computed afterwards, all steps together.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.coordinates import ANYWHERE
from sb3_nopg.dynamics.map_field import MapField
from sb3_nopg.dynamics.model import DynamicsModel


@dataclass(frozen=True)
class Situation:
    """
    Where m trajectories are.

    :param states: (m, d)
    :param earlier: actions of the steps before and what these changed, the last step first, (m, n_earlier · (d_a + d))
    :param nearest: node of each field of maps next to each, (m, f)
    """

    states: np.ndarray
    earlier: np.ndarray
    nearest: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Situation":
        """
        :param chosen: numbers or flags
        """
        return Situation(self.states[chosen], self.earlier[chosen], self.nearest[chosen])


class Stepper:
    """
    :param model: whose steps to make
    """

    def __init__(self, model: DynamicsModel):
        coordinates, nodes = model.coordinates, model.nodes
        self._model, self._features = model, model.features
        self._low, self._high = (_array(end) for end in model.applied_range)
        self._edges = tuple(_array(edge) for edge in model.bounds.edges)
        self._n_plain, self._zeros = len(coordinates.plain), np.array(coordinates.zeros)
        self._still, self._order = _array(coordinates.still), _array(coordinates.order)
        self._is_round = bool(coordinates.angles)
        self._products = np.triu_indices(self._features.n_actions) if self._features.quadratic else None
        self._friction = None if nodes.friction is None else nodes.friction.in_numpy()
        self._fields, self._target_order = [_FieldOfMaps(field) for field in nodes.fields], _array(nodes.order)
        self._nowhere_to_look = all(field.single for field in nodes.fields)

    def begin(self, states: np.ndarray, earlier: np.ndarray | None = None) -> Situation:
        """
        :param states: in the model's coordinates, (m, d)
        :param earlier: what the steps before did; None for a system that nobody has acted on
        """
        if earlier is None:
            earlier = self._model.past_at_rest(th.from_numpy(states)).numpy()
        return Situation(states, earlier, self._locate(states))

    def observe(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d)
        :return: as the environment would show them, (m, d_s)
        """
        parts = [states[:, : self._n_plain]]
        if self._is_round:
            angle = states[:, self._n_plain :] + self._zeros
            parts += [np.cos(angle), np.sin(angle)]
        if len(self._still):
            parts.append(np.broadcast_to(self._still, (len(states), len(self._still))))
        return np.concatenate(parts, axis=1)[:, self._order]

    def applied(self, actions: np.ndarray) -> np.ndarray:
        """What is applied of the actions that a policy asks for, (m, d_a)."""
        return np.minimum(np.maximum(actions, self._low), self._high)

    def step(self, situation: Situation, applied: np.ndarray, noise: np.ndarray | None = None) -> tuple[Situation, np.ndarray]:
        """
        :param situation: before
        :param applied: actions within their range, (m, d_a)
        :param noise: added to the next states, (m, d)
        :return: what follows, and r̂ where the nodes know it, (m, 0) or (m, 1)
        """
        states, earlier, parts = situation.states, situation.earlier, [applied, situation.earlier]
        if self._products is not None:
            i, j = self._products
            parts.insert(1, applied[:, i] * applied[:, j])
        inputs, nearest = np.concatenate(parts, axis=1), situation.nearest
        if self._friction is not None:
            inputs = np.concatenate([inputs, self._friction(states, inputs)], axis=1)
        changes = [field.change(states, inputs, nearest[:, number]) for number, field in enumerate(self._fields)]
        change = changes[0] if len(changes) == 1 else np.concatenate(changes, axis=1)[:, self._target_order]
        d = states.shape[1]
        moved = states + change[:, :d]
        if noise is not None:
            moved += noise
        moved = np.minimum(np.maximum(moved, self._edges[0]), self._edges[1])
        if earlier.shape[1]:
            earlier = np.concatenate([applied, moved - states, earlier], axis=1)[:, : earlier.shape[1]]
        return Situation(moved, earlier, self._locate(moved)), change[:, d:]

    def _locate(self, states: np.ndarray) -> np.ndarray:
        """Node of each field of maps next to each state, (m, f)."""
        if self._nowhere_to_look:
            return np.zeros((len(states), len(self._fields)), dtype=np.int64)
        if not (np.abs(states) < ANYWHERE).all():
            # What is no number, or none that a tree takes, is near to any node.
            states = np.nan_to_num(states, posinf=ANYWHERE, neginf=-ANYWHERE).clip(-ANYWHERE, ANYWHERE)
        angle = states[:, self._n_plain :]
        # As Coordinates.embed has it, but for each field's scale.
        parts = [states[:, : self._n_plain], np.cos(angle), np.sin(angle)] if self._is_round else [states]
        embedded, found = np.concatenate(parts, axis=1), np.empty((len(states), len(self._fields)), dtype=np.int64)
        for number, field in enumerate(self._fields):
            found[:, number] = field.locate(embedded)
        return found


class _FieldOfMaps:
    """What :class:`sb3_nopg.dynamics.map_field.MapField` does, for one step."""

    def __init__(self, field: MapField):
        between = field.between
        self._single, self._n_plain = field.single, len(between.coordinates.plain)
        self._turns, self._is_round = _array(between.coordinates.turns), bool(between.coordinates.angles)
        self._nodes, self._scale = _array(between.nodes), _array(between.scale)
        if self._single:
            maps = field.maps
            self._map = tuple(_array(part[0]) for part in (maps.value, maps.state_slope, maps.action_slope))
            return
        self._offsets, self._tree = _array(field.offsets), between.tree
        self._precision, self._tables = -0.5 / _array(field.squared_widths), _array(field.tables.flatten(2))
        inverse = 1.0 / self._scale
        self._inverse_scales = np.concatenate([inverse, inverse[self._n_plain :]])

    def change(self, states: np.ndarray, inputs: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """The blended maps' values, (m, t)."""
        if self._single:
            value, slope, action_slope = self._map
            return value + self._difference(states, self._nodes[0]) @ slope.T + inputs @ action_slope.T
        way = self._difference(states, self._nodes.take(nearest, axis=0))
        blended = self._weights(way / self._scale, nearest)[:, None] @ self._tables.take(nearest, axis=0)
        column = np.concatenate([np.ones((len(way), 1)), way, inputs], axis=1)
        return (blended.reshape(len(way), -1, column.shape[1]) @ column[..., None])[..., 0]

    def locate(self, embedded: np.ndarray) -> np.ndarray | int:
        """
        The nearest node of each state, (m,).

        :param embedded: plain coordinates, cosines and sines of angles, (m, d + n_angles)
        """
        return 0 if self._single else np.asarray(self._tree.query(embedded * self._inverse_scales)[1])

    def _weights(self, way: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """φ, (m, k)."""
        delta = self._offsets.take(nearest, axis=0)
        delta += way[:, None]
        raw = np.einsum("mkd,mkd->mk", delta, delta)
        raw *= self._precision.take(nearest, axis=0)
        raw -= raw.max(axis=1, keepdims=True)
        np.exp(raw, out=raw)
        raw /= raw.sum(axis=1, keepdims=True)
        return raw

    def _difference(self, to: np.ndarray, from_: np.ndarray) -> np.ndarray:
        way = to - from_
        if self._is_round:
            way -= 2.0 * math.pi * np.round(way * self._turns)
        return way


def _array(tensor: th.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
