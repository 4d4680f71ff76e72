"""The rule that lets samples predict each other's next state, reward and end."""

import gymnasium as gym
import numpy as np
import pytest

import nopg_envs
from sb3_nopg import NOPG, InputError, TransitionDataset, predictive_bandwidth
from sb3_nopg.bandwidth import select_bandwidths
from sb3_nopg.predictive_bandwidth import (
    FEWEST_EFFECTIVE_SAMPLES,
    NARROWEST,
    NARROWEST_BETWEEN_LEVELS,
    WIDEST,
    bellman_targets,
    predictive_bandwidths,
)

ALL = {"state": "predictive", "action": "predictive", "next_state": "predictive"}


def leave_out_weights(states, actions, groups, state_bandwidth, action_bandwidth):
    """Kernel weights of the samples of other groups at every sample, by the definition, (n, n)."""
    inputs = np.concatenate([states / state_bandwidth, actions / action_bandwidth], axis=1)
    squared = ((inputs[:, None] - inputs[None]) ** 2).sum(axis=-1)
    squared[groups[:, None] == groups[None]] = np.inf
    weights = np.exp(-0.5 * (squared - squared.min(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True)


def leave_out_error(states, actions, targets, groups, state_bandwidth, action_bandwidth):
    """Mean squared error of predicting all targets so."""
    weights = leave_out_weights(states, actions, groups, state_bandwidth, action_bandwidth)
    return float(np.mean((weights @ targets - targets) ** 2))


def scattered(n=300, seed=0):
    """One-step samples: a bend in the first dimension, nothing but noise in the second, a reward of both kinds."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, (n, 1))
    next_states = np.c_[np.sin(4 * states[:, 0]) + 0.5 * actions[:, 0], rng.uniform(-1, 1, n)]
    return states, actions, next_states, np.cos(3 * states[:, 0]) - actions[:, 0] ** 2


def rail(n=600, seed=0):
    """The second dimension decides over nothing but the end of the task: beyond ±0.8 it is over."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, (n, 1))
    next_states = np.c_[0.8 * states[:, 0] + 0.3 * actions[:, 0], rng.uniform(-1, 1, n)]
    return states, actions, next_states, np.abs(states[:, 1]) > 0.8


@pytest.mark.parametrize("with_episodes", [False, True])
def test_no_other_bandwidths_within_the_bounds_predict_better(with_episodes):
    states, actions, next_states, rewards = scattered()
    episode_ids = np.arange(300) // 30 if with_episodes else None
    groups = np.arange(300) if episode_ids is None else episode_ids
    targets = bellman_targets(next_states, rewards)
    chosen = np.concatenate(predictive_bandwidths(states, actions, targets, 0, episode_ids=episode_ids))
    deviation = np.concatenate([states.std(axis=0), actions.std(axis=0)])

    def error(bandwidths):
        return leave_out_error(states, actions, targets, groups, bandwidths[:2], bandwidths[2:])

    best = error(chosen)
    for dim in range(3):
        for factor in (0.8, 1.25):
            other = chosen.copy()
            other[dim] *= factor
            if other[dim] <= WIDEST * deviation[dim]:
                assert error(other) > best * 0.999, f"dimension {dim} times {factor}"


def test_what_nothing_depends_on_gets_a_wide_kernel():
    states, actions, next_states, rewards = scattered()
    chosen = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards)
    share = chosen.state / states.std(axis=0)
    assert share[0] < 0.3
    assert share[1] > 0.9
    np.testing.assert_array_equal(chosen.next_state, chosen.state)


def test_the_end_of_the_rail_is_not_forgotten():
    states, actions, next_states, terminals = rail()
    blind = select_bandwidths(states, actions, next_states, **ALL)
    seeing = select_bandwidths(states, actions, next_states, **ALL, terminals=terminals)
    assert blind.state[1] > 0.9 * states[:, 1].std()
    assert seeing.state[1] < 0.4 * states[:, 1].std()


def test_rewards_count_too():
    states, actions, next_states, _ = rail()
    seeing = select_bandwidths(states, actions, next_states, **ALL, rewards=np.cos(4 * states[:, 1]))
    assert seeing.state[1] < 0.4 * states[:, 1].std()


def test_rare_ends_count_where_few_samples_are_predicted(monkeypatch):
    monkeypatch.setattr(predictive_bandwidth, "_N_QUERIES", 200)
    states, actions, next_states, _ = rail(n=2000)
    terminals = states[:, 1] > 0.97
    assert 10 < terminals.sum() < 50
    for seed in range(3):
        chosen = select_bandwidths(states, actions, next_states, **ALL, terminals=terminals, seed=seed)
        assert chosen.state[1] < 0.5 * states[:, 1].std()


def test_the_choice_of_samples_weighs_ends_as_often_as_they_are(monkeypatch):
    monkeypatch.setattr(predictive_bandwidth, "_N_QUERIES", 100)
    terminals = np.arange(1000) < 40
    queries, weights = predictive_bandwidth._queries(1000, terminals, seed=0)
    assert len(np.unique(queries)) == len(queries) == 100
    assert terminals[queries].sum() == 25
    assert weights.sum() == pytest.approx(1.0)
    assert weights[terminals[queries]].sum() == pytest.approx(0.04)


def test_an_episode_does_not_predict_itself():
    # Every episode is one point, repeated: alone each sample finds its copies, without its episode it finds none.
    rng = np.random.default_rng(0)
    centers, outcomes = rng.normal(size=(30, 1)), rng.normal(size=(30, 1))
    episode_ids = np.repeat(np.arange(30), 10)
    states = centers[episode_ids] + 1e-3 * rng.normal(size=(300, 1))
    actions, next_states = rng.normal(size=(300, 1)), outcomes[episode_ids]
    alone = select_bandwidths(states, actions, next_states, **ALL)
    together = select_bandwidths(states, actions, next_states, **ALL, episode_ids=episode_ids)
    assert alone.state[0] < 0.05 * states.std()
    assert together.state[0] > 0.3 * states.std(), "there is nothing to learn from other episodes"


def test_neighbours_are_of_other_episodes(monkeypatch):
    monkeypatch.setattr(predictive_bandwidth, "_N_NEIGHBORS", 40)
    rng = np.random.default_rng(1)
    inputs, targets, groups = rng.normal(size=(60, 2)), rng.normal(size=(60, 1)), np.arange(60) // 20
    queries, weights = np.arange(60), np.full(60, 1 / 60)
    regression = predictive_bandwidth._predict(inputs, targets, groups, queries, weights, np.log([0.5, 0.5]))
    expected = leave_out_weights(inputs[:, :1], inputs[:, 1:], groups, 0.5, 0.5) @ targets
    given = regression.weights(predictive_bandwidth.th.tensor(np.log([0.5, 0.5])))
    np.testing.assert_allclose((given[:, None, :] @ regression.neighbor_targets)[:, 0], expected)


def test_one_episode_is_left_out_in_parts():
    groups = predictive_bandwidth._groups(95, np.full(95, 7))
    assert np.array_equal(groups, np.sort(groups))
    assert np.bincount(groups).min() >= 9
    assert len(np.unique(groups)) == 10


def trajectories(n_episodes=8, length=60, seed=0):
    rng = np.random.default_rng(seed)
    states, actions = np.zeros((n_episodes, length + 1, 2)), rng.uniform(-1, 1, (n_episodes, length, 1))
    states[:, 0] = rng.normal(size=(n_episodes, 2))
    for step in range(length):
        position, velocity = states[:, step].T
        velocity = velocity + 0.1 * (actions[:, step, 0] - position)
        states[:, step + 1] = np.c_[position + 0.1 * velocity, velocity]
    flat = (states[:, :-1].reshape(-1, 2), actions.reshape(-1, 1), states[:, 1:].reshape(-1, 2))
    return *flat, np.repeat(np.arange(n_episodes), length)


@pytest.mark.parametrize("kind", ["scattered", "rail", "trajectories", "noise free"])
def test_bounds_hold(kind):
    if kind == "trajectories":
        states, actions, next_states, episode_ids = trajectories()
    else:
        states, actions, next_states, _ = rail() if kind == "rail" else scattered()
        episode_ids = None
        if kind == "noise free":
            # Everything is known from a copy of the sample: nothing but the bounds stops the kernels from shrinking.
            states, actions = np.repeat(states, 2, axis=0), np.repeat(actions, 2, axis=0)
            next_states = np.repeat(next_states, 2, axis=0)
    chosen = select_bandwidths(states, actions, next_states, **ALL, episode_ids=episode_ids)
    for bandwidth, samples in ((chosen.state, states), (chosen.action, actions)):
        share = bandwidth / samples.std(axis=0)
        assert np.all(share <= WIDEST * (1 + 1e-9))
        assert np.all(share >= NARROWEST * (1 - 1e-9))
    groups = np.arange(len(states)) if episode_ids is None else episode_ids
    weights = leave_out_weights(states, actions, groups, chosen.state, chosen.action)
    assert np.median(1 / (weights**2).sum(axis=1)) >= 0.99 * FEWEST_EFFECTIVE_SAMPLES


def test_units_do_not_matter():
    states, actions, next_states, rewards = scattered()
    terminals = states[:, 0] > 0.9
    plain = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards, terminals=terminals)
    units, shift = np.array([1e-6, 1e8]), np.array([1e-5, 3e8])
    other = select_bandwidths(
        states * units + shift, actions * 1e3, next_states * units + shift, **ALL, rewards=1e-9 * rewards, terminals=terminals
    )
    np.testing.assert_allclose(other.state, plain.state * units, rtol=1e-3)
    np.testing.assert_allclose(other.action, plain.action * 1e3, rtol=1e-3)


