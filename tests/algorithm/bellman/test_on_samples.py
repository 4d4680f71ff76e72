"""The engine against the oracle: values, visitation and return."""

import dataclasses

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracles
from helpers.bellman_problems import VARIATIONS, TinyPolicy, action_noise, engine_problem, evaluate, random_problem
from sb3_nopg.bellman import on_samples
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.problem import prepare_problem
from sb3_nopg.common.errors import SolverError


@pytest.mark.slow
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_sparsified_rows_are_the_oracles_rows_with_small_entries_gone(stochastic):
    oracle = random_problem(n_terminals=0)
    policy = TinyPolicy(2, 1, stochastic)
    noise = action_noise(oracle, stochastic)
    full = oracles.evaluate_loops(oracle, policy, noise).transition
    for arguments in ({"keep_largest": 5}, {"kl_bound": 0.2}):
        problem = engine_problem(oracle, **arguments)
        with th.no_grad():
            evaluate(problem, policy.sample(problem.queries.states, noise))
        rows = problem.transition.to_dense().numpy()
        for row, reference in zip(rows, full, strict=True):
            n_kept = int((row > 0).sum())
            if "keep_largest" in arguments:
                assert n_kept == 5
            else:
                ordered = np.sort(reference)[::-1].cumsum()
                assert n_kept == int(np.argmax(ordered >= np.exp(-0.2))) + 1
            assert n_kept < 30
            np.testing.assert_array_equal(np.sort(np.argsort(reference)[-n_kept:]), np.flatnonzero(row))
            if not stochastic:
                np.testing.assert_allclose(row[row > 0], reference[row > 0] / reference[row > 0].sum(), rtol=1e-9)


def test_a_value_beyond_its_bound_is_an_error(monkeypatch):
    problem = engine_problem(random_problem())
    actions = th.zeros(len(problem.queries), 1, 1, dtype=th.float64)
    doubled = on_samples.solve

    def solve_wrongly(*arguments, **keywords):
        solution = doubled(*arguments, **keywords)
        return dataclasses.replace(solution, value=solution.value * 1e3)

    monkeypatch.setattr(on_samples, "solve", solve_wrongly)
    with pytest.raises(SolverError, match="R_max"):
        evaluate(problem, actions)


def test_weights_that_are_not_finite_are_an_error():
    problem = engine_problem(random_problem())
    with pytest.raises(SolverError, match="not finite"):
        evaluate(problem, th.full((len(problem.queries), 1, 1), th.nan, dtype=th.float64))


@pytest.mark.slow
@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_solution_equals_the_oracles(variation, stochastic):
    oracle = random_problem(**variation)
    policy = TinyPolicy(oracle.states.shape[1], oracle.actions.shape[1], stochastic)
    noise = action_noise(oracle, stochastic)
    reference = oracles.evaluate_loops(oracle, policy, noise)
    problem = engine_problem(oracle)
    with th.no_grad():
        solution = evaluate(problem, policy.sample(problem.queries.states, noise), tolerance=1e-13)
    np.testing.assert_allclose(problem.transition.to_dense(), reference.transition, atol=1e-12)
    np.testing.assert_allclose(solution.q_values, reference.q, rtol=1e-9)
    np.testing.assert_allclose(solution.visitation, reference.mu, rtol=1e-9, atol=1e-10)
    assert solution.estimated_return == pytest.approx(reference.estimated_return, rel=1e-10)


