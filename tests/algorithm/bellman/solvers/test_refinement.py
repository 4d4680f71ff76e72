"""Solves in float32 that hold a tolerance in float64, and numbers that stay on the device."""

import logging
import sys

import numpy as np
import pytest
import torch as th

from sb3_nopg.bellman import transition as transition_module
from sb3_nopg.bellman.solvers import SolutionHistory, bicgstab, coarse, refined, solve
from sb3_nopg.bellman.solvers.bicgstab import PlainIteration
from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.bellman.transition import TransitionMatrix

GAMMA = 0.99


def random_transition(monkeypatch, n: int = 300, k: int = 8, seed: int = 0) -> tuple[TransitionMatrix, th.Tensor, th.Tensor]:
    """P̂ between points near each other on a line, with a copy in float32; right-hand side; the points."""
    monkeypatch.setattr(transition_module, "_WORTH_SINGLE_PRECISION", 0)
    generator = th.Generator().manual_seed(seed)
    points = th.rand(n, 1, generator=generator, dtype=th.float64)
    indices = (points - points.T).abs().topk(k, largest=False).indices
    matrix = TransitionMatrix(indices, n, th.float64, th.device("cpu"))
    matrix.fill(th.softmax(th.randn(n, k, generator=generator, dtype=th.float64), dim=1))
    return matrix, th.randn(n, generator=generator, dtype=th.float64), points


@pytest.mark.parametrize("transposed", [False, True])
def test_products_in_single_precision_are_those_products(transposed, monkeypatch):
    matrix, x, _ = random_transition(monkeypatch)
    product = matrix.bellman_operator_transposed if transposed else matrix.bellman_operator
    assert matrix.in_single_precision
    assert product(x.float(), GAMMA).dtype == th.float32
    np.testing.assert_allclose(product(x.float(), GAMMA), product(x, GAMMA), atol=1e-5)
    # Refilled along with the other.
    matrix.fill(th.zeros(300, 8, dtype=th.float64))
    np.testing.assert_array_equal(product(x.float(), GAMMA), x.float())


def test_small_matrices_and_float32_ones_have_no_copy():
    indices = th.zeros(5, 2, dtype=th.int64)
    for dtype in (th.float32, th.float64):
        assert not TransitionMatrix(indices, 5, dtype, th.device("cpu")).in_single_precision
    assert not TransitionMatrix(None, 5, th.float64, th.device("cpu")).in_single_precision


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_coarse_model", [False, True])
def test_the_tolerance_holds_in_double_precision(tolerance, transposed, with_coarse_model, monkeypatch):
    matrix, rhs, points = random_transition(monkeypatch)
    dense = matrix.dense_bellman_operator(GAMMA)
    dense = dense.T if transposed else dense
    product = matrix.bellman_operator_transposed if transposed else matrix.bellman_operator
    precondition = None
    if with_coarse_model:
        model = CoarseModel(points)
        model.build(matrix, GAMMA, rhs)
        precondition = model.precondition_transposed if transposed else model.precondition
    solution = solve(
        lambda x: product(x, GAMMA), 1e9 * rhs, lambda: dense, precondition, tolerance=tolerance, in_single_precision=True
    )
    assert solution.method == "BiCGSTAB in float32, refined"
    assert float((1e9 * rhs - dense @ solution.value).norm() / (1e9 * rhs.norm())) <= tolerance
    assert solution.residual <= tolerance


def test_where_single_precision_is_not_enough_double_goes_on(monkeypatch, caplog):
    matrix, rhs, _ = random_transition(monkeypatch)

    def operator(x):
        # A copy that is wrong: corrections made with it lead nowhere.
        return matrix.bellman_operator(x, GAMMA) if x.dtype == th.float64 else -matrix.bellman_operator(x, GAMMA)

    with caplog.at_level(logging.DEBUG):
        solution = solve(operator, rhs, lambda: matrix.dense_bellman_operator(GAMMA), tolerance=1e-9, in_single_precision=True)
    assert solution.method == "BiCGSTAB"
    assert solution.residual <= 1e-9
    assert "float32" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


@pytest.mark.parametrize("guess", [None, "far", "not finite"])
def test_a_bad_guess_does_no_harm(guess, monkeypatch):
    matrix, rhs, _ = random_transition(monkeypatch)
    start = {None: None, "far": 1e12 * th.ones_like(rhs), "not finite": th.full_like(rhs, th.nan)}[guess]
    solution = refined(lambda x: matrix.bellman_operator(x, GAMMA), rhs, None, start, 1e-8, 1000)
    assert solution.residual <= 1e-8


