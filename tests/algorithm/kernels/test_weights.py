"""The arithmetic of weights, row by row."""

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracles
from sb3_nopg.kernels import weights as kernels
from sb3_nopg.kernels.neighbors import NeighborLists
from sb3_nopg.kernels.queries import Queries
from sb3_nopg.kernels.support import Support
from sb3_nopg.kernels.weights import action_covariance, largest_weights, log_action_kernel, responsibilities


def random_rows(seed: int, m: int = 6, a: int = 3, k: int = 8, d_a: int = 2) -> dict[str, th.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "log_state_kernel": th.as_tensor(-rng.exponential(size=(m, k)) * 5),
        "actions": th.as_tensor(rng.normal(size=(m, a, d_a))),
        "neighbor_actions": th.as_tensor(rng.normal(size=(d_a, m, k))),
        "values": th.as_tensor(rng.normal(size=(m, k)) + 100.0),
    }


def test_weights_equal_the_oracles():
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    query, action, h_state, h_action = rng.normal(size=2), rng.normal(size=2), np.array([0.4, 0.7]), np.array([0.5, 1.1])
    expected = oracles.responsibilities(query, action, states, actions, h_state, h_action)
    log_state = th.as_tensor(-0.5 * (((query - states) / h_state) ** 2).sum(1))[None]
    log_action = log_action_kernel(th.as_tensor(action / h_action)[None, None], th.as_tensor((actions / h_action).T)[:, None])
    np.testing.assert_allclose(responsibilities(log_state, log_action)[0, 0], expected, rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), distance=st.floats(0.0, 1e8), spread=st.floats(1e-6, 1e6))
def test_rows_sum_to_one_however_far_the_query(seed, distance, spread):
    rows = random_rows(seed)
    log_kernel = log_action_kernel(rows["actions"] * spread, rows["neighbor_actions"])
    weights = responsibilities(rows["log_state_kernel"] - distance, log_kernel)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-12)
    assert (weights >= 0).all()


def test_derivative_of_a_row_equals_autograd():
    rows = random_rows(1)
    actions = rows["actions"].clone().requires_grad_()
    distances = (actions[:, :, None, :] - rows["neighbor_actions"].permute(1, 2, 0)[:, None]).square().sum(-1)
    weights = th.softmax(rows["log_state_kernel"][:, None] - 0.5 * distances, dim=-1)
    (expected,) = th.autograd.grad((weights * rows["values"][:, None]).sum(), actions)
    ours = action_covariance(weights.detach(), rows["values"][:, None], rows["neighbor_actions"])
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


def test_derivative_does_not_cancel_when_values_share_a_large_part():
    """One part in 2⁴⁴ of the values differs: E[qa] − E[q]E[a] would lose it to rounding, the centred form keeps it."""
    rows = random_rows(2)
    weights = responsibilities(rows["log_state_kernel"], log_action_kernel(rows["actions"], rows["neighbor_actions"]))
    shift = 2.0**44
    values = (rows["values"] + shift) - shift  # exactly what is left of the values beside the shift
    exact = action_covariance(weights, values[:, None], rows["neighbor_actions"])
    ours = action_covariance(weights, values[:, None] + shift, rows["neighbor_actions"])
    actions = rows["neighbor_actions"].permute(1, 2, 0)
    shifted = (values + shift)[:, :, None]
    naive = weights @ (shifted * actions) - (weights @ shifted) * (weights @ actions)
    ours_error, naive_error = float((ours - exact).abs().max()), float((naive - exact).abs().max())
    assert ours_error < 1e-6 * naive_error


@pytest.mark.parametrize("local_linear", [False, True])
@pytest.mark.parametrize("block", [1, 7, 50, 10**6])
def test_work_in_blocks_is_the_same_work(block, local_linear, monkeypatch):
    rows, generator = random_rows(4), th.Generator().manual_seed(0)
    ones = th.ones(2, dtype=th.float64)
    observations, values = th.randn(20, 2, generator=generator, dtype=th.float64), th.randn(20, generator=generator).double()
    support = Support(observations, observations, ones, ones, local_linear=local_linear)
    indices = th.randint(0, 20, (6, 8), generator=generator)
    neighbors = NeighborLists(indices, rows["log_state_kernel"], th.zeros(6, dtype=th.float64))
    queries = Queries(th.zeros(6, 2, dtype=th.float64), neighbors, rows["neighbor_actions"])
    whole = support.weights(queries, rows["actions"])
    kernel_weights = support.kernel_weights(queries, rows["actions"])
    derivative = support.action_derivative(queries, kernel_weights, values)
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", block)
    np.testing.assert_allclose(support.weights(queries, rows["actions"]), whole, rtol=1e-12)
    np.testing.assert_allclose(support.action_derivative(queries, kernel_weights, values), derivative, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("keep_largest", [1, 3, 8, 20])
def test_keep_largest_keeps_the_largest(keep_largest):
    weights = th.as_tensor(np.random.default_rng(3).dirichlet(np.ones(8), 5))
    keep = largest_weights(weights, keep_largest, None)
    n_kept = min(keep_largest, 8)
    assert (keep.sum(dim=1) == n_kept).all()
    for row, mask in zip(weights, keep, strict=True):
        assert n_kept == 8 or row[mask].min() >= row[~mask].max()


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), bound=st.floats(1e-6, 3.0))
def test_kl_bound_holds_with_as_few_entries_as_possible(seed, bound):
    weights = th.as_tensor(np.random.default_rng(seed).dirichlet(0.3 * np.ones(12), 4))
    keep = largest_weights(weights, None, bound)
    for row, mask in zip(weights, keep, strict=True):
        kept = row[mask] / row[mask].sum()
        divergence = float((kept * (kept / row[mask]).log()).sum())
        assert divergence <= bound * (1 + 1e-9) + 1e-12
        if mask.sum() > 1:
            fewer = row[mask].sort(descending=True).values[:-1].sum()
            assert -np.log(float(fewer)) > bound * (1 - 1e-9) - 1e-12
