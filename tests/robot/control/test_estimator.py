"""Counts become positions and velocities: against the simulator's own sensors, scipy's filters, and counters that wrap."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from nopg_envs.cartpole import PARAMETER_SETS
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_robot.control.estimator import State, StateEstimator, wrap_angle
from nopg_robot.plants.base import Reading
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import Sensors

CART = PARAMETER_SETS["identified"]
SAMPLE_S = 0.002
COUNTS = {"cart_scale_m": CART.cart_count_m, "pole_scale_rad": CART.pole_count_rad, "counter_bits": 16}
METRES = {"cart_scale_m": 1.0, "pole_scale_rad": 1.0}


def estimator(**sensors) -> StateEstimator:
    return StateEstimator(Sensors.model_validate(sensors), SAMPLE_S)


def follow(estimates: StateEstimator, carts, poles=None, times_s=None) -> list[State]:
    """States after each of these raw readings, one sample period apart unless said otherwise."""
    poles = [0.0] * len(carts) if poles is None else poles
    times_s = [7.0 + SAMPLE_S * n for n in range(len(carts))] if times_s is None else times_s
    return [estimates.update(Reading(time_s, cart, pole)) for time_s, cart, pole in zip(times_s, carts, poles, strict=True)]


def wrapped(count: float, bits: int = 16) -> int:
    """What a counter of this width shows."""
    return (round(count) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


# --- Positions ------------------------------------------------------------------------------------------------------------


def test_the_first_reading_is_the_origin_and_the_pole_hangs():
    first = follow(estimator(**COUNTS), [1234], [77])[0]
    assert first == State(0.0, -math.pi, 0.0, 0.0)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("bits", [16, 24])
def test_a_counter_that_wraps_moves_on(direction: int, bits: int):
    edge = direction * (2 ** (bits - 1) - 2)
    counts = [edge + direction * 100 * n for n in range(5)]
    states = follow(estimator(**(COUNTS | {"counter_bits": bits})), [wrapped(count, bits) for count in counts])
    np.testing.assert_allclose([s.x for s in states], [direction * 100 * n * CART.cart_count_m for n in range(5)], rtol=1e-12)


def test_an_unsigned_counter_is_the_same_counter():
    states = follow(estimator(**COUNTS), [65530, 4])
    assert states[1].x == 10 * CART.cart_count_m


def test_readings_in_metres_do_not_wrap():
    states = follow(estimator(**METRES), [0.0, 40000.0])
    assert states[1].x == 40000.0


def test_signs_turn_positions_and_velocities_around():
    carts, poles = [0, 50, 90], [0, -30, -70]
    plus = follow(estimator(**COUNTS), carts, poles)[-1]
    minus = follow(estimator(**COUNTS, cart_sign=-1, pole_sign=-1), carts, poles)[-1]
    assert (minus.x, minus.x_dot, minus.theta_dot) == (-plus.x, -plus.x_dot, -plus.theta_dot)
    assert minus.theta == pytest.approx(-math.pi + 70 * CART.pole_count_rad)
    assert plus.theta == pytest.approx(math.pi - 70 * CART.pole_count_rad)


# Up to half the counter's range in one sample: the whole rail is 36,000 counts, a pole at 100 rad/s makes 131 in a sample.
@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    start=st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1)),
    steps=st.lists(st.tuples(st.integers(-32768, 32767), st.integers(-32768, 32767)), max_size=40),
)
def test_any_path_is_recovered_exactly_from_16_bits(start: tuple[int, int], steps: list[tuple[int, int]]):
    path = np.cumsum([start, *steps], axis=0)
    estimates = estimator(**COUNTS)
    states = follow(estimates, [wrapped(c) for c in path[:, 0]], [wrapped(p) for p in path[:, 1]])
    moved = path - path[0]
    assert [s.x for s in states] == [float(count) * CART.cart_count_m for count in moved[:, 0]]
    assert [s.theta for s in states] == [wrap_angle(math.pi + float(count) * CART.pole_count_rad) for count in moved[:, 1]]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6))
def test_wrapped_angles_point_the_same_way(angle: float):
    wrapped_angle = wrap_angle(angle)
    assert -math.pi <= wrapped_angle < math.pi
    assert math.sin(wrapped_angle - angle) == pytest.approx(0.0, abs=1e-8)
    assert math.cos(wrapped_angle - angle) == pytest.approx(1.0)


def test_angles_inside_the_range_are_left_alone_and_its_ends_are_one():
    assert wrap_angle(0.1) == 0.1
    assert wrap_angle(-math.pi) == wrap_angle(math.pi) == -math.pi
    assert wrap_angle(math.nextafter(-math.pi, -4.0)) < math.pi


# --- Offsets --------------------------------------------------------------------------------------------------------------


def test_setting_position_and_angle_moves_them_and_leaves_the_velocities():
    carts, poles = [10 * n for n in range(40)], [7 * n for n in range(40)]
    undisturbed = follow(estimator(**COUNTS), carts, poles)
    estimates = estimator(**COUNTS)
    follow(estimates, carts[:20], poles[:20])
    estimates.set_position(-0.407)
    estimates.set_angle(0.01)
    assert estimates.state == State(-0.407, 0.01, undisturbed[19].x_dot, undisturbed[19].theta_dot)
    later = follow(estimates, carts[20:], poles[20:], [7.0 + SAMPLE_S * n for n in range(20, 40)])
    assert [(s.x_dot, s.theta_dot) for s in later] == [(s.x_dot, s.theta_dot) for s in undisturbed[20:]]
    assert later[-1].x == pytest.approx(-0.407 + 200 * CART.cart_count_m)
    assert later[-1].theta == pytest.approx(0.01 + 140 * CART.pole_count_rad)


def test_setting_uses_the_rigs_sign_afterwards():
    estimates = estimator(**COUNTS, cart_sign=-1)
    follow(estimates, [0])
    estimates.set_position(0.1)
    assert follow(estimates, [100], times_s=[7.002])[0].x == pytest.approx(0.1 - 100 * CART.cart_count_m)


def test_the_state_is_known_after_the_first_reading_only_and_forgotten_by_reset():
    estimates = estimator(**COUNTS)
    for too_early in (lambda: estimates.state, lambda: estimates.set_position(0.0), lambda: estimates.set_angle(0.0)):
        with pytest.raises(RuntimeError, match="No reading yet"):
            too_early()
    follow(estimates, [0, 100, 250])
    estimates.reset()
    with pytest.raises(RuntimeError, match="No reading yet"):
        _ = estimates.state
    assert follow(estimates, [5000], times_s=[1.0])[0] == State(0.0, -math.pi, 0.0, 0.0)


@pytest.mark.parametrize("sample_s", [0.0, -1.0, math.nan, math.inf])
def test_the_sample_period_must_be_positive(sample_s: float):
    with pytest.raises(ValueError, match="sample_s"):
        StateEstimator(Sensors.model_validate(COUNTS), sample_s)


# --- Velocities -----------------------------------------------------------------------------------------------------------


def test_first_order_velocities_are_the_simulators_own():
    options = CartPoleOptions(task="swing_up", control_hz=500, physics_hz=500, encoder_counts=True, filtered_velocities=True)
    simulator = CartPoleSimulator(options, CART, (0.05, math.pi - 0.3, 0.0, 0.0))
    estimates = estimator(**COUNTS, velocity={"order": 1, "cutoff_rad_s": CART.velocity_cutoff_rad_s})
    rng = np.random.default_rng(0)
    estimated, measured = [], []
    for n in range(1500):
        counts = (round(simulator.measured[0] / CART.cart_count_m), round(simulator.measured[1] / CART.pole_count_rad))
        state = estimates.update(Reading(SAMPLE_S * n, wrapped(counts[0]), wrapped(counts[1])))
        estimated.append((state.x_dot, state.theta_dot))
        measured.append(simulator.measured[2:])
        if n % 10 == 0:
            voltage = rng.uniform(-5.0, 5.0)
        simulator.hold(voltage)
    assert np.ptp(measured, axis=0).min() > 0.5
    assert estimated == measured


def bilinear_filter(order: int, cutoff_rad_s: float, damping: float) -> tuple[np.ndarray, np.ndarray]:
    """scipy's discrete form of the rig file's filter."""
    if order == 1:
        return signal.bilinear([cutoff_rad_s, 0.0], [1.0, cutoff_rad_s], fs=1.0 / SAMPLE_S)
    numerator, denominator = [cutoff_rad_s**2, 0.0], [1.0, 2.0 * damping * cutoff_rad_s, cutoff_rad_s**2]
    return signal.bilinear(numerator, denominator, fs=1.0 / SAMPLE_S)


@pytest.mark.parametrize(
    ("order", "cutoff_rad_s", "damping"), [(1, 50.0, 0.9), (2, 50.0, 0.9), (2, 120.0, 0.4), (2, 20.0, 2.0)]
)
def test_velocities_of_a_chirp_are_scipys(order: int, cutoff_rad_s: float, damping: float):
    times = np.arange(2000) * SAMPLE_S
    positions = 0.1 * signal.chirp(times, 0.2, 4.0, 30.0, phi=-90)
    poles = 0.3 * signal.chirp(times, 0.5, 4.0, 20.0) - 0.3
    estimates = estimator(**METRES, velocity={"order": order, "cutoff_rad_s": cutoff_rad_s, "damping": damping})
    # Wherever the position is counted from.
    states = follow(estimates, positions + 0.2, poles + 1.0)
    coefficients = bilinear_filter(order, cutoff_rad_s, damping)
    np.testing.assert_allclose([s.x_dot for s in states], signal.lfilter(*coefficients, positions), atol=1e-10)
    np.testing.assert_allclose([s.theta_dot for s in states], signal.lfilter(*coefficients, poles), atol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_standing_still_far_from_zero_is_no_velocity(order: int):
    states = follow(estimator(**COUNTS, velocity={"order": order}), [30000] * 50, [-20000] * 50)
    assert all(s == State(0.0, -math.pi, 0.0, 0.0) for s in states)


@pytest.mark.parametrize("order", [1, 2])
def test_the_pole_may_turn_over_without_a_bump(order: int):
    counts = [10 * n for n in range(3000)]
    states = follow(estimator(**COUNTS, velocity={"order": order}), [0] * 3000, [wrapped(count) for count in counts])
    np.testing.assert_allclose([s.theta_dot for s in states[500:]], 10 * CART.pole_count_rad / SAMPLE_S, rtol=1e-9)
    assert max(s.theta for s in states) > 3.1
    assert min(s.theta for s in states) < -3.1


def test_the_rigs_own_velocities_are_scaled_and_signed():
    estimates = estimator(cart_scale_m=0.5, cart_sign=-1, pole_scale_rad=2.0, velocity={"source": "rig"})
    state = estimates.update(Reading(0.0, 1.0, 1.0, velocities=(0.3, -0.2)))
    assert (state.x_dot, state.theta_dot) == (-0.15, -0.4)
    with pytest.raises(PlantError, match=r"sensors\.velocity\.source"):
        estimates.update(Reading(0.002, 1.0, 1.0))


# --- Readings that do not come on time ------------------------------------------------------------------------------------

SPEED = 0.5


def ramp(times_s, order: int = 1) -> np.ndarray:
    """Velocities of a cart at constant speed that was read at these times, in sample periods."""
    times_s = SAMPLE_S * np.asarray(times_s)
    states = follow(estimator(**METRES, velocity={"order": order}), SPEED * times_s, times_s=times_s)
    return np.array([s.x_dot for s in states])


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n_lost", [1, 2, 7, 100])
def test_lost_samples_make_no_bump(order: int, n_lost: int):
    complete = np.arange(300)
    kept = np.r_[complete[:30], complete[30 + n_lost :]]
    np.testing.assert_allclose(ramp(kept, order), ramp(complete, order)[kept], rtol=1e-9)


def test_after_a_pause_the_velocity_is_that_of_the_pause():
    assert ramp([0, 1, 2, 500_000])[-1] == pytest.approx(SPEED)


@pytest.mark.parametrize("late", [0.3, 0.5, 0.6, 0.9])
def test_a_late_reading_and_the_one_after_it_make_no_lasting_bump(late: float):
    times = np.arange(300.0)
    times[150] += late
    velocities = ramp(times)
    assert np.abs(velocities / SPEED - 1.0)[140:].max() < 0.1
    # Every reading a period would leave more or less than one after the other; twenty milliseconds later all is well.
    np.testing.assert_allclose(velocities[151:], SPEED, rtol=0.01 + late / 50.0)


def test_readings_that_jitter_by_half_a_period_take_as_many_steps_as_periods():
    rng = np.random.default_rng(0)
    times = np.arange(3000) + rng.uniform(0.0, 0.7, 3000)
    velocities = ramp(times)[500:]
    assert np.mean(velocities) == pytest.approx(SPEED, rel=1e-3)
    assert np.abs(velocities / SPEED - 1.0).max() < 0.1


def test_a_second_reading_at_the_same_time_moves_the_cart_and_not_the_filter():
    estimates = estimator(**METRES)
    before = follow(estimates, [0.0, 0.001, 0.002])[-1]
    again = follow(estimates, [0.0025], times_s=[7.0 + 2 * SAMPLE_S])[-1]
    assert (again.x, again.x_dot) == (0.0025, before.x_dot)
    # Its movement is part of the next step.
    expected = follow(estimator(**METRES), [0.0, 0.001, 0.002, 0.003])[-1]
    assert follow(estimates, [0.003], times_s=[7.0 + 3 * SAMPLE_S])[-1].x_dot == pytest.approx(expected.x_dot, rel=1e-12)


# --- Readings that are no numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sensors", [COUNTS, METRES], ids=["counts", "metres"])
@pytest.mark.parametrize("field", ["cart", "pole", "time_s"])
def test_no_number_gives_no_state_and_spoils_nothing(sensors: dict, bad: float, field: str):
    estimates = estimator(**sensors)
    follow(estimates, [0.0, 1.0, 2.0])
    good = {"time_s": 7.006, "cart": 3.0, "pole": 0.0}
    unknown = estimates.update(Reading(**(good | {field: bad})))
    assert all(math.isnan(value) for value in (unknown.x, unknown.theta, unknown.x_dot, unknown.theta_dot))
    assert estimates.update(Reading(**good)) == follow(estimator(**sensors), [0.0, 1.0, 2.0, 3.0])[-1]