def test_past_solutions_guess_as_well_from_images_in_single_precision(monkeypatch):
    matrix, rhs, _ = random_transition(monkeypatch)
    past, guesses = SolutionHistory(), []
    for step in range(4):
        past.add(th.linalg.solve(matrix.dense_bellman_operator(GAMMA - 0.01 * (4 - step)), rhs))
    for single in (False, True):
        guess = past.guess(lambda x: matrix.bellman_operator(x, GAMMA), rhs, single)
        guesses.append(float((rhs - matrix.bellman_operator(guess, GAMMA)).norm() / rhs.norm()))
    assert guesses[1] == pytest.approx(guesses[0], rel=1e-2)


class SeldomRead(PlainIteration):
    """On a device that stands still while its numbers are read."""

    is_dear_to_read = True

    def __init__(self, operator):
        super().__init__(operator, None)
        self.n_looks = 0

    def step(self, n_times=1):
        self.n_looks += 1
        return super().step(n_times)


def test_numbers_that_are_dear_to_read_are_read_seldom(monkeypatch):
    matrix, rhs, _ = random_transition(monkeypatch)
    seldom = SeldomRead(lambda x: matrix.bellman_operator(x, GAMMA))
    often = bicgstab(seldom._operator, rhs, None, None, 1e-8, 1000)
    ours = bicgstab(seldom._operator, rhs, None, None, 1e-8, 1000, seldom)
    assert max(often.residual, ours.residual) <= 1e-8
    assert seldom.n_looks < 0.5 * often.n_iterations
    assert often.n_iterations <= ours.n_iterations <= 1.25 * often.n_iterations + 1
    # Never beyond what is allowed.
    assert bicgstab(seldom._operator, rhs, None, None, 1e-14, 7, seldom).n_iterations == 7


def test_no_product_is_made_of_what_is_known(monkeypatch):
    matrix, rhs, _ = random_transition(monkeypatch)
    products = {th.float32: 0, th.float64: 0}

    def operator(x):
        products[x.dtype] += 1
        return matrix.bellman_operator(x, GAMMA)

    plain = bicgstab(operator, rhs, None, None, 1e-6, 1000)
    assert products == {th.float32: 0, th.float64: 2 * plain.n_iterations + 1}
    products[th.float64] = 0
    ours = refined(operator, rhs, None, None, 1e-6, 1000)
    assert ours.residual <= 1e-6
    # The residual in float64 after each of two rounds; in float32 what iterations need.
    assert products == {th.float32: 2 * ours.n_iterations, th.float64: 2}


@pytest.mark.parametrize("n", [1, 40])
def test_numbers_that_stay_on_the_device_give_the_same_steps(n, monkeypatch):
    module = sys.modules[bicgstab.__module__]
    generator = th.Generator().manual_seed(0)
    matrix = th.eye(n, dtype=th.float64) - 0.9 * th.softmax(th.randn(n, n, generator=generator, dtype=th.float64), dim=1)
    rhs = th.randn(n, generator=generator, dtype=th.float64)
    plain = bicgstab(lambda x: matrix @ x, rhs, None, None, 1e-10, 200)
    monkeypatch.setattr(module, "_on_device", lambda number: number)
    ours = bicgstab(lambda x: matrix @ x, rhs, None, None, 1e-10, 200)
    assert (ours.n_iterations, ours.residual <= 1e-10) == (plain.n_iterations, True)
    np.testing.assert_allclose(ours.value, plain.value, rtol=1e-9)
    # A product of zero with the shadow, at the first step: a breakdown, not a division by zero.
    rotation = th.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=th.float64)
    broken = bicgstab(lambda x: rotation @ x, th.tensor([1.0, 0.0], dtype=th.float64), None, None, 1e-10, 20)
    assert bool(broken.value.isfinite().all())


def test_a_verdict_on_the_coarse_model_lasts_for_some_builds(monkeypatch):
    matrix, rhs, points = random_transition(monkeypatch)
    trials = []
    monkeypatch.setattr(CoarseModel, "_wins", lambda *_: trials.append(1) or True)
    model = CoarseModel(points)
    for _ in range(2 * coarse._BUILDS_BETWEEN_TRIALS):
        model._inverse = None
        model.build(matrix, GAMMA, rhs)
    assert len(trials) == 2
    # The count goes along with a checkpoint.
    other = CoarseModel(points)
    other.restore(model.state(), GAMMA)
    assert other._n_builds == model._n_builds


@pytest.mark.slow
def test_a_coarse_matrix_that_would_fill_its_factors_is_inverted(monkeypatch):
    matrix, rhs, points = random_transition(monkeypatch, n=6000, k=4)
    monkeypatch.setattr(coarse, "_MAX_ENTRIES_A_ROW", 0)
    model = CoarseModel(points)
    model.build(matrix, GAMMA, rhs)
    assert model.state()["kind"] == "_DenseInverse"
    assert model.state()["n_cells"] == 512
    copy = CoarseModel(points)
    copy.restore(model.state(), GAMMA)
    for dtype in (th.float32, th.float64):
        np.testing.assert_array_equal(copy.precondition(rhs.to(dtype)), model.precondition(rhs.to(dtype)))
