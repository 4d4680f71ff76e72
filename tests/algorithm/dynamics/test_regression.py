"""Local affine regression, against weighted least squares written out, and what it does where a neighbourhood cannot tell."""

import math

import numpy as np
import pytest
import torch as th

from sb3_nopg.dynamics.affine import AffineRegression, Samples, spread_of
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.cross_validation import BANDWIDTHS, LeftOut, left_out_errors, unexplained, widest_good
from sb3_nopg.dynamics.regression import LocalAffineRegression

A, B, C = np.array([[0.5, -1.0], [2.0, 0.3]]), np.array([[1.5], [-0.7]]), np.array([0.2, -0.4])


def samples(n: int = 150, noise: float = 0.0, bend: float = 0.0, seed: int = 0) -> Samples:
    """Of f(x, u) = C + A x + B u + bend · sin(3 x)."""
    rng = np.random.default_rng(seed)
    states, inputs = rng.uniform(-1, 1, size=(n, 2)), 3.0 + 2.0 * rng.uniform(-1, 1, size=(n, 1))
    targets = C + states @ A.T + inputs @ B.T + bend * np.sin(3.0 * states) + noise * rng.normal(size=(n, 2))
    coordinates = Coordinates.of(th.tensor(states))
    return Samples(coordinates, *(th.tensor(part) for part in (states, inputs, targets)))


@pytest.mark.parametrize("bandwidth", [0.3, 1.0, math.inf])
def test_an_affine_function_is_found_whatever_the_bandwidth(bandwidth):
    data = samples()
    states = th.tensor([[0.0, 0.0], [0.5, -0.7], [3.0, 3.0]], dtype=th.float64)
    maps = LocalAffineRegression(data, bandwidth).maps_at(states)
    for row, state in enumerate(states.numpy()):
        np.testing.assert_allclose(maps.state_slope[row].numpy(), A, atol=1e-5)
        np.testing.assert_allclose(maps.action_slope[row].numpy(), B, atol=1e-5)
        np.testing.assert_allclose(maps.value[row].numpy(), C + A @ state, atol=1e-5)
    inputs = th.full((3, 1), 2.0, dtype=th.float64)
    np.testing.assert_allclose(maps.at_own_states(inputs).numpy(), C + states.numpy() @ A.T + 2.0 * B.T, atol=1e-5)


def test_it_is_a_weighted_ridge_regression_of_what_the_whole_leaves():
    data = samples(60, noise=0.3, bend=0.5)
    regression = LocalAffineRegression(data, 0.6)
    state = np.array([0.2, -0.1])
    maps = regression.maps_at(th.tensor(state[None]))
    states, inputs, targets = (part.numpy() for part in (data.states, data.inputs, data.targets))
    whole = regression.whole.maps_at(th.tensor(state[None]))
    scale, input_scale = states.std(axis=0, ddof=1), inputs.std(axis=0, ddof=1)
    left = targets - regression.whole.predict(data.states, data.inputs).numpy()
    # Weighted by states alone, in units of their spread.
    way = (states - state) / scale
    weights = np.exp(-0.5 * np.square(way).sum(axis=1) / 0.6**2)
    weights /= weights.sum()
    rows = np.column_stack([np.ones(60), way, (inputs - inputs.mean(axis=0)) / input_scale])
    ridge = np.diag([0.0, 1e-4 * 0.36, 1e-4 * 0.36, 1e-3])
    fit = np.linalg.solve(rows.T @ (weights[:, None] * rows) + ridge, rows.T @ (weights[:, None] * left)).T
    np.testing.assert_allclose((maps.state_slope - whole.state_slope)[0].numpy(), fit[:, 1:3] / scale, rtol=1e-6)
    np.testing.assert_allclose((maps.action_slope - whole.action_slope)[0].numpy(), fit[:, 3:] / input_scale, rtol=1e-6)
    at_the_mean = th.tensor(inputs.mean(axis=0)[None])
    corrected = (maps.at_own_states(at_the_mean) - whole.at_own_states(at_the_mean))[0].numpy()
    np.testing.assert_allclose(corrected, fit[:, 0], rtol=1e-6)


