"""Weights corrected to first order: what they promise, and their gradient against automatic differentiation."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch as th

from helpers import oracles
from helpers.bellman_problems import TinyPolicy, engine_problem, evaluate, random_problem
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels import displacements as of_displacements
from sb3_nopg.kernels import local_linear
from sb3_nopg.kernels import support as support_module
from sb3_nopg.kernels.displacements import OwnDisplacements, SharedDisplacements, batch_product, powers_of, tensor
from sb3_nopg.kernels.local_linear import LEAST_SHARE, RIDGE, correct, corrected_derivative, correction
from sb3_nopg.kernels.support import Support
from sb3_nopg.kernels.workspace import Workspace


def random_rows(seed=0, m=5, a=2, k=12, d=3, spread=1.0, shift=0.0, per_action=False):
    generator = th.Generator().manual_seed(seed)
    weights = th.softmax(th.randn(m, a, k, generator=generator, dtype=th.float64), dim=-1)
    displacements = spread * th.randn(d, m, a if per_action else 1, k, generator=generator, dtype=th.float64) + shift
    values = th.randn(m, 1, k, generator=generator, dtype=th.float64)
    return weights, displacements, values


def mean_displacement(weights, displacements):
    return (weights * displacements).sum(dim=-1).norm(dim=0)


def obvious(weights, displacements):
    """The formula, one row after the other."""
    result = th.empty_like(weights)
    for row in range(weights.shape[0]):
        for action in range(weights.shape[1]):
            w, delta = weights[row, action], displacements.expand(-1, -1, weights.shape[1], -1)[:, row, action].T
            second = sum(w[j] * th.outer(delta[j], delta[j]) for j in range(len(w))) + RIDGE * th.eye(delta.shape[1]).double()
            slope = -th.linalg.solve(second, sum(w[j] * delta[j] for j in range(len(w))))
            corrected = th.stack([w[j] * th.clamp(1.0 + slope @ delta[j], min=LEAST_SHARE) for j in range(len(w))])
            result[row, action] = corrected / corrected.sum()
    return result


def displaced(displacements, weights):
    """As many of the engine's forms of displacements as these can have."""
    forms = [OwnDisplacements(displacements, Workspace(weights))]
    if displacements.shape[2] == 1:
        planes = displacements[:, :, 0]
        forms.append(SharedDisplacements(powers_of(planes), len(planes)))
        offset = 0.3 * np.random.default_rng(0).normal(size=(len(displacements), 1, 1)).astype(displacements.numpy().dtype)
        offset = offset * np.ones(weights.shape[:2], dtype=offset.dtype)
        moved = planes + th.from_numpy(offset)[..., :1]
        forms.append(SharedDisplacements(powers_of(moved), len(planes), of_displacements.small(th.from_numpy(offset))))
    return forms


def corrected_weights(weights, displacements):
    fit = correction(weights, displacements)
    corrected = fit.applied(weights, displacements, th.empty_like(weights))
    return corrected / corrected.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("total", [1.0, 7.0])
def test_weights_are_the_formula(shift, per_action, total):
    weights, displacements, _ = random_rows(shift=shift, per_action=per_action)
    for form in displaced(displacements, weights):
        ours = corrected_weights(total * weights, form)
        np.testing.assert_allclose(ours, obvious(weights, displacements), rtol=1e-12)
        assert bool((ours > 0).all())


def test_the_mean_of_the_samples_moves_to_the_query():
    weights, displacements, _ = random_rows(k=60, shift=0.3)
    for form in displaced(displacements, weights):
        before, after = (mean_displacement(w, displacements) for w in (weights, corrected_weights(weights, form)))
        assert bool((after < 0.35 * before).all())


def test_samples_about_the_query_stay_as_they_are():
    weights, displacements, _ = random_rows()
    weights = th.cat([weights, weights], dim=-1) / 2.0
    displacements = th.cat([displacements, -displacements], dim=-1)
    for form in displaced(displacements, weights):
        np.testing.assert_allclose(corrected_weights(weights, form), weights, rtol=1e-12)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("with_out", [False, True])
