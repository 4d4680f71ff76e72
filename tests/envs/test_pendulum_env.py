"""The hanging pendulum is a Gymnasium environment like any other, and a grid of its transitions is what it says."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import nopg_envs
from nopg_envs.pendulum import HangingPendulumEnv
from sb3_nopg import TransitionDataset

# Both checkers advise actions within ±1. Ours are torques in N m, as Pendulum-v1's are.
advice_on_action_range = pytest.mark.filterwarnings("ignore:.*symmetric and normalized:UserWarning")


@pytest.fixture
def env():
    made = gym.make("nopg/Pendulum-v0")
    yield made
    made.close()


def angle_and_speed(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """θ in [-π, π) and θ̇, worked back from observations (n, 3)."""
    observations = np.asarray(observations, dtype=np.float64)
    return np.arctan2(observations[..., 1], observations[..., 0]), observations[..., 2]


# --- The environment -----------------------------------------------------------------------------------------------------


@advice_on_action_range
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasium_checks_pass(render_mode: str | None):
    made = gym.make("nopg/Pendulum-v0", render_mode=render_mode)
    gymnasium_check_env(made.unwrapped)
    made.close()


@advice_on_action_range
def test_stable_baselines3_checks_pass(env: gym.Env):
    sb3_check_env(env)


def test_hangs_still_at_the_start_whatever_the_seed(env: gym.Env):
    for seed in (None, 0, 1):
        observation, info = env.reset(seed=seed)
        np.testing.assert_allclose(observation, [-1.0, 0.0, 0.0], atol=1e-6)
        assert observation.dtype == np.float32
        assert info == {}


@pytest.mark.parametrize("state", [(0.0, 0.0), (1.0, -3.0), (-np.pi, 8.0), [2.5, -8.0], np.array([0.5, 0.25])])
def test_starts_anywhere_when_asked(env: gym.Env, state):
    observation, _ = env.reset(options={"state": state})
    np.testing.assert_allclose(observation, [np.cos(state[0]), np.sin(state[0]), state[1]], atol=1e-6)


def test_start_given_is_copied(env: gym.Env):
    state = np.array([1.0, 0.0])
    env.reset(options={"state": state})
    env.step(np.array([2.0], dtype=np.float32))
    np.testing.assert_array_equal(state, [1.0, 0.0])


@pytest.mark.parametrize(
    "state",
    [
        (1.0,),
        (1.0, 2.0, 3.0),
        1.0,
        None,
        (np.nan, 0.0),
        (0.0, np.inf),
        (0.0, 8.1),
        (0.0, -9.0),
        [[0.0, 0.0]],
        "hanging",
        (0.0, 1j),
    ],
)
def test_bad_start_is_refused(env: gym.Env, state):
    with pytest.raises(ValueError, match=r"options\['state'\]"):
        env.reset(options={"state": state})


def test_starts_upright_where_the_papers_random_agent_does(env: gym.Env):
    observation, _ = env.reset(options={"start": "paper"})
    np.testing.assert_array_equal(observation, [1.0, 0.0, 0.0])
    data = nopg_envs.rollouts(env, "uniform", n_transitions=3, start="paper", seed=0)
    np.testing.assert_array_equal(data["observations"][0], [1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "operator"}, r"options\['start'\]: unknown 'operator'"),
        ({"start": 3}, "start"),
        ({"start": "paper", "state": (0.0, 0.0)}, "not both"),
        ({"speed": 1.0}, "speed"),
    ],
)
def test_bad_reset_options_are_refused(env: gym.Env, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize("action", [[np.nan], [np.inf], [0.0, 0.0], [[0.0]], 0.0, [], ["1"], [1j], None])
def test_bad_actions_are_refused(env: gym.Env, action):
    env.reset()
    before = env.unwrapped.state.copy()
    with pytest.raises(ValueError, match="action: must"):
        env.unwrapped.step(action)
    np.testing.assert_array_equal(env.unwrapped.state, before)


def test_unknown_render_mode_is_refused():
    with pytest.raises(ValueError, match="render_mode: unknown 'ascii'"):
        HangingPendulumEnv(render_mode="ascii")


def test_bad_start_leaves_no_half_made_state(env: gym.Env):
    env.reset(options={"state": (1.0, 2.0)})
    with pytest.raises(ValueError, match="theta_dot"):
        env.reset(options={"state": (0.0, 100.0)})
    observation, _ = env.reset()
    np.testing.assert_allclose(observation, [-1.0, 0.0, 0.0], atol=1e-6)


def test_is_cut_after_500_steps_and_never_ends_by_itself(env: gym.Env):
    env.reset(seed=0)
    env.action_space.seed(0)
    for step in range(1, 501):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        assert truncated == (step == 500)


def test_moves_like_the_pendulum_of_gymnasium(env: gym.Env):
    reference = gym.make("Pendulum-v1").unwrapped
    reference.reset(seed=0)
    reference.state = np.array([2.0, 0.5])
    env.reset(options={"state": (2.0, 0.5)})
    for torque in (2.0, -1.0, 0.3, 0.0, -2.0):
        action = np.array([torque], dtype=np.float32)
        expected, expected_reward, *_ = reference.step(action)
        observation, reward, *_ = env.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert reward == expected_reward


def test_starts_and_grid_agree_on_the_state_space(env: gym.Env):
    state_space = env.unwrapped.state_space
    assert state_space.shape == (2,)
    for corner in (state_space.low, state_space.high):
        observation, _ = env.reset(options={"state": corner})
        assert env.observation_space.contains(observation)


# --- A grid of its transitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [(5, 4, 3), [2, 2, 2], (1, 3, 2), (7, 1, 1)])
def test_grid_has_one_transition_for_each_point(env: gym.Env, levels):
    arrays = nopg_envs.grid(env, levels)
    n = int(np.prod(levels))
    assert {name: array.shape for name, array in arrays.items()} == {
        "observations": (n, 3),
        "actions": (n, 1),
        "rewards": (n,),
        "next_observations": (n, 3),
        "terminals": (n,),
    }
    assert not arrays["terminals"].any()
    points = np.column_stack([arrays["observations"], arrays["actions"]])
    # Both ends of the angle's range are one place, so their observations coincide.
    n_angles = levels[0] - 1 if levels[0] > 1 else 1
    assert len(np.unique(points.round(5), axis=0)) == n_angles * levels[1] * levels[2]


def test_grid_reaches_the_ends_of_all_ranges(env: gym.Env):
    arrays = nopg_envs.grid(env, (3, 3, 3))
    angles, speeds = angle_and_speed(arrays["observations"])
    points = np.column_stack([np.abs(angles), speeds, arrays["actions"][:, 0]])
    for speed in (-8.0, 0.0, 8.0):
        for torque in (-2.0, 0.0, 2.0):
            for angle in (0.0, np.pi):
                assert np.isclose(points, [angle, speed, torque], atol=1e-5).all(axis=1).any(), (angle, speed, torque)


def test_grid_transitions_follow_the_formulas(env: gym.Env):
    arrays = nopg_envs.grid(env, (6, 5, 4))
    angles, speeds = angle_and_speed(arrays["observations"])
    torques = arrays["actions"][:, 0]
    np.testing.assert_allclose(arrays["rewards"], -(angles**2 + 0.1 * speeds**2 + 0.001 * torques**2), atol=1e-4)

    next_speeds = np.clip(speeds + (15.0 * np.sin(angles) + 3.0 * torques) * 0.05, -8.0, 8.0)
    next_angles = angles + next_speeds * 0.05
    expected = np.column_stack([np.cos(next_angles), np.sin(next_angles), next_speeds])
    np.testing.assert_allclose(arrays["next_observations"], expected, atol=1e-5)


def test_grid_is_a_data_set(env: gym.Env):
    data = TransitionDataset(**nopg_envs.grid(env, (3, 3, 2)))
    assert len(data) == 18
    assert data.episode_starts is None


@pytest.mark.parametrize("levels", [(), (5, 4), (5, 4, 3, 2), (5, 4, 0), (5, -4, 3), (5, 4, True)])
def test_grid_refuses_bad_levels(env: gym.Env, levels):
    with pytest.raises(ValueError, match="levels must be 3 positive counts"):
        nopg_envs.grid(env, levels)


@pytest.mark.parametrize("levels", [(2.5, 2, 2), ("a", 2, 2), 3, "abc", None])
def test_grid_refuses_levels_that_are_no_counts(env: gym.Env, levels):
    with pytest.raises(ValueError, match="levels"):
        nopg_envs.grid(env, levels)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_grid_refuses_an_environment_that_does_not_start_anywhere(env_id: str):
    made = gym.make(env_id)
    with pytest.raises(ValueError, match="state_space"):
        nopg_envs.grid(made, (2, 2, 2))
    made.close()
