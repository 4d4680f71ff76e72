"""Predicted trajectories, against those of systems that are known."""

import numpy as np
import pytest

from sb3_nopg import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.rollouts import Rollouts, TrajectoryModel


def cart(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A mass on a rail: position and velocity, a tenth of a second."""
    position, velocity = states.T
    return np.column_stack([position + 0.1 * velocity, velocity + 0.1 * actions[:, 0] + 0.05 * np.sin(position)])


def recorded(
    n_episodes: int = 40, length: int = 25, delay: int = 0, limit: float = np.inf, seed: int = 0
) -> TransitionDataset:
    """
    :param delay: steps until an action acts
    :param limit: of the position, at which the task ends
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("s", "a", "n", "t", "e")}
    for episode in range(n_episodes):
        state = rng.uniform([-0.8, -0.8], [0.8, 0.8])[None]
        actions = rng.uniform(-2.0, 2.0, size=(length + delay, 1))
        for step in range(length):
            after = cart(state, actions[step : step + 1])
            ended = bool(np.abs(after[0, 0]) > limit)
            values = (state[0], actions[step + delay], after[0], ended, episode)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
            state = after
            if ended:
                break
    states, actions, after, ended, episodes = (np.array(column) for column in columns.values())
    return TransitionDataset(
        observations=states,
        actions=actions,
        rewards=1.0 - states[:, 0] ** 2,
        next_observations=after,
        terminals=ended,
        episode_ids=episodes,
    )


STARTS = np.array([[0.5, 0.0], [-0.3, 0.4], [0.0, -0.6]])


def brake(states: np.ndarray) -> np.ndarray:
    return -1.0 * states[:, :1] - 1.2 * states[:, 1:]


def followed(act, n_steps: int, delay: int = 0) -> np.ndarray:
    """What the cart truly does, (n_steps + 1, m, 2)."""
    states, waiting = [STARTS], [np.zeros((len(STARTS), 1))] * delay
    for _ in range(n_steps):
        waiting.append(act(states[-1]))
        states.append(cart(states[-1], waiting.pop(0)))
    return np.stack(states)


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_trajectories_are_those_of_the_system(delay):
    model = TrajectoryModel(recorded(delay=delay))
    assert model.n_earlier_actions == delay
    found = model.follow(brake, STARTS, 40)
    assert found.lasting.all()
    np.testing.assert_array_equal(found.n_steps, 40)
    # Whoever ignores the delay is wrong by more than this.
    np.testing.assert_allclose(found.states, followed(brake, 40, delay), atol=0.03)
    assert np.abs(followed(brake, 40, delay) - followed(brake, 40, 0)).max() > 0.03 or delay == 0


def test_rewards_are_those_of_the_states():
    found = TrajectoryModel(recorded()).follow(brake, STARTS, 30)
    # Of a parabola that goes down to -15 where data are.
    np.testing.assert_allclose(found.rewards, 1.0 - found.states[:-1, :, 0] ** 2, atol=0.1)
    np.testing.assert_allclose(found.total_rewards(-5.0), found.rewards.sum(axis=0))


def test_a_slow_drift_leaves_the_data_when_it_truly_does():
    def creep(states: np.ndarray) -> np.ndarray:
        """Holds a velocity, and so goes two hundredths a step."""
        return 5.0 * (0.2 - states[:, 1:]) - 0.5 * np.sin(states[:, :1])

    dataset = recorded()
    found = TrajectoryModel(dataset).follow(creep, STARTS, 400)
    reach = dataset.observations[:, 0].max()
    truth = followed(creep, 400)[:, :, 0]
    assert not found.lasting.any()
    assert not found.ended.any()
    np.testing.assert_array_equal(found.left_by, 0)
    for number, n_steps in enumerate(found.n_steps):
        # Within the margin that it is followed beyond the data.
        assert reach - 0.1 < truth[n_steps, number] < 1.35 * reach + 0.1
        assert np.isnan(found.states[n_steps + 1 :, number]).all()
        assert np.isfinite(found.states[: n_steps + 1, number]).all()
        assert np.isnan(found.rewards[n_steps:, number]).all()


def test_an_end_of_the_task_ends_a_trajectory():
    model = TrajectoryModel(recorded(limit=1.0))
    found = model.follow(lambda states: np.full((len(states), 1), 2.0), STARTS, 60)
    assert found.ended.all()
    np.testing.assert_array_equal(found.left_by, -1)
    truth = followed(lambda states: np.full((len(states), 1), 2.0), 60)[:, :, 0]
    first_out = (np.abs(truth) > 1.0).argmax(axis=0)
    assert np.abs(found.n_steps - first_out).max() <= 3


def test_total_rewards_count_what_is_unknown_and_not_what_is_over():
    rewards = np.array([[1.0, 1.0, 1.0], [2.0, np.nan, np.nan], [3.0, np.nan, np.nan]])
    rollouts = Rollouts(
        states=np.zeros((4, 3, 1)),
        actions=np.zeros((3, 3, 1)),
        rewards=rewards,
        n_steps=np.array([3, 1, 1]),
        ended=np.array([False, True, False]),
        left_by=np.array([-1, -1, 0]),
    )
    np.testing.assert_array_equal(rollouts.lasting, [True, False, False])
    np.testing.assert_allclose(rollouts.total_rewards(-10.0), [6.0, 1.0, 1.0 - 20.0])
    np.testing.assert_allclose(rollouts.total_rewards(-10.0, -7.0), [6.0, 1.0 - 14.0, 1.0 - 20.0])


def test_a_dimension_that_never_changes_is_never_the_one_that_is_left():
    data = recorded(limit=1.0)
    constant = TransitionDataset(
        observations=np.column_stack([data.observations, np.full(len(data), 7.0)]),
        actions=data.actions,
        rewards=data.rewards,
        next_observations=np.column_stack([data.next_observations, np.full(len(data), 7.0)]),
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    model = TrajectoryModel(constant)
    starts = np.column_stack([STARTS, np.full(len(STARTS), 7.0)])
    found = model.follow(lambda states: np.full((len(states), 1), 2.0), starts, 60)
    assert found.ended.all()
    assert (model.farthest_out(found.last_states) < 2).all()


def test_data_without_episodes():
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1.0, 1.0, size=(800, 2)), rng.uniform(-2.0, 2.0, size=(800, 1))
    dataset = TransitionDataset(
        observations=states,
        actions=actions,
        rewards=np.zeros(800),
        next_observations=cart(states, actions),
        terminals=np.zeros(800, dtype=bool),
    )
    model = TrajectoryModel(dataset)
    assert model.n_earlier_actions == 0
    assert model.error < 0.01
    np.testing.assert_allclose(model.follow(brake, STARTS, 40).states, followed(brake, 40), atol=0.03)


def test_too_few_transitions_are_refused():
    with pytest.raises(InputError, match="Trajectories need more"):
        TrajectoryModel(recorded(n_episodes=1, length=10))


def test_states_that_never_change_are_refused():
    states = np.random.default_rng(0).normal(size=(100, 2))
    dataset = TransitionDataset(
        observations=states,
        actions=states[:, :1],
        rewards=np.zeros(100),
        next_observations=states,
        terminals=np.zeros(100, dtype=bool),
    )
    with pytest.raises(InputError, match="nothing to predict"):
        TrajectoryModel(dataset)
