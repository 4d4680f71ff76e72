"""The cart-pole environments: what a rig adds, starts, ends, and what a controller can and cannot do with it."""

import copy
import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from scipy.linalg import expm, solve_discrete_are
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import nopg_envs
from nopg_envs.cartpole import (
    PARAMETER_SETS,
    CartPoleVectorEnv,
    QuanserCartPoleBalanceEnv,
    QuanserCartPoleSwingUpEnv,
    linearize,
    register,
)

BALANCE, SWING_UP = "nopg/QuanserCartPoleBalance-v0", "nopg/QuanserCartPoleSwingUp-v1"
if BALANCE not in gym.registry:
    register()
IDENTIFIED = PARAMETER_SETS["identified"]

# Both checkers advise actions within ±1. Ours are volts.
advice_on_action_range = pytest.mark.filterwarnings("ignore:.*symmetric and normalized:UserWarning")
both_tasks = pytest.mark.parametrize("env_class", [QuanserCartPoleBalanceEnv, QuanserCartPoleSwingUpEnv])


def volts(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


def lqr_gain(control_hz: float = 50.0) -> np.ndarray:
    """For the identified cart, linearised and sampled, (4,)."""
    a, b = linearize(IDENTIFIED)
    sampled = expm(np.block([[a, b], [np.zeros((1, 5))]]) / control_hz)
    a, b = sampled[:4, :4], sampled[:4, 4:]
    cost, effort = np.diag([10.0, 10.0, 0.1, 0.1]), np.array([[0.01]])
    value = solve_discrete_are(a, b, cost, effort)
    return np.linalg.solve(effort + b.T @ value @ b, b.T @ value @ a)[0]


def estimates(observations: np.ndarray) -> np.ndarray:
    """x, θ, ẋ, θ̇ from observations, (…, 4)."""
    x, sine, cosine, x_dot, theta_dot = np.moveaxis(np.asarray(observations, dtype=np.float64), -1, 0)
    return np.stack([x, np.arctan2(sine, cosine), x_dot, theta_dot], axis=-1)


def states_under(env: gym.Env, commands: list[float], state=(0.0, 0.0, 0.0, 0.0)) -> np.ndarray:
    """True states at the start and after each command, (n + 1, 4)."""
    _, info = env.reset(options={"state": state})
    states = [info["state"]]
    for command in commands:
        states.append(env.step(volts(command))[4]["state"])
    return np.array(states)


# --- Gymnasium and Stable-Baselines3 ----------------------------------------------------------------------------------------


@advice_on_action_range
@pytest.mark.parametrize("env_id", [BALANCE, SWING_UP])
@pytest.mark.parametrize("options", [{}, {"rig_effects": False}, {"sensor_noise": 1.0, "start": "operator"}])
def test_gymnasium_checks_pass(env_id: str, options: dict):
    env = gym.make(env_id, **options)
    gymnasium_check_env(env.unwrapped, skip_render_check=True)
    env.close()


@advice_on_action_range
@pytest.mark.parametrize("env_id", [BALANCE, SWING_UP])
def test_stable_baselines3_checks_pass(env_id: str):
    env = gym.make(env_id)
    sb3_check_env(env)
    env.close()


@pytest.mark.parametrize(("env_id", "n_steps"), [(BALANCE, 10_000), (SWING_UP, 500)])
def test_registered_with_its_length(env_id: str, n_steps: int):
    assert gym.spec(env_id).max_episode_steps == n_steps


@both_tasks
def test_documents_its_spaces_and_versions(env_class: type):
    for heading in ("## Action space", "## Observation space", "## Reward and end", "## Start", "## Version history"):
        assert heading in (env_class.__doc__ or "")


def test_spaces():
    env = QuanserCartPoleBalanceEnv(voltage_limit_volt=8.0)
    assert env.action_space == gym.spaces.Box(-8.0, 8.0, (1,), np.float32)
    assert env.observation_space.shape == (5,)
    assert env.observation_space.dtype == np.float32
    np.testing.assert_allclose(env.state_space.high, [0.407, 0.2, 1.0, 1.5])
    np.testing.assert_allclose(QuanserCartPoleSwingUpEnv().state_space.high, [0.407, np.pi, 2.0, 15.0])


@both_tasks
def test_seeding_is_deterministic(env_class: type):
    def episode(seed: int) -> np.ndarray:
        env = env_class(start="operator", sensor_noise=1.0, randomize={"cart_damping": (5.0, 8.0)})
        rows = [env.reset(seed=seed)[0]]
        rng = np.random.default_rng(0)
        rows += [env.step(volts(rng.uniform(-1, 1)))[0] for _ in range(30)]
        rows.append(env.reset()[0])
        return np.array(rows)

    np.testing.assert_array_equal(episode(3), episode(3))
    assert np.abs(episode(3) - episode(4)).max() > 1e-3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(duplicate):
    env = QuanserCartPoleBalanceEnv(start="operator")
    env.reset(seed=0)
    twin = duplicate(env)
    for command in (1.0, -2.0, 0.5):
        np.testing.assert_array_equal(env.step(volts(command))[0], twin.step(volts(command))[0])


@pytest.mark.parametrize("env_id", [BALANCE, SWING_UP])
def test_renders_a_picture(env_id: str):
    pytest.importorskip("pygame")
    env = gym.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(5):
        env.step(volts(4.0))
    second = env.render()
    env.close()
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape[2] == 3
    assert (first != second).any()


# --- Reward and end ---------------------------------------------------------------------------------------------------------


@both_tasks
def test_observation_and_reward_follow_the_state(env_class: type):
    env = env_class(rig_effects=False, theta_limit_rad=math.inf)
    env.reset(options={"state": (0.1, 0.15, -0.2, 0.3)})
    for command in (1.0, -3.0, 2.0):
        observation, reward, _, truncated, info = env.step(volts(command))
        x, theta, x_dot, theta_dot = info["state"]
        expected = [x, math.sin(theta), math.cos(theta), x_dot, theta_dot]
        np.testing.assert_allclose(observation, expected, rtol=1e-6, atol=1e-7)
        assert reward == (math.cos(theta) if env_class is QuanserCartPoleBalanceEnv else (1.0 + math.cos(theta)) / 2.0)
        assert info["voltage_volt"] == command
        assert not truncated


@pytest.mark.parametrize("limit", [0.2, math.radians(3)])
def test_balance_ends_when_the_pole_falls(limit: float):
    env = QuanserCartPoleBalanceEnv(theta_limit_rad=limit)
    _, info = env.reset(options={"state": (0.0, 0.02, 0.0, 0.0)})
    for _ in range(200):
        before = info
        _, _, terminated, _, info = env.step(volts(0.0))
        if terminated:
            break
    assert info["termination"] == "angle"
    assert before["termination"] is None
    assert abs(before["state"][1]) <= limit < abs(info["state"][1])


@both_tasks
@pytest.mark.parametrize("command", [-5.0, 5.0])
def test_both_tasks_end_when_the_cart_leaves_the_rail(env_class: type, command: float):
    env = env_class(theta_limit_rad=math.inf)
    _, info = env.reset()
    for _ in range(200):
        before = info
        observation, _, terminated, _, info = env.step(volts(command))
        if terminated:
            break
    assert info["termination"] == "rail"
    assert abs(before["state"][0]) <= 0.407 < abs(info["state"][0])
    assert np.sign(info["state"][0]) == np.sign(command)
    assert env.observation_space.contains(observation)


def test_limits_are_watched_between_control_steps():
    env = QuanserCartPoleSwingUpEnv(control_hz=5)
    # Out and back within 0.2 s: the brake at the end of the rail comes too late.
    _, info = env.reset(options={"state": (0.4, math.pi, 0.5, 0.0)})
    _, _, terminated, _, info = env.step(volts(-5.0))
    assert abs(info["state"][0]) < 0.407
    assert terminated
    assert info["termination"] == "rail"


def test_swing_up_turns_over_without_an_end():
    env = QuanserCartPoleSwingUpEnv()
    env.reset(options={"state": (0.0, 3.0, 0.0, 15.0)})
    for _ in range(50):
        _, _, terminated, _, info = env.step(volts(0.0))
        assert not terminated
    assert info["state"][1] > 3 * np.pi


def test_swing_up_never_gains_by_an_early_end():
    env = QuanserCartPoleSwingUpEnv()
    env.reset()
    # Hanging still is as bad as it gets, and costs nothing.
    assert env.step(volts(0.0))[1] == pytest.approx(0.0, abs=1e-6)
    env.reset(options={"state": (0.0, 0.0, 0.0, 0.0)})
    assert env.step(volts(0.0))[1] == pytest.approx(1.0, abs=1e-4)
    data = nopg_envs.rollouts(QuanserCartPoleSwingUpEnv(), "held", n_transitions=500, start="operator", seed=0)
    assert data["terminals"].any()
    assert (data["rewards"] >= 0.0).all()
    assert (data["rewards"] <= 1.0).all()


# --- Starts -----------------------------------------------------------------------------------------------------------------


def test_paper_starts():
    for env, angle in ((QuanserCartPoleBalanceEnv(), 0.0), (QuanserCartPoleSwingUpEnv(), math.pi)):
        _, info = env.reset(seed=0)
        np.testing.assert_array_equal(info["state"], [0.0, angle, 0.0, 0.0])


@both_tasks
def test_operator_starts_spread_and_stay_in_reach(env_class: type):
    env = env_class(start="operator")
    rest = math.pi if env_class is QuanserCartPoleSwingUpEnv else 0.0
    starts = np.array([env.reset(seed=seed)[1]["state"] for seed in range(300)]) - [0.0, rest, 0.0, 0.0]
    reach = np.array([0.2035, 0.03, 0.15, 0.2])
    assert (np.abs(starts) <= reach).all()
    assert (starts.max(axis=0) > 0.9 * reach).all()
    assert (starts.min(axis=0) < -0.9 * reach).all()


def test_start_for_one_episode():
    env = QuanserCartPoleBalanceEnv()
    assert env.reset(seed=0, options={"start": "operator"})[1]["state"].any()
    assert not env.reset()[1]["state"].any()


def test_operator_start_keeps_within_a_narrow_limit():
    env = QuanserCartPoleBalanceEnv(start="operator", theta_limit_rad=0.01)
    assert max(abs(env.reset(seed=seed)[1]["state"][1]) for seed in range(50)) <= 0.005


@both_tasks
def test_starts_anywhere_when_asked(env_class: type):
    env = env_class()
    for corner in (env.state_space.low, env.state_space.high, [0.1, -0.1, 0.2, -0.3]):
        observation, info = env.reset(options={"state": corner})
        np.testing.assert_array_equal(info["state"], corner)
        np.testing.assert_allclose(estimates(observation)[2:], corner[2:], rtol=1e-6)
        assert env.observation_space.contains(observation)


def test_grid_of_queries():
    arrays = nopg_envs.grid(gym.make(BALANCE), (3, 3, 2, 2, 2))
    assert len(arrays["observations"]) == 72
    assert arrays["terminals"].any()
    assert not arrays["terminals"].all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": (0.41, 0.0, 0.0, 0.0)}, "outside the rail"),
        ({"state": (-0.5, 0.0, 0.0, 0.0)}, "outside the rail"),
        ({"state": (0.0, 0.21, 0.0, 0.0)}, "theta"),
        ({"state": (0.0, 0.0, 0.0)}, "four finite numbers"),
        ({"state": (0.0, np.nan, 0.0, 0.0)}, "four finite numbers"),
        ({"state": None}, r"options\['state'\]: must be real numbers"),
        ({"state": {"x": 0}}, r"options\['state'\]: must be real numbers"),
        ({"state": "abcd"}, r"options\['state'\]: must be real numbers"),
        ({"state": ((0.0, 1.0), 2.0)}, r"options\['state'\]: must be real numbers"),
        (3, "options: must be a dict"),
        ({"start": "hanging"}, "start"),
        ({"start": 3}, "start"),
        ({"start": "paper", "state": (0.0, 0.0, 0.0, 0.0)}, "not both"),
        ({"speed": 1.0}, "speed"),
    ],
)
def test_bad_reset_options_are_refused(options: dict, message: str):
    env = QuanserCartPoleBalanceEnv()
    env.reset(options={"state": (0.1, 0.0, 0.0, 0.0)})
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)
    assert env.step(volts(0.0))[4]["state"][0] == pytest.approx(0.1, abs=1e-3)