def test_policy_aware_truncation_error_bounds_the_rows():
    oracle = random_problem(n=200, seed=4)
    policy = TinyPolicy(2, 1, stochastic=False)
    exact, truncated = engine_problem(oracle), engine_problem(oracle, n_neighbors=25)
    with th.no_grad():
        actions = policy.sample(exact.queries.states, None)
        exact_weights = exact.support.weights(exact.queries, actions)[:, 0]
        rows = th.zeros_like(exact_weights)
        rows.scatter_(1, truncated.queries.neighbors.indices, truncated.support.weights(truncated.queries, actions)[:, 0])
        distance = 0.5 * (rows - exact_weights).abs().sum(dim=1).max()
        bound = truncated.support.truncation_error(truncated.queries, actions)
    assert distance <= bound
    assert bound < 1.0


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 25),
    gamma=st.floats(0.0, 0.995),
    scale=st.floats(0.01, 5.0),
    n_terminals=st.integers(0, 5),
    stochastic=st.booleans(),
)
def test_what_must_always_hold(seed, n, gamma, scale, n_terminals, stochastic):
    oracle = random_problem(seed=seed, n=n, gamma=gamma, n_terminals=min(n_terminals, n - 1))
    oracle = dataclasses.replace(oracle, state_bandwidth=oracle.state_bandwidth * scale)
    policy = TinyPolicy(2, 1, stochastic)
    noise = action_noise(oracle, stochastic)
    problem = engine_problem(oracle, n_neighbors="auto")
    with th.no_grad():
        solution = evaluate(problem, policy.sample(problem.queries.states, noise), tolerance=1e-11)
    transition = problem.transition.to_dense()
    np.testing.assert_allclose(transition.sum(dim=1), 1.0 - oracle.terminals.astype(float), atol=1e-12)
    assert (transition >= 0).all()
    bound = np.abs(oracle.rewards).max() / (1.0 - gamma)
    assert float(solution.q_values.abs().max()) <= bound * (1 + 1e-8)
    # Ĵ = ε₀ᵀq and, seen from the other side, μᵀr; μᵀ = ε₀ᵀ + γ μᵀ P̂.
    assert solution.estimated_return == pytest.approx(float(solution.visitation @ problem.rewards), rel=1e-7, abs=1e-9)
    inflow = solution.visitation - gamma * solution.visitation @ transition
    assert float(inflow.sum()) == pytest.approx(1.0, abs=1e-8)
    assert float(inflow.min()) >= -1e-8
    assert abs(solution.estimated_return) <= bound * (1 + 1e-8)


def test_chain_of_separated_states_has_its_tabular_value():
    """Points ten bandwidths apart know nothing of each other: the estimator must reduce to the table."""
    n, gamma = 6, 0.9
    states = 10.0 * np.arange(n)[:, None]
    oracle = oracles.OracleProblem(
        states=states,
        actions=np.zeros((n, 1)),
        rewards=np.arange(1.0, n + 1.0),
        next_states=np.concatenate([states[1:], states[-1:]]),
        terminals=np.eye(n, dtype=bool)[-1],
        initial_states=states[:1],
        state_bandwidth=np.ones(1),
        action_bandwidth=np.ones(1),
        next_state_bandwidth=np.ones(1),
        gamma=gamma,
    )
    problem = engine_problem(oracle, n_neighbors="auto")
    solution = evaluate(problem, th.zeros(n + 1, 1, 1, dtype=th.float64), tolerance=1e-12)
    expected = [sum(gamma ** (j - i) * (j + 1.0) for j in range(i, n)) for i in range(n)]
    np.testing.assert_allclose(solution.q_values, expected, rtol=1e-8)
    np.testing.assert_allclose(solution.visitation, gamma ** np.arange(n), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [-0.6, -0.3])
def test_value_of_a_linear_system_is_found(gain):
    """x' = x + u, r = −x² − 0.1u² under u = k x has V(x) = −p x² with p = (1 + 0.1k²) / (1 − γ(1 + k)²)."""
    gamma, bandwidth = 0.9, 0.02
    x, u = (axis.ravel() for axis in np.meshgrid(np.linspace(-1.4, 1.4, 71), np.linspace(-1.0, 1.0, 51), indexing="ij"))
    keep = np.abs(x + u) <= 1.4
    x, u = x[keep, None], u[keep, None]
    oracle = oracles.OracleProblem(
        states=x,
        actions=u,
        rewards=(-(x**2) - 0.1 * u**2)[:, 0],
        next_states=x + u,
        terminals=np.zeros(len(x), dtype=bool),
        initial_states=np.array([[1.0]]),
        state_bandwidth=np.array([bandwidth]),
        action_bandwidth=np.array([bandwidth]),
        next_state_bandwidth=np.array([bandwidth]),
        gamma=gamma,
    )
    problem = engine_problem(oracle, n_neighbors="auto")
    solution = evaluate(problem, gain * problem.queries.states[:, None, :], tolerance=1e-10)
    value_of_one = -(1 + 0.1 * gain**2) / (1 - gamma * (1 + gain) ** 2)
    # The kernels blur every step by their bandwidths, state and action, like noise that the system does not have.
    blur = value_of_one * 2 * bandwidth**2 * (1 + gamma / (1 - gamma))
    expected = value_of_one + blur
    assert solution.estimated_return == pytest.approx(expected, rel=0.01)


