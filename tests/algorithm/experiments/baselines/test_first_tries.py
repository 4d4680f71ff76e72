"""What an engineer tries first: each against what it must find on a system whose answer is known."""

import gymnasium as gym
import numpy as np
import pytest
import scipy.linalg

import nopg_envs
from sb3_nopg import TransitionDataset
from sb3_nopg.experiments import (
    cartpole_random,
    cartpole_swing_up,
    first_tries,
    mountain_car,
    pendulum_grid,
    pendulum_random,
    pendulum_trials,
    swing_up_trials,
)
from sb3_nopg.experiments.baselines.cloning import Nothing, clone_behavior
from sb3_nopg.experiments.baselines.greedy_on_nodes import GreedyOnNodes
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost, least_squares_riccati
from sb3_nopg.experiments.methods import run_method
from sb3_nopg.experiments.task import Task

A, B = np.array([[1.0, 0.1], [0.2, 1.0]]), np.array([[0.0], [0.1]])
COST = QuadraticCost(columns=(0, 1), state_weights=(1.0, 0.1), action_weight=0.01)
ACTIONS = gym.spaces.Box(-10.0, 10.0, (1,))


def unstable(n=400, seed=0):
    """An unstable linear system under random pushes, in episodes of ten steps."""
    rng = np.random.default_rng(seed)
    states, next_states, pushes = np.zeros((n, 2)), np.zeros((n, 2)), rng.uniform(-2.0, 2.0, (n, 1))
    for row in range(n):
        states[row] = rng.normal(size=2) if row % 10 == 0 else next_states[row - 1]
        next_states[row] = A @ states[row] + B @ pushes[row]
    return {
        "observations": states,
        "actions": pushes,
        "next_observations": next_states,
        "rewards": -(states[:, 0] ** 2 + 0.1 * states[:, 1] ** 2 + 0.01 * pushes[:, 0] ** 2),
        "terminals": np.zeros(n, dtype=bool),
        "timeouts": np.arange(n) % 10 == 9,
        "episode_ids": np.arange(n) // 10,
    }


def dataset(**changes):
    return TransitionDataset(**{**unstable(), **changes}, action_space=ACTIONS)


def task(**changes):
    def evaluate(model):
        state, memory, total = np.array([1.0, 0.0]), None, 0.0
        for _ in range(50):
            action, memory = model.predict(state, state=memory, deterministic=True)
            total -= float(state[0] ** 2)
            state = A @ state + B @ np.asarray(action, dtype=np.float64)
        return total

    settings = {"make_env": None, "gamma": 0.95, "initial_states": [[1.0, 0.0]], "cost": COST, **changes}
    return Task(evaluate=evaluate, **settings)


def the_gain():
    value = scipy.linalg.solve_discrete_are(A, B, np.diag(COST.state_weights), COST.action_weight * np.eye(1))
    return np.linalg.solve(COST.action_weight * np.eye(1) + B.T @ value @ B, B.T @ value @ A)


@pytest.mark.parametrize("in_episodes", [True, False])
def test_least_squares_and_riccati_find_the_best_gain(in_episodes):
    data = unstable()
    if not in_episodes:
        del data["episode_ids"]
    controller = least_squares_riccati(data, COST, ACTIONS.low, ACTIONS.high)
    np.testing.assert_allclose(controller.gain[:, :2], the_gain(), rtol=1e-4)
    # A system without delay does not mind the action before.
    np.testing.assert_allclose(controller.gain[:, 2:], 0.0, atol=1e-6)
    assert controller.gain.shape == (1, 3 if in_episodes else 2)
    states = np.random.default_rng(1).normal(size=(5, 2))
    several, memory = controller.predict(states)
    one, _ = controller.predict(states[0])
    np.testing.assert_allclose(one, several[0])
    np.testing.assert_array_equal(memory, several)
    assert abs(controller.predict(np.array([1e6, 0.0]))[0]) <= 10.0