# --- What a rig adds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delay_s", "n_late"), [(0.002, 1), (0.006, 3), (0.05, 25)])
def test_delay_shifts_the_response_by_exactly_that_much(delay_s: float, n_late: int):
    common = {"control_hz": 500, "theta_limit_rad": math.inf, "coulomb_friction": False}
    commands = np.random.default_rng(0).uniform(-5, 5, size=60).tolist()
    prompt = states_under(QuanserCartPoleBalanceEnv(input_delay=False, **common), commands)
    late = states_under(QuanserCartPoleBalanceEnv(parameters={"input_delay_s": delay_s}, **common), commands)
    np.testing.assert_array_equal(late[n_late:], prompt[:-n_late])
    assert not late[: n_late + 1].any()


def test_delay_longer_than_a_control_period():
    common = {"theta_limit_rad": math.inf, "coulomb_friction": False}
    commands = np.random.default_rng(0).uniform(-5, 5, size=20).tolist()
    prompt = states_under(QuanserCartPoleBalanceEnv(input_delay=False, **common), commands)
    late = states_under(QuanserCartPoleBalanceEnv(parameters={"input_delay_s": 0.04}, **common), commands)
    np.testing.assert_array_equal(late[2:], prompt[:-2])


def test_delay_that_ends_within_a_step():
    commands = [5.0, -5.0, 3.0, 0.0] * 5
    # Without dry friction, whose jumps fall into other places of coarser steps.
    common = {"parameters": {"input_delay_s": 0.0051}, "theta_limit_rad": math.inf, "coulomb_friction": False}
    coarse = states_under(QuanserCartPoleBalanceEnv(**common), commands)
    fine = states_under(QuanserCartPoleBalanceEnv(physics_hz=10_000, **common), commands)
    np.testing.assert_allclose(coarse[:, 0], fine[:, 0], atol=5e-6)
    rounded = states_under(QuanserCartPoleBalanceEnv(**(common | {"parameters": {"input_delay_s": 0.006}})), commands)
    assert np.abs(rounded[:, 0] - fine[:, 0]).max() > 1e-4