def test_what_a_neighbourhood_cannot_tell_the_whole_does():
    """On one demonstrated curve actions follow from states; what they do elsewhere shows."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, size=(300, 1))
    # To the left the action is a function of the state, to the right it is free.
    inputs = np.where(states < 0, np.sin(5.0 * states), rng.uniform(-1, 1, size=(300, 1)))
    targets = 0.5 * states + 2.0 * inputs
    data = Samples(Coordinates.of(th.tensor(states)), *(th.tensor(part) for part in (states, inputs, targets)))
    maps = LocalAffineRegression(data, 0.05).maps_at(th.tensor([[-0.6], [-0.3]], dtype=th.float64))
    np.testing.assert_allclose(maps.action_slope.numpy().reshape(-1), 2.0, atol=0.05)


def test_constant_inputs_and_targets():
    data = samples(50)
    still = Samples(data.coordinates, data.states, th.ones_like(data.inputs), th.zeros_like(data.targets))
    maps = LocalAffineRegression(still, 0.5).maps_at(data.states[:5])
    for part in (maps.value, maps.state_slope, maps.action_slope):
        np.testing.assert_allclose(part.numpy(), 0.0, atol=1e-12)


def test_a_whole_circle_needs_sine_and_cosine():
    rng = np.random.default_rng(0)
    angle = rng.uniform(-math.pi, math.pi, size=200)
    coordinates = Coordinates.of(th.tensor(np.column_stack([np.cos(angle), np.sin(angle)])))
    states = coordinates.encode(th.tensor(np.column_stack([np.cos(angle), np.sin(angle)])))
    inputs, targets = th.zeros(200, 1, dtype=th.float64), th.tensor((2.0 * np.sin(angle) - 0.5)[:, None])
    regression = AffineRegression(Samples(coordinates, states, inputs, targets))
    np.testing.assert_allclose(regression.predict(states, inputs).numpy(), targets.numpy(), atol=1e-6)
    # Its maps are tangents.
    moved = states[:20] + 1e-6
    slope = (regression.predict(moved, inputs[:20]) - regression.predict(states[:20], inputs[:20])) / 1e-6
    np.testing.assert_allclose(regression.maps_at(states[:20]).state_slope[:, 0].numpy(), slope.numpy(), atol=1e-4)


# --- Left-out episodes -----------------------------------------------------------------------------------------------------


def test_whole_episodes_are_left_out():
    labels = np.repeat(np.arange(20), 10)
    left_out = LeftOut.of(labels, 200)
    for episode in range(20):
        assert len(left_out.fold[labels == episode].unique()) == 1
    assert len(left_out.fold.unique()) == 5


@pytest.mark.parametrize("labels", [np.zeros(200, dtype=int), np.repeat([3, 9], 100)])
def test_of_few_episodes_stretches_of_time_are(labels):
    fold = LeftOut.of(labels, 200).fold.numpy()
    assert len(np.unique(fold)) == 5
    # Runs of neighbours, not rows here and there.
    assert (np.diff(fold) != 0).sum() < 25


def test_an_error_is_that_of_a_model_that_has_not_seen_the_row():
    data = samples(100, noise=0.5)
    labels = np.arange(100) // 10
    left_out = LeftOut.of(labels, 100)
    (found,) = left_out_errors(data, left_out, (math.inf,))
    for number in range(0, len(left_out.judged), 9):
        row = int(left_out.judged[number])
        seen = left_out.fold != left_out.fold[row]
        assert not bool(seen[row])
        regression = AffineRegression(data.rows(seen))
        expected = data.targets[row] - regression.predict(data.states[row : row + 1], data.inputs[row : row + 1])[0]
        th.testing.assert_close(found[number], expected)


def test_the_widest_of_the_good_ones_is_taken():
    errors = th.tensor([0.3, 0.2, 0.101, 0.1, 0.105, 0.124, 0.126, 0.2, 0.3, 0.4, 0.5], dtype=th.float64)
    assert widest_good(errors) == 5
    assert widest_good(th.zeros(len(BANDWIDTHS), dtype=th.float64)) == len(BANDWIDTHS) - 1


def test_nothing_is_explained_by_predicting_the_mean():
    targets = th.randn(2000, 2, generator=th.Generator().manual_seed(0), dtype=th.float64)
    assert float(unexplained(targets, targets).mean()) == pytest.approx(1.0, abs=0.1)
    assert float(unexplained(0.1 * targets, targets).mean()) == pytest.approx(0.01, rel=0.1)
    assert float(spread_of(th.ones(5, 1, dtype=th.float64))) == 1.0
