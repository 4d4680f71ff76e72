"""What rollouts record is what happened: every action as applied, every end for what it was."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from nopg_envs import collect
from nopg_envs.behaviours import gaussian_mixture, held, uniform
from nopg_envs.cartpole import QuanserCartPoleSwingUpEnv
from nopg_envs.collect import grid, rollouts
from nopg_envs.lqr import LQREnv
from nopg_envs.pendulum import HangingPendulumEnv
from sb3_nopg import TransitionDataset

NAMES = ["observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "episode_ids"]


class Clockwork(gym.Env):
    """
    Counts its steps; ends and is cut when told to. Writes all observations into the same memory, as some environments do.

    :param ends: for each episode in turn, the step at which it ends and that at which it is cut
    """

    def __init__(self, *ends: tuple[int | None, int | None]):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))
        self.state_space = spaces.Box(-10.0, 10.0, (2,), np.float64)
        self.ends, self.resets, self.received = ends, [], []
        self.memory = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.end, self.cut = self.ends[len(self.resets) % len(self.ends)]
        self.resets.append((seed, options))
        self.memory[:] = (options or {}).get("state", (100.0 * len(self.resets), 0.0))
        self.count = 0
        return self.memory, {}

    def step(self, action: np.ndarray):
        self.count += 1
        self.received.append(np.array(action))
        self.memory[1] += 1.0
        return self.memory, np.float32(self.count), self.count == self.end, self.count == self.cut, {}


def middle_action(observation: np.ndarray) -> np.ndarray:
    return np.array([0.0, 1.5])


# --- Book-keeping --------------------------------------------------------------------------------------------------------


def test_ends_and_cuts_are_kept_apart():
    env = Clockwork((3, None), (None, 2), (4, 4))
    data = rollouts(env, middle_action, n_episodes=3)
    assert list(data) == NAMES
    np.testing.assert_array_equal(data["episode_ids"], [0, 0, 0, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(np.flatnonzero(data["terminals"]), [2, 8])
    # Where end and time limit coincide (the last row), it was an end.
    np.testing.assert_array_equal(np.flatnonzero(data["timeouts"]), [4])
    np.testing.assert_array_equal(data["rewards"], [1, 2, 3, 1, 2, 1, 2, 3, 4])
    assert len(env.resets) == 3


def test_observations_are_those_before_and_after_each_step():
    data = rollouts(Clockwork((2, None), (None, 3)), middle_action, n_episodes=2)
    np.testing.assert_array_equal(data["observations"], [[100, 0], [100, 1], [200, 0], [200, 1], [200, 2]])
    np.testing.assert_array_equal(data["next_observations"], [[100, 1], [100, 2], [200, 1], [200, 2], [200, 3]])


@pytest.mark.parametrize(
    ("n", "n_resets", "terminals", "timeouts"),
    [
        (1, 1, [], [0]),
        # Ends exactly with the last transition wanted: an end, and no reset after it.
        (3, 1, [2], []),
        (4, 2, [2], [3]),
        (5, 2, [2], [4]),
        (7, 3, [2], [4, 6]),
        (8, 3, [2, 7], [4]),
    ],
)
def test_exactly_as_many_transitions_as_wanted(n: int, n_resets: int, terminals: list[int], timeouts: list[int]):
    env = Clockwork((3, None), (None, 2))
    data = rollouts(env, middle_action, n_transitions=n)
    assert {len(array) for array in data.values()} == {n}
    np.testing.assert_array_equal(np.flatnonzero(data["terminals"]), terminals)
    np.testing.assert_array_equal(np.flatnonzero(data["timeouts"]), timeouts)
    assert len(env.resets) == n_resets


def test_every_episode_has_one_last_row():
    data = rollouts(Clockwork((3, None), (None, 2), (1, None)), middle_action, n_transitions=50)
    ends = data["terminals"] | data["timeouts"]
    np.testing.assert_array_equal(ends[:-1], np.diff(data["episode_ids"]) == 1)
    assert ends[-1]
    assert not (data["terminals"] & data["timeouts"]).any()


def test_actions_are_recorded_as_applied():
    env = Clockwork((5, None))
    data = rollouts(env, lambda observation: np.array([-7.0, 2.0]), n_transitions=3)
    np.testing.assert_array_equal(data["actions"], np.tile([-1.0, 2.0], (3, 1)))
    np.testing.assert_array_equal(data["actions"], env.received)
    assert data["actions"].dtype == np.float32
    assert env.received[0].dtype == np.float32


def test_voltages_are_recorded_as_they_reached_the_motor():
    # The amplifier of this cart ends before the action space does.
    env = QuanserCartPoleSwingUpEnv(randomize={"amplifier_limit_volt": (2.0, 2.0)})
    data = rollouts(env, lambda observation: np.array([4.0]), n_transitions=3)
    np.testing.assert_array_equal(data["actions"], np.full((3, 1), 2.0))
    assert data["actions"].dtype == np.float32
    np.testing.assert_array_equal(grid(env, (1, 1, 1, 1, 3))["actions"], [[-2.0], [0.0], [2.0]])


def test_policy_sees_the_observation():
    data = rollouts(Clockwork((4, None)), lambda observation: np.array([0.0, 0.5 * observation[1]]), n_transitions=4)
    np.testing.assert_allclose(data["actions"][:, 1], 0.5 * data["observations"][:, 1])


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("policy", ["uniform", "gaussian_mixture"])
def test_any_environment_gives_a_data_set(env_id: str, policy: str):
    env = gym.make(env_id)
    data = TransitionDataset(**rollouts(env, policy, n_transitions=450, seed=0))
    assert len(data) == 450
    limit = env.spec.max_episode_steps
    np.testing.assert_array_equal(data.episode_starts, np.arange(0, 450, limit))
    assert not data.terminals.any()
    env.close()


def test_true_ends_of_a_real_task_are_terminals():
    # Pushing along with the velocity takes the mountain car to its flag.
    def along(observation: np.ndarray) -> np.ndarray:
        return np.array([1.0 if observation[1] >= 0 else -1.0])

    env = gym.make("MountainCarContinuous-v0")
    data = TransitionDataset(**rollouts(env, along, n_episodes=2, seed=1))
    assert data.terminals.sum() == 2
    assert not data.timeouts.any()
    assert np.all(data.next_observations[data.terminals, 0] >= 0.45)
    env.close()


# --- Starts and seeds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["paper", "operator"])
def test_named_starts_are_passed_on(start: str):
    env = Clockwork((2, None))
    rollouts(env, "uniform", n_episodes=2, start=start, seed=5)
    assert env.resets == [(5, {"start": start}), (None, {"start": start})]


def test_without_a_start_nothing_is_passed_on():
    env = Clockwork((2, None))
    rollouts(env, "uniform", n_episodes=2, seed=5)
    assert env.resets == [(5, None), (None, None)]


def test_state_as_a_start():
    upright = rollouts(HangingPendulumEnv(), "gaussian_mixture", n_transitions=3, start=(0.0, 0.0), seed=0)
    np.testing.assert_allclose(upright["observations"][0], [1.0, 0.0, 0.0])


def test_sampler_as_a_start_draws_for_each_episode():
    data = rollouts(
        Clockwork((1, None)), middle_action, n_episodes=200, start=lambda rng: rng.uniform([-2, 0], [-1, 1]), seed=0
    )
    starts = data["observations"]
    assert len(np.unique(starts[:, 0])) == 200
    assert np.all((starts >= [-2, 0]) & (starts <= [-1, 1]))


@pytest.mark.parametrize("start", [None, lambda rng: rng.normal(size=2)])
@pytest.mark.parametrize("policy", ["uniform", "gaussian_mixture", "held"])
def test_same_seed_same_data(policy: str, start):
    def collect(seed: int | None, env: gym.Env | None = None) -> dict[str, np.ndarray]:
        env = env or LQREnv(start_covariance=np.eye(2), noise_covariance=np.eye(2))
        return rollouts(env, policy, n_transitions=20, start=start, seed=seed)

    used = LQREnv(start_covariance=np.eye(2), noise_covariance=np.eye(2))
    collect(None, used)
    first, again, other = collect(1), collect(1, used), collect(2)
    for name in NAMES:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["actions"], other["actions"])
    assert not np.array_equal(first["observations"], other["observations"])


def test_what_is_drawn_here_is_not_tied_to_the_noise_of_the_environment():
    env = LQREnv(noise_covariance=np.eye(2))
    data = rollouts(env, lambda observation: np.zeros(2), n_transitions=1, start=lambda rng: rng.standard_normal(2), seed=3)
    noise = data["next_observations"] - data["observations"] @ env.A.T
    assert not np.isclose(noise, data["observations"]).any()


# --- Behaviours ----------------------------------------------------------------------------------------------------------


def draws(behaviour, n: int = 4000) -> np.ndarray:
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    act = behaviour(space, np.random.default_rng(0))
    actions = np.array([act(np.zeros(3)) for _ in range(n)])
    assert np.all((actions >= space.low) & (actions <= space.high))
    # As shares of the range, both dimensions must look the same, and be independent.
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.05
    return (actions - [0.0, 5.0]) / [2.0, 5.0]


def test_uniform_is_uniform():
    for column in draws(uniform).T:
        assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_mixture_is_the_one_documented():
    def distribution(x: np.ndarray) -> np.ndarray:
        return np.mean([stats.norm(mean, 0.25).cdf(x) for mean in (-0.75, 0.0, 0.75)], axis=0)

    for column in draws(gaussian_mixture).T:
        for x in (-0.99, -0.75, -0.4, 0.0, 0.4, 0.75, 0.99):
            assert np.mean(column <= x) == pytest.approx(distribution(np.array(x)), abs=0.03)
        assert np.mean(np.abs(column) == 1.0) == pytest.approx(0.106, abs=0.02)


def test_held_actions_are_uniform_and_last():
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    act = held(space, np.random.default_rng(0))
    actions = np.array([act(np.zeros(3)) for _ in range(20_000)])
    changes = np.flatnonzero((np.diff(actions, axis=0) != 0).any(axis=1)) + 1
    lengths, levels = np.diff(changes), (actions[changes] - [0.0, 5.0]) / [2.0, 5.0]
    # All dimensions change together, after 2 to 19 steps, each number equally often.
    assert (np.diff(actions, axis=0)[changes - 1] != 0).all()
    assert set(lengths) == set(range(2, 20))
    assert stats.chisquare(np.bincount(lengths)[2:]).pvalue > 1e-3
    for column in levels.T:
        assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_held_actions_are_nobody_elses_memory():
    act = held(spaces.Box(-1.0, 1.0, (1,)), np.random.default_rng(0))
    first = act(np.zeros(1))
    before = first.copy()
    first[:] = 7.0
    np.testing.assert_array_equal(act(np.zeros(1)), before)


# --- Grid ----------------------------------------------------------------------------------------------------------------


def test_grid_keeps_ends_and_does_not_take_a_time_limit_for_one():
    ends = grid(Clockwork((1, None)), (2, 1, 1, 1))
    cut = grid(Clockwork((None, 1)), (2, 1, 1, 1))
    assert ends["terminals"].all()
    assert not cut["terminals"].any()
    assert "timeouts" not in cut
    np.testing.assert_array_equal(cut["observations"], [[-10, 0], [10, 0]])
    np.testing.assert_array_equal(cut["next_observations"], [[-10, 1], [10, 1]])


def test_grid_refuses_ranges_without_ends():
    env = LQREnv()
    env.state_space = env.observation_space
    with pytest.raises(ValueError, match="finite ends"):
        grid(env, (2, 2, 2, 2))


@pytest.mark.parametrize("levels", [(99999, 99999, 99), np.array([99999, 99999, 99])])
def test_grid_refuses_more_than_anybody_can_wait_for(levels):
    with pytest.raises(ValueError, match="levels: 99999 x 99999 x 99 are 989,980,200,099 transitions"):
        grid(HangingPendulumEnv(), levels)


def test_grid_may_be_as_large_as_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collect, "LARGEST_GRID", 12)
    assert len(grid(HangingPendulumEnv(), (3, 2, 2))["rewards"]) == 12
    with pytest.raises(ValueError, match="levels: 13 x 1 x 1 are 13 transitions"):
        grid(HangingPendulumEnv(), (13, 1, 1))


# --- Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either n_transitions or n_episodes"),
        ({"n_transitions": 3, "n_episodes": 1}, "either n_transitions or n_episodes"),
        ({"n_transitions": 0}, "n_transitions must be a positive"),
        ({"n_episodes": -1}, "n_episodes must be a positive"),
        ({"n_transitions": 2.5}, "n_transitions must be a positive"),
        ({"n_episodes": True}, "n_episodes must be a positive"),
        ({"n_episodes": 1, "policy": "greedy"}, "policy: unknown name 'greedy'.*uniform"),
        ({"n_episodes": 1, "policy": 3}, "policy must be"),
        ({"n_episodes": 1, "start": "anywhere"}, "start: unknown name 'anywhere'.*paper"),
        ({"n_episodes": 1, "policy": lambda observation: np.array([np.nan, 0.0])}, "policy: .*finite"),
        ({"n_episodes": 1, "policy": lambda observation: np.array([np.inf, 0.0])}, "policy: .*finite"),
        ({"n_episodes": 1, "policy": lambda observation: np.array(["a", "b"])}, "policy: .*finite"),
        ({"n_episodes": 1, "policy": lambda observation: np.zeros(3)}, r"policy: .*shape \(3,\)"),
        ({"n_episodes": 1, "policy": lambda observation: 0.5}, r"policy: .*shape \(\)"),
        ({"n_episodes": 1, "policy": lambda observation: None}, r"policy: .*shape \(\)"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        rollouts(Clockwork((3, None)), **{"policy": middle_action, **arguments})


def test_episodes_that_never_end_are_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nopg_envs.collect.LONGEST_EPISODE", 20)
    with pytest.raises(
        ValueError, match=r"n_episodes: episode 1 has not ended after 20 steps; wrap .*TimeLimit.*n_transitions"
    ):
        rollouts(Clockwork((3, None), (None, None)), middle_action, n_episodes=2)
    # Each episode counts for itself, one that ends in time is whole, and so are transitions that need no end.
    assert len(rollouts(Clockwork((15, None), (20, None)), middle_action, n_episodes=3)["rewards"]) == 50
    assert len(rollouts(Clockwork((None, None)), middle_action, n_transitions=50)["rewards"]) == 50


def test_a_time_limit_of_the_environment_may_be_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nopg_envs.collect.LONGEST_EPISODE", 20)
    env = gym.make("Pendulum-v1", max_episode_steps=30)
    assert len(rollouts(env, "uniform", n_episodes=2, seed=0)["rewards"]) == 60


def test_bad_start_state_is_the_environments_to_refuse():
    with pytest.raises(ValueError, match="state"):
        rollouts(HangingPendulumEnv(), "uniform", n_transitions=2, start=(0.0, 0.0, 0.0))


@pytest.mark.parametrize("start", [(0.0, 0.0), "paper", lambda rng: np.zeros(2)])
def test_environment_that_would_ignore_the_start_is_refused(start):
    with pytest.raises(ValueError, match="start: needs an environment"):
        rollouts(gym.make("Pendulum-v1"), "uniform", n_transitions=2, start=start)


def test_environments_without_boxes_are_refused():
    with pytest.raises(ValueError, match="action_space: Discrete"):
        rollouts(gym.make("CartPole-v1"), "uniform", n_transitions=2)
    with pytest.raises(ValueError, match="observation_space: Discrete"):
        rollouts(gym.make("FrozenLake-v1"), "uniform", n_transitions=2)


def test_behaviours_need_ends_to_draw_between():
    env = Clockwork((3, None))
    env.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(ValueError, match="action_space"):
        rollouts(env, "uniform", n_transitions=2)
    assert len(rollouts(env, middle_action, n_transitions=2)["actions"]) == 2