def test_encoders_count_exactly():
    env = QuanserCartPoleBalanceEnv(start="operator", theta_limit_rad=math.inf)
    observation, info = env.reset(seed=0)
    for step in range(100):
        x, theta, _, _ = estimates(observation)
        true_x, true_theta, _, _ = info["state"]
        n_x, n_theta = round(true_x / IDENTIFIED.cart_count_m), round(true_theta / IDENTIFIED.pole_count_rad)
        assert observation[0] == np.float32(n_x * IDENTIFIED.cart_count_m)
        assert observation[1] == np.float32(math.sin(n_theta * IDENTIFIED.pole_count_rad))
        assert abs(x - true_x) <= 0.51 * IDENTIFIED.cart_count_m
        assert abs(math.remainder(theta - true_theta, 2 * math.pi)) <= 0.51 * IDENTIFIED.pole_count_rad
        observation, _, _, _, info = env.step(volts(3.0 * math.sin(0.3 * step)))


def test_filtered_velocities_are_late_and_start_without_a_bump():
    env = QuanserCartPoleSwingUpEnv()
    observation, _ = env.reset(options={"state": (0.0, 2.0, 0.2, 3.0)})
    np.testing.assert_allclose(observation[3:], [0.2, 3.0], rtol=1e-6)
    times, true, filtered = [], [], []
    for step in range(150):
        observation, _, _, _, info = env.step(volts(2.0 * math.sin(0.25 * step)))
        times.append(step * 0.02)
        true.append(info["state"][3])
        filtered.append(observation[4])
    delays = np.arange(0.0, 0.05, 0.001)
    misfits = [np.square(np.interp(np.array(times) - d, times, true)[5:] - filtered[5:]).mean() for d in delays]
    assert 0.014 <= delays[int(np.argmin(misfits))] <= 0.022


