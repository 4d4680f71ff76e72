"""Behaviour policies, their densities, trajectories found in data, and evaluations kept."""

import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import kstest

from nopg_envs.behaviours import gaussian_mixture, uniform
from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.experiments.baselines import (
    BehaviorPolicy,
    BestEvaluation,
    episode_returns,
    linear_gaussian_behavior,
    mixture_behavior,
    uniform_behavior,
)
from sb3_nopg.experiments.baselines.trajectories import find_recorded_trajectories

SPACE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
BEHAVIORS = {
    "uniform": lambda seed: uniform_behavior(SPACE, seed),
    "mixture": lambda seed: mixture_behavior(SPACE, seed),
    "linear": lambda seed: linear_gaussian_behavior([[1.0], [0.3]], [0.8, 0.5], SPACE, seed),
}


def draws(behavior: BehaviorPolicy, n: int) -> np.ndarray:
    return np.stack([behavior(np.array([0.7])) for _ in range(n)])


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHAVIORS)
def test_density_is_that_of_the_draws(name):
    """Inside: shares in cells against the integrated density. On the ends: shares against the probability given there."""
    behavior = BEHAVIORS[name](0)
    actions = draws(behavior, 20_000)
    low, high = SPACE.low.astype(float), SPACE.high.astype(float)
    state = np.array([[0.7]])
    # Both dimensions are independent: look along one while the other stays inside, and normalise it away.
    for axis in (0, 1):
        middle = (low + high) / 2
        edges = np.linspace(low[axis], high[axis], 401)
        points = np.tile(middle, (400, 1))
        points[:, axis] = (edges[:-1] + edges[1:]) / 2
        ends = np.tile(middle, (2, 1))
        ends[:, axis] = low[axis], high[axis]
        masses = np.exp(behavior.log_density(np.tile(state, (400, 1)), points)) * (edges[1] - edges[0])
        atoms = np.exp(behavior.log_density(np.tile(state, (2, 1)), ends))
        on_end = np.stack([actions[:, axis] == low[axis], actions[:, axis] == high[axis]]).mean(axis=1)
        if name == "uniform":
            atoms = np.zeros(2)
        total = masses.sum() + atoms.sum()
        np.testing.assert_allclose(on_end, atoms / total, atol=0.015)
        inside = actions[(actions[:, axis] > low[axis]) & (actions[:, axis] < high[axis]), axis]
        counted = np.histogram(inside, edges[::40])[0] / len(actions)
        np.testing.assert_allclose(counted, masses.reshape(10, 40).sum(axis=1) / total, atol=0.015)


def test_both_dimensions_together_make_one():
    """The density of two dimensions is a product: its integral with its ends over both is one."""
    behavior = mixture_behavior(SPACE)
    sides = []
    for axis in (0, 1):
        low, high = float(SPACE.low[axis]), float(SPACE.high[axis])
        width = (high - low) / 300
        points = np.concatenate([[low], low + width * (np.arange(300) + 0.5), [high]])
        sides.append((points, np.concatenate([[1.0], np.full(300, width), [1.0]])))
    grid = np.stack(np.meshgrid(sides[0][0], sides[1][0], indexing="ij"), axis=-1).reshape(-1, 2)
    masses = np.outer(sides[0][1], sides[1][1]).reshape(-1)
    assert np.sum(masses * np.exp(behavior.log_density(np.zeros((len(grid), 1)), grid))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [(uniform_behavior, uniform), (mixture_behavior, gaussian_mixture)])
def test_the_simulators_behaviours_are_these(ours, theirs):
    act = theirs(SPACE, np.random.default_rng(1))
    other = np.stack([act(np.zeros(1)) for _ in range(5_000)])
    own = draws(ours(SPACE, seed=2), 5_000)
    for axis in (0, 1):
        assert kstest(own[:, axis], other[:, axis]).pvalue > 1e-3


def test_predict_is_that_of_sb3():
    behavior = linear_gaussian_behavior([[1.0], [0.3]], 0.1, SPACE, seed=0)
    one, state = behavior.predict(np.array([0.5]))
    several, _ = behavior.predict(np.full((4, 1), 9.0), deterministic=True)
    assert (one.shape, one.dtype, state) == ((2,), np.float32, None)
    assert several.shape == (4, 2)
    assert (several == SPACE.high).all()  # clipped
    again = linear_gaussian_behavior([[1.0], [0.3]], 0.1, SPACE, seed=0).predict(np.array([0.5]))[0]
    assert np.array_equal(one, again)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: BehaviorPolicy(lambda s: np.zeros(3), SPACE).predict(np.zeros(1)), "act"),
        (lambda: BehaviorPolicy(lambda s: s, SPACE).log_density(np.zeros((2, 1)), np.zeros((2, 2))), "log_density"),
        (lambda: uniform_behavior(spaces.Box(-np.inf, np.inf, (2,))), "action_space"),
        (lambda: mixture_behavior(spaces.Discrete(3)), "action_space"),
        (lambda: linear_gaussian_behavior(np.zeros((3, 1)), 0.1, SPACE), "gain"),
        (lambda: linear_gaussian_behavior(np.zeros((2, 1)), 0.0, SPACE), "std"),
        (lambda: BestEvaluation(lambda model: 0.0, every=0), "every"),
        (lambda: BestEvaluation(lambda model: 0.0).best, "callback"),
    ],
)
def test_bad_input_is_named(make, field):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field


def two_episodes(**changes) -> TransitionDataset:
    states = np.arange(7.0)[:, None]
    columns = {
        "observations": states[[0, 1, 2, 4, 5]],
        "actions": np.linspace(-1.0, 1.0, 5)[:, None],
        "rewards": np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        "next_observations": states[[1, 2, 3, 5, 6]],
        "terminals": np.zeros(5, dtype=bool),
        "timeouts": np.array([False, False, True, False, True]),
    }
    return TransitionDataset(**{**columns, **changes})


def test_trajectories_by_time_limits_or_by_episode():
    np.testing.assert_allclose(episode_returns(two_episodes()), [7.0, 24.0])
    np.testing.assert_allclose(episode_returns(two_episodes(), gamma=0.5), [3.0, 16.0])
    # Rows of two episodes that were recorded side by side, in any order of their numbers.
    mixed = [3, 0, 1, 4, 2]
    data = two_episodes()
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    shuffled = TransitionDataset(
        **{name: getattr(data, name)[mixed] for name in names}, episode_ids=np.array([5, 9, 9, 5, 9]), timeouts=None
    )
    found = find_recorded_trajectories(shuffled)
    np.testing.assert_array_equal(found.rows, [[0, 3, 0], [1, 2, 4]])
    np.testing.assert_array_equal(found.taken, [[True, True, False], [True, True, True]])
    np.testing.assert_array_equal(found.known, found.taken)
    np.testing.assert_allclose(episode_returns(shuffled), [24.0, 7.0])


def test_after_a_true_end_the_reward_is_known():
    terminals = np.array([False, False, False, False, True])
    found = find_recorded_trajectories(two_episodes(terminals=terminals))
    np.testing.assert_array_equal(found.known, np.ones((2, 3), dtype=bool))


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": np.array([[0.0], [1.0], [2.5], [4.0], [5.0]])},  # a step left out
        {"terminals": np.array([False, True, False, False, False]), "episode_ids": np.array([0, 0, 0, 1, 1])},
    ],
)
def test_broken_trajectories_are_refused(changes):
    with pytest.raises(InputError, match="row 2 does not go on where row 1"):
        find_recorded_trajectories(two_episodes(**changes))
