"""From regressions to nodes: where to have some, and which coordinates the maps between them depend on."""

import math
from dataclasses import replace

import torch as th

from sb3_nopg.common.progress import Advance, nothing
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.affine import joined
from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.friction import DryFriction
from sb3_nopg.dynamics.interpolation import Interpolation
from sb3_nopg.dynamics.map_field import MapField
from sb3_nopg.dynamics.nodes import NodeMaps, choose_nodes, thinned
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.regression import Regressions

# Nodes by number of coordinates.
_N_NODES = {1: 400, 2: 2500, 3: 5000}
_N_NODES_OTHERWISE = 12_000
# Where an angle goes far.
_N_NODES_AROUND = 20_000
#: of making nodes: where they may be, where they are, maps at them, and maps without a past
N_STEPS = 4


def compile_nodes(
    data: Prepared,
    first: th.Tensor,
    regressions: list[Regressions],
    without_past: list[Regressions],
    bounds: Bounds,
    features: ActionFeatures,
    action_range: tuple[th.Tensor, th.Tensor],
    n_nodes: int,
    generator: th.Generator,
    friction: DryFriction | None = None,
    *,
    advance: Advance = nothing,
) -> NodeMaps:
    """
    :param data: recorded transitions
    :param first: states that are to be nodes, start states for instance, (f, d)
    :param regressions: of the changes and, where nodes are to know it, of the reward
    :param without_past: the same of state and action alone
    :param bounds: of what was recorded
    :param features: of an action
    :param action_range: smallest and largest actions
    :param n_nodes: at most
    :param generator: to draw from
    :param friction: that the first regressions know; those without a past know none
    :param advance: called after each of :data:`N_STEPS` steps
    """
    coordinates, scale = data.coordinates, regressions[0].scale
    some = data.states[th.randperm(len(data.states), generator=generator)[:1000]]
    roughly = Interpolation.between(coordinates, some, scale)
    n_targets = sum(len(regression.kernels) for regression in without_past)
    rough = MapField(tuple(range(n_targets)), roughly, joined([regression.maps_at(some) for regression in without_past]))

    advance()

    def reach(states: th.Tensor, actions: th.Tensor) -> th.Tensor:
        change = rough.evaluate(states, features(actions), roughly.locate(states))
        return bounds.hold(states + change[:, : coordinates.dim])

    # However far the model is believed, nodes are of use where states are met.
    recorded = replace(bounds, room=th.zeros_like(bounds.room))
    nodes = choose_nodes(data.states, first, coordinates, scale, n_nodes, reach, recorded, action_range, generator)
    advance()
    fields = []
    for looked_at, targets in _targets_by_coordinates(regressions).items():
        map_scale = scale.masked_fill(~th.tensor(looked_at), math.inf)
        n_maps = min(n_nodes, _N_NODES.get(sum(looked_at), n_nodes)) if any(looked_at) else 1
        at = nodes if all(looked_at) else thinned(nodes, coordinates, map_scale, n_maps)
        maps = joined([regressions[which].maps_at(at, numbers) for which, numbers in targets.items()])
        numbers = tuple(number + which * coordinates.dim for which, numbers in targets.items() for number in numbers)
        fields.append(MapField(numbers, Interpolation.between(coordinates, at, map_scale), maps))
    advance()
    alone = joined([regression.maps_at(nodes) for regression in without_past])
    advance()
    return NodeMaps(Interpolation.between(coordinates, nodes, scale), tuple(fields), alone, friction)


def _targets_by_coordinates(regressions: list[Regressions]) -> dict[tuple[bool, ...], dict[int, list[int]]]:
    """Which coordinates maps depend on, and for each regression the targets whose maps do."""
    found: dict[tuple[bool, ...], dict[int, list[int]]] = {}
    bent = regressions[0].samples.coordinates.bent.tolist()
    for which, regression in enumerate(regressions):
        for number, kernel in enumerate(regression.kernels):
            local = [not kernel.is_affine and place not in kernel.form.everywhere for place in range(len(bent))]
            looked_at = tuple(bend or bends for bend, bends in zip(bent, local, strict=True))
            found.setdefault(looked_at, {}).setdefault(which, []).append(number)
    return found


def usual_number_of_nodes(coordinates: Coordinates) -> int:
    """
    :param coordinates: of the states
    """
    otherwise = _N_NODES_AROUND if bool(coordinates.bent.any()) else _N_NODES_OTHERWISE
    return _N_NODES.get(coordinates.dim, otherwise)