def test_filter_runs_on_the_encoder_signals_at_the_physics_rate():
    # At 500 Hz control every sample that the filter saw is known.
    env = QuanserCartPoleBalanceEnv(control_hz=500, theta_limit_rad=math.inf)
    _, info = env.reset(options={"state": (0.0, 0.05, 0.1, 0.0)})
    speed = 0.1
    before = round(info["state"][0] / IDENTIFIED.cart_count_m) * IDENTIFIED.cart_count_m
    for step in range(100):
        observation, _, _, _, info = env.step(volts(2.0 * math.sin(0.05 * step)))
        now = round(info["state"][0] / IDENTIFIED.cart_count_m) * IDENTIFIED.cart_count_m
        # s → (2 / h) (1 − z⁻¹) / (1 + z⁻¹) in 50 s / (s + 50)
        speed = ((2.0 - 0.1) * speed + 2.0 * 50.0 * (now - before)) / (2.0 + 0.1)
        before = now
        assert observation[3] == pytest.approx(speed, rel=1e-5, abs=1e-7)


def test_saturation_cuts_what_is_beyond_the_limit():
    env = QuanserCartPoleSwingUpEnv(voltage_limit_volt=3.0)
    env.reset()
    assert [env.step(volts(asked))[4]["voltage_volt"] for asked in (2.5, 4.0, -100.0)] == [2.5, 3.0, -3.0]
    free = QuanserCartPoleSwingUpEnv(voltage_limit_volt=3.0, voltage_saturation=False)
    free.reset()
    assert free.step(volts(4.0))[4]["voltage_volt"] == 4.0


