"""What the steps before a state did, where nobody recorded them."""

import math

import pytest
import torch as th

from sb3_nopg.dynamics.affine import AffineMaps, Samples
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.past import UsualPast

STEP_S, JERK, N_FIRST, SPEEDS = 0.02, 0.3, 10, 0.01


def seen(angles: th.Tensor, speeds: th.Tensor) -> th.Tensor:
    return th.stack([angles.cos(), angles.sin(), speeds], dim=1)


def jerked_pole(reach: float) -> tuple[UsualPast, Coordinates]:
    """
    Of a pole whose angle changed by its speed, but for first steps: where it hung, it was jerked.

    :param reach: of its angles, to each side of where it hangs
    """
    generator = th.Generator().manual_seed(0)
    angles = math.pi + reach * (2.0 * th.rand(400, generator=generator, dtype=th.float64) - 1.0)
    observations = seen(angles, th.randn(400, generator=generator, dtype=th.float64))
    coordinates = Coordinates.of(observations)
    states = coordinates.encode(observations)  # speed, angle
    changes = th.stack([th.zeros_like(angles), STEP_S * states[:, 0]], dim=1)
    earlier = th.cat([th.rand(400, 1, generator=generator, dtype=th.float64), changes], dim=1)
    no_actions = states.new_zeros(len(states), 1)
    past = UsualPast(Samples(coordinates, states, no_actions, changes), earlier, 1, states.new_zeros(1))
    near = math.pi + 0.02 * th.randn(N_FIRST, generator=generator, dtype=th.float64)
    hanging = coordinates.encode(seen(near, SPEEDS * th.randn(N_FIRST, generator=generator, dtype=th.float64)))
    # What changes next is what changed before, whatever the action and the earlier one were.
    slopes = th.cat([states.new_zeros(2, 2), th.eye(2, dtype=th.float64)], dim=1).expand(N_FIRST, 2, 4)
    maps = AffineMaps(states.new_zeros(N_FIRST, 2), states.new_zeros(N_FIRST, 2, 2), slopes)
    found = th.stack([states.new_zeros(N_FIRST), JERK + 0.01 * th.randn(N_FIRST, generator=generator).double()], dim=1)
    past.fit_first_steps(Samples(coordinates, hanging, states.new_zeros(N_FIRST, 1), found), maps, 1)
    return past, coordinates


def change_before(pole: tuple[UsualPast, Coordinates], degrees_from_hanging: float, speed: float = 0.0) -> float:
    """Of the angle."""
    past, coordinates = pole
    angle = th.tensor([math.pi + math.radians(degrees_from_hanging)], dtype=th.float64)
    action, of_speed, of_angle = past(coordinates.encode(seen(angle, th.full_like(angle, speed))))[0].tolist()
    assert action == 0.0
    assert of_speed == pytest.approx(0.0, abs=0.02)
    return of_angle


def test_first_steps_tell_of_states_like_theirs():
    assert change_before(jerked_pole(math.pi), 0.0) == pytest.approx(JERK, abs=0.02)


@pytest.mark.parametrize("degrees", [-180.0, -100.0, 65.0, 120.0, 180.0])
def test_how_a_hanging_pole_was_let_go_says_nothing_of_one_that_stands(degrees):
    pole = jerked_pole(math.pi)
    assert change_before(pole, degrees) == pytest.approx(0.0, abs=1e-6)
    # What usually goes with a state does not need to be nothing.
    assert change_before(pole, degrees, speed=2.0) == pytest.approx(2.0 * STEP_S, abs=1e-6)


def test_in_between_it_fades():
    changes = [change_before(jerked_pole(math.pi), degrees) for degrees in (25.0, 35.0, 45.0, 55.0)]
    assert changes == sorted(changes, reverse=True)
    assert 0.0 < changes[-1] < 0.3 * JERK
    assert changes[0] > 0.8 * JERK


def test_far_from_first_steps_in_all_but_angles_what_they_tell_at_their_edge_holds():
    """A cart may begin anywhere, and as fast as it likes: no slope that a few first steps happen to show goes on to there."""
    pole, edge = jerked_pole(math.pi), 4.0 * SPEEDS
    at_edge, fast, faster = (change_before(pole, 0.0, speed=speed) - speed * STEP_S for speed in (edge, 1.0, 3.0))
    assert fast == pytest.approx(at_edge, abs=1e-6)
    assert faster == pytest.approx(at_edge, abs=1e-6)
    assert at_edge == pytest.approx(JERK, abs=0.05)


def test_among_first_steps_their_slopes_count():
    pole, half = jerked_pole(math.pi), 0.5 * SPEEDS
    slow, fast = (change_before(pole, 0.0, speed=speed) - speed * STEP_S for speed in (-half, half))
    assert abs(fast - slow) > 1e-4


def test_an_angle_that_stays_near_is_told_by_first_steps_there():
    pole = jerked_pole(0.3)
    assert not bool(pole[1].bent.any())
    assert change_before(pole, 15.0) == pytest.approx(JERK, abs=0.15)
    assert change_before(pole, 90.0) == pytest.approx(0.0, abs=1e-6)


def test_what_is_no_number_stays_that():
    past, coordinates = jerked_pole(math.pi)
    states = coordinates.encode(seen(th.zeros(2).double(), th.zeros(2).double()))
    states[1] = math.nan
    found = past(states.requires_grad_())
    assert th.isfinite(found[0]).all()
    assert th.isnan(found[1, 1:]).all()
