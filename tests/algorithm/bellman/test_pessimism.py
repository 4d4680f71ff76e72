"""Pessimism where support is thin: against the oracle's chain with one state more, and what it promises."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracles
from helpers.bellman_problems import TinyPolicy, engine_problem, evaluate, random_problem
from helpers.models import make_nopg
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.bellman.problem import BellmanProblem

QUERY_STATES = np.random.default_rng(7).normal(size=(9, 2))


def pessimistic(
    pessimism: float = 0.4, local_linear: bool = False, **variation
) -> tuple[oracles.OracleProblem, BellmanProblem]:
    oracle = dataclasses.replace(random_problem(**variation), pessimism=pessimism, local_linear=local_linear)
    return oracle, engine_problem(oracle, pessimism=pessimism, local_linear=local_linear)


def noise_for(problem: BellmanProblem, stochastic: bool, d_a: int) -> np.ndarray | None:
    return np.random.default_rng(5).normal(size=(len(problem.queries), 4, d_a)) if stochastic else None


def gradient_of(problem: BellmanProblem, policy: TinyPolicy, noise: np.ndarray | None) -> th.Tensor:
    actions = policy.sample(problem.queries.states, noise)
    solution = evaluate(problem, actions.detach(), tolerance=1e-13)
    by_action = derivative_on_samples(problem, solution)
    return th.cat([part.reshape(-1) for part in th.autograd.grad(actions, list(policy.parameters()), by_action)])


# --- Against the oracle --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variation", [{}, {"n_neighbors": 12}, {"n_next_state_samples": 3, "d_a": 2}], ids=str)
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
@pytest.mark.parametrize("local_linear", [False, True], ids=["constant", "linear"])
def test_solution_and_gradient_equal_those_of_a_dense_solve(variation, stochastic, local_linear):
    oracle, problem = pessimistic(local_linear=local_linear, **variation)
    d_a = oracle.actions.shape[1]
    policy = TinyPolicy(2, d_a, stochastic, seed=1)
    noise = noise_for(problem, stochastic, d_a)
    expected = oracles.evaluate(oracle, policy, noise)
    assert expected.transition.sum(axis=1).max() < 0.99, "the rows must lack something"
    with th.no_grad():
        solution = evaluate(problem, policy.sample(problem.queries.states, noise), tolerance=1e-13)
    np.testing.assert_allclose(problem.transition.to_dense(), expected.transition, atol=1e-12)
    np.testing.assert_allclose(solution.q_values, expected.q, rtol=1e-9)
    np.testing.assert_allclose(solution.visitation, expected.mu, rtol=1e-8, atol=1e-10)
    assert solution.estimated_return == pytest.approx(expected.estimated_return, rel=1e-10)
    gradient = oracles.autograd_gradient(oracle, policy, list(policy.parameters()), noise)
    assert float((gradient_of(problem, policy, noise) - gradient).norm()) <= 1e-8 * float(gradient.norm())


@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_the_two_forms_of_the_oracle_agree(stochastic):
    oracle, problem = pessimistic(n_neighbors=12, n_next_state_samples=2)
    policy = TinyPolicy(2, 1, stochastic)
    noise = noise_for(problem, stochastic, 1)
    loops, dense = oracles.evaluate_loops(oracle, policy, noise), oracles.evaluate(oracle, policy, noise)
    assert loops.estimated_return == pytest.approx(dense.estimated_return, rel=1e-12)
    np.testing.assert_allclose(loops.q, dense.q, rtol=1e-12)
    np.testing.assert_allclose(loops.mu, dense.mu, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("keep", [{"keep_largest": 5}, {"kl_bound": 0.05}], ids=["keep-largest", "kl-bound"])
def test_gradient_with_the_papers_sparsifications_is_that_of_their_own_return(keep):
    problem = engine_problem(random_problem(), pessimism=0.4, **keep)
    policy = TinyPolicy(2, 1, stochastic=True)
    noise = noise_for(problem, True, 1)
    gradient = gradient_of(problem, policy, noise)
    direction = th.as_tensor(np.random.default_rng(1).normal(size=len(gradient)))
    parameters, step, returns = list(policy.parameters()), 1e-6, []
    start = th.nn.utils.parameters_to_vector(parameters).detach()
    for sign in (1, -1):
        th.nn.utils.vector_to_parameters(start + sign * step * direction, parameters)
        with th.no_grad():
            returns.append(evaluate(problem, policy.sample(problem.queries.states, noise), tolerance=1e-13).estimated_return)
    assert (returns[0] - returns[1]) / (2 * step) == pytest.approx(float(gradient @ direction), rel=1e-5)


# --- What it promises ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(0.0, 0.99),
    shift=st.floats(-3.0, 3.0),
    n_terminals=st.integers(0, 20),
    local_linear=st.booleans(),
)
def test_more_pessimism_never_raises_the_return(seed, gamma, shift, n_terminals, local_linear):
    oracle = random_problem(seed=seed, gamma=gamma, n_terminals=n_terminals)
    oracle = dataclasses.replace(oracle, rewards=oracle.rewards + shift)
    policy = TinyPolicy(2, 1, stochastic=False)
    returns, values = [], []
    for pessimism in (0.0, 0.01, 0.3, 5.0, 1e3, 1e9):
        problem = engine_problem(oracle, pessimism=pessimism, local_linear=local_linear)
        with th.no_grad():
            solution = evaluate(problem, policy.sample(problem.queries.states, None), tolerance=1e-12)
        returns.append(solution.estimated_return)
        values.append(solution.q_values)
    scale = np.abs(oracle.rewards).max() / (1.0 - gamma)
    assert (np.diff(returns) <= 1e-9 * scale).all()
    assert all(bool((after <= before + 1e-9 * scale).all()) for before, after in pairwise(values))
    # The last one believes in nothing: from the start states on, all is lost.
    assert returns[-1] == pytest.approx(oracle.worst_value, rel=1e-6, abs=1e-6)
    assert float(values[-1].min()) >= oracle.worst_value - 1e-9 * scale


@pytest.mark.parametrize(("local_linear", "distance"), [(False, 60.0), (False, 1e200), (True, 60.0), (True, 1e4)])
def test_far_from_all_data_the_value_is_the_worst(local_linear, distance):
    oracle = random_problem(n_terminals=0)
    next_states = oracle.next_states.copy()
    next_states[:2] = distance
    problem = engine_problem(
        dataclasses.replace(oracle, next_states=next_states), pessimism=0.01, local_linear=local_linear, n_neighbors=9
    )
    actions = th.zeros(len(problem.queries), 1, 1, dtype=th.float64)
    solution = evaluate(problem, actions, tolerance=1e-12)
    assert problem.worst_value < -10.0
    np.testing.assert_allclose(solution.q_values[:2], oracle.rewards[:2] + oracle.gamma * problem.worst_value, rtol=1e-12)
    derivative = derivative_on_samples(problem, solution)
    assert bool(derivative.isfinite().all())
    assert not bool(derivative[:2].any())


@pytest.mark.slow
def test_the_farther_from_all_data_the_worse_and_without_a_jump():
    returns = []
    for x in np.linspace(0.0, 30.0, 121):
        oracle = dataclasses.replace(random_problem(n_terminals=0), initial_states=np.array([[x, x]]))
        problem = engine_problem(oracle, pessimism=0.4)
        actions = th.zeros(len(problem.queries), 1, 1, dtype=th.float64)
        returns.append(evaluate(problem, actions, tolerance=1e-12).estimated_return)
    far = np.array(returns[12:])
    assert np.abs(far / problem.worst_value - 1.0).max() < 0.01
    assert np.abs(np.diff(returns)).max() < 0.25 * abs(problem.worst_value)


def test_a_start_too_far_away_for_numbers_is_lost_and_no_error():
    oracle = dataclasses.replace(random_problem(n_terminals=0), initial_states=np.full((1, 2), 1e200))
    problem = engine_problem(oracle, pessimism=0.01)
    solution = evaluate(problem, th.zeros(len(problem.queries), 1, 1, dtype=th.float64), tolerance=1e-12)
    assert solution.estimated_return == pytest.approx(problem.worst_value)


def test_much_data_leaves_little_to_pessimism():
    states = np.random.default_rng(0).uniform(-1.0, 1.0, size=(400, 1))
    oracle = dataclasses.replace(
        random_problem(d_s=1),
        states=states,
        next_states=0.9 * states,
        actions=np.zeros((400, 1)),
        rewards=-1.0 - states[:, 0] ** 2,
        terminals=np.zeros(400, dtype=bool),
        initial_states=np.zeros((1, 1)),
        gamma=0.5,
    )
    returns = []
    for pessimism in (0.0, 1.0):
        problem = engine_problem(oracle, pessimism=pessimism)
        returns.append(evaluate(problem, th.zeros(len(problem.queries), 1, 1, dtype=th.float64)).estimated_return)
    assert returns[1] < returns[0]
    assert returns[1] == pytest.approx(returns[0], rel=0.02)


@pytest.mark.parametrize(
    ("rewards", "terminals", "worst"),
    [
        ([1.0, 1.0, 1.0], [0, 0, 0], 0.0),
        ([1.0, 1.0, 0.5], [0, 0, 1], 0.0),
        ([-1.0, -2.0, 0.0], [0, 0, 1], -20.0),
        ([1.0, 1.0, -100.0], [0, 0, 1], -100.0),
        ([-1.0, 1.0, -7.0], [0, 0, 1], -10.0),
    ],
)
def test_the_worst_value_is_the_worst_that_the_data_shows(rewards, terminals, worst):
    oracle = dataclasses.replace(
        random_problem(n=3, n_terminals=0), rewards=np.array(rewards), terminals=np.array(terminals, dtype=bool), gamma=0.9
    )
    assert oracle.worst_value == pytest.approx(worst)
    assert engine_problem(oracle, pessimism=0.1).worst_value == pytest.approx(worst)
    assert engine_problem(oracle).worst_value == 0.0


def test_single_precision_agrees():
    oracle = random_problem(n=200)
    model = {
        precision: make_nopg(
            "MlpPolicy",
            None,
            **{"precision": precision, "pessimism": 0.5, "weights": "local_linear", **_arguments(oracle)},
        )
        for precision in ("float64", "float32")
    }
    assert model["float32"].estimated_return() == pytest.approx(model["float64"].estimated_return(), rel=1e-4)
    np.testing.assert_allclose(model["float32"].policy_gradient(), model["float64"].policy_gradient(), rtol=1e-2, atol=1e-2)


# --- The model -----------------------------------------------------------------------------------------------------------


def _arguments(problem: oracles.OracleProblem) -> dict:
    data = TransitionDataset(problem.states, problem.actions, problem.rewards, problem.next_states, problem.terminals)
    return {
        "dataset": data,
        "initial_states": problem.initial_states,
        "gamma": problem.gamma,
        "state_bandwidth": problem.state_bandwidth,
        "action_bandwidth": problem.action_bandwidth,
        "next_state_bandwidth": problem.next_state_bandwidth,
        "n_neighbors": None,
        "n_action_samples": 6,
        "seed": 0,
        "transitions": "samples",
    }


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["D", "S"])
def test_all_answers_of_the_model_equal_the_oracle_s(variant):
    oracle = dataclasses.replace(random_problem(), pessimism=0.4)
    model = make_nopg(
        "MlpPolicy", None, variant=variant, **{"pessimism": 0.4, "weights": "local_constant", **_arguments(oracle)}
    )
    model.policy.double()
    noise = None if variant == "D" else model.estimator.noise_for(1).numpy()

    def policy(states: th.Tensor):
        mean, std = model.policy.action_distribution(states)
        return mean if std is None else (mean, std)

    training_noise = None if model.estimator.action_noise is None else model.estimator.action_noise.numpy()
    expected = oracles.evaluate(oracle, policy, training_noise)
    assert model.estimated_return() == pytest.approx(expected.estimated_return, rel=1e-8)
    np.testing.assert_allclose(model.q_values, expected.q, rtol=1e-7)
    np.testing.assert_allclose(model.visitation, expected.mu, rtol=1e-6, atol=1e-9)
    query_noise = None if noise is None else np.broadcast_to(noise, (len(QUERY_STATES), *noise.shape[1:]))
    values = oracles.value(oracle, expected, policy, QUERY_STATES, query_noise)
    np.testing.assert_allclose(model.value(QUERY_STATES), values, rtol=1e-7)
    distribution = oracles.state_distribution(oracle, expected, policy, QUERY_STATES, query_noise)
    np.testing.assert_allclose(model.state_distribution(QUERY_STATES), distribution, rtol=1e-6, atol=1e-9)
    gradient = oracles.autograd_gradient(oracle, policy, list(model.policy.parameters()), training_noise)
    np.testing.assert_allclose(model.policy_gradient(), gradient, rtol=1e-6, atol=1e-6 * float(gradient.norm()))
    on_the_data = {"D": 1e-8, "S": 0.2}[variant]  # a stochastic policy's draws are others there
    assert model.estimated_return(model.dataset) == pytest.approx(expected.estimated_return, rel=on_the_data)


def test_pessimism_survives_saving_and_loading(tmp_path):
    arguments = _arguments(random_problem())
    model = make_nopg("MlpPolicy", None, **{"pessimism": 0.7, **arguments})
    model.save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    loaded.set_dataset(arguments["dataset"])
    assert loaded.estimator_kwargs["pessimism"] == 0.7
    assert loaded.estimated_return() == pytest.approx(model.estimated_return(), rel=1e-8)
    assert loaded.estimated_return() < make_nopg("MlpPolicy", None, **{"pessimism": 0.0, **arguments}).estimated_return() - 1.0


def test_the_imaginary_sample_is_not_counted():
    arguments = _arguments(random_problem())
    counts = []
    for pessimism in (0.0, 100.0):
        model = make_nopg("MlpPolicy", None, **{"pessimism": pessimism, **arguments})
        problem = model.estimator.problem
        actions = th.zeros(len(problem.queries), 1, 1, dtype=th.float64)
        counts.append(float(problem.support.effective_counts(problem.queries, actions).median()))
    assert counts[0] == counts[1] > 1.0


@pytest.mark.parametrize("pessimism", [-0.1, np.inf, np.nan, "auto", True, None])
def test_bad_pessimism_is_refused(pessimism):
    with pytest.raises(InputError, match="pessimism"):
        make_nopg("MlpPolicy", None, **{"pessimism": pessimism, **_arguments(random_problem())})


@pytest.mark.parametrize("variant", ["D", "S"])
@pytest.mark.parametrize("weights", ["local_constant", "local_linear"])
def test_training_follows_the_pessimistic_gradient(variant, weights):
    model = make_nopg(
        "MlpPolicy",
        None,
        variant=variant,
        learning_rate=1e-3,
        policy_kwargs={"optimizer_class": th.optim.SGD},
        **{"weights": weights, "pessimism": 0.4, "solver_tolerance": 1e-10, **_arguments(random_problem())},
    )
    model.policy.double()
    gradient = model.policy_gradient()
    before = th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()
    model.learn(1)
    step = th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy() - before
    np.testing.assert_allclose(step, 1e-3 * gradient, atol=1e-6 * np.linalg.norm(1e-3 * gradient))