def test_noise_is_off_unless_asked_for_and_as_strong_as_asked():
    def spread(**options: float) -> np.ndarray:
        env = QuanserCartPoleBalanceEnv(encoder_counts=False, **options)
        errors = []
        for seed in range(400):
            observation, info = env.reset(seed=seed)
            errors.append(estimates(observation)[:2] - info["state"][:2])
        return np.std(errors, axis=0)

    assert not spread().any()
    expected = 2.0 * np.array([IDENTIFIED.cart_count_m, IDENTIFIED.pole_count_rad])
    np.testing.assert_allclose(spread(sensor_noise=2.0), expected, rtol=0.15)


@pytest.mark.parametrize(
    ("switch", "seen_in"),
    [
        ("coulomb_friction", "state"),
        ("input_delay", "state"),
        ("encoder_counts", "observation"),
        ("filtered_velocities", "observation"),
        ("voltage_saturation", "state"),
    ],
)
@pytest.mark.parametrize("others", [True, False])
def test_each_effect_has_its_switch(switch: str, seen_in: str, others: bool):
    def run(on: bool) -> dict[str, np.ndarray]:
        env = QuanserCartPoleBalanceEnv(rig_effects=others, theta_limit_rad=math.inf, **{switch: on})
        env.reset(options={"state": (0.0, 0.05, 0.1, 0.0)})
        rows = [env.step(volts(command)) for command in (4.0, -7.0, 6.0)]
        return {"observation": np.array([row[0] for row in rows]), "state": np.array([row[4]["state"] for row in rows])}

    on, off = run(True), run(False)
    assert (on["observation"] != off["observation"]).any()
    assert (on["state"] != off["state"]).any() == (seen_in == "state")


