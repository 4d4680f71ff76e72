"""What counts as a jump: movements that no cart can make, and none that one can."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rigs import balance, changed, fast_rig, metadata
from nopg_robot.control.estimator import State
from nopg_robot.control.jump_check import JumpCheck
from nopg_robot.control.safety import Reason, Situation
from nopg_robot.plants import Rig
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Readings
from nopg_robot.run.deployment import RunOptions, deploy
from nopg_robot.virtual.simulated_cart import SimulatedCart

SHIPPED = RigFile.load("quanser_ip02_hil")
CALM = Situation(time_s=0.0, state=State(0.0, 0.0, 0.0, 0.0), raw=(0.0, 0.0), reading_age_s=0.0, asked=0.0)


def first_jump(readings: list[tuple[float, float, float]], of: Readings | None = None, x_dot: float = 0.0) -> int | None:
    """
    :param readings: times, x and θ
    :param of: how exact they are; the shipped card's by default
    :param x_dot: that the filter has
    :return: number of the first that jumped
    """
    check = JumpCheck(SHIPPED.limits, of or SHIPPED.readings)
    for number, (time_s, x, theta) in enumerate(readings):
        situation = dataclasses.replace(CALM, time_s=time_s, state=State(x, theta, x_dot, 0.0))
        if check(situation, 0.0) is not None:
            return number
    return None


@pytest.mark.slow
@settings(max_examples=50)
@given(
    gaps=st.lists(st.floats(0.001, 0.03), min_size=2, max_size=60),
    pushes=st.lists(st.floats(-1.0, 1.0), min_size=60, max_size=60),
)
def test_a_cart_that_is_pushed_as_hard_as_can_be_does_not_jump(gaps: list[float], pushes: list[float]):
    most, fastest = SHIPPED.limits.cart_acceleration_m_s2, 0.99 * SHIPPED.limits.cart_speed_m_s
    time_s, x, speed, readings = 0.0, 0.0, 0.0, [(0.0, 0.0, 0.0)]
    for gap_s, push in zip(gaps, pushes, strict=False):
        before = speed
        speed = min(max(speed + push * most * gap_s, -fastest), fastest)
        time_s, x = time_s + gap_s, x + (before + speed) / 2.0 * gap_s
        readings.append((time_s, x, 0.0))
    assert first_jump(readings) is None


@pytest.mark.parametrize("rig", ["quanser_ip02_hil", "quanser_ip02_quarc"])
@pytest.mark.parametrize(("speed", "slip_m"), [(0.0, 0.004), (0.0, -0.004), (0.3, 0.005), (1.0, 0.006), (-1.0, 0.018)])
def test_a_slip_of_millimetres_is_a_jump(rig: str, speed: float, slip_m: float):
    """Twenty millimetres were once allowed in every cycle."""
    readings = [(0.002 * n, 0.002 * n * speed + slip_m * (n >= 20), 0.0) for n in range(40)]
    assert first_jump(readings, RigFile.load(rig).readings, x_dot=speed) == 20


@pytest.mark.parametrize("speed", [0.0, 0.3])
def test_also_on_a_bridge_that_is_as_patient_as_may_be(speed: float):
    """Nine slips of 18 mm once passed there, more than the margin before a stop."""
    patient = changed(RigFile.load("quanser_ip02_quarc"), timing={"miss_s": 0.02}, limits={"stale_s": 0.1})
    readings = [(0.002 * n, 0.002 * n * speed + 0.018 * (n // 25), 0.0) for n in range(250)]
    assert first_jump(readings, patient.readings, x_dot=speed) == 25
    # A virtual one may be late on a busy computer.
    assert changed(patient, connection={"virtual": True}).readings.jitter_s == 0.02


def test_a_slip_of_the_pole_is_a_jump():
    assert first_jump([(0.002 * n, 0.0, 0.01 * n) for n in range(40)]) is None
    assert first_jump([(0.002 * n, 0.0, 0.01 * n + 0.1 * (n >= 20)) for n in range(40)]) == 20


def test_a_reading_that_came_late_is_no_jump_where_readings_are_stamped_on_arrival():
    # One of a cart at 1 m/s arrives as late as a cycle may be, the next one in time.
    bridge = RigFile.load("quanser_ip02_quarc")
    times = [0.002 * n + (bridge.timing.miss_s - 1e-6) * (n == 20) for n in range(40)]
    readings = [(time_s, 0.002 * n, 0.0) for n, time_s in enumerate(times)]
    assert first_jump(readings, bridge.readings, x_dot=1.0) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_a_cart_does_with_its_largest_voltage_is_a_jump(seed: int):
    """24 V at random, against the stops too, with a pole that spins."""
    rng = np.random.default_rng(seed)
    cart = SimulatedCart(start=(0.0, math.pi, 0.0, 20.0), operator=False)
    parameters, readings, hits = cart.parameters, [], 0.0
    for n in range(2000):
        if n % 50 == 0:
            cart.set_voltage(24.0 * rng.choice([-1.0, 1.0]))
        cart.advance_to(0.002 * n)
        counts = cart.counts
        readings.append((0.002 * n, counts[0] * parameters.cart_count_m, counts[1] * parameters.pole_count_rad))
        hits = max(hits, cart.hardest_impact_m_s)
    assert hits > 0.5
    # Beyond the speed limits other checks are there.
    wide = SHIPPED.limits.model_copy(update={"cart_speed_m_s": 5.0, "pole_speed_rad_s": 60.0})
    check = JumpCheck(wide, SHIPPED.readings)
    found = [
        check(dataclasses.replace(CALM, time_s=time_s, state=State(x, theta, 0.0, 0.0)), 0.0) for time_s, x, theta in readings
    ]
    assert found == [None] * len(readings)


@pytest.mark.slow
@pytest.mark.parametrize("slip_m", [0.018, 0.006])
def test_an_encoder_that_slips_again_and_again_does_not_take_the_cart_to_a_stop(slip_m: float, tmp_path: Path):
    opened: list[Rig] = []
    calls = itertools.count()

    def slips(observation: np.ndarray) -> np.ndarray:
        number = next(calls)
        cart = opened[0].plant.cart  # type: ignore[attr-defined]
        if number % 25 == 24 and number < 8 * 25:
            cart.count_jump -= round(slip_m / cart.parameters.cart_count_m)
        return balance(observation)

    summary = deploy(slips, metadata(), fast_rig(), tmp_path / "log.npz", RunOptions(10.0), on_connect=opened.append)
    assert summary.fault is not None
    assert summary.fault.reason is Reason.JUMP
    assert summary.seconds < 0.6
    # Homing meets a stop at 0.22 m/s.
    assert opened[0].plant.cart.hardest_impact_m_s < 0.25  # type: ignore[attr-defined]
