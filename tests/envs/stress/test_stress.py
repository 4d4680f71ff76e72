"""A policy on many plausible rigs: rigs are what they are said to be, flights are those of one rig each, and blame is fair."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from helpers.rigs import balancing_gain
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_envs.stress import draw_rigs, stress_test
from nopg_envs.stress.flights import fly
from nopg_envs.stress.outcome import find_factors, wilson_interval
from nopg_envs.stress.rigs import Quantity, Rig, Sensors, quantities

GAIN = balancing_gain()


def balance(observations: np.ndarray, strength: float = 1.0) -> np.ndarray:
    x, sine, cosine, x_dot, theta_dot = observations.T.astype(np.float64)
    return -strength * (np.stack([x, np.arctan2(sine, cosine), x_dot, theta_dot], axis=1) @ GAIN)[:, None]


def weakly(observations: np.ndarray) -> np.ndarray:
    """Some rigs are too much for it."""
    return balance(observations, 0.45)


def still(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations))


# Rigs


def test_a_rig_depends_on_the_seed_and_its_number_alone():
    options = CartPoleOptions(start="operator")
    few, many, others = draw_rigs(options, 3, 20.0, 7), draw_rigs(options, 30, 20.0, 7), draw_rigs(options, 3, 20.0, 8)
    for one, same, other in zip(few, many, others, strict=False):
        assert dataclasses.replace(one, generator=same.generator) == same
        assert one.parameters != other.parameters
    assert few[0].parameters != few[1].parameters


def test_all_that_rigs_differ_in_has_a_range_that_it_fills():
    options = CartPoleOptions(start="operator")
    found = quantities(draw_rigs(options, 300, 20.0, 0), options)
    names = {quantity.name for quantity in found}
    assert {"input_delay_s", "voltage_offset", "cart_coulomb", "sensor_noise", "cart_slip_mm", "pole_slip_counts"} <= names
    assert len(found) == 16
    for quantity in found:
        assert quantity.low <= quantity.values.min()
        assert quantity.values.max() <= quantity.high
        assert np.ptp(quantity.values) > 0.9 * (quantity.high - quantity.low), quantity.name


def test_what_does_not_differ_is_left_out():
    options = CartPoleOptions(start="paper", parameters={"pole_coulomb": 0.0})
    names = {quantity.name for quantity in quantities(draw_rigs(options, 20, 20.0, 0), options)}
    assert "pole_coulomb" not in names
    assert not any(name.startswith("start") for name in names)
    assert "cart_coulomb" in names


def rig_with(**changes) -> Rig:
    (rig,) = draw_rigs(CartPoleOptions(), 1, 20.0, 0)
    return dataclasses.replace(rig, **changes)


def test_encoders_slip_when_they_do_and_stay_off():
    slip = {"cart_slip_mm": 4.0, "cart_slip_s": 0.05, "pole_slip_counts": -3.0, "pole_slip_s": 0.0299}
    sensors = Sensors([rig_with(sensor_noise=0.0, **slip)], CartPoleOptions())
    np.testing.assert_array_equal(sensors.at_start(), np.zeros((1, 2)))
    errors = np.concatenate([sensors.errors(step)[..., 0] for step in range(100)])
    # Physics steps of 2 ms; the first one ends at 2 ms.
    cart, pole = (errors != 0.0).argmax(axis=0)
    assert (cart, pole) == (24, 14)
    np.testing.assert_allclose(errors[24:, 0], 4e-3)
    np.testing.assert_allclose(errors[14:, 1], -3 * CartPoleParameters().pole_count_rad)


def test_noise_is_as_strong_as_drawn():
    quiet = {"cart_slip_mm": 0.0, "pole_slip_counts": 0.0}
    rigs = [rig_with(sensor_noise=noise, **quiet, generator=np.random.default_rng(1)) for noise in (0.2, 0.9)]
    sensors = Sensors(rigs, CartPoleOptions())
    errors = np.concatenate([sensors.errors(step) for step in range(200)])
    counts = np.array([CartPoleParameters().cart_count_m, CartPoleParameters().pole_count_rad])
    np.testing.assert_allclose(errors.std(axis=0) / counts[:, None], [[0.2, 0.9]] * 2, rtol=0.06)
    # No second like another.
    assert not np.array_equal(errors[:500], errors[500:1000])


# Flights


def one_by_one(policy, rig: Rig, options: CartPoleOptions, n_steps: int) -> tuple[str, float]:
    """The flight of one rig, slow and obvious."""
    sensors = Sensors([rig], options)
    cart = CartPoleSimulator(options, rig.parameters, rig.start, sensors.at_start()[0])
    for step in range(n_steps):
        x, theta, x_dot, theta_dot = cart.measured
        observation = np.array([[x, math.sin(theta), math.cos(theta), x_dot, theta_dot]], dtype=np.float32)
        volts = float(np.clip(policy(observation), -options.voltage_limit_volt, options.voltage_limit_volt).item())
        cart.hold(volts, sensors.errors(step)[..., 0].tolist())
        if cart.termination is not None:
            return cart.termination, (step + 1) / options.control_hz
    return "held", n_steps / options.control_hz


@pytest.mark.slow
@pytest.mark.parametrize("control_hz", [50.0, 100.0])
def test_flights_are_those_of_one_rig_each(control_hz):
    options = CartPoleOptions(start="operator", control_hz=control_hz)
    rigs = lambda: draw_rigs(options, 12, 4.0, 3)  # noqa: E731 - their noise is drawn once
    n_steps = round(4 * control_hz)
    found = [(outcome.fate, outcome.seconds) for outcome in fly(weakly, rigs(), options, n_steps)]
    assert found == [one_by_one(weakly, rig, options, n_steps) for rig in rigs()]
    assert {"held", "angle"} <= {fate for fate, _ in found}


@pytest.mark.slow
def test_the_same_arguments_give_the_same_result_and_another_seed_another():
    first, again, other = (stress_test(weakly, n_rigs=30, seconds=3.0, seed=seed) for seed in (0, 0, 1))
    assert first.outcomes == again.outcomes
    assert first.factors == again.factors
    assert first.outcomes != other.outcomes


@pytest.mark.slow
def test_a_good_policy_holds_and_nothing_hurts():
    result = stress_test(balance, n_rigs=40, seconds=5.0)
    assert result.fates == {"held": 40}
    assert result.held.all()
    assert result.interval == (pytest.approx(0.912, abs=1e-3), 1.0)
    assert not any(factor.clear for factor in result.factors)
    assert all(outcome.seconds == 5.0 for outcome in result.outcomes)


@pytest.mark.slow
def test_a_weak_policy_fails_where_the_motor_is_weak():
    result = stress_test(weakly, n_rigs=200, seconds=6.0)
    low, high = result.interval
    assert 0.4 < low < result.held.mean() < high < 0.9
    assert result.factors[0].name == "input_gain"
    lower, middle, upper = result.factors[0].shares
    assert lower < middle < upper
    assert [factor.name for factor in result.factors if factor.clear] == ["input_gain", "cart_damping"]
    assert [factor.spread for factor in result.factors] == sorted((factor.spread for factor in result.factors), reverse=True)


def test_what_was_identified_is_what_rigs_are_drawn_around(tmp_path):
    CartPoleParameters(input_gain=0.5).save(tmp_path / "mine.yaml")
    mine = stress_test(still, n_rigs=20, seconds=1.0, parameters=tmp_path / "mine.yaml")
    assert mine.values["input_gain"].min() >= 0.4
    assert mine.values["input_gain"].max() <= 0.6


@pytest.mark.parametrize(
    ("policy", "theta_limit_rad", "fate"),
    [
        (still, None, "angle"),
        (lambda seen: np.full(len(seen), 50.0), math.inf, "rail"),
        (lambda seen: np.full((len(seen), 1), np.nan), None, "action"),
    ],
)
def test_how_a_flight_ends(policy, theta_limit_rad, fate):
    result = stress_test(policy, n_rigs=5, seconds=6.0, theta_limit_rad=theta_limit_rad)
    assert result.fates == {fate: 5}
    assert not result.held.any()
    assert all(outcome.seconds < 6.0 for outcome in result.outcomes)


@pytest.mark.slow
def test_voltages_are_cut_at_the_limit():
    # Pushed as hard as may be, along a rail that is as long as it takes.
    def push(seen):
        return np.full(len(seen), 50.0)

    fast, slow = (stress_test(push, n_rigs=5, theta_limit_rad=math.inf, voltage_limit_volt=volt) for volt in (5.0, 2.5))
    for one, other in zip(fast.outcomes, slow.outcomes, strict=True):
        assert (one.fate, other.fate) == ("rail", "rail")
        assert 1.5 * one.seconds < other.seconds


@pytest.mark.slow
def test_a_swing_up_must_stand_for_the_last_five_seconds():
    options = CartPoleOptions(task="swing_up", start="operator")
    hanging = draw_rigs(options, 4, 8.0, 0)
    upright = [dataclasses.replace(rig, start=(0.0, 2.0 * math.pi * turns, 0.0, 0.0)) for turns, rig in enumerate(hanging)]
    assert [outcome.fate for outcome in fly(balance, upright, options, 400)] == ["held"] * 4
    assert {(outcome.fate, outcome.seconds) for outcome in fly(still, hanging, options, 400)} == {("down", 3.0)}

    calls = iter(range(1000))

    def gives_up(seen):
        # A second before the end.
        return balance(seen, 1.0 if next(calls) < 350 else -1.0)

    upright = [dataclasses.replace(rig, start=(0.0, 0.02, 0.0, 0.0)) for rig in draw_rigs(options, 4, 8.0, 0)]
    for outcome in fly(gives_up, upright, options, 400):
        assert outcome.fate == "down"
        assert 7.0 < outcome.seconds <= 8.0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"n_rigs": 0}, "n_rigs"),
        ({"n_rigs": True}, "n_rigs"),
        ({"n_rigs": 2.5}, "n_rigs"),
        ({"seed": -1}, "seed"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": math.inf}, "seconds"),
        ({"seconds": 4.0, "task": "swing_up"}, "seconds"),
        ({"task": "juggle"}, "task"),
        ({"start": "anywhere"}, "start"),
        ({"parameters": "nix"}, "nix"),
        ({"voltage_limit_volt": 100.0}, "voltage_limit_volt"),
        ({"control_hz": 0.0}, "control_hz"),
        ({"control_hz": math.nan}, "control_hz"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, field):
    with pytest.raises(ValueError, match=field):
        stress_test(still, **arguments)


# Blame


@pytest.mark.parametrize(("n_held", "n"), [(0, 1), (1, 1), (0, 10), (5, 10), (10, 10), (156, 200), (200, 200)])
def test_the_interval_is_wilsons(n_held, n):
    expected = binomtest(n_held, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(n_held, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def drawn_quantities(n_rigs: int, seed: int, n: int = 12) -> list[Quantity]:
    generator = np.random.default_rng(seed)
    return [Quantity(f"q{number}", "m", -2.0, 1.0, generator.uniform(-2.0, 1.0, n_rigs)) for number in range(n)]


def test_the_culprit_is_found_with_its_shares():
    found = drawn_quantities(300, 0)
    # Where it is high, half of the rigs fail, elsewhere a tenth.
    luck = np.random.default_rng(1).uniform(size=300)
    held = luck > np.where(found[4].values > 0.0, 0.5, 0.1)
    factors = find_factors(found, held, 0)
    assert [factor.name for factor in factors if factor.clear] == ["q4"]
    assert factors[0].name == "q4"
    thirds = [(-2.0, -1.0), (-1.0, 0.0), (0.0, 1.0)]
    shares = [held[(low <= found[4].values) & (found[4].values < high)].mean() for low, high in thirds]
    assert factors[0].shares == pytest.approx(shares)


def test_both_ends_may_hurt():
    found = drawn_quantities(300, 2)
    held = np.abs(found[7].values + 0.5) < 1.0
    factors = find_factors(found, held, 0)
    assert [factor.name for factor in factors if factor.clear] == ["q7"]
    assert int(np.argmax(factors[0].shares)) == 1


@pytest.mark.slow
def test_chance_is_seldom_blamed():
    blamed = 0
    for seed in range(30):
        held = np.random.default_rng(100 + seed).uniform(size=150) < 0.7
        blamed += any(factor.clear for factor in find_factors(drawn_quantities(150, seed), held, seed))
    # One of twenty is expected, among all twelve together.
    assert blamed <= 5


@pytest.mark.parametrize("held", [np.ones(50, bool), np.zeros(50, bool)])
def test_where_all_fare_alike_nothing_is_blamed(held):
    factors = find_factors(drawn_quantities(50, 0), held, 0)
    assert len(factors) == 12
    assert not any(factor.clear for factor in factors)


def test_too_few_rigs_blame_nothing():
    assert find_factors(drawn_quantities(2, 0), np.array([True, False]), 0) == ()
    result = stress_test(still, n_rigs=1, seconds=1.0)
    assert result.factors == ()
    assert result.n_rigs == 1