def test_all_effects_off_at_once():
    every = ("coulomb_friction", "input_delay", "encoder_counts", "filtered_velocities", "voltage_saturation")
    commands = [3.0, -4.0, 1.0]
    at_once = states_under(QuanserCartPoleBalanceEnv(rig_effects=False), commands)
    one_by_one = states_under(QuanserCartPoleBalanceEnv(**dict.fromkeys(every, False)), commands)
    np.testing.assert_array_equal(at_once, one_by_one)


def test_parameters_are_drawn_at_every_reset():
    ranges = {"cart_damping": (5.0, 8.0), "input_delay_s": (0.004, 0.012), "rail_length_m": (0.7, 0.9)}
    env = QuanserCartPoleBalanceEnv(randomize=ranges)
    drawn = []
    for seed in range(100):
        env.reset(seed=seed)
        drawn.append([getattr(env.parameters, name) for name in ranges])
        assert env.parameters.input_gain == IDENTIFIED.input_gain
    low, high = np.array(list(ranges.values())).T
    shares = (np.array(drawn) - low) / (high - low)
    assert shares.min() >= 0.0
    assert shares.max() <= 1.0
    assert (np.ptp(shares, axis=0) > 0.9).all()


def test_drawn_parameters_move_the_cart():
    env = QuanserCartPoleSwingUpEnv(randomize={"input_gain": (0.5, 2.0)})
    reached = []
    for seed in range(5):
        env.reset(seed=seed)
        for _ in range(10):
            info = env.step(volts(4.0))[4]
        reached.append((env.parameters.input_gain, info["state"][0]))
    assert sorted(reached) == sorted(reached, key=lambda pair: pair[1])


