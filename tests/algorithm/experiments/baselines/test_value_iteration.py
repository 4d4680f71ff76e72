"""Kernel value iteration against a table worked out by hand."""

import numpy as np
import pytest
import torch as th

from helpers.bellman_problems import engine_problem, random_problem
from sb3_nopg.experiments.baselines import value_iteration
from sb3_nopg.experiments.baselines.value_iteration import iterate_candidate_values


def optimal_values(weights: np.ndarray, rewards: np.ndarray, continues: np.ndarray, gamma: float) -> np.ndarray:
    """Plain value iteration, a thousand times over: weights (n, c, n) -> q (n,)."""
    q_values = np.zeros(len(rewards))
    for _ in range(2000):
        q_values = rewards + gamma * continues * (weights @ q_values).max(axis=1)
    return q_values


@pytest.mark.parametrize("local_linear", [False, True])
@pytest.mark.parametrize("n_neighbors", [None, 12])
def test_values_are_those_of_plain_iteration(local_linear, n_neighbors):
    problem = engine_problem(random_problem(gamma=0.9), local_linear=local_linear, n_neighbors=n_neighbors)
    candidates = th.linspace(-1.5, 1.5, 5, dtype=th.float64)[:, None]
    choice = iterate_candidate_values(problem, candidates)
    n = len(problem.rewards)
    sparse = problem.support.weights(problem.queries, candidates.expand(len(problem.queries), -1, -1)).numpy()
    weights = np.zeros((len(problem.queries), 5, n))
    indices = problem.queries.neighbors.indices
    columns = np.broadcast_to(np.arange(n), sparse.shape[::2]) if indices is None else indices.numpy()
    for row, column in enumerate(columns):
        weights[row][:, column] = sparse[row]
    expected = optimal_values(weights[:n], problem.rewards.numpy(), problem.continues.numpy(), 0.9)
    np.testing.assert_allclose(choice.q_values, expected, rtol=1e-4)
    np.testing.assert_allclose(choice.action_values, weights @ expected, rtol=1e-4)
    assert choice.estimated_return == pytest.approx((weights[n:] @ expected).max(axis=1).mean(), rel=1e-4)


def test_blocks_change_nothing(monkeypatch):
    problem = engine_problem(random_problem())
    candidates = th.linspace(-1.0, 1.0, 3, dtype=th.float64)[:, None]
    whole = iterate_candidate_values(problem, candidates)
    monkeypatch.setattr(value_iteration, "_MOST_WEIGHTS", 500)
    blocks = iterate_candidate_values(problem, candidates)
    np.testing.assert_allclose(blocks.q_values, whole.q_values)
    np.testing.assert_allclose(blocks.action_values, whole.action_values)


def test_no_policy_is_predicted_to_do_better():
    """The optimum over the candidates bounds every policy that chooses among them."""
    problem = engine_problem(random_problem())
    candidates = th.tensor([[-1.0], [1.0]], dtype=th.float64)
    best = iterate_candidate_values(problem, candidates).estimated_return
    from sb3_nopg.bellman.on_samples import solve_values

    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = candidates[rng.integers(2, size=len(problem.queries))][:, None, :]
        value = solve_values(problem, problem.support.kernel_weights(problem.queries, actions))[0]
        assert value <= best + 1e-4 * abs(best)


def test_missing_support_has_the_worst_value():
    oracle = random_problem()
    candidates = th.tensor([[-1.0], [0.0], [1.0]], dtype=th.float64)
    trusting, doubting, hopeless = (
        iterate_candidate_values(engine_problem(oracle, pessimism=kappa), candidates) for kappa in (0.0, 0.1, 1e12)
    )
    assert hopeless.estimated_return < doubting.estimated_return < trusting.estimated_return
    worst = engine_problem(oracle, pessimism=0.1).worst_value
    assert hopeless.estimated_return == pytest.approx(worst, rel=1e-6)


def test_several_next_state_samples_are_averaged():
    oracle = random_problem(n_next_state_samples=3, gamma=0.9)
    problem = engine_problem(oracle)
    candidates = th.tensor([[-1.0], [0.0], [1.0]], dtype=th.float64)
    choice = iterate_candidate_values(problem, candidates)
    n = len(problem.rewards)
    values = choice.action_values.max(dim=1).values[: 3 * n].view(n, 3).mean(dim=1)
    np.testing.assert_allclose(choice.q_values, problem.rewards + 0.9 * problem.continues * values, rtol=1e-4)
