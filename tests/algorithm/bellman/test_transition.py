"""Products with P̂ that pass over zeros are the same products."""

import numpy as np
import pytest
import torch as th

from helpers.models import make_nopg
from sb3_nopg import TransitionDataset
from sb3_nopg.bellman import transition as transition_module
from sb3_nopg.bellman.transition import SharedTransitionMatrix, TransitionMatrix
from sb3_nopg.common.processes import Processes

GAMMA = 0.9
N, K = 70, 40
ANY_SIZE = range(10**9)


def values_with_zeros(share: float, dtype: th.dtype = th.float64) -> th.Tensor:
    generator = th.Generator().manual_seed(0)
    values = th.rand(N, K, generator=generator, dtype=dtype)
    return values * (th.rand(N, K, generator=generator) < share) / K


def matrix_of(dtype: th.dtype = th.float64) -> TransitionMatrix:
    # Columns may repeat within a row.
    indices = th.randint(0, N, (N, K), generator=th.Generator().manual_seed(1))
    return TransitionMatrix(indices, N, dtype, th.device("cpu"))


@pytest.mark.parametrize("with_copy", [False, True], ids=["", "copied in float32"])
@pytest.mark.parametrize("dtype", [th.float32, th.float64])
def test_zeros_are_passed_over(dtype, with_copy, monkeypatch):
    monkeypatch.setattr(transition_module, "_WORTH_LAYING_OUT_ANEW", ANY_SIZE)
    if with_copy:
        monkeypatch.setattr(transition_module, "_WORTH_SINGLE_PRECISION", 0)
    matrix = matrix_of(dtype)
    copied = with_copy and dtype == th.float64
    assert matrix.in_single_precision == copied
    # Few, many, none, and few again; some rows and columns are left with nothing.
    for share, passed_over in ((0.05, True), (0.9, False), (0.0, True), (0.02, True)):
        matrix.fill(values_with_zeros(share, dtype))
        assert bool(matrix._few) == passed_over
        for of_vector in {dtype, th.float32} if copied else {dtype}:
            x = th.randn(N, generator=th.Generator().manual_seed(2), dtype=of_vector)
            whole = matrix.to_dense().to(of_vector)
            precision = {"rtol": 1e-12, "atol": 1e-13} if of_vector == th.float64 else {"rtol": 1e-4, "atol": 1e-6}
            np.testing.assert_allclose(matrix.bellman_operator(x, GAMMA), x - GAMMA * whole @ x, **precision)
            np.testing.assert_allclose(matrix.bellman_operator_transposed(x, GAMMA), x - GAMMA * whole.T @ x, **precision)


@pytest.mark.parametrize("sizes", [range(N * K + 1, 10**9), range(N * K)], ids=["too small", "too large"])
def test_where_it_does_not_pay_zeros_stay(sizes, monkeypatch):
    monkeypatch.setattr(transition_module, "_WORTH_LAYING_OUT_ANEW", sizes)
    matrix = matrix_of()
    matrix.fill(values_with_zeros(0.05))
    assert not matrix._few


def test_processes_with_blocks_of_two_sizes_decide_alike_on_single_precision(monkeypatch):
    """Two solve together: if one had float32 and the other had not, they would exchange numbers of two kinds."""
    monkeypatch.setattr(transition_module, "_WORTH_SINGLE_PRECISION", 4 * K)
    processes = [Processes(rank, 2) for rank in range(2)]
    indices = th.zeros(7, K, dtype=th.int64)
    shared = [SharedTransitionMatrix(indices[each.own_rows(7)], 7, th.float64, th.device("cpu"), each) for each in processes]
    assert [len(matrix._by_row.values()) for matrix in shared] == [4 * K, 3 * K]
    assert all(matrix.in_single_precision for matrix in shared)


@pytest.mark.slow
def test_a_sparsified_model_gives_what_it_gave_with_its_zeros(monkeypatch):
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
    data = TransitionDataset(
        states, actions, -(states**2).sum(axis=1), 0.9 * states + 0.1 * actions, np.zeros(300, dtype=bool)
    )
    settings = {"gamma": GAMMA, "initial_states": [[1.0, 0.0]], "keep_largest": 5, "n_neighbors": 100, "device": "cpu"}
    settings["transitions"] = "samples"
    with_zeros = make_nopg("LinearPolicy", None, dataset=data, **settings)
    expected = with_zeros.policy_gradient()
    assert not with_zeros.estimator.problem.transition._few
    monkeypatch.setattr(transition_module, "_WORTH_LAYING_OUT_ANEW", ANY_SIZE)
    ours = make_nopg("LinearPolicy", None, dataset=data, **settings)
    np.testing.assert_allclose(ours.policy_gradient(), expected, rtol=1e-6, atol=1e-9)
    assert ours.estimator.problem.transition._few
    assert ours.estimated_return() == pytest.approx(with_zeros.estimated_return(), rel=1e-8)
