"""Products with P̂ that pass over zeros are the same products."""

import numpy as np
import pytest
import torch as th

from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.transition import TransitionMatrix

GAMMA = 0.9


def values_with_zeros(n: int, k: int, share: float, dtype: th.dtype = th.float64) -> th.Tensor:
    generator = th.Generator().manual_seed(0)
    values = th.rand(n, k, generator=generator, dtype=dtype)
    return values * (th.rand(n, k, generator=generator) < share) / k


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("lists", [True, False], ids=["lists", "dense"])
def test_zeros_are_passed_over(lists, dtype):
    n, k = 70, 40 if lists else 70
    # Columns may repeat within a row, and some rows and columns are left with nothing.
    indices = th.randint(0, n, (n, k), generator=th.Generator().manual_seed(1)) if lists else None
    matrix = TransitionMatrix(indices, n, dtype, th.device("cpu"))
    x = th.randn(n, generator=th.Generator().manual_seed(2), dtype=dtype)
    precision = {"rtol": 1e-12, "atol": 1e-13} if dtype == th.float64 else {"rtol": 1e-4, "atol": 1e-6}
    # Few, many, none, and few again.
    for share, passed_over in ((0.05, True), (0.9, False), (0.0, True), (0.02, True)):
        matrix.fill(values_with_zeros(n, k, share, dtype))
        assert (matrix._few_by_row is not None) == passed_over
        whole = matrix.to_dense()
        np.testing.assert_allclose(matrix.bellman_operator(x, GAMMA), x - GAMMA * whole @ x, **precision)
        np.testing.assert_allclose(matrix.bellman_operator_transposed(x, GAMMA), x - GAMMA * whole.T @ x, **precision)


def test_a_sparsified_model_gives_what_it_gave_with_its_zeros(monkeypatch):
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
    data = TransitionDataset(
        states, actions, -(states**2).sum(axis=1), 0.9 * states + 0.1 * actions, np.zeros(300, dtype=bool)
    )

    def model() -> NOPG:
        return NOPG(
            "LinearPolicy", None, dataset=data, gamma=GAMMA, initial_states=[[1.0, 0.0]], keep_largest=5, n_neighbors=100
        )

    ours = model()
    gradient = ours.policy_gradient()
    assert ours.prepared_problem().transition._few_by_row is not None
    monkeypatch.setattr("sb3_nopg.transition._FEW", -1.0)
    with_zeros = model()
    np.testing.assert_allclose(gradient, with_zeros.policy_gradient(), rtol=1e-6, atol=1e-9)
    assert with_zeros.prepared_problem().transition._few_by_row is None
    assert ours.estimated_return() == pytest.approx(with_zeros.estimated_return(), rel=1e-8)