def test_products_of_small_matrices(n_threads, with_out, monkeypatch):
    monkeypatch.setattr(of_displacements.th, "get_num_threads", lambda: n_threads)
    generator = th.Generator().manual_seed(0)
    left, right = th.randn(4, 3, 5, generator=generator), th.randn(4, 2, 5, generator=generator).mT
    out = th.empty(4, 3, 2) if with_out else None
    product = batch_product(left, right, out)
    np.testing.assert_allclose(product, th.einsum("mpq,mqr->mpr", left, right), rtol=1e-5, atol=1e-6)
    assert out is None or product.data_ptr() == out.data_ptr()


def as_on_a_gpu(monkeypatch):
    """Small arrays are tensors there too, and torch makes all products."""
    for module in (of_displacements, local_linear, support_module):
        monkeypatch.setattr(module, "small", lambda x: x)
    monkeypatch.setattr(of_displacements.th, "get_num_threads", lambda: 2)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("d_a", [1, 3])
@pytest.mark.parametrize("large_part", [0.0, 1e6])
@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_derivative_equals_autograd_through_the_formula(shift, d_a, large_part, on_a_gpu, monkeypatch):
    if on_a_gpu:
        as_on_a_gpu(monkeypatch)
    _, states, values = random_rows(seed=1, shift=shift)
    generator = th.Generator().manual_seed(2)
    log_state_kernel = th.randn(5, 1, 12, generator=generator, dtype=th.float64)
    place = th.randn(5, 2, d_a, generator=generator, dtype=th.float64).requires_grad_()
    neighbor_actions = th.randn(d_a, 5, 1, 12, generator=generator, dtype=th.float64)
    actions = neighbor_actions - place.permute(2, 0, 1)[..., None]
    weights = th.softmax(log_state_kernel - 0.5 * actions.square().sum(dim=0), dim=-1)
    half_way = obvious(weights, actions)
    value = (obvious(half_way, states) * values).sum(dim=-1)
    (expected,) = th.autograd.grad(value.sum(), place)
    weights, actions = weights.detach(), actions.detach()
    for form in displaced(states, weights):
        own, workspace = OwnDisplacements(actions, Workspace(weights)), Workspace(weights)
        _, corrections = correct(weights, own, form, workspace)
        for known in (None, corrections):
            mean, ours = corrected_derivative(weights, values[:, 0] + large_part, own, form, known, workspace)
            np.testing.assert_allclose(mean - large_part, value.detach(), rtol=1e-9, atol=1e-15 * large_part)
            np.testing.assert_allclose(ours, expected, rtol=1e-9 + 1e-14 * large_part, atol=1e-13 + 1e-15 * large_part)
    if shift == 2.0:
        slope = tensor(correction(half_way.detach(), form).slope)
        assert bool((1.0 + (slope[..., None] * states).sum(dim=0) < LEAST_SHARE).any()), "the clip must take part"


def one_dimensional(actions, states):
    """Samples that a query at state 0 sees, as a support with kernels of width one."""
    ones = th.ones(1, dtype=th.float64)
    column = [th.as_tensor(np.asarray(values), dtype=th.float64)[:, None] for values in (states, actions)]
    return Support(*column, ones, ones, n_neighbors=None, local_linear=True)


def test_the_mean_action_is_nearly_the_policys_at_the_end_of_the_range():
    rng = np.random.default_rng(0)
    support = one_dimensional(actions=rng.uniform(-1, 1, 300), states=rng.uniform(-1, 1, 300))
    queries, action = support.locate(th.zeros(1, 1, dtype=th.float64)), th.full((1, 1, 1), 0.9, dtype=th.float64)
    kernel = support.kernel_weights(queries, action).rows[0, 0]
    corrected = support.weights(queries, action)[0, 0]
    mean_actions = [float(weights @ support.actions[:, 0]) for weights in (kernel, corrected)]
    # As far as the clip allows.
    assert mean_actions[0] < 0.4
    assert 0.65 < mean_actions[1] < 0.9
    assert float(corrected @ support.observations[:, 0]) == pytest.approx(0.0, abs=0.05)