def test_the_same_seed_gives_the_same_bandwidths(monkeypatch):
    monkeypatch.setattr(predictive_bandwidth, "_N_QUERIES", 100)
    states, actions, next_states, _ = scattered()
    first, again, other = (select_bandwidths(states, actions, next_states, **ALL, seed=seed).state for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_short_neighbour_lists_find_nearly_the_same(monkeypatch):
    states, actions, next_states, rewards = scattered(n=1000)
    full = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards)
    monkeypatch.setattr(predictive_bandwidth, "_N_NEIGHBORS", 200)
    short = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards)
    np.testing.assert_allclose(short.state, full.state, rtol=0.15)
    np.testing.assert_allclose(short.action, full.action, rtol=0.15)


def test_constant_dimensions_are_as_in_all_rules():
    states, actions, next_states, rewards = scattered()
    plain = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards)
    constant = np.full((300, 1), 5.0)
    more = select_bandwidths(
        np.c_[states, constant], np.c_[0 * constant, actions], np.c_[next_states, constant], **ALL, rewards=rewards
    )
    np.testing.assert_allclose(more.state, [*plain.state, 5.0])
    np.testing.assert_allclose(more.action, [1.0, *plain.action])
    nothing = select_bandwidths(constant, constant, constant, **ALL)
    assert (nothing.state[0], nothing.action[0]) == (5.0, 5.0)


