"""The regulator's closed forms against rollouts and finite differences, and the environment as an environment."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from nopg_envs.collect import grid
from nopg_envs.lqr import LQREnv, register
from sb3_nopg import TransitionDataset

if "nopg/LQR-v0" not in gym.registry:
    register()

# The usual regulator: inputs cost something.
USUAL = {"R": -0.01 * np.eye(2)}
DIMENSIONS = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (2, 5)]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*symmetric and normalized:UserWarning"),
    # Nothing bounds the state of an unstable system.
    pytest.mark.filterwarnings("ignore:.*A Box observation space m.* value is -?infinity:UserWarning"),
]


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def positive_definite(rng: np.random.Generator, size: int) -> np.ndarray:
    factor = rng.normal(size=(size, size))
    return factor @ factor.T / size + 0.1 * np.eye(size)


def random_problem(seed: int, d: int, m: int, **changes) -> tuple[LQREnv, np.ndarray]:
    """A random system and a random gain that is discounted-stable."""
    rng = np.random.default_rng(seed)
    arguments = {
        "A": rng.normal(size=(d, d)) / np.sqrt(d),
        "B": rng.normal(size=(d, m)),
        "Q": -positive_definite(rng, d),
        "R": -positive_definite(rng, m),
        "gamma": 0.85,
        "x0": rng.normal(size=d),
        "action_bound": 1e6,
    }
    env = LQREnv(**{**arguments, **changes})
    while True:
        gain = 0.5 * rng.normal(size=(m, d))
        if np.sqrt(env.gamma) * np.abs(np.linalg.eigvals(env.A + env.B @ gain)).max() < 0.95:
            return env, gain


def noisy_problem(seed: int, d: int, m: int) -> tuple[LQREnv, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed + 100)
    env, gain = random_problem(
        seed, d, m, start_covariance=0.3 * positive_definite(rng, d), noise_covariance=0.2 * positive_definite(rng, d)
    )
    return env, gain, 0.5 * positive_definite(rng, m)


def discounted_return(env: LQREnv, gain: np.ndarray, state: np.ndarray, n_steps: int) -> float:
    observation, _ = env.reset(options={"state": state})
    total = 0.0
    for t in range(n_steps):
        observation, reward, *_ = env.step(gain @ observation)
        total += env.gamma**t * reward
    return total


def simulated_returns(
    env: LQREnv, gain: np.ndarray, sigma: np.ndarray, n: int, n_steps: int, start: np.ndarray | None = None
) -> np.ndarray:
    """Discounted returns of n rollouts at once, without the environment."""
    rng = np.random.default_rng(7)
    d, m = env.B.shape
    x = rng.multivariate_normal(env.x0, env.start_covariance, size=n) if start is None else np.tile(start, (n, 1))
    returns = np.zeros(n)
    for t in range(n_steps):
        u = x @ gain.T + rng.multivariate_normal(np.zeros(m), sigma, size=n)
        returns += env.gamma**t * 0.5 * (((x @ env.Q) * x).sum(1) + ((u @ env.R) * u).sum(1))
        x = x @ env.A.T + u @ env.B.T + rng.multivariate_normal(np.zeros(d), env.noise_covariance, size=n)
    return returns


def finite_difference(env: LQREnv, gain: np.ndarray, sigma: np.ndarray | None, step: float = 1e-6) -> np.ndarray:
    gradient = np.zeros_like(gain)
    for index in np.ndindex(gain.shape):
        change = np.zeros_like(gain)
        change[index] = step
        gradient[index] = (env.true_return(gain + change, sigma) - env.true_return(gain - change, sigma)) / (2 * step)
    return gradient


# --- Closed forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "m"), DIMENSIONS)
def test_value_is_what_the_environment_pays_out(d: int, m: int):
    env, gain = random_problem(1, d, m)
    for state in (env.x0, np.zeros(d), 3.0 * np.arange(1.0, d + 1)):
        assert env.value(gain, state) == pytest.approx(discounted_return(env, gain, state, 600), rel=1e-8, abs=1e-12)
    assert env.true_return(gain) == pytest.approx(env.value(gain, env.x0), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "m"), DIMENSIONS)
def test_noisy_return_and_value_match_monte_carlo(d: int, m: int):
    env, gain, sigma = noisy_problem(2, d, m)
    returns = simulated_returns(env, gain, sigma, n=20_000, n_steps=100)
    assert abs(returns.mean() - env.true_return(gain, sigma)) < 4.0 * returns.std() / np.sqrt(len(returns))
    returns = simulated_returns(env, gain, sigma, n=20_000, n_steps=100, start=env.x0 + 1.0)
    assert abs(returns.mean() - env.value(gain, env.x0 + 1.0, sigma)) < 4.0 * returns.std() / np.sqrt(len(returns))


@pytest.mark.parametrize(("d", "m"), DIMENSIONS)
@pytest.mark.parametrize("noisy", [False, True])
def test_gradient_matches_finite_differences(d: int, m: int, noisy: bool):
    if noisy:
        env, gain, sigma = noisy_problem(3, d, m)
    else:
        (env, gain), sigma = random_problem(3, d, m), None
    expected = finite_difference(env, gain, sigma)
    np.testing.assert_allclose(env.true_gradient(gain, sigma), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("seed", range(5))
def test_values_of_successive_states_agree(seed: int):
    env, gain = random_problem(seed, 3, 2)
    observation, _ = env.reset()
    for _ in range(10):
        next_observation, reward, *_ = env.step(gain @ observation)
        expected = reward + env.gamma * env.value(gain, next_observation)
        assert env.value(gain, observation) == pytest.approx(expected, rel=1e-10)
        observation = next_observation


def test_values_come_in_the_shape_of_the_states():
    env, gain = random_problem(0, 3, 2)
    states = np.random.default_rng(0).normal(size=(4, 5, 3))
    values = env.value(gain, states)
    assert values.shape == (4, 5)
    assert values[2, 3] == pytest.approx(env.value(gain, states[2, 3]))


def test_no_discount_leaves_the_first_reward():
    env = LQREnv(gamma=0.0)
    gain = np.array([[5.0, 1.0], [0.0, 2.0]])
    u = gain @ env.x0
    assert env.true_return(gain) == pytest.approx(0.5 * (env.x0 @ env.Q @ env.x0 + u @ env.R @ u))
    np.testing.assert_allclose(env.true_gradient(gain), env.R @ gain @ np.outer(env.x0, env.x0))


@pytest.mark.parametrize(("d", "m"), DIMENSIONS)
def test_optimal_gain_is_stationary_and_beats_all_around_it(d: int, m: int):
    env, other, sigma = noisy_problem(4, d, m)
    best = env.optimal_gain()
    scale = np.abs(env.true_gradient(other)).max()
    np.testing.assert_allclose(env.true_gradient(best), 0.0, atol=1e-9 * scale)
    np.testing.assert_allclose(env.true_gradient(best, sigma), 0.0, atol=1e-9 * scale)
    assert env.true_return(other) < env.true_return(best)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        assert env.true_return(best + size * rng.normal(size=best.shape)) < env.true_return(best)


def test_optimal_gain_of_the_usual_regulator_is_as_documented():
    np.testing.assert_allclose(LQREnv(**USUAL).optimal_gain(), np.diag([-6.394, -3.355]), atol=5e-4)


@pytest.mark.slow
def test_gradient_ascent_arrives_at_the_optimal_gain():
    env = LQREnv(**USUAL, start_covariance=np.eye(2))
    gain = np.diag([-3.0, -1.0])
    for _ in range(400):
        gain = gain + 2.0 * env.true_gradient(gain)
    np.testing.assert_allclose(gain, env.optimal_gain(), atol=1e-6)


# --- What the printed R = +0.01 means --------------------------------------------------------------------------------------


def test_printed_problem_has_no_optimal_gain():
    with pytest.raises(ValueError, match="No optimal gain"):
        LQREnv().optimal_gain()


@pytest.mark.parametrize(("axis", "low", "high"), [(0, -22.54, -1.46), (1, -10.77, -0.23)])
def test_printed_return_falls_from_end_to_end_of_the_stable_gains(axis: int, low: float, high: float):
    env = LQREnv()
    gains = np.linspace(low + 0.01, high - 0.01, 101)
    stable = [-10.0, -5.0]
    returns, slopes = [], []
    for k in gains:
        diagonal = np.array(stable)
        diagonal[axis] = k
        returns.append(env.true_return(np.diag(diagonal)))
        slopes.append(env.true_gradient(np.diag(diagonal))[axis, axis])
    assert returns[0] > 50
    assert returns[-1] < -5
    assert np.all(np.diff(returns) < 0)
    assert np.all(np.array(slopes) < 0)
    for k in (low - 0.02, high + 0.02):
        diagonal = np.array(stable)
        diagonal[axis] = k
        with pytest.raises(ValueError, match="not discounted-stable"):
            env.true_return(np.diag(diagonal))


def test_printed_return_grows_without_bound_with_the_first_input():
    env = LQREnv(action_bound=1e9)
    returns = []
    for size in (1e2, 1e4, 1e6):
        state, _ = env.reset()
        state, first, *_ = env.step(np.full(2, size))
        state, second, *_ = env.step(-np.linalg.solve(env.B, env.A @ state))
        np.testing.assert_allclose(state, 0.0, atol=1e-6 * size)
        returns.append(first + env.gamma * second)
    assert 0 < returns[0] < returns[1] < returns[2]
    assert returns[2] > 1e9


@pytest.mark.parametrize("gain", [np.diag([0.7, -0.7]), np.diag([0.35, -0.35]), np.zeros((2, 2))])
def test_gain_without_finite_return_is_refused(gain: np.ndarray):
    env = LQREnv()
    for call in (lambda: env.value(gain, env.x0), lambda: env.true_return(gain), lambda: env.true_gradient(gain)):
        with pytest.raises(ValueError, match=r"not discounted-stable.*spectral radius"):
            call()


# --- The environment -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasium_checks_pass(render_mode: str | None):
    env = gym.make("nopg/LQR-v0", render_mode=render_mode)
    gymnasium_check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("arguments", [{}, {"A": [[0.9]], "B": [[1.0, 2.0]], "Q": [[-1.0]], "R": -np.eye(2)}])
def test_stable_baselines3_checks_pass(arguments: dict):
    sb3_check_env(gym.make("nopg/LQR-v0", **arguments))


def test_default_is_the_system_that_the_paper_prints():
    env = gym.make("nopg/LQR-v0")
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation, [1.0, 1.0])
    observation, reward, terminated, truncated, _ = env.step(np.array([2.0, -4.0], dtype=np.float32))
    np.testing.assert_allclose(observation, [1.2 + 0.2, 1.1 - 0.8])
    assert reward == pytest.approx(0.5 * (-0.5 - 0.25 + 0.01 * 4 + 0.01 * 16))
    assert not terminated
    assert not truncated


def test_is_cut_after_30_steps_and_never_ends_by_itself():
    env = gym.make("nopg/LQR-v0")
    env.reset(seed=0)
    for step in range(1, 31):
        _, _, terminated, truncated, _ = env.step(np.zeros(2, dtype=np.float32))
        assert not terminated
        assert truncated == (step == 30)


def test_inputs_past_the_bound_are_clipped_in_dynamics_and_reward():
    env = LQREnv(action_bound=2.0)
    env.reset()
    clipped = env.step(np.array([100.0, -100.0]))
    env.reset()
    at_bound = env.step(np.array([2.0, -2.0]))
    np.testing.assert_array_equal(clipped[0], at_bound[0])
    assert clipped[1] == at_bound[1]


@pytest.mark.slow
def test_start_and_noise_have_the_covariances_asked_for():
    start, noise = np.array([[0.5, 0.3], [0.3, 0.4]]), np.array([[0.2, -0.1], [-0.1, 0.1]])
    env = LQREnv(start_covariance=start, noise_covariance=noise)
    env.reset(seed=0)
    starts, steps = [], []
    for _ in range(4000):
        state, _ = env.reset()
        starts.append(state)
        steps.append(env.step(np.zeros(2))[0] - env.A @ state)
    np.testing.assert_allclose(np.mean(starts, axis=0), env.x0, atol=0.05)
    np.testing.assert_allclose(np.cov(np.transpose(starts)), start, atol=0.04)
    np.testing.assert_allclose(np.cov(np.transpose(steps)), noise, atol=0.02)


def test_same_seed_same_episode():
    def episode(seed: int) -> np.ndarray:
        env = LQREnv(start_covariance=np.eye(2), noise_covariance=np.eye(2))
        return np.array([env.reset(seed=seed)[0], *(env.step(np.ones(2))[0] for _ in range(5))])

    np.testing.assert_array_equal(episode(3), episode(3))
    assert not np.array_equal(episode(3), episode(4))


def test_returned_state_and_given_start_are_copies():
    env = LQREnv()
    given = np.array([3.0, -2.0])
    observation, _ = env.reset(options={"state": given})
    np.testing.assert_array_equal(observation, given)
    observation[:] = 100.0
    given[:] = 50.0
    np.testing.assert_allclose(env.step(np.zeros(2))[0], [3.6, -2.2])


def test_grid_covers_its_state_space():
    arrays = grid(LQREnv(state_bound=1.5), (3, 3, 2, 2))
    assert len(TransitionDataset(**arrays)) == 36
    np.testing.assert_array_equal(np.unique(arrays["observations"]), [-1.5, 0.0, 1.5])
    np.testing.assert_array_equal(np.unique(arrays["actions"]), [-25.0, 25.0])
    env = LQREnv()
    expected = arrays["observations"] @ env.A.T + arrays["actions"] @ env.B.T
    np.testing.assert_allclose(arrays["next_observations"], expected)


# --- Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": [[1.0, 0.0]]}, "A must have shape"),
        ({"A": [1.0, 2.0]}, "A must be a matrix"),
        ({"A": np.eye(3)}, "B must have shape"),
        ({"A": [[np.nan, 0.0], [0.0, 1.0]]}, "A holds NaN"),
        ({"Q": np.eye(3)}, "Q must have shape"),
        ({"Q": [[1.0, 1.0], [0.0, 1.0]]}, "Q must be symmetric"),
        ({"R": [[1.0]]}, "R must have shape"),
        ({"gamma": 1.0}, "gamma must lie"),
        ({"gamma": -0.1}, "gamma must lie"),
        ({"gamma": float("nan")}, "gamma must lie"),
        ({"x0": [1.0]}, "x0 must have shape"),
        ({"start_covariance": [[-1.0, 0.0], [0.0, 1.0]]}, "start_covariance must be positive"),
        ({"noise_covariance": [[1.0, 2.0], [0.0, 1.0]]}, "noise_covariance must be symmetric"),
        ({"action_bound": 0.0}, "action_bound"),
        ({"action_bound": np.inf}, "action_bound"),
        ({"state_bound": -1.0}, "state_bound"),
        ({"render_mode": "ascii"}, "render_mode"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        LQREnv(**arguments)


@pytest.mark.parametrize("state", [(1.0,), [[1.0, 2.0]], (np.nan, 0.0), None, "middle"])
def test_bad_start_is_refused(state):
    with pytest.raises(ValueError, match="state"):
        LQREnv().reset(options={"state": state})


def test_unknown_reset_option_is_refused():
    with pytest.raises(ValueError, match="Unknown reset option"):
        LQREnv().reset(options={"start": "paper"})


@pytest.mark.parametrize("action", [[1.0], 1.0, [[1.0, 2.0]], [np.nan, 0.0], [np.inf, 0.0], "left"])
def test_bad_action_is_refused(action):
    env = LQREnv()
    env.reset()
    with pytest.raises(ValueError, match="action"):
        env.step(action)


def test_step_and_render_need_a_reset():
    with pytest.raises(gym.error.ResetNeeded):
        LQREnv().step(np.zeros(2))
    with pytest.raises(gym.error.ResetNeeded):
        LQREnv(render_mode="rgb_array").render()


@pytest.mark.parametrize("gain", [np.eye(3), [[1.0, 2.0]], [[np.nan, 0.0], [0.0, 0.0]]])
def test_bad_gain_is_refused(gain):
    with pytest.raises(ValueError, match="K "):
        LQREnv().true_return(gain)


def test_bad_states_and_covariances_of_closed_forms_are_refused():
    env, gain = LQREnv(**USUAL), LQREnv(**USUAL).optimal_gain()
    with pytest.raises(ValueError, match="x must hold"):
        env.value(gain, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="policy_covariance"):
        env.true_return(gain, -np.eye(2))


@pytest.mark.parametrize(
    "arguments",
    [
        # Nothing reaches the unstable state.
        {"A": [[2.0]], "B": [[0.0]], "Q": [[-1.0]], "R": [[-1.0]]},
        # States are rewarded.
        {"A": [[1.2]], "B": [[1.0]], "Q": [[1.0]], "R": [[-0.01]]},
        # Inputs do nothing and cost nothing: all are as good.
        {"A": [[0.5]], "B": [[0.0]], "Q": [[-1.0]], "R": [[0.0]]},
    ],
)
def test_ill_posed_problems_have_no_optimal_gain(arguments: dict):
    with pytest.raises(ValueError, match="No optimal gain"):
        LQREnv(**arguments).optimal_gain()