def test_only_samples_near_to_where_it_is_wanted_are_fitted():
    data = unstable()
    rng = np.random.default_rng(2)
    near = rng.random(len(data["actions"])) < 0.5
    cosine = np.where(near, 1.0, -1.0)[:, None]
    # Far away another system rules.
    data["next_observations"] = np.where(near[:, None], data["next_observations"], -3.0 * data["observations"])
    for name in ("observations", "next_observations"):
        data[name] = np.hstack([data[name], cosine])
    del data["episode_ids"]
    there = QuadraticCost(COST.columns, COST.state_weights, COST.action_weight, cosine=2)
    np.testing.assert_allclose(least_squares_riccati(data, there, *both_ends()).gain, the_gain(), rtol=1e-4)
    assert np.abs(least_squares_riccati(data, COST, *both_ends()).gain - the_gain()).max() > 0.5


def both_ends():
    return ACTIONS.low, ACTIONS.high


def demonstrated():
    """What a hand does, with some noise: its mean is what can be learned."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(600, 2))
    actions = 2.0 * np.tanh(states[:, :1]) + 0.2 * rng.normal(size=(600, 1))
    still = np.zeros(600)
    space = gym.spaces.Box(-3.0, 3.0, (1,))
    return TransitionDataset(states, actions, still, states, still.astype(bool), action_space=space)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_sizes")
def test_cloning_does_what_was_done():
    states = demonstrated().observations
    found, _ = clone_behavior(demonstrated(), seed=0).predict(states)
    assert np.sqrt(np.mean((found - 2.0 * np.tanh(states[:, :1])) ** 2)) < 0.15


@pytest.mark.slow
def test_cloning_with_the_same_seed_is_the_same():
    first, again, other = (
        clone_behavior(demonstrated(), seed=seed).predict(demonstrated().observations)[0] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nothing_does_nothing():
    states = demonstrated().observations
    nothing = Nothing(gym.spaces.Box(np.array([-1.0, 0.5]), np.array([1.0, 2.0]), dtype=np.float64))
    np.testing.assert_array_equal(nothing.predict(states[0])[0], [0.0, 0.5])
    assert nothing.predict(states)[0].shape == (600, 2)


@pytest.mark.slow
def test_one_step_ahead_on_nodes_stops_an_unstable_system():
    model = GreedyOnNodes(dataset(), [[1.0, 0.0]], gamma=0.95, n_nodes=300)
    values = model.action_values(np.array([[0.5, 0.0], [-0.5, 0.0]]))
    assert values.shape == (2, 9)
    # Against the side that it is on, and the two sides are alike.
    left, right = model.predict(np.array([[0.5, 0.0], [-0.5, 0.0]]))[0][:, 0]
    assert left < 0.0 < right
    assert task().evaluate(model) > 3.0 * task().evaluate(Nothing(ACTIONS))
    assert task().evaluate(model) > -20.0
    assert model.predict(np.zeros(2, dtype=np.float32))[0].shape == (1,)


@pytest.mark.slow
def test_one_step_ahead_is_reward_plus_what_the_nodes_promise():
    """Where it stands on a node and lands on others, the best candidate's value is the node's own."""
    model = GreedyOnNodes(dataset(), [[1.0, 0.0]], gamma=0.95, n_nodes=300)
    inside = np.abs(model._model.nodes.states.numpy()).max(axis=1) < 1.0
    observations = model._model.coordinates.decode(model._model.nodes.states).numpy()[inside]
    found, known = model.action_values(observations).max(axis=1), model._values.numpy()[inside]
    assert np.abs(found - known).max() < 0.02 * np.abs(known).max()


@pytest.mark.slow
@pytest.mark.parametrize("method", [first_tries.NOTHING, *first_tries.LEARNING])
def test_each_is_run_by_its_name_and_tells_its_time(method):
    looked = []
    result = run_method(
        task(also=lambda model: {"looked": len(looked) or float(looked.append(model) is None)}),
        {"method": method, "seed": 0},
        dataset(),
        None,
    )
    assert result["return"] <= 0.0
    assert result["looked"] == 1.0
    assert len(looked) == 1
    assert 0.0 <= result["learning_seconds"] < 300.0
    assert "refused" not in result
    if method == first_tries.RICCATI:
        assert result["return"] > -20.0


def test_a_method_that_gives_no_policy_counts_as_doing_nothing():
    few = dataset().filter(np.arange(400) < 4)
    nothing = run_method(task(), {"method": first_tries.NOTHING, "seed": 0}, few, None)
    for method in (first_tries.GREEDY, "NOPG-D, defaults"):
        result = run_method(task(), {"method": method, "seed": 0, "updates": 2}, few, None)
        assert result["return"] == nothing["return"]
        assert "too few" in result["refused"]
    standing = dataset(actions=np.zeros((400, 1)), next_observations=unstable()["observations"])
    result = run_method(task(), {"method": first_tries.RICCATI, "seed": 0}, standing, None)
    assert result["return"] == nothing["return"]
    assert "no linear controller" in result["refused"]
    told = first_tries.refusal_notes(
        [({"method": "a"}, {"refused": "too few"})] * 2 + [({"method": "b"}, {}), ({"method": "c"}, result)]
    )
    assert told == [
        "Refused, as too few data for it, and so counted as doing nothing: a in 2 trials.",
        "Refused, as its linear model has no best controller, and so counted as doing nothing: c in 1 trials.",
    ]


@pytest.mark.parametrize(("n_near", "is_refused"), [(0, True), (3, True), (4, False), (100, False)])
def test_a_linear_model_of_fewer_samples_than_unknowns_is_refused(n_near, is_refused):
    """Two states, the action before and the action: four unknowns. Of no samples least squares makes a gain of zero."""
    rows = unstable()
    cosine = np.where(np.arange(400) < n_near, 1.0, -1.0)[:, None]
    changes = {name: np.hstack([rows[name], cosine]) for name in ("observations", "next_observations")}
    there = QuadraticCost(COST.columns, COST.state_weights, COST.action_weight, cosine=2)

    def evaluate(model):
        return -float(np.abs(model.predict(np.array([1.0, 0.0, 1.0]))[0]).sum())

    near = Task(make_env=None, evaluate=evaluate, gamma=0.95, initial_states=[[1.0, 0.0, 1.0]], cost=there)
    result = run_method(near, {"method": first_tries.RICCATI, "seed": 0}, dataset(**changes), None)
    assert ("refused" in result) == is_refused
    if is_refused:
        assert f"{n_near} samples near to where the system is wanted are too few" in result["refused"]
        assert "too few data" in first_tries.refusal_notes([({"method": "a"}, result)])[0]


def test_each_experiment_says_what_its_linear_model_is_of():
    grid = nopg_envs.grid(gym.make(pendulum_trials.ENV_ID), [3, 3, 2])
    assert grid.get("episode_ids") is None
    assert pendulum_trials.random_data(20, seed=0)[0].episode_ids is not None
    assert swing_up_trials.held_voltage_data(20, 8.0, seed=0).get("episode_ids") is not None
    told = {
        module.COMPARISON.name: [note for note in module.COMPARISON.notes if note.startswith(f'"{first_tries.RICCATI}" fits')]
        for module in (pendulum_grid, pendulum_random, cartpole_random, cartpole_swing_up, mountain_car)
    }
    near, everywhere = "samples within 26° of upright", "all samples"
    before, without = "its state has the action before.", "it does not know the action before."
    assert told == {
        "pendulum-grid": [f'"{first_tries.RICCATI}" fits {near}; {without}'],
        "pendulum-random": [f'"{first_tries.RICCATI}" fits {near}; {before}'],
        "cartpole-random": [f'"{first_tries.RICCATI}" fits {everywhere}; {before}'],
        "cartpole-swing-up": [f'"{first_tries.RICCATI}" fits {near}; {before}'],
        "mountain-car": [],
    }
    assert not any("near upright" in note for note in first_tries.NOTES)
