"""Coordinates: angles are found and wrap, columns that never change are left out, and nothing is lost on the way back."""

import math

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.systems import on_circle, pendulum, pendulum_reward, predicted_changes, record, recorded_changes
from sb3_nopg import DynamicsModel, InputError, TransitionDataset
from sb3_nopg.dynamics.coordinates import Coordinates, find_angles, wrap


def observations(n: int = 200, seed: int = 0, around: float = 0.0, spread: float = 3.0) -> th.Tensor:
    """Position, cosine, a column that never changes, sine, speed."""
    rng = np.random.default_rng(seed)
    angle = around + rng.uniform(-spread, spread, size=n)
    columns = [rng.normal(size=n), np.cos(angle), np.full(n, 7.5), np.sin(angle), rng.normal(size=n)]
    return th.tensor(np.column_stack(columns))


def test_an_angle_is_found_and_a_constant_column_left_out():
    coordinates = Coordinates.of(observations())
    assert coordinates.angles == ((1, 3),)
    assert coordinates.plain == (0, 4)
    assert coordinates.dim == 3
    assert coordinates.names(["x", "cos", "c", "sin", "v"]) == ("x", "v", "angle(cos, sin)")


def test_columns_that_only_look_like_an_angle_are_none():
    seen = observations()
    # On the circle in all rows but one.
    seen[17, 1] += 0.1
    assert find_angles(seen) == ()
    still = observations()
    still[:, 1], still[:, 3] = 1.0, 0.0
    assert find_angles(still) == ()


def test_two_angles_take_each_column_once():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(-3, 3, size=(2, 100))
    seen = th.tensor(np.column_stack([np.cos(first), np.cos(second), np.sin(first), np.sin(second)]))
    assert Coordinates.of(seen).angles == ((0, 2), (1, 3))


@pytest.mark.parametrize("around", [0.0, math.pi, -2.0])
def test_decoding_undoes_encoding(around):
    seen = observations(around=around)
    coordinates = Coordinates.of(seen)
    th.testing.assert_close(coordinates.decode(coordinates.encode(seen)), seen, rtol=0, atol=1e-12)


def test_the_data_lie_around_zero_wherever_they_lie_on_the_circle():
    # A pendulum that hangs swings across ±π: its angles must not fall apart into two heaps.
    states = Coordinates.of(observations(around=math.pi, spread=0.4)).encode(observations(around=math.pi, spread=0.4))
    assert float(states[:, 2].abs().max()) < 0.5


@pytest.mark.parametrize(("spread", "is_round", "is_bent"), [(3.1, True, True), (1.5, False, True), (0.5, False, False)])
def test_how_much_of_the_circle_is_covered(spread, is_round, is_bent):
    coordinates = Coordinates.of(observations(spread=spread))
    assert coordinates.round.tolist() == [False, False, is_round]
    assert coordinates.bent.tolist() == [False, False, is_bent]


def test_differences_take_the_shorter_way_around():
    coordinates = Coordinates.of(observations())
    ahead, behind = (th.tensor([state], dtype=th.float64) for state in ([0.0, 0.0, 3.1], [1.0, -1.0, -3.1]))
    expected = th.tensor([[1.0, -1.0, 2 * math.pi - 6.2]], dtype=th.float64)
    th.testing.assert_close(coordinates.difference(behind, ahead), expected)
    th.testing.assert_close(coordinates.difference(ahead, behind), -expected)


@given(angle=st.floats(-50, 50), turns=st.integers(-5, 5))
@settings(max_examples=60, deadline=None)
def test_a_wrapped_angle_is_the_same_direction_within_half_a_turn(angle, turns):
    wrapped = float(wrap(th.tensor(angle + 2 * math.pi * turns, dtype=th.float64)))
    assert abs(wrapped) <= math.pi + 1e-9
    assert math.isclose(math.cos(wrapped), math.cos(angle), abs_tol=1e-9)
    assert math.isclose(math.sin(wrapped), math.sin(angle), abs_tol=1e-9)


def test_pull_back_is_the_derivative_of_decoding():
    coordinates = Coordinates.of(observations(around=2.0))
    states = coordinates.encode(observations(30, seed=1)).requires_grad_(True)
    gradient = th.randn(30, 5, generator=th.Generator().manual_seed(0), dtype=th.float64)
    (expected,) = th.autograd.grad(coordinates.decode(states), states, gradient)
    th.testing.assert_close(coordinates.pull_back(states.detach(), gradient), expected, rtol=1e-12, atol=1e-14)


