"""Every solver on every system, and what happens when one fails."""

import logging

import numpy as np
import pytest
import torch as th

from sb3_nopg.bellman import solvers
from sb3_nopg.bellman.solvers import Solution, SolutionHistory, bicgstab, dense_lu, gmres, solve
from sb3_nopg.bellman.solvers import coarse as coarse_module
from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.bellman.transition import TransitionMatrix
from sb3_nopg.common.errors import SolverError
from sb3_nopg.kernels.partition import halve_repeatedly


def stochastic_matrix(n: int, seed: int = 0, k: int = 5, drift: int = 0) -> th.Tensor:
    """A random walk that jumps to a few random states, or drifts to the next ones."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((n, n))
    for row in range(n):
        columns = (row + drift + np.arange(k)) % n if drift else rng.integers(0, n, k)
        np.add.at(matrix[row], columns, rng.random(k))
        matrix[row] /= matrix[row].sum()
    return th.as_tensor(matrix)


SYSTEMS = {
    "random jumps": (stochastic_matrix(60), 0.95),
    "drift": (stochastic_matrix(60, drift=2), 0.95),
    "one cycle": (stochastic_matrix(60, k=1, drift=1), 0.99),
    "nearly undiscounted": (stochastic_matrix(60), 0.9999),
    "no discount factor": (stochastic_matrix(60), 0.0),
    "absorbing": (th.eye(60, dtype=th.float64), 0.9),
    "all terminal but one": (th.diag(th.eye(60, dtype=th.float64)[0]), 0.9),
}
SOLVERS = {
    "bicgstab": lambda matrix, rhs: bicgstab(matrix.mv, rhs, None, None, 1e-10, 1000),
    "gmres": lambda matrix, rhs: gmres(matrix.mv, rhs, None, 1e-10, 3000),
    "dense": lambda matrix, rhs: dense_lu(matrix.mv, rhs, matrix, 1e-10),
    "solve": lambda matrix, rhs: solve(matrix.mv, rhs, lambda: matrix, tolerance=1e-10),
}


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_every_solver_on_every_system(solver, system, transposed):
    transition, gamma = SYSTEMS[system]
    matrix = th.eye(60, dtype=th.float64) - gamma * transition
    matrix = matrix.T.contiguous() if transposed else matrix
    rhs = th.as_tensor(np.random.default_rng(1).normal(size=60))
    solution = SOLVERS[solver](matrix, rhs)
    residual = float((rhs - matrix @ solution.value).norm() / rhs.norm())
    assert residual <= 1e-10
    assert solution.residual == pytest.approx(residual, rel=1e-3, abs=1e-15)


def test_zero_right_hand_side_has_the_zero_solution():
    matrix = th.eye(5, dtype=th.float64)
    solution = solve(matrix.mv, th.zeros(5, dtype=th.float64), lambda: matrix, initial_guess=th.ones(5, dtype=th.float64))
    assert not solution.value.any()


def test_a_guess_that_is_not_finite_is_not_used():
    matrix = th.eye(5, dtype=th.float64) * 2
    guess = th.full((5,), th.nan, dtype=th.float64)
    np.testing.assert_allclose(solve(matrix.mv, th.ones(5, dtype=th.float64), lambda: matrix, initial_guess=guess).value, 0.5)


def test_fallbacks_are_tried_in_order_and_announced(monkeypatch, caplog):
    transition, gamma = SYSTEMS["random jumps"]
    matrix, rhs = th.eye(60, dtype=th.float64) - gamma * transition, th.ones(60, dtype=th.float64)

    def fail(name: str):
        return lambda operator, rhs, *_: Solution(th.full_like(rhs, th.nan), float("inf"), 7, name)

    monkeypatch.setattr(solvers, "bicgstab", fail("BiCGSTAB"))
    with caplog.at_level(logging.DEBUG):
        assert solve(matrix.mv, rhs, lambda: matrix).method == "GMRES"
    assert "trying GMRES" in caplog.text

    monkeypatch.setattr(solvers, "gmres", fail("GMRES"))
    with caplog.at_level(logging.DEBUG):
        assert solve(matrix.mv, rhs, lambda: matrix).method == "dense LU"
    assert "trying dense LU" in caplog.text
    # All of them give what was asked for, or an error.
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}

    monkeypatch.setattr(solvers, "_DENSE_LIMIT", 10)
    with pytest.raises(SolverError, match=r"residual.*Try"):
        solve(matrix.mv, rhs, lambda: matrix)


def test_an_impossible_tolerance_is_an_error_and_not_a_wrong_answer():
    transition, gamma = SYSTEMS["nearly undiscounted"]
    matrix = th.eye(60, dtype=th.float64) - gamma * transition
    with pytest.raises(SolverError, match="solver_tolerance"):
        solve(matrix.mv, th.rand(60, dtype=th.float64), lambda: matrix, tolerance=1e-30)


def test_history_guesses_a_steadily_moving_solution():
    generator = th.Generator().manual_seed(0)
    transition, gamma = SYSTEMS["random jumps"]
    matrix = th.eye(60, dtype=th.float64) - gamma * transition
    start, velocity, curve = (th.randn(60, generator=generator, dtype=th.float64) for _ in range(3))
    history = SolutionHistory()
    assert history.guess(matrix.mv, start) is None
    solutions = [start + t * velocity + t**2 * curve for t in (0.0, 0.01, 0.02, 0.03, 0.04)]
    for solution in solutions[:-1]:
        history.add(solution)
    guess = history.guess(matrix.mv, matrix @ solutions[-1])
    assert float((guess - solutions[-1]).norm()) < 1e-3 * float((solutions[-2] - solutions[-1]).norm())


def test_history_of_a_solution_that_stands_still():
    matrix, value = th.eye(4, dtype=th.float64), th.ones(4, dtype=th.float64)
    history = SolutionHistory()
    for _ in range(6):
        history.add(value)
    np.testing.assert_allclose(history.guess(matrix.mv, value), value)


def sparse_transition(n: int = 400, k: int = 6, seed: int = 0) -> tuple[TransitionMatrix, th.Tensor, th.Tensor]:
    rng = np.random.default_rng(seed)
    # Local moves with some drift: value has a long way to travel, which is what the coarse model is for.
    columns = th.as_tensor(np.clip(np.arange(n)[:, None] + rng.integers(-3, 5, (n, k)), 0, n - 1))
    values = th.as_tensor(rng.dirichlet(np.ones(k), n))
    matrix = TransitionMatrix(columns, n, th.float64, th.device("cpu"))
    matrix.fill(values)
    return matrix, columns, values


def test_sparse_products_equal_dense_ones_also_with_repeated_columns():
    matrix, columns, values = sparse_transition(n=50)
    dense = th.zeros(50, 50, dtype=th.float64)
    for row in range(50):
        for column, value in zip(columns[row], values[row], strict=True):
            dense[row, column] += value
    x = th.as_tensor(np.random.default_rng(2).normal(size=50))
    for transition in (matrix, TransitionMatrix(None, 50, th.float64, th.device("cpu"))):
        transition.fill(values if transition is matrix else dense)
        np.testing.assert_allclose(transition.to_dense(), dense, atol=1e-15)
        np.testing.assert_allclose(transition.bellman_operator(x, 0.9), x - 0.9 * dense @ x, atol=1e-13)
        np.testing.assert_allclose(transition.bellman_operator_transposed(x, 0.9), x - 0.9 * dense.T @ x, atol=1e-13)
        np.testing.assert_allclose(transition.dense_bellman_operator(0.9), th.eye(50) - 0.9 * dense, atol=1e-15)
        cell = th.arange(50) % 4
        expected = [[float(dense[cell == i][:, cell == j].sum()) for j in range(4)] for i in range(4)]
        np.testing.assert_allclose(transition.aggregate(cell, 4), expected, atol=1e-12)


def test_refilling_replaces_the_old_values():
    matrix, _, values = sparse_transition(n=50)
    x = th.ones(50, dtype=th.float64)
    matrix.fill(values * 0.5)
    np.testing.assert_allclose(matrix.bellman_operator(x, 1.0), 0.5, atol=1e-14)
    assert float(matrix.bellman_operator_transposed(x, 1.0).sum()) == pytest.approx(25.0)


@pytest.fixture(params=["dense inverse", "sparse factors"])
def coarse_method(request, monkeypatch):
    """Both ways to invert the coarse model on the same small problems."""
    if request.param == "sparse factors":
        monkeypatch.setitem(coarse_module._MAX_DENSE_CELLS, "cpu", 0)


@pytest.mark.usefixtures("coarse_method")
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_coarse_model_saves_iterations_and_leaves_the_answer_alone(transposed):
    transition, _, _ = sparse_transition()
    gamma, rhs = 0.99, th.as_tensor(np.random.default_rng(3).normal(size=400))
    coarse = CoarseModel(th.arange(400, dtype=th.float64)[:, None])
    coarse.build(transition, gamma, rhs)
    product = transition.bellman_operator_transposed if transposed else transition.bellman_operator
    precondition = coarse.precondition_transposed if transposed else coarse.precondition
    plain = bicgstab(lambda x: product(x, gamma), rhs, None, None, 1e-10, 1000)
    helped = bicgstab(lambda x: product(x, gamma), rhs, precondition, None, 1e-10, 1000)
    assert helped.residual <= 1e-10
    np.testing.assert_allclose(helped.value, plain.value, rtol=1e-6, atol=1e-7)
    assert helped.n_iterations < 0.7 * plain.n_iterations


@pytest.mark.usefixtures("coarse_method")
def test_transposed_preconditioner_is_the_transpose():
    transition, _, _ = sparse_transition(n=64)
    coarse = CoarseModel(th.arange(64, dtype=th.float64)[:, None])
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    identity = th.eye(64, dtype=th.float64)
    matrix = th.stack([coarse.precondition(column) for column in identity], dim=1)
    transpose = th.stack([coarse.precondition_transposed(column) for column in identity], dim=1)
    np.testing.assert_allclose(transpose, matrix.T, atol=1e-12)


@pytest.mark.usefixtures("coarse_method")
def test_coarse_model_is_exact_when_every_sample_is_a_cell_of_its_own():
    """Cells of one sample each leave nothing coarse: M is Λ itself."""
    transition, _, _ = sparse_transition(n=8)
    coarse = CoarseModel(th.arange(8, dtype=th.float64)[:, None])
    coarse._set_cells(th.arange(8), 8)
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    x = th.as_tensor(np.random.default_rng(4).normal(size=8))
    np.testing.assert_allclose(coarse.precondition(transition.bellman_operator(x, 0.9)), x, atol=1e-12)


def test_a_coarse_model_that_does_harm_is_left_out():
    """On a table of nearest samples, here random jumps, averages over cells say nothing."""
    rng = np.random.default_rng(7)
    n = 600
    jumps = TransitionMatrix(th.as_tensor(rng.integers(0, n, (n, 1))), n, th.float64, th.device("cpu"))
    jumps.fill(th.ones(n, 1, dtype=th.float64))
    rewards = th.as_tensor(rng.normal(size=n))
    harmful, helpful = CoarseModel(th.arange(n, dtype=th.float64)[:, None]), CoarseModel(th.arange(400.0).double()[:, None])
    harmful.build(jumps, 0.99, rewards)
    assert not harmful.pays
    local, _, _ = sparse_transition()
    helpful.build(local, 0.99, rewards[:400])
    assert helpful.pays


def test_single_precision_stays_single(monkeypatch):
    monkeypatch.setitem(coarse_module._MAX_DENSE_CELLS, "cpu", 0)
    _, columns, values = sparse_transition(n=64)
    single = TransitionMatrix(columns, 64, th.float32, th.device("cpu"))
    single.fill(values.float())
    coarse = CoarseModel(th.arange(64, dtype=th.float32)[:, None])
    x = th.ones(64)
    coarse.build(single, 0.9, x)
    assert coarse.precondition(x).dtype == coarse.precondition_transposed(x).dtype == th.float32


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
def test_systems_of_any_size_are_solved(size):
    transition, gamma = SYSTEMS["random jumps"]
    matrix, rhs = th.eye(60, dtype=th.float64) - gamma * transition, size * th.ones(60, dtype=th.float64)
    solution = solve(matrix.mv, rhs, lambda: matrix, initial_guess=0.5 * rhs, tolerance=1e-10)
    np.testing.assert_allclose(solution.value / size, 1 / (1 - gamma), rtol=1e-8)


def test_coarse_model_is_built_anew_after_a_while():
    transition, _, values = sparse_transition(n=64)
    coarse = CoarseModel(th.arange(64, dtype=th.float64)[:, None])
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    x = th.ones(64, dtype=th.float64)
    before = coarse.precondition(x)
    transition.fill(values * 0.1)
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    np.testing.assert_array_equal(coarse.precondition(x), before)
    for _ in range(coarse_module._UPDATES_BETWEEN_REFRESHES):
        coarse.grow_older()
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    assert float((coarse.precondition(x) - before).abs().max()) > 0.1


@pytest.mark.slow
def test_a_coarse_model_whose_cells_all_touch_takes_larger_ones(monkeypatch):
    monkeypatch.setitem(coarse_module._MAX_DENSE_CELLS, "cpu", 0)
    rng = np.random.default_rng(6)
    n, k = 8192, 60
    transition = TransitionMatrix(th.as_tensor(rng.integers(0, n, (n, k))), n, th.float64, th.device("cpu"))
    transition.fill(th.full((n, k), 1.0 / k, dtype=th.float64))
    coarse = CoarseModel(th.as_tensor(rng.normal(size=(n, 3))))
    assert coarse._n_cells == 1024
    coarse.build(transition, 0.9, th.ones(transition.n, dtype=th.float64))
    assert coarse._n_cells == 512
    assert int(coarse._size.sum()) == n
    ones = th.ones(n, dtype=th.float64)
    np.testing.assert_allclose(coarse.precondition(ones), 10.0, rtol=1e-9)


@pytest.mark.parametrize("n", [8, 37, 100])
def test_cells_are_of_equal_size_and_made_of_neighbours(n):
    points = np.random.default_rng(5).uniform(size=(n, 1))
    cells = halve_repeatedly(th.as_tensor(points), 2).labels.numpy()
    sizes = np.bincount(cells)
    assert len(sizes) == 4
    assert sizes.max() - sizes.min() <= 2
    # In one dimension cells are intervals, so they come one after the other along the line.
    assert (np.diff(cells[np.argsort(points[:, 0])]) >= 0).all()


def test_all_cells_get_a_member_even_from_copies_of_one_point():
    assert halve_repeatedly(th.zeros(16, 2), 3).labels.unique().numel() == 8