def test_where_samples_cannot_meet_both_the_state_comes_first():
    # As in a demonstration: the action follows from the state.
    states = np.linspace(-1, 1, 41)
    support = one_dimensional(actions=states, states=states)
    queries, action = support.locate(th.zeros(1, 1, dtype=th.float64)), th.full((1, 1, 1), 0.8, dtype=th.float64)
    mean_state = float(support.weights(queries, action)[0, 0] @ support.observations[:, 0])
    assert abs(mean_state - 0.0) < 0.5 * abs(mean_state - 0.8)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("distance", [1e2, 1e4, 1e6])
def test_far_from_all_samples_weights_stay_weights(dtype, distance):
    weights, displacements, values = (x.to(dtype) for x in random_rows(shift=distance))
    own = OwnDisplacements(displacements.expand(-1, -1, 2, -1), Workspace(weights))
    for form in displaced(displacements, weights):
        np.testing.assert_allclose(corrected_weights(weights, form).sum(dim=-1), 1.0, rtol=1e-5)
        parts = corrected_derivative(weights, values[:, 0], own, form, None, Workspace(weights))
        assert all(bool(part.isfinite().all()) for part in parts)


@pytest.mark.parametrize("n_neighbors", [None, 12])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("n_next_state_samples", [1, 3])
@pytest.mark.parametrize("on_a_gpu", [False, True])
@pytest.mark.parametrize("n_actions", [4, 7])
def test_return_and_gradient_against_a_dense_solve(
    n_neighbors, stochastic, n_next_state_samples, on_a_gpu, n_actions, monkeypatch
):
    if on_a_gpu:
        as_on_a_gpu(monkeypatch)
    oracle = dataclasses.replace(
        random_problem(seed=3, n_neighbors=n_neighbors, n_next_state_samples=n_next_state_samples), local_linear=True
    )
    policy = TinyPolicy(2, 1, stochastic, seed=1)
    problem = engine_problem(oracle, local_linear=True)
    noise = np.random.default_rng(5).normal(size=(len(problem.queries), n_actions, 1)) if stochastic else None
    parameters = list(policy.parameters())
    actions = policy.sample(problem.queries.states, noise)
    solution = evaluate(problem, actions.detach(), tolerance=1e-12)
    expected = oracles.evaluate(oracle, policy, noise)
    assert solution.estimated_return == pytest.approx(expected.estimated_return, rel=1e-9)
    np.testing.assert_allclose(solution.q_values, expected.q, rtol=1e-8)
    np.testing.assert_allclose(solution.visitation, expected.mu, rtol=1e-7, atol=1e-9)
    ours = th.cat(
        [part.reshape(-1) for part in th.autograd.grad(actions, parameters, derivative_on_samples(problem, solution))]
    )
    gradient = oracles.autograd_gradient(oracle, policy, parameters, noise)
    assert float((ours - gradient).norm()) <= 1e-8 * float(gradient.norm())


def test_the_models_switch():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(80, 2))
    data = TransitionDataset(
        observations=states,
        actions=rng.normal(size=(80, 1)),
        rewards=-(states**2).sum(axis=1),
        next_observations=0.9 * states,
        terminals=np.zeros(80, dtype=bool),
    )
    returns = {
        weights: NOPG(
            "MlpPolicy",
            None,
            dataset=data,
            transitions="samples",
            estimator_kwargs={"weights": weights},
            initial_states=[1.0, 1.0],
            seed=0,
        ).estimated_return()
        for weights in ("local_constant", "local_linear")
    }
    assert returns["local_linear"] != pytest.approx(returns["local_constant"], rel=1e-3)
    with pytest.raises(InputError, match="weights"):
        NOPG("MlpPolicy", None, dataset=data, estimator_kwargs={"weights": "cubic"})


def test_a_copied_workspace_starts_empty():
    workspace = Workspace(th.zeros(1000))
    workspace.array("weights", 100, 100).fill_(1.0)
    copied = pickle.loads(pickle.dumps(workspace))
    assert len(pickle.dumps(workspace)) < 1000
    assert copied.array("weights", 2, 3).shape == (2, 3)