def test_neighbours_across_the_cut_are_neighbours():
    coordinates = Coordinates.of(observations())
    states = th.tensor([[0.0, 0.0, 3.1], [0.0, 0.0, -3.1], [0.0, 0.0, 2.0]]).double()
    points = coordinates.embed(states, th.tensor([1.0, 1.0, 0.5]).double())
    distance = th.cdist(points, points)
    assert float(distance[0, 1]) < float(distance[0, 2])


def test_angles_that_a_user_names_and_none():
    seen = observations()
    assert Coordinates.of(seen, [(3, 1)]).angles == ((3, 1),)
    none = Coordinates.of(seen, ())
    assert none.angles == ()
    assert none.plain == (0, 1, 3, 4)


@pytest.mark.parametrize(
    "angles",
    [[(0, 4)], [(1, 3), (3, 4)], [(1, 9)], [(1, 1)], [(1,)], ["13"], [1, 3], [(1.0, 3.0)], 5, [(-1, 3)]],
)
def test_angles_that_are_none_are_refused(angles):
    with pytest.raises(InputError) as caught:
        Coordinates.of(observations(), angles)
    assert caught.value.field == "angles"


def test_data_in_which_nothing_moves_are_refused():
    with pytest.raises(InputError) as caught:
        Coordinates.of(th.ones(10, 3, dtype=th.float64))
    assert caught.value.field == "dataset"


@pytest.mark.slow
def test_a_pendulum_is_predicted_across_the_cut():
    """Around hanging, where the angle from upright jumps from π to −π."""

    def hanging(states):
        return on_circle(states + np.array([math.pi, 0.0]))

    def swings(states, actions):
        return pendulum(states + np.array([math.pi, 0.0]), actions) - np.array([math.pi, 0.0])

    data = record(swings, pendulum_reward, start=(1.0, 1.5), observe=hanging, n_episodes=20)
    model = DynamicsModel.fit(data, n_nodes=200)
    angles = np.arctan2(data.observations[:, 1], data.observations[:, 0])
    after = np.arctan2(data.next_observations[:, 1], data.next_observations[:, 0])
    crosses = np.abs(after - angles) > math.pi
    assert crosses.sum() >= 5
    assert model.coordinates.angles == ((0, 1),)
    found, expected = predicted_changes(model, data), recorded_changes(model, data)
    assert float(expected.abs().max()) < 1.5
    th.testing.assert_close(found[th.tensor(crosses)], expected[th.tensor(crosses)], rtol=0, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reach", "noise", "ends", "is_round"),
    [
        pytest.param(2.6, 0.0, None, True, id="one formula, most of the circle"),
        pytest.param(2.0, 0.0, None, False, id="not enough of the circle"),
        pytest.param(2.6, 0.01, None, False, id="a formula that leaves something unexplained"),
        pytest.param(2.6, 0.0, "angle", False, id="the task ends there"),
        pytest.param(2.4, 0.0, "fast", False, id="the task ends there, at speeds that were never seen before"),
    ],
)
def test_a_system_of_one_formula_is_known_where_nobody_was(reach, noise, ends, is_round, caplog):
    """Steps of a pendulum that never came near the top, one at a time."""
    rng = np.random.default_rng(0)
    states = np.column_stack([math.pi + rng.uniform(-reach, reach, 400), rng.uniform(-1.0, 1.0, 400)])
    actions = rng.uniform(-1.0, 1.0, (400, 1))
    far = np.abs(states[:, 0] - math.pi) > reach - 0.2
    if ends == "fast":
        # Pushed out of the range of the angles, and of the speeds too.
        outwards = np.sign(states[far, 0] - math.pi)
        states[far, 1], actions[far, 0] = 2.5 * outwards, 3.0 * outwards
    moved = pendulum(states, actions) + noise * rng.normal(size=(400, 1)) * [0.0, 1.0]
    data = TransitionDataset(
        observations=on_circle(states),
        actions=actions,
        rewards=pendulum_reward(states, actions, moved),
        next_observations=on_circle(moved),
        terminals=far & (ends is not None),
    )
    model = DynamicsModel.fit(data, n_nodes=50)
    assert model.coordinates.round.tolist() == [False, is_round]
    assert ("all around" in str(model.describe())) == is_round
    assert ("name it with limits" in caplog.text) == is_round
    upright = model.coordinates.encode(th.tensor([[1.0, 0.0, 0.0]], dtype=th.float64))
    assert (float(model.bounds.cross(upright).goes_on) > 0.9) == is_round
    # The coordinates of the model, of its data and of its bounds are the same.
    assert model.bounds.coordinates.round.tolist() == model.nodes.interpolation.coordinates.round.tolist()