def test_outcomes_that_never_change_are_not_predicted():
    _, _, next_states, rewards = scattered()
    zeros = np.zeros(300, dtype=bool)
    assert bellman_targets(next_states, rewards, zeros).shape == (300, 3)
    targets = bellman_targets(np.c_[next_states, np.full(300, 0.1)].astype(np.float32), np.full(300, -1.0), zeros)
    assert targets.shape == (300, 2)
    np.testing.assert_allclose(targets.std(axis=0), 1.0)
    # Nothing to predict is nothing that matters: as wide as allowed.
    states, actions, _, _ = scattered()
    chosen = select_bandwidths(states, actions, np.ones((300, 2)), **ALL)
    np.testing.assert_allclose(chosen.state, WIDEST * states.std(axis=0))


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("episode_ids", [None, "one", "each"])
def test_few_samples_have_an_answer_too(n, episode_ids):
    states, actions, next_states, rewards = scattered(n)
    ids = {None: None, "one": np.zeros(n, dtype=int), "each": np.arange(n)}[episode_ids]
    chosen = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards, episode_ids=ids)
    for bandwidth in (chosen.state, chosen.action):
        assert np.all(np.isfinite(bandwidth) & (bandwidth > 0))


def pendulum_grid():
    return TransitionDataset(**nopg_envs.grid(gym.make("nopg/Pendulum-v0"), levels=(10, 10, 2)))


def test_levels_of_a_grid_know_of_each_other():
    data = pendulum_grid()
    chosen = select_bandwidths(
        data.observations, data.actions, data.next_observations, **ALL, rewards=data.rewards, terminals=data.terminals
    )
    assert chosen.action[0] >= NARROWEST_BETWEEN_LEVELS * 4.0 * (1 - 1e-6), "torques are −2 and 2"
    velocity_spacing = np.diff(np.unique(data.observations[:, 2])).max()
    assert 0.5 * velocity_spacing <= chosen.state[2] * (1 + 1e-6) < velocity_spacing


