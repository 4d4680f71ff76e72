"""Weights corrected to first order: what they promise, and their gradient against automatic differentiation."""

import dataclasses

import numpy as np
import pytest
import torch as th

import oracles
from conftest import TinyPolicy, engine_problem, evaluate, random_problem
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman import return_derivative
from sb3_nopg.errors import InputError
from sb3_nopg.local_linear import LEAST_SHARE, RIDGE, corrected_weights, weight_derivative


def random_rows(seed=0, m=5, a=2, k=12, d_s=3, spread=1.0, shift=0.0):
    generator = th.Generator().manual_seed(seed)
    weights = th.softmax(th.randn(m, a, k, generator=generator, dtype=th.float64), dim=-1)
    displacements = spread * th.randn(m, k, d_s, generator=generator, dtype=th.float64) + shift
    values = th.randn(m, k, generator=generator, dtype=th.float64)
    return weights, displacements, values


def obvious(weights, displacements):
    """The formula, one row after the other."""
    result = th.empty_like(weights)
    for row in range(weights.shape[0]):
        for action in range(weights.shape[1]):
            w, delta = weights[row, action], displacements[row]
            second = sum(w[j] * th.outer(delta[j], delta[j]) for j in range(len(w))) + RIDGE * th.eye(delta.shape[1]).double()
            slope = -th.linalg.solve(second, sum(w[j] * delta[j] for j in range(len(w))))
            corrected = th.stack([w[j] * th.clamp(1.0 + slope @ delta[j], min=LEAST_SHARE) for j in range(len(w))])
            result[row, action] = corrected / corrected.sum()
    return result


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_weights_are_the_formula(shift):
    weights, displacements, _ = random_rows(shift=shift)
    ours = corrected_weights(weights, displacements)
    np.testing.assert_allclose(ours, obvious(weights, displacements), rtol=1e-12)
    np.testing.assert_allclose(ours.sum(dim=-1), 1.0, rtol=1e-13)
    assert bool((ours > 0).all())


def test_the_mean_of_the_samples_moves_to_the_query():
    weights, displacements, _ = random_rows(k=60, shift=0.3)
    before = (weights @ displacements).norm(dim=-1)
    after = (corrected_weights(weights, displacements) @ displacements).norm(dim=-1)
    assert bool((after < 0.35 * before).all())


def test_samples_about_the_query_stay_as_they_are():
    weights, displacements, _ = random_rows()
    weights = th.cat([weights, weights], dim=-1) / 2.0
    displacements = th.cat([displacements, -displacements], dim=1)
    np.testing.assert_allclose(corrected_weights(weights, displacements), weights, rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_derivative_by_the_weights_equals_autograd(shift):
    weights, displacements, values = random_rows(shift=shift)
    logits = weights.log().requires_grad_()
    free = th.softmax(logits, dim=-1)
    (expected,) = th.autograd.grad((corrected_weights(free, displacements) * values[:, None]).sum(), logits)
    by_weight = weight_derivative(weights, displacements, values)
    ours = weights * (by_weight - (weights * by_weight).sum(dim=-1, keepdim=True))
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-13)
    if shift == 2.0:
        clipped = corrected_weights(weights, displacements) / weights
        assert bool((clipped.min(dim=-1).values < 0.1).any()), "the clip must take part"


@pytest.mark.parametrize("n_neighbors", [None, 12])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("n_next_state_samples", [1, 3])
def test_return_and_gradient_against_a_dense_solve(n_neighbors, stochastic, n_next_state_samples):
    oracle = dataclasses.replace(
        random_problem(seed=3, n_neighbors=n_neighbors, n_next_state_samples=n_next_state_samples), local_linear=True
    )
    policy = TinyPolicy(2, 1, stochastic, seed=1)
    problem = engine_problem(oracle, local_linear=True)
    noise = np.random.default_rng(5).normal(size=(len(problem.queries), 4, 1)) if stochastic else None
    parameters = list(policy.parameters())
    actions = policy.sample(problem.queries.states, noise)
    solution = evaluate(problem, actions.detach(), tolerance=1e-12)
    expected = oracles.evaluate(oracle, policy, noise)
    assert solution.estimated_return == pytest.approx(expected.estimated_return, rel=1e-9)
    np.testing.assert_allclose(solution.q_values, expected.q, rtol=1e-8)
    np.testing.assert_allclose(solution.visitation, expected.mu, rtol=1e-7, atol=1e-9)
    ours = th.cat([part.reshape(-1) for part in th.autograd.grad(actions, parameters, return_derivative(problem, solution))])
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
            "MlpPolicy", None, dataset=data, weights=weights, initial_states=[1.0, 1.0], seed=0, pessimism=0.0
        ).estimated_return()
        for weights in ("local_constant", "local_linear")
    }
    assert returns["local_linear"] != pytest.approx(returns["local_constant"], rel=1e-3)
    with pytest.raises(InputError, match="weights"):
        NOPG("MlpPolicy", None, dataset=data, weights="cubic")
