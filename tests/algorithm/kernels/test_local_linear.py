"""Weights corrected to first order: what they promise, and their gradient against automatic differentiation."""

import dataclasses

import numpy as np
import pytest
import torch as th

from helpers import oracles
from helpers.bellman_problems import TinyPolicy, engine_problem, evaluate, random_problem
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels.local_linear import LEAST_SHARE, RIDGE, corrected_weights, correction, derivatives
from sb3_nopg.kernels.support import Support


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


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_weights_are_the_formula(shift, per_action):
    weights, displacements, _ = random_rows(shift=shift, per_action=per_action)
    ours = corrected_weights(weights, displacements)
    np.testing.assert_allclose(ours, obvious(weights, displacements), rtol=1e-12)
    np.testing.assert_allclose(ours.sum(dim=-1), 1.0, rtol=1e-13)
    assert bool((ours > 0).all())


def test_the_mean_of_the_samples_moves_to_the_query():
    weights, displacements, _ = random_rows(k=60, shift=0.3)
    before, after = (mean_displacement(w, displacements) for w in (weights, corrected_weights(weights, displacements)))
    assert bool((after < 0.35 * before).all())


def test_samples_about_the_query_stay_as_they_are():
    weights, displacements, _ = random_rows()
    weights = th.cat([weights, weights], dim=-1) / 2.0
    displacements = th.cat([displacements, -displacements], dim=-1)
    np.testing.assert_allclose(corrected_weights(weights, displacements), weights, rtol=1e-12)


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_derivatives_equal_autograd(shift, per_action):
    weights, displacements, values = random_rows(shift=shift, per_action=per_action)
    logits = weights.log().requires_grad_()
    place = th.zeros(*weights.shape[:2], len(displacements), dtype=th.float64, requires_grad=True)
    seen_from = displacements - place.permute(2, 0, 1)[..., None]
    total = (corrected_weights(th.softmax(logits, dim=-1), seen_from) * values).sum()
    expected, expected_by_place = th.autograd.grad(total, (logits, place))
    value, by_weight, by_place = derivatives(weights, displacements, correction(weights, displacements), values)
    assert float(value.sum()) == pytest.approx(total.item(), rel=1e-12)
    ours = weights * (by_weight - (weights * by_weight).sum(dim=-1, keepdim=True))
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(by_place, expected_by_place, rtol=1e-9, atol=1e-13)
    if shift == 2.0:
        assert bool((correction(weights, displacements).linear < LEAST_SHARE).any()), "the clip must take part"


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
    weights, displacements, values = random_rows(shift=distance, per_action=True)
    weights, displacements, values = (x.to(dtype) for x in (weights, displacements, values))
    corrected = corrected_weights(weights, displacements)
    np.testing.assert_allclose(corrected.sum(dim=-1), 1.0, rtol=1e-5)
    parts = derivatives(weights, displacements, correction(weights, displacements), values)
    assert all(bool(part.isfinite().all()) for part in parts)


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
