"""The cart of all virtual rigs: it moves as the environment does, stops at the stops, counts, and somebody lifts its pole."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_robot.virtual.simulated_cart import LONGEST_JUMP_S, SimulatedCart

IDENTIFIED = PARAMETER_SETS["identified"]
RAIL_END = IDENTIFIED.rail_length_m / 2.0
SWINGING = (0.0, math.pi + 0.5, 0.1, 0.0)
# Moves the same way to both sides.
SYMMETRIC = IDENTIFIED.replace(voltage_offset=0.0)


def reference(start, control_hz: float = 500.0) -> CartPoleSimulator:
    options = CartPoleOptions(task="swing_up", control_hz=control_hz, encoder_counts=False, filtered_velocities=False)
    return CartPoleSimulator(options, IDENTIFIED, start)


def from_upright(cart: SimulatedCart) -> float:
    return abs(math.remainder(cart.state[1], 2.0 * math.pi))


# --- Motion ---------------------------------------------------------------------------------------------------------------


def test_moves_as_the_simulator_of_the_environment():
    start = (0.05, 0.1, -0.2, 0.3)
    cart, simulator = SimulatedCart(start=start, operator=False), reference(start, control_hz=50.0)
    for period, volt in enumerate(np.random.default_rng(0).uniform(-5.0, 5.0, size=100).tolist()):
        assert cart.set_voltage(volt) == volt
        simulator.hold(volt)
        cart.advance_to((period + 1) / 50.0)
        np.testing.assert_allclose(cart.state, simulator.state, rtol=0, atol=1e-9)
    assert abs(cart.state[0] - start[0]) > 0.01


def test_how_time_is_cut_into_pieces_does_not_matter():
    whole, pieces = (SimulatedCart(start=SWINGING, operator=False) for _ in range(2))
    for cart in (whole, pieces):
        cart.set_voltage(2.0)
    whole.advance_to(0.5)
    for time_s in np.sort(np.random.default_rng(0).uniform(0.0, 0.5, size=300)).tolist():
        pieces.advance_to(time_s)
    pieces.advance_to(0.5)
    assert pieces.state == whole.state


def test_time_does_not_run_backwards():
    cart = SimulatedCart(start=SWINGING, operator=False)
    cart.advance_to(0.3)
    before = cart.state
    cart.advance_to(0.1)
    assert cart.time_s == 0.3
    assert cart.state == before


def test_a_voltage_acts_from_the_moment_at_which_it_was_set():
    cart, simulator = SimulatedCart(start=SWINGING, operator=False), reference(SWINGING)
    cart.advance_to(0.0105)
    cart.set_voltage(4.0)
    cart.advance_to(0.0115)
    cart.set_voltage(-2.0)
    cart.advance_to(0.1)
    # In the step from 10 to 12 ms: nothing, then 4 V for 1 ms, then −2 V for half of one.
    for volt in [0.0] * 5 + [(4.0 * 1.0 - 2.0 * 0.5) / 2.0] + [-2.0] * 44:
        simulator.hold(volt)
    np.testing.assert_allclose(cart.state, simulator.state, rtol=0, atol=1e-9)


def test_moves_on_between_the_steps_of_the_physics():
    cart = SimulatedCart(start=(0.0, math.pi, 1.0, 2.0), operator=False)
    cart.advance_to(0.001)
    np.testing.assert_allclose(cart.state[:2], (0.001, math.pi + 0.002), atol=1e-5)


def test_a_computer_that_slept_for_long_does_not_catch_up():
    cart, awake = (SimulatedCart(start=SWINGING, operator=False) for _ in range(2))
    cart.advance_to(3600.0)
    awake.advance_to(LONGEST_JUMP_S)
    assert cart.time_s == 3600.0
    np.testing.assert_allclose(cart.state, awake.state, atol=1e-9)
    cart.advance_to(3600.5)
    awake.advance_to(LONGEST_JUMP_S + 0.5)
    np.testing.assert_allclose(cart.state, awake.state, atol=1e-9)


@pytest.mark.parametrize(("asked", "given_volt"), [(30.0, 24.0), (-30.0, -24.0), (3.0, 3.0)])
def test_the_amplifier_gives_what_it_can(asked: float, given_volt: float):
    cart = SimulatedCart()
    assert cart.set_voltage(asked) == given_volt
    assert cart.voltage == given_volt


@pytest.mark.parametrize("volt", [math.nan, math.inf, -math.inf])
def test_refuses_what_is_no_voltage(volt: float):
    cart = SimulatedCart()
    with pytest.raises(ValueError, match="volt: must be a finite number"):
        cart.set_voltage(volt)
    assert cart.voltage == 0.0


@pytest.mark.parametrize("start", [(0.0, 0.0, 0.0), (0.0, math.nan, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0)])
def test_refuses_impossible_starts(start):
    with pytest.raises(ValueError, match=r"^start: "):
        SimulatedCart(start=start)


# --- Stops ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, -1])
def test_the_cart_stops_dead_at_the_end_of_the_rail(side: int):
    cart, simulator = SimulatedCart(operator=False), reference((0.05, math.pi, 0.0, 0.0))
    cart.set_voltage(side * 5.0)
    while side * simulator.state[0] < RAIL_END:
        simulator.hold(side * 5.0)
    cart.advance_to(3.0)
    assert cart.state[0] == side * RAIL_END
    assert cart.state[2] == 0.0
    assert cart.hardest_impact_m_s == pytest.approx(abs(simulator.state[2]), abs=1e-9)
    assert cart.hardest_impact_m_s > 0.5


def test_leaning_on_a_stop_is_not_hitting_it():
    cart = SimulatedCart(start=(RAIL_END, math.pi, 0.0, 0.0), operator=False)
    cart.set_voltage(5.0)
    cart.advance_to(1.0)
    assert cart.state[0] == RAIL_END
    assert cart.hardest_impact_m_s == 0.0
    # The pole hangs as still as if nobody pushed.
    assert from_upright(cart) == pytest.approx(math.pi, abs=1e-3)
    cart.set_voltage(-5.0)
    cart.advance_to(1.3)
    assert cart.state[0] < RAIL_END - 0.02


def test_hitting_a_stop_swings_the_pole():
    cart = SimulatedCart(start=(RAIL_END - 1e-4, math.pi, 0.5, 0.0), operator=False)
    cart.advance_to(0.002)
    # Δθ̇ = a_L cosθ Δẋ
    assert cart.state[3] == pytest.approx(IDENTIFIED.inverse_pole_length * 0.5, rel=0.05)


def test_an_obstacle_on_the_rail():
    cart = SimulatedCart(operator=False)
    cart.rail_ends_m = (-0.407, 0.2)
    cart.set_voltage(3.0)
    cart.advance_to(2.0)
    assert cart.state[0] == 0.2


@pytest.mark.slow
@given(st.lists(st.floats(-24.0, 24.0), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_never_beyond_the_stops(volts: list[float]):
    cart = SimulatedCart()
    for index, volt in enumerate(volts):
        cart.set_voltage(volt)
        # Times that are no multiples of a step.
        cart.advance_to((index + 1) * 0.1003)
        assert abs(cart.state[0]) <= RAIL_END
        assert abs(cart.counts[0] * IDENTIFIED.cart_count_m + 0.05) <= RAIL_END + IDENTIFIED.cart_count_m


# --- Encoders and faults --------------------------------------------------------------------------------------------------


def test_encoders_count_from_where_they_were_switched_on():
    cart = SimulatedCart(start=(-0.1, math.pi, 0.0, 0.0), operator=False)
    assert cart.counts == (0, 0)
    cart.set_voltage(4.0)
    cart.advance_to(0.7)
    x, theta, _, _ = cart.state
    assert cart.counts == (round((x + 0.1) / 22.7485e-6), round((theta - math.pi) / (2.0 * math.pi / 4096)))
    assert cart.counts[0] > 1000
    assert all(isinstance(count, int) for count in cart.counts)


def test_scales_come_from_the_parameters():
    cart = SimulatedCart({"cart_count_m": 1e-3, "pole_count_rad": 0.1}, start=(0.0, math.pi, 1.0, 1.0), operator=False)
    cart.advance_to(0.1)
    x, theta, _, _ = cart.state
    assert cart.counts == (round(1e3 * x), round(10.0 * (theta - math.pi)))


def test_swapped_leads_drive_the_other_way():
    right, wrong = SimulatedCart(SYMMETRIC), SimulatedCart(SYMMETRIC)
    wrong.motor_sign = -1
    for cart in (right, wrong):
        assert cart.set_voltage(3.0) == 3.0
        cart.advance_to(0.3)
    assert right.counts[0] > 500
    assert wrong.counts[0] == -right.counts[0]


@pytest.mark.parametrize("frozen", ["frozen_cart", "frozen_pole"])
def test_a_frozen_encoder_counts_no_more(frozen: str):
    which = ["frozen_cart", "frozen_pole"].index(frozen)
    cart = SimulatedCart(start=SWINGING, operator=False)
    cart.advance_to(0.1)
    before = cart.counts
    setattr(cart, frozen, True)
    cart.advance_to(0.4)
    now = cart.counts
    assert now[which] == before[which]
    assert now[1 - which] != before[1 - which]
    setattr(cart, frozen, False)
    assert cart.counts[which] != before[which]


def test_a_jump_of_the_counter():
    cart = SimulatedCart(operator=False)
    before = cart.counts
    cart.count_jump = 1234
    assert cart.counts == (before[0] + 1234, before[1])


# --- The hand -------------------------------------------------------------------------------------------------------------


def driven(*args, **kwargs) -> SimulatedCart:
    """A cart that somebody has just seen at work: by a millivolt, which moves nothing."""
    cart = SimulatedCart(*args, **kwargs)
    cart.set_voltage(1e-3)
    cart.advance_to(0.002)
    cart.set_voltage(0.0)
    return cart


@pytest.mark.slow
def test_nobody_lifts_the_pole_of_a_cart_that_has_not_moved():
    """A deployment that connects later would take the upright pole for a hanging one."""
    cart = SimulatedCart()
    cart.advance_to(9.0)
    assert not cart.held
    assert from_upright(cart) == pytest.approx(math.pi, abs=0.01)
    cart = driven()
    for time_s in range(5, 45, 5):
        cart.advance_to(time_s)
    assert not cart.held
    assert from_upright(cart) == pytest.approx(math.pi, abs=0.01)


def test_the_hand_lifts_a_pole_that_hangs_still_and_holds_it():
    cart = driven()
    cart.advance_to(1.4)
    assert from_upright(cart) == pytest.approx(math.pi, abs=0.01)
    assert not cart.held
    cart.advance_to(1.85)
    assert 0.5 < from_upright(cart) < 2.6
    for time_s in (2.3, 5.0, 7.1):
        cart.advance_to(time_s)
        assert cart.held
        assert 0.0 < from_upright(cart) < 0.03
        assert cart.state[2:] == (0.0, 0.0)


def test_the_hand_moves_the_pole_at_the_speed_that_the_state_says():
    cart = driven()
    for time_s in np.arange(1.6, 2.15, 0.1).tolist():
        cart.advance_to(time_s - 0.01)
        before = cart.state[1]
        cart.advance_to(time_s)
        speed = cart.state[3]
        cart.advance_to(time_s + 0.01)
        assert (cart.state[1] - before) / 0.02 == pytest.approx(speed, abs=0.05)
        assert abs(speed) > 0.5


def test_the_hand_lets_go_when_voltage_is_applied():
    cart = driven()
    cart.advance_to(4.0)
    cart.set_voltage(0.5)
    assert not cart.held
    cart.advance_to(4.6)
    assert from_upright(cart) > math.radians(3.0)


def test_the_hand_lets_go_after_a_while_brings_the_pole_to_rest_and_lifts_it_again():
    cart = driven()
    cart.advance_to(7.1)
    assert cart.held
    cart.advance_to(7.3)
    assert not cart.held
    # It falls, is stilled, hangs, and is lifted again while somebody remembers that the cart moved.
    cart.set_voltage(1e-3)
    cart.advance_to(cart.time_s + 0.002)
    cart.set_voltage(0.0)
    angles = []
    while len(angles) < 90:
        cart.advance_to(cart.time_s + 0.1)
        angles.append(from_upright(cart))
    assert min(angles) < 0.03
    assert max(angles) > 3.0


def test_a_person_who_does_not_lift_the_pole_still_brings_it_to_rest():
    cart = SimulatedCart(start=(0.0, math.pi + 1.0, 0.0, 0.0), lifts_pole=False)
    alone = SimulatedCart(start=(0.0, math.pi + 1.0, 0.0, 0.0), operator=False)
    for each in (cart, alone):
        each.advance_to(9.0)
    assert abs(cart.state[3]) < 0.01
    assert from_upright(cart) == pytest.approx(math.pi, abs=0.01)
    assert abs(alone.state[3]) + abs(from_upright(alone) - math.pi) > 0.05


@pytest.mark.parametrize("volt", [1e-6, -0.2])
def test_the_hand_stays_away_while_there_is_voltage(volt: float):
    cart = driven()
    cart.set_voltage(volt)
    cart.advance_to(9.0)
    assert not cart.held
    cart.set_voltage(0.0)
    cart.advance_to(10.4)
    assert not cart.held
    cart.advance_to(10.7)
    assert cart.held


def test_the_hand_leaves_a_pole_alone_that_stands():
    cart = SimulatedCart(SYMMETRIC, start=(0.0, 0.0, 0.0, 0.0))
    cart.advance_to(4.0)
    assert from_upright(cart) < 1e-6
    assert not cart.held


def test_the_hand_leaves_a_pole_alone_while_the_cart_rolls():
    # Nothing brakes it, and the pole hangs from it as from one that stands.
    rolling = SYMMETRIC.replace(cart_coulomb=0.0, cart_damping=0.0)
    cart = SimulatedCart(rolling, start=(-0.1, math.pi, 0.02, 0.0))
    cart.advance_to(4.0)
    assert cart.state[0] == pytest.approx(-0.02, abs=1e-3)
    assert not cart.held


@pytest.mark.parametrize("angle_rad", [0.3, 0.3003, 0.3006, -0.3009])
def test_encoders_have_been_still_for_a_second_when_the_hand_comes(angle_rad: float):
    cart = driven(start=(0.0, math.pi + angle_rad, 0.0, 0.0))
    poles = []
    # The first time that the hand comes it stills the pole, the second time it lifts it.
    for _ in range(2):
        while cart.held:
            cart.advance_to(cart.time_s + 0.002)
        while not cart.held:
            cart.advance_to(cart.time_s + 0.002)
            poles.append(cart.counts[1])
            assert len(poles) < 60_000
    assert len(set(poles[-500:-1])) == 1


def test_nobody_lifts_the_pole_where_nobody_is():
    cart = SimulatedCart(operator=False)
    cart.advance_to(9.0)
    assert from_upright(cart) == pytest.approx(math.pi, abs=0.01)
    assert not cart.held


def test_the_seed_draws_the_angle():
    angles = []
    for seed in (0, 0, 1):
        cart = driven(seed=seed)
        cart.advance_to(4.0)
        angles.append(cart.state[1])
    assert angles[0] == angles[1] != angles[2]
