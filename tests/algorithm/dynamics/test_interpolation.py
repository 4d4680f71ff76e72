"""Weights between nodes: positive, sum to one, mean at the state; their derivative; the search for the nearest node."""

import math

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nopg.dynamics.affine import AffineMaps
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.interpolation import Interpolation
from sb3_nopg.dynamics.map_field import MapField


def scattered(n: int = 150, turning: bool = False, seed: int = 0) -> Interpolation:
    """Between nodes scattered over a square, or a cylinder whose second coordinate is an angle."""
    rng = np.random.default_rng(seed)
    position, second = rng.uniform(-1, 1, size=(2, n))
    seen = np.column_stack([position, second])
    if turning:
        seen = np.column_stack([position, np.cos(math.pi * second), np.sin(math.pi * second)])
    coordinates = Coordinates.of(th.tensor(seen))
    nodes = coordinates.encode(th.tensor(seen))
    return Interpolation.between(coordinates, nodes, nodes.std(dim=0))


def inside(interpolation: Interpolation, n: int = 100, share: float = 0.8, seed: int = 1) -> th.Tensor:
    extent = interpolation.nodes.abs().amax(dim=0)
    generator = th.Generator().manual_seed(seed)
    return share * extent * (2.0 * th.rand(n, 2, generator=generator, dtype=th.float64) - 1.0)


