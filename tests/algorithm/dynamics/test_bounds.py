"""Where the task ends and where what is known ends: found in the data or named by the user, and smooth at the edge."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.systems import cart, on_circle, pendulum, pendulum_reward, record
from sb3_nopg import DynamicsModel, InputError
from sb3_nopg.dynamics.bounds import Bounds, Limit
from sb3_nopg.dynamics.coordinates import Coordinates


def bounds_of(
    last: list[list[float]] | None = None, limits: dict[int, Limit] | None = None, n: int = 200, turning: bool = False
) -> Bounds:
    """
    Of states within ±1, and some more that ended the task.

    :param last: these
    :param limits: of columns
    :param turning: whether to put an angle, all the way around, in the place of the second coordinate
    """
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, size=(n, 2))
    states[:4] = [[-1, -1], [1, 1], [-1, 1], [1, -1]]
    ends = np.array(last or np.empty((0, 2)))
    states = np.concatenate([states, np.zeros((len(ends), 2))])
    after = np.concatenate([states[:n], ends])
    if turning:
        states, after = (np.column_stack([x[:, 0], np.cos(3.1 * x[:, 1]), np.sin(3.1 * x[:, 1])]) for x in (states, after))
    coordinates = Coordinates.of(th.tensor(np.concatenate([states, after])))
    encoded = [coordinates.encode(th.tensor(part)) for part in (states, after)]
    return Bounds.of(coordinates, *encoded, th.tensor(np.arange(len(states)) >= n), limits)


def at(*states: list[float]) -> th.Tensor:
    return th.tensor(states, dtype=th.float64)


def test_an_end_is_known_on_the_side_where_terminal_states_lie():
    bounds = bounds_of([[1.1, 0.2], [1.3, -0.4]])
    assert bounds.ends_high.tolist() == [True, False]
    assert bounds.ends_low.tolist() == [False, False]
    assert bounds.has_ends
    assert bounds.unexplained_ends == 0.0


def test_a_speed_beyond_its_range_is_not_taken_for_the_reason():
    # All have left the rail; one was faster than any other state, too.
    bounds = bounds_of([[1.1, 1.2], [1.2, 0.0], [-1.3, -1.4], [-1.1, 0.3]])
    assert bounds.ends_high.tolist() == [True, False]
    assert bounds.ends_low.tolist() == [True, False]


def test_without_terminal_states_no_end_is_known():
    bounds = bounds_of()
    assert not bounds.has_ends
    assert bounds.unexplained_ends == 0.0


def test_ends_among_other_states_are_counted():
    bounds = bounds_of([[0.1, 0.2], [0.3, -0.4], [-0.2, 0.3], [1.2, 0.0]])
    assert bounds.unexplained_ends == pytest.approx(0.75)


def test_a_circle_has_no_ends():
    bounds = bounds_of([[0.0, 1.0 / 3.1 * math.pi]], turning=True)
    assert bounds.coordinates.round.tolist() == [False, True]
    assert not bounds.has_ends
    crossing = bounds.cross(at([0.0, 3.1], [0.0, -9.0]))
    th.testing.assert_close(crossing.goes_on, th.ones(2, dtype=th.float64), atol=1e-9, rtol=0)
    th.testing.assert_close(bounds.hold(at([0.0, 50.0])), at([0.0, 50.0]))


def test_inside_all_goes_on_and_outside_nothing():
    bounds = bounds_of([[1.1, 0.2]])
    crossing = bounds.cross(at([0.0, 0.0], [1.3, 0.0], [-1.3, 0.0], [0.0, 1.3]))
    th.testing.assert_close(crossing.goes_on, at([1.0, 0.0, 0.0, 0.0])[0], atol=1e-4, rtol=0)
    # Beyond an end nothing is unknown: the task is over.
    th.testing.assert_close(crossing.unknown, at([0.0, 0.0, 1.0, 1.0])[0], atol=1e-4, rtol=0)


def test_states_that_were_seen_hardly_lose_anything():
    bounds = bounds_of([[1.1, 0.2]])
    crossing = bounds.cross(at([1.0, 0.0], [-1.0, 1.0], [0.95, -0.95]))
    assert float(crossing.goes_on.min()) > 0.9


def test_fate_is_the_same_without_softness():
    bounds = bounds_of([[1.1, 0.2]], limits={1: (-0.5, None)})
    ended, left = bounds.fate(at([0.0, 0.0], [1.2, 0.0], [-1.2, 0.0], [0.0, 1.2], [0.0, -0.6], [1.2, -0.6]))
    assert ended.tolist() == [False, True, False, False, False, True]
    assert left.tolist() == [False, False, True, True, True, False]


def test_a_model_that_is_believed_beyond_the_records_is_so_in_training_too():
    near, far, ended = at([0.0, 1.5]), at([0.0, 1.9]), at([1.3, 0.0])
    known = bounds_of([[1.1, 0.2]])
    believed = replace(known, room=at(0.6, 0.6))
    assert float(known.cross(near).unknown) > 0.99
    assert float(believed.cross(near).goes_on) > 0.99
    assert float(believed.cross(far).unknown) > 0.99
    # An end of the task stays where it is.
    assert float(believed.cross(ended).goes_on) < 0.01
    for states in (near, far, ended):
        ended_there, left = believed.fate(states)
        assert bool(ended_there | left) == (float(believed.cross(states).goes_on) < 0.5)


def test_limits_of_a_user_end_what_is_wanted():
    bounds = bounds_of(limits={0: (-0.5, 0.5), 1: (None, 0.2)})
    crossing = bounds.cross(at([0.0, 0.0], [0.6, 0.0], [-0.6, 0.0], [0.0, 0.3], [0.0, -0.8]))
    th.testing.assert_close(crossing.goes_on, at([1.0, 0.0, 0.0, 0.0, 1.0])[0], atol=1e-3, rtol=0)
    th.testing.assert_close(crossing.unknown, 1.0 - crossing.goes_on, atol=1e-9, rtol=0)


def test_limits_of_a_column_on_a_circle():
    # The cosine must stay positive: the pole above the horizon.
    bounds = bounds_of(limits={1: (0.0, None)}, turning=True)
    cosine = bounds.coordinates.decode(at([0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]))[:, 1]
    goes_on = bounds.cross(at([0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0])).goes_on
    assert bool(((goes_on > 0.5) == (cosine > 0)).all())


@pytest.mark.parametrize("turning", [False, True])
def test_slopes_are_the_derivatives(turning):
    bounds = bounds_of([[1.1, 0.2]], limits={0: (-0.7, None), 1: (None, 0.9)}, turning=turning)
    generator = th.Generator().manual_seed(0)
    states = (3.0 * th.rand(200, 2, generator=generator, dtype=th.float64) - 1.5).requires_grad_(True)
    crossing = bounds.cross(states)
    for value, slope in ((crossing.goes_on, crossing.goes_on_slope), (crossing.unknown, crossing.unknown_slope)):
        (expected,) = th.autograd.grad(value.sum(), states, retain_graph=True)
        assert float(expected.abs().max()) > 1.0
        th.testing.assert_close(slope.detach(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(x=st.floats(-1e6, 1e6), y=st.floats(-1e6, 1e6))
@settings(max_examples=100, deadline=None)
def test_probabilities_wherever_a_state_is(x, y):
    bounds = bounds_of([[1.1, 0.2], [0.0, -1.1]], limits={0: (-0.8, None)}, n=20)
    crossing = bounds.cross(bounds.hold(at([x, y])))
    goes_on, unknown = float(crossing.goes_on), float(crossing.unknown)
    assert 0.0 <= goes_on <= 1.0
    assert 0.0 <= unknown <= 1.0
    assert goes_on + unknown <= 1.0 + 1e-12
    assert bool(crossing.goes_on_slope.isfinite().all() & crossing.unknown_slope.isfinite().all())


def test_states_are_kept_where_nothing_more_can_be_lost():
    bounds = bounds_of()
    states = bounds.hold(at([0.3, 50.0], [-2e9, 0.5]))
    assert bounds.left_alone(states).tolist() == [[True, False], [False, True]]
    assert states[0, 0] == 0.3
    assert states[1, 1] == 0.5
    assert float(states.abs().max()) < 1.5
    assert float(bounds.cross(states).goes_on.max()) < 1e-2
    th.testing.assert_close(bounds.hold(states), states)


@pytest.mark.parametrize(
    "limits",
    [
        {0: (5.0, 6.0)},
        {0: (0.5, -0.5)},
        {7: (0.0, 1.0)},
        {-1: (0.0, 1.0)},
        {"x": (0.0, 1.0)},
        {True: (0.0, 1.0)},
        {0: 1.0},
        {0: (1.0,)},
        {0: ("a", "b")},
        {0: (math.nan, 1.0)},
        [(0, 1)],
        "abs(x) < 1",
    ],
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(InputError) as caught:
        bounds_of(limits=limits)
    assert caught.value.field == "limits"


@pytest.mark.slow
def test_ends_that_the_model_cannot_know_are_told(caplog):
    rng = np.random.default_rng(0)
    data = record(cart, start=(0.6, 0.6), ends=lambda state: bool(rng.random() < 0.05))
    with caplog.at_level(logging.WARNING):
        DynamicsModel.fit(data, n_nodes=50)
    assert "ends of the task" in caplog.text
    assert "limits" in caplog.text


@pytest.mark.slow
def test_ends_of_a_rail_are_found_in_recorded_data(caplog):
    data = record(cart, start=(0.8, 0.8), n_episodes=20, ends=lambda state: abs(state[0]) > 1.0)
    assert data.terminals.sum() >= 5
    with caplog.at_level(logging.WARNING):
        bounds = DynamicsModel.fit(data, n_nodes=50).bounds
    assert "ends of the task" not in caplog.text
    assert bounds.ends_high.tolist() == [True, False]
    assert bounds.ends_low.tolist() == [True, False]
    assert float(bounds.high[0]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_a_pendulum_goes_on_for_ever():
    data = record(pendulum, pendulum_reward, start=(3.1, 2.0), observe=on_circle)
    bounds = DynamicsModel.fit(data, n_nodes=50).bounds
    assert bounds.coordinates.round.tolist() == [False, True]
    assert not bounds.has_ends