def test_a_far_query_still_has_weights():
    oracle = random_problem()
    far = dataclasses.replace(oracle, initial_states=np.array([[1e6, -1e6]]))
    for n_neighbors in (None, 8, "auto"):
        problem = engine_problem(far, n_neighbors=n_neighbors)
        solution = evaluate(problem, th.zeros(len(problem.queries), 1, 1, dtype=th.float64))
        np.testing.assert_allclose(solution.kernel_weights.rows.sum(dim=-1), 1.0, atol=1e-12)
        assert np.isfinite(solution.estimated_return)


def test_a_duplicated_point_shares_its_weight():
    oracle = random_problem(n_terminals=0)
    doubled = {
        name: np.concatenate([getattr(oracle, name)] * 2)
        for name in ("states", "actions", "rewards", "next_states", "terminals")
    }
    policy = TinyPolicy(2, 1, stochastic=False)
    for arguments in ({}, {"n_neighbors": "auto", "truncation_tolerance": 1e-10}):
        single = engine_problem(oracle, **arguments)
        double = engine_problem(dataclasses.replace(oracle, **doubled), **arguments)
        returns = []
        for problem in (single, double):
            with th.no_grad():
                returns.append(evaluate(problem, policy.sample(problem.queries.states, None), tolerance=1e-12))
        assert returns[0].estimated_return == pytest.approx(returns[1].estimated_return, rel=1e-8)
        np.testing.assert_allclose(returns[1].q_values, np.tile(returns[0].q_values, 2), rtol=1e-7)


def test_clusters_without_overlap_do_not_mix():
    near, far = random_problem(seed=1, n_terminals=0), random_problem(seed=2, n_terminals=0)
    both = dataclasses.replace(
        near,
        **{
            name: np.concatenate([getattr(near, name), getattr(far, name) + (1000.0 if "states" in name else 0.0)])
            for name in ("states", "actions", "rewards", "next_states", "terminals")
        },
    )
    policy = TinyPolicy(2, 1, stochastic=False)
    problem = engine_problem(both, n_neighbors="auto")
    with th.no_grad():
        solution = evaluate(problem, policy.sample(problem.queries.states, None), tolerance=1e-12)
    assert float(solution.visitation[len(near.states) :].abs().max()) < 1e-12
    reference = oracles.evaluate(near, policy)
    assert solution.estimated_return == pytest.approx(reference.estimated_return, rel=2e-3)


def test_warm_start_changes_the_work_and_not_the_answer():
    oracle = random_problem(n=400, gamma=0.99)
    problem = engine_problem(oracle, n_neighbors=20)
    policy = TinyPolicy(2, 1, stochastic=False)
    with th.no_grad():
        actions = policy.sample(problem.queries.states, None)
        cold = evaluate(problem, actions, tolerance=1e-10)
        warm_start = WarmStart()
        warm_start.remember(cold)
        warm = evaluate(problem, actions + 1e-4, warm_start, tolerance=1e-10)
        again = evaluate(problem, actions + 1e-4, tolerance=1e-10)
    assert warm.q_solve.n_iterations < cold.q_solve.n_iterations
    np.testing.assert_allclose(warm.q_values, again.q_values, rtol=1e-7)
    np.testing.assert_allclose(warm.visitation, again.visitation, rtol=1e-6, atol=1e-9)


def test_float32_agrees_with_float64_to_its_precision():
    oracle = random_problem(n=200)
    policy = TinyPolicy(2, 1, stochastic=False)
    problem = engine_problem(oracle)
    names = ("observations", "actions", "state_bandwidth", "action_bandwidth")
    support = dataclasses.replace(problem.support, **{name: getattr(problem.support, name).float() for name in names})
    with th.no_grad():
        actions = policy.sample(problem.queries.states, None)
        reference = evaluate(problem, actions, tolerance=1e-12)
        single = prepare_problem(
            support,
            problem.rewards.float(),
            th.as_tensor(oracle.next_states).float(),
            th.as_tensor(oracle.terminals),
            th.as_tensor(oracle.initial_states).float(),
            oracle.gamma,
            th.as_tensor(oracle.next_state_bandwidth).float(),
        )
        ours = evaluate(single, actions.float(), tolerance=1e-5)
    assert ours.q_values.dtype == th.float32
    assert ours.estimated_return == pytest.approx(reference.estimated_return, rel=1e-4)
