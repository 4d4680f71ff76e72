"""The cart-pole moves as its equations say: energy, frequency, linearisation, and the fast forms against the slow one."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from nopg_envs.cartpole import PARAMETER_SETS, CartPoleParameters, linearize
from nopg_envs.cartpole.dynamics import accelerations, rk4_step
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import parameters_of
from nopg_envs.cartpole.simulator import CartPoleSimulator, delay_schedule, filter_coefficients, filter_weights

IDENTIFIED = PARAMETER_SETS["identified"]
NO_DRY_FRICTION = IDENTIFIED.replace(cart_coulomb=0.0, pole_coulomb=0.0, voltage_offset=0.0)
FREE = NO_DRY_FRICTION.replace(cart_damping=0.0, pole_damping=0.0, input_delay_s=0.0)
# Nothing ends these runs.
ENDLESS = CartPoleOptions(theta_limit_rad=math.inf, rig_effects=False)


def energy(parameters: CartPoleParameters, state) -> float:
    """Kinetic and potential, of the whole divided by its mass; zero of the latter at the pivot."""
    _, theta, x_dot, theta_dot = state
    m, a_l = parameters.pole_coupling, parameters.inverse_pole_length
    kinetic = 0.5 * x_dot**2 - m * np.cos(theta) * x_dot * theta_dot + 0.5 * m / a_l * theta_dot**2
    return kinetic + m * parameters.gravity * np.cos(theta)


def trajectory(simulator: CartPoleSimulator, n_periods: int, voltage: float = 0.0) -> np.ndarray:
    """States at the start and after each control period, (n_periods + 1, 4)."""
    states = [simulator.state]
    for _ in range(n_periods):
        simulator.hold(voltage)
        states.append(simulator.state)
    return np.array(states)


# --- Equations of motion --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PARAMETER_SETS))
def test_accelerations_solve_the_two_equations(name: str):
    p = PARAMETER_SETS[name]
    rng = np.random.default_rng(0)
    theta, x_dot, theta_dot, voltage = rng.normal(size=(4, 50)) * np.array([[2.0], [1.0], [5.0], [3.0]])
    x_ddot, theta_ddot = accelerations(p, theta, x_dot, theta_dot, voltage)
    # As identified: with the angle from hanging, in which every sine and cosine changes sign.
    down = theta + np.pi
    left = x_ddot + p.pole_coupling * np.cos(down) * theta_ddot
    right = (
        p.input_gain * (voltage + p.voltage_offset)
        - p.cart_damping * x_dot
        - p.cart_coulomb * np.sign(x_dot)
        + p.pole_coupling * np.sin(down) * theta_dot**2
    )
    np.testing.assert_allclose(left, right, atol=1e-10)
    pole = (
        -p.inverse_pole_length * (p.gravity * np.sin(down) + np.cos(down) * x_ddot)
        - p.pole_damping * theta_dot
        - p.pole_coulomb * np.sign(theta_dot)
    )
    np.testing.assert_allclose(theta_ddot, pole, atol=1e-10)


@pytest.mark.parametrize("start", [(0.0, 1.0, 0.0, 0.0), (0.0, 3.0, 0.1, 0.0), (0.0, 0.01, 0.0, 0.0), (0.0, 2.0, -0.3, 12.0)])
@pytest.mark.parametrize("name", ["identified", "long_pole"])
def test_energy_is_kept_without_friction_and_input(start, name: str):
    pole = PARAMETER_SETS[name]
    p = FREE.replace(pole_coupling=pole.pole_coupling, inverse_pole_length=pole.inverse_pole_length)
    seconds = 10
    states = trajectory(CartPoleSimulator(ENDLESS, p, start), seconds * 50)
    energies = energy(p, states.T)
    scale = max(np.abs(energies).max(), p.pole_coupling * p.gravity)
    assert np.abs(energies - energies[0]).max() / scale / seconds < 1e-6


@pytest.mark.parametrize("coupling", [0.0, IDENTIFIED.pole_coupling, 0.08])
def test_hanging_pole_swings_at_its_analytic_frequency(coupling: float):
    p = FREE.replace(pole_coupling=coupling)
    expected = math.sqrt(p.inverse_pole_length * p.gravity / (1.0 - coupling * p.inverse_pole_length))
    options = CartPoleOptions(theta_limit_rad=math.inf, rig_effects=False, control_hz=500)
    angle = trajectory(CartPoleSimulator(options, p, (0.0, math.pi + 1e-3, 0.0, 0.0)), 5000)[:, 1] - math.pi
    falls = np.flatnonzero((angle[:-1] > 0) & (angle[1:] <= 0))
    crossings = (falls + angle[falls] / (angle[falls] - angle[falls + 1])) * options.step_s
    measured = 2.0 * math.pi * (len(crossings) - 1) / (crossings[-1] - crossings[0])
    assert measured == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", sorted(PARAMETER_SETS))
def test_linearisation_matches_finite_differences(name: str):
    p = PARAMETER_SETS[name].replace(cart_coulomb=0.0, pole_coulomb=0.0, voltage_offset=0.0)

    def derivative(point: np.ndarray) -> np.ndarray:
        _, theta, x_dot, theta_dot, voltage = point
        return np.array([x_dot, theta_dot, *accelerations(p, theta, x_dot, theta_dot, voltage)])

    step = 1e-6
    columns = [(derivative(step * unit) - derivative(-step * unit)) / (2.0 * step) for unit in np.eye(5)]
    a, b = linearize(PARAMETER_SETS[name])
    assert a.shape == (4, 4)
    assert b.shape == (4, 1)
    np.testing.assert_allclose(np.column_stack([a, b]), np.column_stack(columns), atol=1e-7)


def test_upright_falls_and_hanging_does_not():
    a, _ = linearize(IDENTIFIED)
    assert np.linalg.eigvals(a).real.max() > 5.0
    states = trajectory(CartPoleSimulator(ENDLESS, IDENTIFIED, (0.0, math.pi + 0.3, 0.0, 0.0)), 500)
    assert np.abs(states[-50:, 1] - math.pi).max() < 0.15


# --- Integration ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PARAMETER_SETS))
def test_simulator_is_the_obvious_form_written_out(name: str):
    p = PARAMETER_SETS[name].replace(input_delay_s=0.0)
    state = np.array([0.05, 2.0, -0.2, 1.0])
    simulator = CartPoleSimulator(ENDLESS, p, tuple(state.tolist()))
    rng = np.random.default_rng(0)
    for _ in range(50):
        voltage = float(rng.uniform(-5, 5))
        simulator.hold(voltage)
        for _ in range(10):
            state = rk4_step(p, state, voltage, 0.002)
        np.testing.assert_allclose(simulator.state, state, atol=1e-11)


def test_integration_agrees_with_an_independent_solver():
    p = NO_DRY_FRICTION.replace(input_delay_s=0.0)
    start = (0.0, 2.5, 0.3, -2.0)

    def derivative(_: float, state: np.ndarray) -> np.ndarray:
        return np.array([state[2], state[3], *accelerations(p, state[1], state[2], state[3], np.asarray(2.0))])

    reference = solve_ivp(derivative, (0.0, 2.0), start, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    reached = trajectory(CartPoleSimulator(ENDLESS, p, start), 100, voltage=2.0)[-1]
    np.testing.assert_allclose(reached, reference, atol=1e-7)


@pytest.mark.slow
def test_integration_is_of_fourth_order():
    """Carrying sine and cosine through a step, rather than taking them afresh in each stage, must not cost an order."""
    start = np.array([0.0, 2.5, 0.3, -8.0])

    def reached(n_steps: int) -> np.ndarray:
        state = start
        for _ in range(n_steps):
            state = rk4_step(NO_DRY_FRICTION, state, 2.0, 0.4 / n_steps)
        return state

    exact = reached(3200)
    errors = [np.abs(reached(n_steps) - exact).max() for n_steps in (50, 100, 200)]
    # Half the step, a sixteenth of the error.
    assert math.log2(errors[0] / errors[1]) == pytest.approx(4.0, abs=0.3)
    assert math.log2(errors[1] / errors[2]) == pytest.approx(4.0, abs=0.3)


def test_dry_friction_holds_the_cart_below_its_break_away_voltage():
    p = IDENTIFIED.replace(voltage_offset=0.0)
    break_away = p.cart_coulomb / p.input_gain
    hanging = (0.0, math.pi, 0.0, 0.0)
    held = trajectory(CartPoleSimulator(ENDLESS, p, hanging), 50, voltage=0.8 * break_away)
    assert np.abs(held[:, 2]).max() < 3e-3
    driven = trajectory(CartPoleSimulator(ENDLESS, p, hanging), 50, voltage=3.0 * break_away)
    assert driven[-1, 2] > 0.05


def test_creep_below_break_away_is_the_one_documented():
    reached = trajectory(CartPoleSimulator(ENDLESS, IDENTIFIED, (0.0, math.pi, 0.0, 0.0)), 500, voltage=0.0)[-1]
    assert reached[0] == pytest.approx(4e-3, abs=0.2e-3)
    assert reached[2] == pytest.approx(0.41e-3, abs=0.01e-3)


def test_positive_volts_drive_to_positive_x_and_tip_the_bob_back():
    # The bob stays behind: towards −x, which is +θ.
    x, theta, x_dot, theta_dot = trajectory(CartPoleSimulator(ENDLESS, IDENTIFIED, (0.0, 0.0, 0.0, 0.0)), 5, voltage=3.0)[-1]
    assert x > 0
    assert x_dot > 0
    assert theta > 0
    assert theta_dot > 0


# --- Delay and velocity filter ---------------------------------------------------------------------------------------------


def test_delay_schedule():
    assert delay_schedule(0.0, 0.002, 3) == ([0, 0, 0], [1, 0, 0], 0.0)
    assert delay_schedule(0.006, 0.002, 10) == ([1, 1, 1] + [0] * 7, [1, 1, 1, 1] + [0] * 6, 0.0)
    newer, older, share = delay_schedule(0.005, 0.002, 4)
    assert (newer, older) == ([1, 1, 0, 0], [1, 1, 1, 0])
    assert share == pytest.approx(0.5)
    # Longer than a control period.
    assert delay_schedule(0.025, 0.002, 5)[0] == [3, 3, 2, 2, 2]


def test_filter_is_exact_on_a_ramp_and_twenty_milliseconds_late():
    keep, gain = filter_coefficients(50.0, 0.002)
    speed, speeds = 0.0, []
    for _ in range(200):
        speed = keep * speed + gain * 0.3 * 0.002
        speeds.append(speed)
    assert speeds[-1] == pytest.approx(0.3, rel=1e-6)
    # To a step in speed it answers like 1 − exp(−t / 20 ms).
    assert speeds[9] == pytest.approx(0.3 * (1.0 - math.exp(-0.020 / 0.02)), rel=0.01)


def test_weights_of_a_control_period_are_the_filter_written_out():
    keep, gain = filter_coefficients(50.0, 0.002)
    kept, weights = filter_weights(50.0, 0.002, 10)
    increments = np.random.default_rng(0).normal(size=10)
    speed = 0.7
    for increment in increments:
        speed = keep * speed + gain * increment
    assert kept * 0.7 + np.dot(weights, increments) == pytest.approx(speed, rel=1e-12)


# --- Parameters -----------------------------------------------------------------------------------------------------------


def test_long_pole_is_the_same_cart_with_another_pole():
    long = PARAMETER_SETS["long_pole"]
    assert 1.0 / long.inverse_pole_length == pytest.approx(0.6413 / 0.3365 / IDENTIFIED.inverse_pole_length)
    # The motor's force is the same: 1.45 kg with the short pole, 0.103 kg more with the long one.
    assert long.input_gain * 1.553 == pytest.approx(IDENTIFIED.input_gain * 1.45)
    assert long.cart_damping / long.input_gain == pytest.approx(IDENTIFIED.cart_damping / IDENTIFIED.input_gain)
    # m is about pole mass times half length over all mass.
    assert long.pole_coupling == pytest.approx(0.230 * 0.32065 / 1.553, rel=0.03)
    assert long.pole_damping < IDENTIFIED.pole_damping


def test_parameters_by_name_by_dict_and_as_they_are():
    assert parameters_of(None) is IDENTIFIED
    assert parameters_of("datasheet") is PARAMETER_SETS["datasheet"]
    assert parameters_of({"cart_damping": 7.0}) == IDENTIFIED.replace(cart_damping=7.0)
    assert parameters_of(IDENTIFIED) is IDENTIFIED


def test_parameters_survive_yaml(tmp_path: Path):
    path = tmp_path / "rig.yaml"
    changed = PARAMETER_SETS["long_pole"].replace(voltage_offset=-0.1, cart_damping=7.123456789)
    changed.save(path)
    assert CartPoleParameters.load(path) == changed
    path.write_text("cart_damping: 7.5\n")
    assert CartPoleParameters.load(path) == IDENTIFIED.replace(cart_damping=7.5)
    path.write_text("cart_mass: 1.0\n")
    with pytest.raises(ValueError, match="cart_mass"):
        CartPoleParameters.load(path)
    path.write_text("- 1\n- 2\n")
    with pytest.raises(ValueError, match="not a list of parameters"):
        CartPoleParameters.load(path)


def test_parameters_take_numpy_scalars_and_hold_floats(tmp_path: Path):
    changed = IDENTIFIED.replace(cart_damping=np.float32(7.5), gravity=np.int64(10), rail_length_m=1)
    assert all(type(value) is float for value in dataclasses.asdict(changed).values())
    changed.save(tmp_path / "rig.yaml")
    assert CartPoleParameters.load(tmp_path / "rig.yaml") == changed
    with pytest.raises(ValueError, match="gravity"):
        IDENTIFIED.replace(gravity=10**400)


def test_parameter_files_by_path_and_with_numbers_that_yaml_takes_for_text(tmp_path: Path):
    for name in ("rig.yaml", "rig.yml"):
        path = tmp_path / name
        path.write_text("input_delay_s: 1e-2\n")
        expected = IDENTIFIED.replace(input_delay_s=0.01)
        assert parameters_of(str(path)) == parameters_of(path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{unclosed", "not a readable YAML file"),
        (b"\xff\xfe\xfa", "not a readable YAML file"),
        (b"1: 2", "Unknown parameter 1"),
        (b"input_gain: fast", "input_gain: must be a number"),
        (b"input_gain: nan", "input_gain: must be a number"),
        (b"input_gain: [1]", "input_gain: must be a number"),
        (b"", "not a list of parameters"),
    ],
)
def test_bad_parameter_files_are_named(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "rig.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=rf"rig\.yaml: {message}"):
        CartPoleParameters.load(tmp_path / "rig.yaml")


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CartPoleParameters)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", None, True])
def test_parameters_must_be_finite_numbers(field: str, value):
    with pytest.raises(ValueError, match=field):
        IDENTIFIED.replace(**{field: value})


@pytest.mark.parametrize("field", ["input_gain", "cart_damping", "pole_coupling", "input_delay_s", "rail_length_m", "gravity"])
def test_negative_parameters_are_refused(field: str):
    with pytest.raises(ValueError, match=field):
        IDENTIFIED.replace(**{field: -0.1})


@pytest.mark.parametrize("field", ["input_gain", "rail_length_m", "cart_count_m", "pole_count_rad", "velocity_cutoff_rad_s"])
def test_some_parameters_must_not_be_zero(field: str):
    with pytest.raises(ValueError, match=field):
        IDENTIFIED.replace(**{field: 0.0})


def test_unknown_parameters_are_named():
    with pytest.raises(ValueError, match="pole_mass"):
        IDENTIFIED.replace(pole_mass=0.1)
    with pytest.raises(ValueError, match="pole_mass"):
        parameters_of({"pole_mass": 0.1})
    for unknown in ("short_pole", 3, ["identified"]):
        with pytest.raises(ValueError, match="Unknown parameter set"):
            parameters_of(unknown)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pole_coupling"):
        IDENTIFIED.replace(pole_coupling=0.3)