# --- Bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": "ip03"}, "ip03"),
        ({"parameters": {"pole_mass": 0.1}}, "pole_mass"),
        ({"parameters": {"cart_damping": -1.0}}, "cart_damping"),
        ({"start": "anywhere"}, "anywhere"),
        ({"task": "juggle"}, "juggle"),
        ({"control_hz": 60}, "control_hz: 60 does not divide"),
        ({"control_hz": 0}, "control_hz"),
        ({"control_hz": "50"}, "control_hz: must be a number"),
        ({"physics_hz": None}, "physics_hz: must be a number"),
        ({"task": ["balance"]}, "task"),
        ({"control_hz": 1000}, "control_hz"),
        ({"physics_hz": 250}, "physics_hz"),
        ({"physics_hz": math.nan}, "physics_hz"),
        ({"voltage_limit_volt": 25.0}, "voltage_limit_volt"),
        ({"voltage_limit_volt": -1.0}, "voltage_limit_volt"),
        ({"voltage_limit_volt": "5"}, "voltage_limit_volt: must be a number"),
        ({"theta_limit_rad": 0.0}, "theta_limit_rad"),
        ({"theta_limit_rad": "a"}, "theta_limit_rad: must be a number"),
        ({"theta_limit_rad": math.nan}, "theta_limit_rad"),
        ({"task": "swing_up", "theta_limit_rad": 0.2}, "theta_limit_rad"),
        ({"sensor_noise": -1.0}, "sensor_noise"),
        ({"sensor_noise": 1j}, "sensor_noise: must be a number"),
        ({"rig_effects": "no"}, "rig_effects: must be True or False"),
        ({"input_delay": 0.01}, "input_delay: must be True or False"),
        ({"randomize": [1]}, "randomize: must be a dict"),
        ({"randomize": {1: (0.1, 0.2)}}, "randomize: Unknown parameter 1"),
        ({"randomize": {"pole_mass": (0.1, 0.2)}}, "pole_mass"),
        ({"randomize": {"cart_damping": (8.0, 5.0)}}, "cart_damping"),
        ({"randomize": {"cart_damping": (-1.0, 5.0)}}, "cart_damping"),
        ({"randomize": {"cart_damping": 5.0}}, "cart_damping"),
        ({"randomize": {"cart_damping": (5.0, math.inf)}}, "cart_damping"),
        ({"render_mode": "ascii"}, "render_mode"),
    ],
)
def test_bad_options_are_named(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        QuanserCartPoleBalanceEnv(**options)


@pytest.mark.parametrize(
    "action",
    [np.array([np.nan]), np.array([np.inf]), np.zeros(2), np.zeros((1, 1)), np.array(1.0), [], ["1"], [1j], "a", None, [True]],
)
def test_bad_actions_are_refused(action):
    env = QuanserCartPoleBalanceEnv()
    env.reset()
    with pytest.raises(ValueError, match="action"):
        env.step(action)


@pytest.mark.parametrize("value", [1.01e4, -1e6, 1e300])
def test_volts_that_cannot_be_simulated_are_refused_unless_they_are_cut(value: float):
    free = QuanserCartPoleSwingUpEnv(voltage_saturation=False)
    free.reset()
    with pytest.raises(ValueError, match=r"action: .* beyond ±10000 V"):
        free.step(np.array([value]))
    for _ in range(20):
        observation, *_ = free.step(np.array([1e4]))
    assert np.isfinite(observation).all()
    cut = QuanserCartPoleSwingUpEnv()
    cut.reset()
    assert cut.step(np.array([value]))[4]["voltage_volt"] == math.copysign(5.0, value)


@pytest.mark.parametrize("rail", [(0.3, 0.5), (0.9, 1.0)])
def test_every_query_is_on_the_shortest_rail_that_can_be_drawn(rail: tuple[float, float]):
    env = QuanserCartPoleBalanceEnv(randomize={"rail_length_m": rail})
    assert env.state_space.high[0] == rail[0] / 2.0
    data = nopg_envs.grid(env, (3, 1, 1, 1, 1))
    assert len(data["rewards"]) == 3


def test_reset_comes_first():
    with pytest.raises(ResetNeeded):
        QuanserCartPoleBalanceEnv().step(volts(0.0))
    with pytest.raises(ResetNeeded):
        QuanserCartPoleBalanceEnv(render_mode="rgb_array").render()


# --- A controller -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_lqr_balances_the_rig_for_ten_thousand_steps(seed: int):
    env = gym.make(BALANCE, start="operator")
    gain = lqr_gain()
    observation, _ = env.reset(seed=seed)
    for step in range(1, 10_001):
        action = -gain @ estimates(observation)
        observation, reward, terminated, truncated, _ = env.step(volts(action))
        assert not terminated, step
    assert truncated
    assert reward > 0.99


@pytest.mark.slow
def test_lqr_balances_from_all_over_the_operators_starts():
    env = CartPoleVectorEnv(200, start="operator")
    gain = lqr_gain()
    observations, _ = env.reset(seed=0)
    for _ in range(300):
        observations, _, terminated, _, infos = env.step(-(estimates(observations) @ gain)[:, None])
        assert not terminated.any()
    assert np.abs(infos["state"][:, 1]).max() < 0.03


def test_the_same_controller_saturates_and_fails_outside_its_basin():
    def ends(**options: bool) -> tuple[str | None, list[float]]:
        env = QuanserCartPoleBalanceEnv(theta_limit_rad=math.inf, **options)
        gain, applied = lqr_gain(), []
        observation, _ = env.reset(options={"state": (0.0, 0.3, 0.0, 0.0)})
        for _ in range(500):
            observation, _, terminated, _, info = env.step(volts(-gain @ estimates(observation)))
            applied.append(abs(info["voltage_volt"]))
            if terminated:
                break
        return info["termination"], applied

    reason, applied = ends()
    assert reason == "rail"
    assert min(applied) == 5.0
    # It is the voltage that runs out: with more, the same law catches the pole.
    reason, applied = ends(voltage_saturation=False)
    assert reason is None
    assert max(applied) > 10.0