@pytest.mark.slow
@given(seed=st.integers(0, 20), turning=st.booleans(), x=st.floats(-50, 50), y=st.floats(-50, 50))
@settings(max_examples=80, deadline=None)
def test_weights_are_positive_and_sum_to_one_wherever_a_state_is(seed, turning, x, y):
    interpolation = scattered(40, turning, seed)
    state = th.tensor([[x, y]], dtype=th.float64)
    weights = interpolation.weights(state, interpolation.locate(state))
    assert bool(weights.values.isfinite().all())
    assert float(weights.values.min()) >= 0.0
    assert float(weights.values.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("turning", [False, True])
def test_the_mean_of_the_nodes_is_where_the_state_is(turning):
    interpolation = scattered(300, turning)
    states = inside(interpolation, 200)
    weights = interpolation.weights(states, interpolation.locate(states))
    not_clipped = (weights.tilt > 0.02).all(dim=1)
    assert float(not_clipped.double().mean()) > 0.5
    corrected = (weights.values[..., None] * weights.way).sum(dim=1).norm(dim=1)[not_clipped]
    plain = (weights.gaussian[..., None] * weights.way).sum(dim=1).norm(dim=1)[not_clipped]
    # All but what the ridge holds back.
    assert float((corrected / plain).max()) < 0.15
    assert float(corrected.max()) < 0.1 * float(interpolation.squared_width.sqrt().median())


def test_a_plane_is_interpolated_as_a_plane():
    """Where plain kernel weights would put a step at every edge of the nodes."""
    interpolation = scattered(400)
    of_nodes = 3.0 * interpolation.nodes[:, 0] - 2.0 * interpolation.nodes[:, 1] + 1.0
    states = inside(interpolation, 200)
    weights = interpolation.weights(states, interpolation.locate(states))
    expected = 3.0 * states[:, 0] - 2.0 * states[:, 1] + 1.0
    plain = ((weights.gaussian * of_nodes[weights.nodes]).sum(dim=1) - expected).square().mean().sqrt()
    found = (weights.mean(of_nodes) - expected).square().mean().sqrt()
    # Not all of it: the clip and the ridge hold some back.
    assert float(found) < 0.25 * float(plain)


@pytest.mark.parametrize("share", [0.8, 1.4])
@pytest.mark.parametrize("turning", [False, True])
def test_pull_back_is_the_derivative_of_the_weights(turning, share):
    interpolation = scattered(turning=turning)
    states = inside(interpolation, 80, share).requires_grad_(True)
    weights = interpolation.weights(states, interpolation.locate(states.detach()))
    if share > 1:
        # Outside, some are clipped.
        assert bool((weights.tilt < 0.02).any())
    gradient = th.randn(weights.values.shape, generator=th.Generator().manual_seed(0), dtype=th.float64)
    (expected,) = th.autograd.grad(weights.values, states, gradient)
    with th.no_grad():
        found = interpolation.pull_back(interpolation.weights(states, weights.nodes[:, 0]), gradient)
    assert float((found - expected).norm() / expected.norm()) <= 1e-10


def test_a_few_nodes_are_enough():
    interpolation = scattered(5)
    states = inside(interpolation, 10)
    weights = interpolation.weights(states, interpolation.locate(states))
    assert weights.values.shape == (10, 5)
    th.testing.assert_close(weights.values.sum(dim=1), th.ones(10, dtype=th.float64))


def test_nodes_at_the_same_place_do_no_harm():
    interpolation = scattered(40)
    nodes = th.cat([interpolation.nodes, interpolation.nodes[:15].repeat(3, 1)])
    twice = Interpolation.between(interpolation.coordinates, nodes, interpolation.scale)
    states = inside(twice, 30)
    weights = twice.weights(states, twice.locate(states))
    assert bool(weights.values.isfinite().all())
    th.testing.assert_close(weights.values.sum(dim=1), th.ones(30, dtype=th.float64))


@pytest.mark.parametrize("turning", [False, True])
def test_the_nearest_node_is_found(turning):
    interpolation = scattered(600, turning)
    states = inside(interpolation, 100)
    way = interpolation.coordinates.difference(interpolation.nodes[None], states[:, None]) / interpolation.scale
    nearest = way.square().sum(dim=-1).argmin(dim=1)
    assert bool((interpolation.locate(states) == nearest).double().mean() > 0.98)


def test_maps_are_blended_and_their_slopes_are_the_derivatives():
    interpolation = scattered(turning=True)
    n, generator = len(interpolation.nodes), th.Generator().manual_seed(0)
    parts = (th.randn(shape, generator=generator, dtype=th.float64) for shape in ((n, 3), (n, 3, 2), (n, 3, 4)))
    maps = MapField((0, 1, 2), interpolation, AffineMaps(*parts))
    states = inside(interpolation, 20).requires_grad_(True)
    inputs = th.randn(20, 4, generator=generator, dtype=th.float64).requires_grad_(True)
    nearest = interpolation.locate(states.detach())
    values = maps.evaluate(states, inputs, nearest)

    # Σ_l φ_l f_l(x, u), one by one, with φ_l ∝ exp(−|x − z_l|²/2h_l²) and the tenth node 2.5 h_l away from the l-th.
    def scaled(from_node, to):
        return interpolation.coordinates.difference(to, interpolation.nodes[from_node]) / interpolation.scale

    for row in range(20):
        chosen = interpolation.around[nearest[row], :10]
        widths = [scaled(node, interpolation.nodes[interpolation.around[node, 9]]).norm() / 2.5 for node in chosen]
        ways = [scaled(node, states[row]) for node in chosen]
        raw = th.stack([th.exp(-0.5 * (way.norm() / width) ** 2) for way, width in zip(ways, widths, strict=True)])
        expected = th.zeros(3, dtype=th.float64)
        for phi, way, node in zip(raw / raw.sum(), ways, chosen, strict=True):
            away = way * interpolation.scale
            own = maps.maps.value[node] + maps.maps.state_slope[node] @ away + maps.maps.action_slope[node] @ inputs[row]
            expected = expected + phi * own
        th.testing.assert_close(values[row], expected, rtol=1e-10, atol=1e-10)
    of_states, of_inputs = maps.slopes(states.detach(), inputs.detach(), nearest)
    for target in range(3):
        of_state, of_input = th.autograd.grad(values[:, target].sum(), (states, inputs), retain_graph=True)
        th.testing.assert_close(of_states[:, target], of_state, rtol=1e-9, atol=1e-11)
        th.testing.assert_close(of_inputs[:, target], of_input, rtol=1e-9, atol=1e-11)
