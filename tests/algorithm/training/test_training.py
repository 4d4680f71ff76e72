"""Settings that change what training sees, watched from outside."""

import itertools
import logging

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer

from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.paper import AS_IN_THE_PAPER


def scattered(n: int = 200, d_s: int = 2, seed: int = 0) -> TransitionDataset:
    """A point that is pushed about, at random: nothing like a grid."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, (n, d_s)), rng.uniform(-1, 1, (n, 1))
    return TransitionDataset(states, actions, -(states**2).sum(1), states + 0.1 * actions, np.zeros(n, dtype=bool))


def build(data: TransitionDataset, **arguments: object) -> NOPG:
    start = np.zeros(data.observation_dim)
    return make_nopg(
        "MlpPolicy",
        None,
        dataset=data,
        initial_states=start,
        seed=0,
        device="cpu",
        **{**AS_IN_THE_PAPER, **arguments},
    )  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"variant": "S"}, {"n_next_state_samples": 3}], ids=["actions", "next-states"])
def test_resampling_draws_anew_at_its_interval_and_only_then(arguments):
    model = build(scattered(), resample_interval=3, **arguments)
    seen = []

    def look(local_variables, _):
        noise, states = model.estimator.action_noise, model.estimator.problem.queries.states
        seen.append((None if noise is None else noise.clone(), states.clone()))
        return True

    model.learn(7, callback=look)
    which = 0 if "variant" in arguments else 1
    draws = [step[which] for step in seen]
    same = [bool((before == after).all()) for before, after in itertools.pairwise(draws)]
    assert same == [True, True, False, True, True, False]


def test_a_dimension_that_only_rounding_moves_gets_no_noise():
    data = scattered()
    constant = 1.0 + 2e-16 * np.random.default_rng(1).integers(0, 2, (200, 1))
    flat = TransitionDataset(
        np.hstack([data.observations, constant]),
        data.actions,
        data.rewards,
        np.hstack([data.next_observations, constant]),
        data.terminals,
    )
    states = build(flat, n_next_state_samples=5).estimator.problem.queries.states[: 5 * 200]
    assert float(states[:, 2].std()) < 1e-12
    assert float((states[:5, 0] - states[0, 0]).abs().max()) > 1e-4


@pytest.mark.slow
def test_truncation_tolerance_reaches_the_neighbour_lists():
    errors = [
        build(scattered(400), truncation_tolerance=tolerance, state_bandwidth=0.2).estimator.problem.queries.neighbors
        for tolerance in (0.05, 1e-5)
    ]
    assert 1e-5 < errors[0].truncation_error <= 0.05
    assert errors[1].truncation_error <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.999])
def test_single_precision_learns_with_default_settings(gamma):
    model = build(scattered(), precision="float32", gamma=gamma).learn(20)
    reference = build(scattered(), gamma=gamma).learn(20)
    assert model.estimated_return() == pytest.approx(reference.estimated_return(), rel=0.02)


@pytest.mark.slow
def test_narrow_bandwidths_are_told_once(caplog):
    model = build(scattered(d_s=5))
    with caplog.at_level(logging.WARNING):
        model.learn(2)
        model.learn(2)
    assert caplog.text.count("state_bandwidth_factor") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        build(scattered(), state_bandwidth=0.3, action_bandwidth=0.5).learn(2)
    assert not caplog.text


def test_weights_outside_the_lists_are_told(caplog):
    with caplog.at_level(logging.WARNING):
        build(scattered(400), state_bandwidth=0.3, action_bandwidth=0.01, n_neighbors=5).learn(1)
    assert "raise n_neighbors" in caplog.text


@pytest.mark.slow
def test_scattered_data_does_not_wake_the_fallbacks(caplog):
    model = build(scattered(1000), gamma=0.99, state_bandwidth_factor=2.0)
    iterations = []

    def look(local_variables, _):
        iterations.append(model.logger.name_to_value["solver/q_iterations"])
        return True

    with caplog.at_level(logging.WARNING, logger="sb3_nopg.bellman.solvers"):
        model.learn(30, callback=look, log_interval=None)
    assert "trying" not in caplog.text
    assert np.median(iterations) < 100


@pytest.mark.slow
def test_parameters_learned_without_normalisation_are_not_given_one():
    near = scattered()
    data = TransitionDataset(near.observations + 3.0, near.actions, near.rewards, near.next_observations + 3.0, near.terminals)
    plain = build(data, normalize_observations=False).learn(3)
    other = build(data)
    other.set_parameters(plain.get_parameters())
    states = data.observations[:20]
    np.testing.assert_array_equal(other.predict(states)[0], plain.predict(states)[0])


def test_a_small_spread_about_a_large_mean_survives_normalisation():
    data = scattered()
    far = TransitionDataset(data.observations + 1e7, data.actions, data.rewards, data.next_observations + 1e7, data.terminals)
    model = build(far)
    actions, _ = model.predict(np.array([[1e7, 1e7], [1e7 + 0.3, 1e7]]))
    assert abs(actions[0, 0] - actions[1, 0]) > 1e-4


def test_another_environment_brings_its_own_start_states():
    env = gym.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (50, 3))
    data = TransitionDataset(states, rng.uniform(-2, 2, (50, 1)), np.zeros(50), states, np.zeros(50, dtype=bool))
    model = make_nopg("MlpPolicy", env, dataset=data, seed=0, device="cpu", **AS_IN_THE_PAPER)
    before = model.estimator.problem.queries.states[50:]

    class Still(gym.ObservationWrapper):
        def observation(self, observation):
            return np.array([1.0, 0.0, 0.0], dtype=np.float32)

    model.set_env(Still(gym.make("Pendulum-v1")))
    after = model.estimator.problem.queries.states[50:]
    assert len(np.unique(before.numpy(), axis=0)) > 1
    np.testing.assert_array_equal(after.numpy(), np.tile([1.0, 0.0, 0.0], (len(after), 1)))


def test_a_buffer_that_has_wrapped_says_that_its_first_rows_may_be_no_starts():
    env = gym.make("Pendulum-v1")
    buffer = ReplayBuffer(10, env.observation_space, env.action_space, "cpu")
    for step in range(25):
        row = np.full((1, 3), step % 10, dtype=np.float32)
        buffer.add(row, row, np.zeros((1, 1)), np.zeros(1), np.array([step % 10 == 9]), [{}])
    with pytest.warns(UserWarning, match="initial_states"):
        TransitionDataset.from_replay_buffer(buffer)
