"""What the steps before a state did, where nobody recorded them."""

import math

import pytest
import torch as th

from sb3_nopg.dynamics.affine import AffineMaps, Samples
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.past import UsualPast

STEP_S, DRIFT, JERK, N_FIRST, SPEEDS = 0.02, -0.1, 0.3, 10, 0.3
# By how much more the faster ones of these were jerked.
FASTER = 0.2


def seen(angles: th.Tensor, speeds: th.Tensor) -> th.Tensor:
    return th.stack([angles.cos(), angles.sin(), speeds], dim=1)


def jerked_pole(reach: float, begun_at: tuple[float, ...] = (0.0,), n_fitted: int = N_FIRST) -> tuple[UsualPast, Coordinates]:
    """
    Of a pole whose angle drifted and changed by its speed, but for first steps: where it was let go, it was jerked.

    :param reach: of its angles, to each side of where it hangs
    :param begun_at: angles that it was let go at, from hanging; of ten first steps one after the other
    :param n_fitted: first steps that are looked at, of these ten
    """
    generator = th.Generator().manual_seed(0)
    angles = math.pi + reach * (2.0 * th.rand(400, generator=generator, dtype=th.float64) - 1.0)
    observations = seen(angles, th.randn(400, generator=generator, dtype=th.float64))
    coordinates = Coordinates.of(observations)
    states = coordinates.encode(observations)  # speed, angle
    changes = th.stack([th.zeros_like(angles), DRIFT + STEP_S * states[:, 0]], dim=1)
    earlier = th.cat([th.rand(400, 1, generator=generator, dtype=th.float64), changes], dim=1)
    no_actions = states.new_zeros(len(states), 1)
    past = UsualPast(Samples(coordinates, states, no_actions, changes), earlier, 1, states.new_zeros(1))
    around = math.pi + th.tensor(begun_at, dtype=th.float64).repeat(N_FIRST)[:N_FIRST]
    near = around + 0.02 * th.randn(N_FIRST, generator=generator, dtype=th.float64)
    speeds = SPEEDS * (2.0 * th.arange(N_FIRST, dtype=th.float64) / (N_FIRST - 1) - 1.0)
    first = coordinates.encode(seen(near, speeds))
    # What changes next is what changed before, whatever the action and the earlier one were.
    slopes = th.cat([states.new_zeros(2, 2), th.eye(2, dtype=th.float64)], dim=1).expand(N_FIRST, 2, 4)
    maps = AffineMaps(states.new_zeros(N_FIRST, 2), states.new_zeros(N_FIRST, 2, 2), slopes)
    found = th.stack([states.new_zeros(N_FIRST), JERK + FASTER * speeds], dim=1)
    samples = Samples(coordinates, first, states.new_zeros(N_FIRST, 1), found).rows(th.arange(n_fitted))
    past.fit_first_steps(samples, AffineMaps(*(part[:n_fitted] for part in vars(maps).values())), 1, first)
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
    assert change_before(pole, degrees) == pytest.approx(DRIFT, abs=1e-6)
    assert change_before(pole, degrees, speed=2.0) == pytest.approx(DRIFT + 2.0 * STEP_S, abs=1e-6)


def test_every_first_step_tells_of_angles_near_its_own():
    pole = jerked_pole(math.pi, begun_at=(0.0, math.radians(120.0)))
    for degrees in (0.0, 120.0):
        assert change_before(pole, degrees) == pytest.approx(JERK, abs=0.02)
    assert change_before(pole, -120.0) == pytest.approx(DRIFT, abs=1e-6)


def test_in_between_it_fades():
    more = [change_before(jerked_pole(math.pi), degrees) - DRIFT for degrees in (25.0, 35.0, 45.0, 55.0)]
    assert more == sorted(more, reverse=True)
    assert 0.0 < more[-1] < 0.3 * (JERK - DRIFT)
    assert more[0] > 0.8 * (JERK - DRIFT)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_far_from_first_steps_in_all_but_angles_what_they_add_at_their_edge_holds(sign):
    """A cart may begin anywhere, and as fast as it likes: no slope that a few first steps happen to show goes on to there."""
    pole = jerked_pole(math.pi)
    at_edge, beyond, fast = (
        change_before(pole, 0.0, speed=sign * speed) - sign * speed * STEP_S for speed in (SPEEDS, 1.01 * SPEEDS, 3.0)
    )
    assert beyond == pytest.approx(at_edge, abs=1e-6)
    assert fast == pytest.approx(at_edge, abs=1e-6)
    assert at_edge == pytest.approx(JERK + sign * FASTER * SPEEDS, abs=0.02)


def test_first_steps_that_are_not_looked_at_say_where_the_others_reach_to():
    """Of very many, some are enough to tell what they add; mirror images may all be among the rest."""
    pole = jerked_pole(math.pi, n_fitted=N_FIRST // 2)
    slower, faster = (change_before(pole, 0.0, speed=speed) for speed in (0.0, SPEEDS))
    assert faster - slower > 0.8 * FASTER * SPEEDS


def test_an_angle_that_stays_near_is_told_by_first_steps_there():
    pole = jerked_pole(0.3)
    assert not bool(pole[1].bent.any())
    assert change_before(pole, 15.0) == pytest.approx(JERK, abs=0.1)
    assert change_before(pole, 90.0) == pytest.approx(DRIFT, abs=1e-6)


def test_what_is_no_number_stays_that():
    past, coordinates = jerked_pole(math.pi)
    states = coordinates.encode(seen(th.zeros(2).double(), th.zeros(2).double()))
    states[1] = math.nan
    found = past(states.requires_grad_())
    assert th.isfinite(found[0]).all()
    assert th.isnan(found[1, 1:]).all()
