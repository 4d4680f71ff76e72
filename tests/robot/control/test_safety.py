"""The supervisor only takes voltage away, finds every fault, and keeps a cart from the stops whatever the policy does."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rigs import QUICK_PHASES, balance, fast_rig, metadata
from nopg_envs.cartpole import PARAMETER_SETS
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_robot.control.estimator import State, StateEstimator
from nopg_robot.control.safety import Checks, Decision, Reason, SafetySupervisor, Situation
from nopg_robot.flight.log import read_flight
from nopg_robot.plants import Rig
from nopg_robot.plants.base import Reading
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Limits, Readings, Timing
from nopg_robot.run.deployment import RunOptions, deploy

SAMPLE_S = 0.002
# Written out: the cases below stand a hair inside and outside of these.
LIMITS = Limits(
    voltage_volt=5.0,
    rail_length_m=0.814,
    slew_volt_per_s=2000.0,
    rail_margin_m=0.03,
    coasting_time_s=0.2,
    angle_rad=0.35,
    cart_speed_m_s=2.0,
    pole_speed_rad_s=25.0,
    stale_s=0.02,
    frozen_s=0.3,
    frozen_volt=1.5,
    frozen_travel_m=0.02,
    jump_m=0.02,
    jump_rad=0.3,
    outside_data="warn",
)
TIMING = Timing(miss_s=0.002, max_misses=25)
END_M = 0.814 / 2.0 - 0.03
CALM = Situation(time_s=0.0, state=State(0.0, 0.0, 0.0, 0.0), raw=(0.0, 0.0), reading_age_s=0.0, asked=1.0)


# What no rig file may allow: then nothing ever jumps.
ANY_JUMP = {"jump_m": 10.0, "jump_rad": 4.0, "readings": Readings(cart_m=10.0, pole_rad=4.0)}


def supervisor(
    checks: Checks | None = None, timing: Timing | None = None, readings: Readings | None = None, **limits
) -> SafetySupervisor:
    # Not validated: some tests ask for what no rig file may.
    changed = LIMITS.model_copy(update=limits)
    return SafetySupervisor(changed, timing or TIMING, SAMPLE_S, checks, readings)


def situation(**changes) -> Situation:
    """All is well, except for these; fields of the state by their own names."""
    of_state = {name: changes.pop(name) for name in ("x", "theta", "x_dot", "theta_dot") if name in changes}
    return dataclasses.replace(CALM, state=dataclasses.replace(CALM.state, **of_state), **changes)


def follow(guard: SafetySupervisor, *situations: Situation) -> list[Decision]:
    """Decisions on these situations, one sample period apart."""
    return [guard.decide(dataclasses.replace(s, time_s=SAMPLE_S * n)) for n, s in enumerate(situations)]


def reasons(decision: Decision) -> list[Reason]:
    return [intervention.reason for intervention in decision.interventions]


# --- Voltage --------------------------------------------------------------------------------------------------------------

VOLTS = st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 5.0, -5.0, 1e308, -1e308])
SITUATIONS = st.builds(
    situation,
    asked=VOLTS | st.floats(-9.0, 9.0, width=32).map(np.float32) | VOLTS.map(lambda volt: np.array([volt])),
    x=st.floats(-0.45, 0.45),
    x_dot=st.floats(-2.1, 2.1),
    theta=st.floats(-0.4, 0.4),
    reading_age_s=st.floats(0.0, 0.021),
    late_s=st.floats(0.0, 0.003),
    outside_data=st.none() | st.just("x_dot 1.9 outside [-1.2, 1.3]"),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(SITUATIONS, min_size=1, max_size=12),
    limit=st.floats(0.1, 12.0),
    slew=st.floats(1.0, 5000.0),
    cap=st.none() | st.floats(0.0, 12.0),
)
def test_it_only_takes_voltage_away(steps: list[Situation], limit: float, slew: float, cap: float | None):
    # Jumps are allowed here, or nothing else would ever be seen.
    checks = Checks(voltage_volt=cap)
    guard = supervisor(checks, voltage_volt=limit, slew_volt_per_s=slew, **ANY_JUMP)
    before, first_fault = 0.0, None
    for step, decision in zip(steps, follow(guard, *steps), strict=True):
        asked = float(np.asarray(step.asked).reshape(()))
        assert abs(decision.volt) <= abs(asked)
        assert decision.volt == 0.0 or math.copysign(1.0, decision.volt) == math.copysign(1.0, asked)
        assert abs(decision.volt) <= min(limit, math.inf if cap is None else cap)
        grown_from = abs(before) if before * decision.volt > 0.0 else 0.0
        assert abs(decision.volt) <= grown_from + slew * SAMPLE_S * (1.0 + 1e-12)
        if first_fault is not None or decision.fault is not None:
            assert decision.volt == 0.0
        if first_fault is not None:
            assert decision.fault is first_fault
        # A voltage is not taken away in silence.
        assert decision.volt == asked or decision.interventions or first_fault is not None
        before, first_fault = decision.volt, decision.fault


def test_what_is_allowed_passes_unchanged():
    decisions = follow(supervisor(), *[situation(asked=volt) for volt in (0.0, 2.0, 5.0, 4.0, -3.5, 0.0)])
    assert [d.volt for d in decisions] == [0.0, 2.0, 5.0, 4.0, -3.5, 0.0]
    assert not any(d.interventions for d in decisions)


@pytest.mark.parametrize(("cap", "limit"), [(None, 5.0), (1.5, 1.5), (7.0, 5.0), (0.0, 0.0)])
def test_the_lower_of_the_limits_holds(cap: float | None, limit: float):
    decision = follow(supervisor(Checks(voltage_volt=cap), slew_volt_per_s=1e9), situation(asked=-9.0))[0]
    assert decision.volt == -limit
    assert reasons(decision) == [Reason.VOLTAGE]
    assert "-9 V" in decision.interventions[0].message


def test_voltage_grows_slowly_and_falls_at_once():
    asked = [5.0, 5.0, 5.0, 1.0, -3.0, -3.0]
    decisions = follow(supervisor(slew_volt_per_s=1000.0), *[situation(asked=volt) for volt in asked])
    assert [d.volt for d in decisions] == [2.0, 4.0, 5.0, 1.0, -2.0, -3.0]
    assert [reasons(d) for d in decisions] == [[Reason.SLEW], [Reason.SLEW], [], [], [Reason.SLEW], []]


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_brake_withholds_voltage_towards_the_stop_only(side: float):
    # Coasting for 0.2 s at 0.5 m/s.
    inside, outside = side * (END_M - 0.101), side * (END_M - 0.099)
    for x, asked, volt in [(inside, 3.0, 3.0), (outside, 3.0, 0.0), (outside, -3.0, -3.0)]:
        decision = follow(supervisor(), situation(x=x, x_dot=side * 0.5, asked=side * asked))[0]
        assert decision.volt == side * volt
        assert reasons(decision) == ([] if volt == asked else [Reason.RAIL_BRAKE])
    # On the way back there is nothing to brake for.
    assert follow(supervisor(), situation(x=side * 0.37, x_dot=-side * 0.5, asked=side * 3.0))[0].volt == side * 3.0
    assert follow(supervisor(Checks(rail=False)), situation(x=side * 0.4, x_dot=side, asked=side * 3.0))[0].volt == side * 3.0


# --- Faults ---------------------------------------------------------------------------------------------------------------


def repeated(n: int, **changes) -> list[Situation]:
    return [situation(**changes)] * n


def moving(n: int, step_m: float, **changes) -> list[Situation]:
    """The cart moves, and its reading with it."""
    steps = [situation(x=step_m * k, **changes) for k in range(n)]
    return [dataclasses.replace(s, raw=(s.state.x, s.raw[1])) for s in steps]


# Reason, what just does not provoke it, and what does.
FAULTS: dict[str, tuple[Reason, list[Situation], list[Situation]]] = {
    "rail": (Reason.RAIL, [situation(x=END_M - 1e-6)], [situation(x=END_M + 1e-6)]),
    "rail, other side": (Reason.RAIL, [situation(x=1e-6 - END_M)], [situation(x=-END_M - 1e-6)]),
    "angle": (Reason.ANGLE, [situation(theta=0.349)], [situation(theta=0.351)]),
    "angle, other side": (Reason.ANGLE, [situation(theta=-0.349)], [situation(theta=-0.351)]),
    "cart speed": (Reason.CART_SPEED, [situation(x_dot=-1.99)], [situation(x_dot=-2.01)]),
    "pole speed": (Reason.POLE_SPEED, [situation(theta_dot=24.9)], [situation(theta_dot=25.1)]),
    "no x": (Reason.SENSOR, [CALM], [situation(x=math.nan)]),
    "no theta": (Reason.SENSOR, [CALM], [situation(theta=math.nan)]),
    "endless x_dot": (Reason.SENSOR, [CALM], [situation(x_dot=math.inf)]),
    "no theta_dot": (Reason.SENSOR, [CALM], [situation(theta_dot=math.nan)]),
    "stale": (Reason.STALE, [situation(reading_age_s=0.0199)], [situation(reading_age_s=0.0201)]),
    "age unknown": (Reason.STALE, [CALM], [situation(reading_age_s=math.nan)]),
    "frozen cart": (Reason.FROZEN_CART, repeated(150, asked=1.6), repeated(153, asked=1.6)),
    "frozen cart, voltage of either sign": (
        Reason.FROZEN_CART,
        repeated(75, asked=1.6) + repeated(75, asked=-1.6),
        repeated(77, asked=1.6) + repeated(77, asked=-1.6),
    ),
    "a frozen cart needs voltage": (Reason.FROZEN_CART, repeated(400, asked=1.4), repeated(400, asked=1.5)),
    "frozen pole, long enough": (Reason.FROZEN_POLE, moving(151, 0.0005), moving(153, 0.0005)),
    "frozen pole, far enough": (Reason.FROZEN_POLE, moving(200, 0.00009), moving(200, 0.00011)),
    "both frozen under little voltage": (Reason.FROZEN_POLE, repeated(500, asked=0.1), repeated(503, asked=0.1)),
    "both frozen, voltage of either sign": (
        Reason.FROZEN_POLE,
        repeated(250, asked=1.4) + repeated(250, asked=-1.4),
        repeated(252, asked=1.4) + repeated(252, asked=-1.4),
    ),
    "jump of x": (Reason.JUMP, [CALM, situation(x=0.00089)], [CALM, situation(x=0.00091)]),
    "jump of theta": (Reason.JUMP, [CALM, situation(theta=-0.039)], [CALM, situation(theta=-0.041)]),
    "deadline": (Reason.DEADLINE, repeated(25, late_s=0.0021), repeated(26, late_s=0.0021)),
    "lateness that is no miss": (Reason.DEADLINE, repeated(200, late_s=0.0019), repeated(200, late_s=math.nan)),
    "policy output": (Reason.POLICY_OUTPUT, [situation(asked=np.zeros(1))], [situation(asked=np.zeros(2))]),
    "policy error": (Reason.POLICY_ERROR, [CALM], [situation(policy_error="ZeroDivisionError")]),
    "outside data": (Reason.OUTSIDE_DATA, [CALM], [situation(outside_data="x_dot 1.9 outside [-1.2, 1.3]")]),
    "operator": (Reason.OPERATOR, [CALM], [situation(stop="Ctrl-C")]),
    "recorder": (Reason.RECORDER, [CALM], [situation(recorder_error="no space left on device")]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_found_and_nothing_is_found_just_inside_the_limit(case: str):
    reason, inside, outside = FAULTS[case]
    assert follow(supervisor(outside_data="stop"), *inside)[-1].fault is None
    guard = supervisor(outside_data="stop")
    last = follow(guard, *outside)[-1]
    assert last.fault is not None
    assert (last.volt, last.fault.reason) == (0.0, reason)
    assert last.fault.message
    assert guard.fault is last.fault
    found = [d for d in follow(supervisor(outside_data="stop"), *outside) if reason in reasons(d)]
    assert len(found) == 1
    assert (found[0].volt, found[0].fault) == (0.0, found[0].interventions[0])


def test_every_reason_can_be_provoked():
    # The time limit has a test of its own.
    from_outside = {Reason.PLANT, Reason.TIME_LIMIT}
    without_fault = {Reason.VOLTAGE, Reason.SLEW, Reason.RAIL_BRAKE}
    assert {reason for reason, _, _ in FAULTS.values()} == set(Reason) - from_outside - without_fault


NO_VOLTAGES = [
    None, math.nan, math.inf, -math.inf, "3", b"3", True, np.True_, 1j, [1.0], (1.0,), {}, object(), 10**400, np.array([]),
    np.array([1.0, 2.0]), np.array([[1.0]]), np.array([math.nan]), np.float32("inf"), np.array(["3"]), np.array([None]),
    np.array([True]), np.array([1j]), np.datetime64("2020-01-01"), lambda: 1.0,
]  # fmt: skip


@pytest.mark.parametrize("asked", NO_VOLTAGES, ids=lambda asked: f"{type(asked).__name__}-{asked!s:.12}")
def test_what_is_not_a_voltage_is_a_fault(asked: object):
    decision = follow(supervisor(), situation(asked=asked))[0]
    assert decision.fault is not None
    assert (decision.volt, decision.fault.reason) == (0.0, Reason.POLICY_OUTPUT)
    assert decision.fault.message.startswith("the policy returned ")


@pytest.mark.parametrize("asked", [2, 2.0, np.float32(2.0), np.int64(2), np.array(2.0), np.array([2.0], dtype=np.float32)])
def test_what_is_a_voltage_is_applied(asked: object):
    assert follow(supervisor(), situation(asked=asked))[0].volt == 2.0


def test_the_first_fault_wins_and_latches_for_ever():
    guard = supervisor(**ANY_JUMP)
    decisions = follow(guard, CALM, situation(theta=0.36), situation(x=0.5, stop="Ctrl-C"), CALM, CALM)
    assert [d.volt for d in decisions] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert {d.fault for d in decisions[1:]} == {guard.fault}
    assert guard.fault is not None
    assert (guard.fault.reason, guard.fault.time_s) == (Reason.ANGLE, 0.002)
    assert [len(d.interventions) for d in decisions] == [0, 1, 0, 0, 0]
    guard.begin(Checks(rail=False, angle=False, frozen=False))
    assert guard.decide(CALM).volt == 0.0
    assert guard.latch(Reason.PLANT, "cable pulled", 9.0).reason is Reason.ANGLE


def test_a_phase_that_takes_too_long_is_cut_and_another_phase_has_its_own_time():
    guard = supervisor(max_seconds=0.1)
    inside = [CALM] * 51
    assert follow(guard, *inside)[-1].fault is None
    guard.begin(Checks())
    assert follow(guard, *inside)[-1].fault is None
    assert guard.decide(dataclasses.replace(CALM, time_s=0.59)).fault is None
    last = guard.decide(dataclasses.replace(CALM, time_s=0.61))
    assert last.fault is not None
    assert last.fault.reason is Reason.TIME_LIMIT
    assert last.volt == 0.0


@pytest.mark.parametrize("reason", [Reason.PLANT, Reason.TIME_LIMIT])
def test_faults_from_outside_latch_too(reason: Reason):
    guard = supervisor()
    assert guard.fault is None
    fault = guard.latch(reason, "60 s are over", 60.0)
    assert (fault.reason, fault.message, fault.time_s) == (reason, "60 s are over", 60.0)
    assert guard.decide(CALM) == Decision(0.0, (), fault)


def test_in_one_cycle_requests_come_before_sensors_and_sensors_before_states():
    everything = situation(stop="a key", x=math.nan, theta=1.0, reading_age_s=1.0, asked=None)
    order = []
    for repair in ({"stop": None}, {"state": State(0.0, 1.0, 0.0, 0.0)}, {"reading_age_s": 0.0}, {"state": CALM.state}, {}):
        fault = supervisor().decide(everything).fault
        assert fault is not None
        order.append(fault.reason)
        everything = dataclasses.replace(everything, **repair)
    assert order == [Reason.OPERATOR, Reason.SENSOR, Reason.STALE, Reason.ANGLE, Reason.POLICY_OUTPUT]


# --- What applies when ----------------------------------------------------------------------------------------------------

OFF = Checks(rail=False, angle=False, frozen=False)


@pytest.mark.parametrize("case", FAULTS)
def test_checks_that_are_off_find_nothing_and_the_others_stay_on(case: str):
    reason, _, outside = FAULTS[case]
    fault = follow(supervisor(OFF, outside_data="stop"), *outside)[-1].fault
    switched_off = {Reason.RAIL, Reason.ANGLE, Reason.FROZEN_CART, Reason.FROZEN_POLE}
    assert (fault is None) == (reason in switched_off)


@pytest.mark.parametrize("volt", [-1.0, math.nan, math.inf])
def test_the_limit_of_a_phase_is_checked(volt: float):
    with pytest.raises(ValueError, match="voltage_volt"):
        Checks(voltage_volt=volt)


@pytest.mark.parametrize("sample_s", [0.0, -1.0, math.nan, math.inf])
def test_the_sample_period_must_be_positive(sample_s: float):
    with pytest.raises(ValueError, match="sample_s"):
        SafetySupervisor(LIMITS, TIMING, sample_s)


def test_a_new_phase_forgets_where_the_cart_was_and_what_stood_still_but_neither_voltage_nor_misses():
    guard = supervisor(OFF, slew_volt_per_s=1000.0)
    before = repeated(20, asked=2.0, late_s=0.0021)
    assert follow(guard, *before)[-1].fault is None
    guard.begin(Checks(angle=False))
    # Homing has just said where the cart is, and that the pole hangs.
    moved = guard.decide(situation(time_s=0.04, x=0.2, theta=-3.0, asked=4.0))
    assert (moved.volt, moved.fault) == (4.0, None)
    for n in range(1, 6):
        guard.decide(situation(time_s=0.04 + SAMPLE_S * n, x=0.2, theta=-3.0, late_s=0.0021))
    assert guard.fault is None
    late = guard.decide(situation(time_s=0.06, x=0.2, theta=-3.0, late_s=0.0021))
    assert late.fault is not None
    assert late.fault.reason is Reason.DEADLINE


def test_misses_are_forgiven_after_a_second():
    guard = supervisor(timing=Timing(miss_s=0.002, max_misses=2))
    for time_s in (0.0, 0.4, 1.01, 1.41, 2.02):
        assert guard.decide(situation(time_s=time_s, late_s=0.01, asked=0.0)).fault is None
    assert guard.decide(situation(time_s=2.1, late_s=0.01, asked=0.0)).fault is not None


def test_a_pole_may_cross_the_seam_of_its_angle():
    decisions = follow(supervisor(Checks(angle=False)), situation(theta=math.pi - 0.01), situation(theta=-math.pi + 0.01))
    assert decisions[-1].fault is None


def test_after_a_gap_a_cart_may_be_as_far_as_the_speed_limit_allows():
    for gap_s, is_jump in ((0.02, False), (0.01, True)):
        guard = supervisor()
        guard.decide(CALM)
        assert (guard.decide(situation(time_s=gap_s, x=0.035)).fault is not None) == is_jump


def test_a_pole_that_counts_and_a_cart_that_counts_are_not_frozen():
    steps = moving(400, 0.0005, asked=5.0)
    counting = [dataclasses.replace(s, raw=(s.raw[0], float(n // 100))) for n, s in enumerate(steps)]
    assert follow(supervisor(), *counting)[-1].fault is None


@pytest.mark.parametrize(
    ("checks", "changes"),
    [
        # Friction holds an upright pole beside a cart without voltage, and a hanging one beside a cart with little.
        (Checks(), {"asked": 0.0}),
        (Checks(angle=False), {"asked": 0.1}),
        (Checks(frozen=False), {"asked": 0.1}),
    ],
)
def test_a_cart_and_a_pole_that_may_stand_still(checks: Checks, changes: dict[str, float]):
    assert follow(supervisor(checks), *repeated(3000, **changes))[-1].fault is None


@pytest.mark.slow
def test_one_reading_that_counts_is_enough_under_little_voltage():
    for raw in ((0.0, 1.0), (1.0, 0.0)):
        steps = [situation(asked=1.4, raw=(raw[0] * (n // 400), raw[1] * (n // 400))) for n in range(3000)]
        assert follow(supervisor(), *steps)[-1].fault is None


def test_a_longer_time_of_the_rig_file_holds_for_both_readings_too():
    assert follow(supervisor(frozen_s=2.0), *repeated(1000, asked=0.1))[-1].fault is None
    assert follow(supervisor(frozen_s=2.0), *repeated(1003, asked=0.1))[-1].fault is not None


@pytest.mark.slow
def test_a_last_digit_that_trembles_is_no_travel():
    trembling = [situation(x=2e-5 * (n % 2), raw=(n % 2, 0.0)) for n in range(3000)]
    assert follow(supervisor(), *trembling)[-1].fault is None


def test_warnings_of_states_outside_the_data_are_given_once_a_second_each():
    guard = supervisor(Checks(frozen=False))
    given = []
    for n in range(1000):
        message = f"x_dot {1.3 + n * 1e-3:.3f} outside [-1.2, 1.3]" if n % 2 else "theta -0.2 outside [-0.1, 1e-1]"
        decision = guard.decide(situation(time_s=SAMPLE_S * n, outside_data=message))
        assert decision.volt == 1.0
        given += decision.interventions
    assert [(i.reason, i.message[:5], round(i.time_s, 3)) for i in given] == [
        (Reason.OUTSIDE_DATA, "theta", 0.0),
        (Reason.OUTSIDE_DATA, "x_dot", 0.002),
        (Reason.OUTSIDE_DATA, "theta", 1.0),
        (Reason.OUTSIDE_DATA, "x_dot", 1.002),
    ]
    assert not follow(supervisor(outside_data="ignore"), situation(outside_data="x 9"))[0].interventions


# --- In closed loop -------------------------------------------------------------------------------------------------------

# How hard an IP02 cart under any policy may hit a stop, with the pole at rest when it starts, and spinning as fast as it may.
STOP_SPEED_M_S = 0.25
STOP_SPEED_SPINNING_M_S = 0.7
CART = PARAMETER_SETS["identified"]
SHIPPED = RigFile.load("quanser_ip02_hil")

# Cycle and true x, θ, ẋ, θ̇: an adversary sees more than any policy.
Policy = Callable[[int, tuple[float, float, float, float]], float]


def sign(value: float) -> float:
    return 1.0 if value >= 0.0 else -1.0


def policy(name: str, volt: float, rng: np.random.Generator) -> Policy:
    """One of this kind, drawn at random."""
    held, frequency, near_m, brake_s = (
        rng.integers(1, 60),
        rng.uniform(0.3, 12.0),
        rng.uniform(0.1, 0.4),
        rng.uniform(0.02, 0.3),
    )
    drawn = rng.uniform(-volt, volt, 2000)
    policies: dict[str, Policy] = {
        "uniform": lambda n, _: drawn[n // held],
        "bang-bang": lambda n, _: volt * sign(drawn[n // held]),
        "nearest stop": lambda _, s: volt * sign(s[0]),
        "swings the pole up": lambda _, s: volt * sign(s[3] * math.cos(s[1])),
        "resonance": lambda n, _: volt * sign(math.sin(frequency * 2.0 * math.pi * SAMPLE_S * n)),
        "swings, then rushes": lambda _, s: volt * sign(-s[3] * math.cos(s[1]) if abs(s[0]) < near_m else s[0]),
        "in pushes": lambda n, s: volt * sign(s[0]) if n // held % 2 else -volt * sign(s[0]) * (n % 7 == 0),
        "brakes, then does not": lambda _, s: volt * sign(s[0] if abs(s[0]) + abs(s[2]) * brake_s > 0.3 else -s[2]),
    }
    return policies[name]


def hardest_impact(act: Policy, start: tuple[float, float, float, float], volt: float, seconds: float) -> float:
    """
    Speed with which the cart meets a stop.

    :param act: the policy, 500 times a second
    :param start: true state
    :param volt: limit
    :param seconds: length of the run
    :return: m/s, zero if no stop is reached
    """
    options = CartPoleOptions("swing_up", parameters=CART, control_hz=500.0, voltage_limit_volt=volt)
    simulator = CartPoleSimulator(options, CART, start)
    limits = SHIPPED.limits.model_copy(update={"voltage_volt": volt})
    estimates, guard = (
        StateEstimator(SHIPPED.sensors, SAMPLE_S),
        SafetySupervisor(limits, TIMING, SAMPLE_S, Checks(angle=False)),
    )
    for n in range(round(seconds / SAMPLE_S)):
        raw = (round(simulator.measured[0] / CART.cart_count_m), round(simulator.measured[1] / CART.pole_count_rad))
        estimates.update(Reading(SAMPLE_S * n, *raw))
        if n == 0:
            estimates.set_position(start[0])
            estimates.set_angle(start[1])
        decision = guard.decide(Situation(SAMPLE_S * n, estimates.state, raw, 0.0, act(n, simulator.state)))
        assert abs(decision.volt) <= volt
        simulator.hold(decision.volt)
        if abs(simulator.state[0]) >= CART.rail_length_m / 2.0:
            return abs(simulator.state[2])
        if decision.fault is not None and abs(simulator.state[2]) + abs(simulator.state[3]) < 1e-2:
            break
    return 0.0


POLICIES = [
    "uniform", "bang-bang", "nearest stop", "swings the pole up", "resonance", "swings, then rushes", "in pushes",
    "brakes, then does not",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("volt", [5.0, 8.0])
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_throws_the_cart_against_a_stop(name: str, volt: float):
    rng = np.random.default_rng(0)
    for _ in range(4):
        start = (rng.uniform(-END_M, END_M), rng.uniform(-math.pi, math.pi), 0.0, 0.0)
        assert hardest_impact(policy(name, volt, rng), start, volt, 2.5) <= STOP_SPEED_M_S


@pytest.mark.slow
@pytest.mark.parametrize("volt", [5.0, 8.0])
@pytest.mark.parametrize("name", ["nearest stop", "brakes, then does not"])
def test_a_pole_that_spins_drags_the_cart_along_but_not_much(name: str, volt: float):
    rng = np.random.default_rng(1)
    for _ in range(10):
        start = (sign(rng.normal()) * rng.uniform(0.3, END_M), rng.uniform(-math.pi, math.pi), 0.0, rng.uniform(-24.0, 24.0))
        assert hardest_impact(policy(name, volt, rng), start, volt, 1.0) <= STOP_SPEED_SPINNING_M_S


def test_a_cart_at_full_speed_comes_to_rest_before_the_run_is_cut():
    furthest = 0.0

    def act(n: int, state: tuple[float, float, float, float]) -> float:
        nonlocal furthest
        furthest = max(furthest, state[0])
        # Coasting from there alone would end past the cut.
        return 5.0 if state[0] < 0.25 else 0.0

    assert hardest_impact(act, (-0.3, math.pi, 0.0, 0.0), 5.0, 2.0) == 0.0
    assert 0.3 < furthest < END_M


@pytest.mark.slow
@pytest.mark.parametrize("volt", [1.4, -0.6])
def test_encoders_that_freeze_are_found_before_little_voltage_presses_the_cart_against_a_stop(volt: float, tmp_path: Path):
    opened: list[Rig] = []
    calls = iter(range(10**6))

    def freezes(observation: np.ndarray) -> float:
        if next(calls) < 5:
            return 0.0
        opened[0].plant.cart.frozen_cart = opened[0].plant.cart.frozen_pole = True
        return volt

    summary = deploy(
        freezes, metadata(), fast_rig(**QUICK_PHASES), tmp_path / "log.npz", RunOptions(5.0), on_connect=opened.append
    )
    assert summary.fault is not None
    assert summary.fault.reason is Reason.FROZEN_POLE
    assert summary.seconds < 1.2
    assert abs(opened[0].plant.cart.state[0]) < END_M


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_pole_that_is_balanced_with_little_voltage_is_not_frozen(seed: int, tmp_path: Path):
    rig = fast_rig(connection={"seed": seed}, **QUICK_PHASES)
    assert deploy(balance, metadata(), rig, tmp_path / "log.npz", RunOptions(10.0)).outcome == "finished"
    log = read_flight(tmp_path / "log.npz").of_phase("run")
    counted = (np.diff(log.raw_cart) != 0.0) | (np.diff(log.raw_pole) != 0.0)
    # Far from the second that is allowed.
    assert np.diff(np.flatnonzero(counted)).max() * SAMPLE_S < 0.2


def test_without_the_supervisors_brake_it_would_hit_hard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SafetySupervisor, "decide", lambda guard, asked: Decision(asked.asked, (), None))
    assert hardest_impact(lambda n, state: 5.0, (0.0, math.pi, 0.0, 0.0), 5.0, 3.0) > 3.0 * STOP_SPEED_M_S