def test_one_kernel_goes_with_the_other_as_it_is():
    states, actions, next_states, rewards = scattered()
    both = select_bandwidths(states, actions, next_states, **ALL, rewards=rewards)

    def choose(**rules):
        return select_bandwidths(states, actions, next_states, **rules, rewards=rewards)

    fitting = choose(state="predictive", action=both.action)
    np.testing.assert_allclose(fitting.state, both.state, rtol=0.02)
    np.testing.assert_array_equal(fitting.action, both.action)
    with_factor = choose(state="predictive", action=both.action / 4, action_factor=4.0)
    np.testing.assert_allclose(with_factor.state, fitting.state)
    wide = choose(state="predictive", action=100.0)
    assert wide.action[0] == 100.0, "bounds are for what the rule chooses"
    assert not np.allclose(wide.state, fitting.state, rtol=0.02)
    action_only = choose(state=both.state, action="predictive")
    np.testing.assert_allclose(action_only.action, both.action, rtol=0.02)
    np.testing.assert_array_equal(action_only.state, both.state)
    beside_a_rule = choose(state="silverman", action="standard_deviation", next_state="predictive")
    np.testing.assert_array_equal(beside_a_rule.state, choose(state="silverman").state)
    np.testing.assert_array_equal(beside_a_rule.next_state, choose(state="predictive", action="standard_deviation").state)


def test_factors_multiply_what_is_found():
    states, actions, next_states, _ = scattered()
    plain = select_bandwidths(states, actions, next_states, **ALL)
    scaled = select_bandwidths(states, actions, next_states, **ALL, state_factor=2.0, action_factor=3.0, next_state_factor=0.5)
    np.testing.assert_allclose(scaled.state, 2.0 * plain.state)
    np.testing.assert_allclose(scaled.action, 3.0 * plain.action)
    np.testing.assert_allclose(scaled.next_state, 0.5 * plain.state)


def test_bad_input_is_named():
    states, actions, next_states, rewards = scattered()

    def choose(**changes):
        given = {"observations": states, "actions": actions, "next_observations": next_states, "rewards": rewards}
        return select_bandwidths(**{**given, **changes}, **ALL)

    with pytest.raises(InputError, match=r"^rewards: has shape \(299,\)"):
        choose(rewards=rewards[1:])
    with pytest.raises(InputError, match=r"^terminals: has shape \(300, 1\)"):
        choose(terminals=np.zeros((300, 1), dtype=bool))
    with pytest.raises(InputError, match=r"^episode_ids: has shape"):
        choose(episode_ids=np.arange(3))
    with pytest.raises(InputError, match=r"^rewards: holds NaN"):
        choose(rewards=np.full(300, np.nan))
    with pytest.raises(InputError, match=r"^next_observations: holds NaN"):
        choose(next_observations=next_states * np.inf)
    with pytest.raises(InputError, match=r"^state_bandwidth: the samples hold NaN"):
        choose(observations=states * np.nan)
    with pytest.raises(InputError, match=r"^state_bandwidth: a rule cannot choose from 1 samples"):
        select_bandwidths(states[:1], actions[:1], next_states[:1], **ALL)
    with pytest.raises(InputError, match="'predictive'"):
        select_bandwidths(states, actions, next_states, state="prediction")


def model_on(data, **kwargs):
    rules = {f"{kernel}_bandwidth": "predictive" for kernel in ALL}
    return NOPG("MlpPolicy", None, dataset=data, initial_states=[[0.5, 0.0]], seed=0, device="cpu", **rules, **kwargs)


def trajectory_data(seed=0, marked_by="episode_ids"):
    states, actions, next_states, episode_ids = trajectories(n_episodes=6, length=40, seed=seed)
    last = np.append(np.diff(episode_ids) > 0, True)
    terminals = last & (episode_ids % 2 == 0)
    marks = {"episode_ids": {"episode_ids": episode_ids}, "timeouts": {"timeouts": last & ~terminals}, "nothing": {}}[
        marked_by
    ]
    return TransitionDataset(states, actions, -(states[:, 0] ** 2), next_states, terminals, **marks)


@pytest.mark.parametrize("weights", ["local_constant", "local_linear"])
def test_a_model_learns_with_it_and_is_judged_on_other_data(weights):
    data, held_out = trajectory_data(0), trajectory_data(1)
    model = model_on(data, weights=weights)
    expected = select_bandwidths(
        data.observations,
        data.actions,
        data.next_observations,
        **ALL,
        rewards=data.rewards,
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    np.testing.assert_array_equal(model.bandwidths.state, expected.state)
    np.testing.assert_array_equal(model.bandwidths.action, expected.action)
    before = model.estimated_return()
    model.learn(10, log_interval=None)
    assert model.estimated_return() > before
    assert np.isfinite(model.estimated_return(held_out))


def test_time_limits_tell_the_episodes_too():
    chosen = {by: model_on(trajectory_data(marked_by=by)).bandwidths.state for by in ("episode_ids", "timeouts", "nothing")}
    np.testing.assert_array_equal(chosen["timeouts"], chosen["episode_ids"])
    assert not np.allclose(chosen["nothing"], chosen["episode_ids"], rtol=0.05)
