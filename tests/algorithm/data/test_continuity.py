"""Rows that cannot follow from one another are found, and nothing else is."""

import gymnasium as gym
import numpy as np
import pytest

import nopg_envs
from nopg_envs.demonstrations import demonstration_file
from sb3_nopg.data.continuity import find_jumps

N = 1500
GENERATORS = {
    "pendulum": ("nopg/Pendulum-v0", "gaussian_mixture"),
    "balance": ("nopg/QuanserCartPoleBalance-v0", "uniform"),
    "swing-up": ("nopg/QuanserCartPoleSwingUp-v1", "held"),
    "mountain-car": ("MountainCarContinuous-v0", "held"),
    "lqr": ("nopg/LQR-v0", "uniform"),
}


def cart(seed=0, quantum=0.0, noise=0.0):
    """A cart that bumps into stops under voltages which are held: position, speed, and the voltages."""
    rng = np.random.default_rng(seed)
    position, speed, rows = 0.0, 0.0, []
    for step in range(N):
        if step % 15 == 0:
            volt = rng.uniform(-5, 5)
        rows.append((position, speed, volt))
        speed += 0.02 * (4 * volt - 3 * speed)
        position += 0.02 * speed
        if abs(position) > 0.4:
            position, speed = np.sign(position) * 0.4, -0.3 * speed
    states, volts = np.split(np.array(rows), [2], axis=1)
    if quantum:
        states[:, 0] = np.round(states[:, 0] / quantum) * quantum
        states[:, 1] = np.gradient(states[:, 0]) / 0.02
    return states + noise * rng.normal(size=states.shape), volts


def jumps_in(states, actions, ids=None):
    """Between rows that follow each other."""
    ids = np.zeros(len(states), dtype=int) if ids is None else ids
    same = np.flatnonzero(ids[1:] == ids[:-1])
    return find_jumps(states[same], actions[same], states[same + 1], ids[same])


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_clean_data_raise_no_alarm_and_forgotten_restarts_do(name):
    env_id, behaviour = GENERATORS[name]
    env = gym.wrappers.TimeLimit(gym.make(env_id), 100)
    made = nopg_envs.rollouts(env, behaviour, n_transitions=N, seed=0)
    states, actions, ids = made["observations"], made["actions"], made["episode_ids"]
    assert not find_jumps(states, actions, made["next_observations"], ids).steps.any()
    forgotten = jumps_in(states, actions)
    found, restarts = np.flatnonzero(forgotten.steps), np.flatnonzero(np.diff(ids))
    assert set(found) <= set(restarts)
    assert len(found) >= 0.4 * len(restarts)
    assert not forgotten.unrelated


def test_demonstrations_that_bump_into_the_wall_raise_no_alarm():
    with np.load(demonstration_file("mountain_car_scripted")) as made:
        found = find_jumps(*(made[name] for name in ("observations", "actions", "next_observations", "episode_ids")))
    assert not found.steps.any()


@pytest.mark.parametrize("sensor", [{}, {"noise": 0.002}, {"quantum": 2e-4}, {"quantum": 5e-3}], ids=str)
def test_a_cut_and_a_glitch_are_found_among_bumps_noise_and_counts(sensor):
    states, volts = cart(**sensor)
    assert not jumps_in(states, volts).steps.any()
    kept = np.r_[0:700, 820:N]
    assert np.flatnonzero(jumps_in(states[kept], volts[kept]).steps).tolist() == [699]
    states[300, 0] += 1.0
    found = jumps_in(states, volts)
    assert np.flatnonzero(found.steps).tolist() == [299, 300]
    assert found.columns == (0,)


def test_shuffled_rows_are_told():
    states, volts = cart()
    order = np.random.default_rng(0).permutation(N)
    assert jumps_in(states[order], volts[order]).unrelated


@pytest.mark.parametrize("circle", [2 * np.pi, 360.0])
def test_an_angle_that_wraps_is_no_jump(circle):
    rng = np.random.default_rng(0)
    turned = np.cumsum(np.cumsum(rng.normal(size=N)) * 0.05) * circle / 8
    wrapped = (turned + circle / 2) % circle - circle / 2
    found = jumps_in(np.column_stack([wrapped, np.gradient(turned)]), np.zeros((N, 1)))
    assert found.wrapped == {0: circle}
    assert not found.steps.any()


def test_cosine_and_sine_of_a_turning_angle_are_one_witness():
    angle = np.cumsum(np.full(N, 0.2))
    states = np.column_stack([np.cos(angle), np.sin(angle)])
    assert not jumps_in(states, np.zeros((N, 1))).steps.any()
    kept = np.r_[0:500, 513:N]
    found = jumps_in(states[kept], np.zeros((N, 1))[kept])
    assert np.flatnonzero(found.steps).tolist() == [499]
    assert found.columns == (0, 1)


def test_set_points_fast_answers_and_long_rests_are_no_jumps():
    rng = np.random.default_rng(0)
    wanted = np.repeat(rng.uniform(-1, 1, 15), 100)
    answer = np.zeros(N)
    for step in range(N - 1):
        answer[step + 1] = answer[step] + 0.9 * (wanted[step] - answer[step])
    assert not jumps_in(np.column_stack([answer, wanted]), np.zeros((N, 1))).steps.any()
    assert not jumps_in(answer[:, None], wanted[:, None]).steps.any()
    states, _ = cart()
    resting = np.concatenate([np.repeat(states[:1], 4000, axis=0), states[:200]])
    assert not jumps_in(resting, np.zeros((len(resting), 1))).steps.any()


@pytest.mark.parametrize(
    "states", [np.zeros((200, 2)), np.full((200, 1), 1e300) * (-1.0) ** np.arange(200)[:, None], np.arange(5.0)[:, None]]
)
def test_data_of_which_nothing_can_be_said(states):
    found = jumps_in(states, np.zeros((len(states), 1)))
    assert not found.steps.any()
    assert not found.unrelated
