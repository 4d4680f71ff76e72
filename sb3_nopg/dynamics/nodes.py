"""
The data compiled into affine maps at nodes: states that need not be samples, each with what the data say around it.

Between nodes the maps are blended. What depends on the number of samples happens once, here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch as th
from scipy.spatial import cKDTree

from sb3_nopg.dynamics.affine import AffineMaps
from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.friction import DryFriction
from sb3_nopg.dynamics.interpolation import Interpolation
from sb3_nopg.dynamics.map_field import MapField

# Rounds of random actions, each held for some steps, by which states beside the recorded ones are found.
_N_ROUNDS, _HELD_FOR, _LEAST_WALKERS = 15, 3, 500
# More of them from starts that are alone: so many times as far from some of the nodes as those are from each other.
_N_ROUNDS_FROM_AFAR, _ALONE, _SOME = 60, 2.0, 5
_MOST_STATES = 100_000
_HALVINGS = 20


@dataclass(frozen=True)
class NodeMaps:
    """
    :param interpolation: of values between the nodes
    :param fields: maps of all targets, at nodes of their own
    :param without_past: at the nodes of values, of state and action alone: what follows on average over all pasts
    :param friction: whose levels are the last inputs of the fields' maps; None for none
    """

    interpolation: Interpolation
    fields: tuple[MapField, ...]
    without_past: AffineMaps
    friction: DryFriction | None = None

    @property
    def states(self) -> th.Tensor:
        """z, (n, d)."""
        return self.interpolation.nodes

    def __len__(self) -> int:
        return len(self.states)

    @property
    def single(self) -> bool:
        """Whether there is one map for all states."""
        return all(field.single for field in self.fields)

    @cached_property
    def order(self) -> th.Tensor:
        """Of the fields' targets one after another, those that bring them into their own order, (t,)."""
        return th.tensor([number for field in self.fields for number in field.targets]).argsort()

    def to(self, device: th.device) -> "NodeMaps":
        """The same on a device."""
        fields = tuple(field.to(device) for field in self.fields)
        friction = None if self.friction is None else self.friction.to(device)
        return NodeMaps(self.interpolation.to(device), fields, self.without_past.to(device), friction)

    def locate(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: anywhere, (m, d)
        :return: the nearest node of each field, (m, f)
        """
        return th.stack([field.between.locate(states) for field in self.fields], dim=1)

    def evaluate(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param inputs: ψ and earlier steps, (m, p)
        :param nearest: node of each field, (m, f)
        :return: all targets, (m, t)
        """
        inputs = self._with_friction(states, inputs)
        parts = [field.evaluate(states, inputs, nearest[:, number]) for number, field in enumerate(self.fields)]
        return th.cat(parts, dim=1)[:, self.order]

    def slopes(self, states: th.Tensor, inputs: th.Tensor, nearest: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Derivatives of :meth:`evaluate` with respect to the states, (m, t, d), and to the inputs, (m, t, p).
        """
        every = self._with_friction(states, inputs)
        parts = [field.slopes(states, every, nearest[:, number]) for number, field in enumerate(self.fields)]
        of_states, of_inputs = (th.cat(part, dim=1)[:, self.order] for part in zip(*parts, strict=True))
        if self.friction is None:
            return of_states, of_inputs
        of_inputs, of_friction = of_inputs.tensor_split([inputs.shape[1]], dim=2)
        by_states, by_inputs = self.friction.slopes(states, inputs)
        return of_states + of_friction @ by_states, of_inputs + of_friction @ by_inputs

    def _with_friction(self, states: th.Tensor, inputs: th.Tensor) -> th.Tensor:
        return inputs if self.friction is None else self.friction.beside(states, inputs)


def choose_nodes(
    states: th.Tensor,
    first: th.Tensor,
    coordinates: Coordinates,
    scale: th.Tensor,
    n_nodes: int,
    reach: Callable[[th.Tensor, th.Tensor], th.Tensor],
    bounds: Bounds,
    action_range: tuple[th.Tensor, th.Tensor],
    generator: th.Generator,
) -> th.Tensor:
    """
    Recorded states and those that the model reaches from them, and from first states that lie away from both, thinned evenly.

    :param states: recorded, (n, d)
    :param first: states that count most, start states for instance, (f, d)
    :param coordinates: of the states
    :param scale: of each coordinate, (d,)
    :param n_nodes: at most
    :param reach: next states of states and actions
    :param bounds: where states stop being of interest
    :param action_range: smallest and largest actions
    :param generator: to draw from
    :return: (m, d)
    """
    low, high = action_range
    recorded = states
    if len(states) > _MOST_STATES:
        recorded = states[th.randperm(len(states), generator=generator)[:_MOST_STATES]]
    found = [first, recorded]

    def drawn(n: int) -> th.Tensor:
        return recorded[th.randint(len(recorded), (n,), generator=generator)]

    def wander(at: th.Tensor, n_rounds: int) -> None:
        actions = low.expand(len(at), -1)
        for number in range(n_rounds):
            if number % _HELD_FOR == 0:
                actions = low + (high - low) * th.rand(len(at), len(low), generator=generator, dtype=at.dtype)
            reached = reach(at, actions)
            inside = bounds.cross(reached).goes_on > 0.5
            found.append(reached[inside])
            at = th.where(inside[:, None], reached, drawn(len(at)))

    n_walkers = max(n_nodes // 2, _LEAST_WALKERS)
    wander(drawn(n_walkers), _N_ROUNDS)
    alone = _alone(first, thinned(th.cat(found[1:]), coordinates, scale, n_nodes), coordinates, scale)
    if len(alone):
        # From a start that nobody has recorded, somebody has to walk to where the data are.
        wander(alone[th.arange(n_walkers) % len(alone)], _N_ROUNDS_FROM_AFAR)
    return thinned(th.cat(found), coordinates, scale, n_nodes)


def _alone(first: th.Tensor, nodes: th.Tensor, coordinates: Coordinates, scale: th.Tensor) -> th.Tensor:
    """Those first states that lie far from all nodes, (m, d). The nodes hold no first states yet."""
    if not len(first) or len(nodes) < _SOME:
        return first[:0]
    tree = cKDTree(coordinates.embed(nodes, scale).numpy())

    def distances(states: th.Tensor) -> np.ndarray:
        return np.asarray(tree.query(coordinates.embed(states, scale).numpy(), k=[_SOME])[0])[:, 0]

    return first[th.from_numpy(distances(first) > _ALONE * np.median(distances(nodes)))]


def thinned(states: th.Tensor, coordinates: Coordinates, scale: th.Tensor, n_most: int) -> th.Tensor:
    """
    The first state of each cell of a lattice, as fine a one as leaves at most so many.

    :param states: (n, d)
    :param coordinates: of the states
    :param scale: of each coordinate, (d,), infinite where it does not count
    :param n_most: to leave
    :return: (m, d)
    """
    points = coordinates.embed(states, scale)

    def firsts(size: float) -> th.Tensor:
        cells = (points / size).round().long().numpy()
        # One number a cell: rows would be compared column by column, which takes most of the time of all this.
        extent = cells.max(axis=0) - (least := cells.min(axis=0)) + 1
        if np.prod(extent.astype(np.float64)) < 2**62:
            cells = (cells - least) @ np.concatenate([np.cumprod(extent[:0:-1])[::-1], [1]])
        return th.from_numpy(np.sort(np.unique(cells, axis=0, return_index=True)[1]))

    kept = firsts(1e-6)
    if len(kept) <= n_most:
        return states[kept]
    low, high = 1e-6, float((points.max(dim=0).values - points.min(dim=0).values).max()) + 1e-6
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        chosen = firsts(middle)
        if len(chosen) > n_most:
            low = middle
        else:
            high, kept = middle, chosen
            if len(chosen) > 0.95 * n_most:
                break
    return states[kept]
