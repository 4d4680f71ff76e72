"""The policy gradient, on samples and on nodes: against oracles, differences, and autograd through a dense solve."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers import node_oracle, oracles
from helpers.bellman_problems import VARIATIONS, TinyPolicy, action_noise, engine_problem, evaluate, random_problem
from helpers.node_equations import ALL, TRACEABLE, actions_at, equation_of, model_of, oracle_of, solved
from sb3_nopg.bellman.gradient import derivative_on_nodes, derivative_on_samples, gradient_on_nodes
from sb3_nopg.bellman.on_nodes import Landing, NodeEquation
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, GaussianMlpPolicy

# --- on samples


def engine_gradient(
    problem: BellmanProblem, policy: TinyPolicy, noise: np.ndarray | None, tolerance: float = 1e-13
) -> np.ndarray:
    actions = policy.sample(problem.queries.states, noise)
    solution = evaluate(problem, actions.detach(), tolerance=tolerance)
    gradients = th.autograd.grad(actions, list(policy.parameters()), derivative_on_samples(problem, solution))
    return th.cat([gradient.reshape(-1) for gradient in gradients]).numpy()


def relative_error(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_gradient_equals_automatic_differentiation_through_a_dense_solve(variation, stochastic):
    oracle = random_problem(**variation)
    policy = TinyPolicy(oracle.states.shape[1], oracle.actions.shape[1], stochastic)
    noise = action_noise(oracle, stochastic)
    reference = oracles.autograd_gradient(oracle, policy, list(policy.parameters()), noise)
    ours = engine_gradient(engine_problem(oracle), policy, noise)
    assert relative_error(ours, np.asarray(reference)) <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_gradient_equals_finite_differences_of_the_engines_own_return(stochastic):
    oracle = random_problem(n_next_state_samples=2)
    policy = TinyPolicy(2, 1, stochastic)
    noise = action_noise(oracle, stochastic)
    problem = engine_problem(oracle)
    ours = engine_gradient(problem, policy, noise)
    step, differences = 1e-5, []
    for parameter in policy.parameters():
        for index in np.ndindex(*parameter.shape):
            returns = []
            for sign in (1, -1):
                with th.no_grad():
                    parameter[index] += sign * step
                    actions = policy.sample(problem.queries.states, noise)
                    returns.append(evaluate(problem, actions, tolerance=1e-13).estimated_return)
                    parameter[index] -= sign * step
            differences.append((returns[0] - returns[1]) / (2 * step))
    assert relative_error(ours, np.array(differences)) <= 1e-6


@pytest.mark.parametrize("keep", [{"keep_largest": 5}, {"kl_bound": 0.05}], ids=["keep-largest", "kl-bound"])
@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_gradient_of_the_papers_sparsifications_is_that_of_their_own_return(keep, stochastic):
    """Not the dense matrix's gradient on a sparse matrix's solution, which would be the gradient of neither."""
    oracle = random_problem()
    policy = TinyPolicy(2, 1, stochastic)
    noise = action_noise(oracle, stochastic)
    problem = engine_problem(oracle, **keep)
    ours = engine_gradient(problem, policy, noise)
    direction = np.random.default_rng(1).normal(size=len(ours))
    step, returns = 1e-6, []
    parameters = list(policy.parameters())
    start = th.nn.utils.parameters_to_vector(parameters).detach()
    for sign in (1, -1):
        th.nn.utils.vector_to_parameters(start + sign * step * th.as_tensor(direction), parameters)
        with th.no_grad():
            returns.append(evaluate(problem, policy.sample(problem.queries.states, noise), tolerance=1e-13).estimated_return)
    assert (returns[0] - returns[1]) / (2 * step) == pytest.approx(ours @ direction, rel=1e-5)


@pytest.mark.slow
def test_truncated_lists_approach_the_exact_answer_as_the_tolerance_shrinks():
    oracle = random_problem(n=300, seed=3)
    policy = TinyPolicy(2, 1, stochastic=False)
    exact = engine_problem(oracle)
    reference = engine_gradient(exact, policy, None)
    errors = []
    for tolerance in (1e-1, 1e-2, 1e-4, 1e-8):
        problem = engine_problem(oracle, n_neighbors="auto", truncation_tolerance=tolerance)
        assert problem.queries.neighbors.truncation_error <= tolerance
        errors.append(relative_error(engine_gradient(problem, policy, None), reference))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6
    assert errors[0] > 1e-3  # otherwise the test would show nothing


# --- on nodes


def nearest_of(landing: Landing, n_each: int) -> np.ndarray:
    return landing.weights.nodes[:, 0].view(-1, n_each).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_each"), list(zip(ALL, (2, 1, 2, 1, 2), strict=True)))
def test_the_gradient_is_the_slope_of_the_oracle(name, n_each):
    """By central differences at some of the nodes; which nodes are near where actions lead is held, as the equation has it."""
    equation = equation_of(model_of(name))
    actions = actions_at(equation, n_each, seed=1)
    solution = solved(equation, actions)
    gradient = derivative_on_nodes(equation, solution).numpy()
    problem, nearest = oracle_of(equation), nearest_of(solution.landing, n_each)
    # Where it counts most, and where actions are cut off.
    size = np.abs(gradient).sum(axis=(1, 2))
    chosen = [*np.argsort(size)[-2:], int(np.argmin(size))]
    step, found, expected = 1e-5, [], []
    for node in chosen:
        for number, column in np.ndindex(gradient.shape[1:]):
            sides = []
            for sign in (1.0, -1.0):
                moved = actions.numpy().copy()
                moved[node, number, column] += sign * step
                sides.append(node_oracle.solve(problem, moved, nearest).estimated_return)
            expected.append((sides[0] - sides[1]) / (2.0 * step))
            found.append(gradient[node, number, column])
    # Differences of Ĵ lose digits, and a given formula's slope is a difference itself.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(gradient).max())
    assert np.abs(expected).max() > 1e-3


def dense_return(equation: NodeEquation, actions: th.Tensor, landing: Landing) -> th.Tensor:
    """Ĵ by a dense solve that autograd goes through, all of it written with torch."""
    model, nodes = equation.model, equation.model.nodes
    n, n_each, _ = actions.shape
    flat = model.clip(actions.reshape(n * n_each, -1))
    inputs = model.features(flat)
    owner = th.arange(n).repeat_interleave(n_each)
    values = nodes.without_past.value[owner] + (nodes.without_past.action_slope[owner] @ inputs[..., None])[..., 0]
    d = model.coordinates.dim
    after = equation.bounds.hold(nodes.states[owner] + values[:, :d])
    if model.reward is None:
        reward = values[:, d].clamp(*model.reward_range)
    else:
        reward = model.reward(nodes.states[owner], flat, after)
    crossing = equation.bounds.cross(after)
    weights = nodes.interpolation.weights(after, landing.weights.nodes[:, 0])
    rows = equation.gamma * crossing.goes_on[:, None] * weights.values
    matrix = th.zeros(n * n_each, n, dtype=th.float64).scatter_add(1, weights.nodes, rows).view(n, n_each, n).mean(dim=1)
    earned = (reward + equation.gamma * equation.worst * crossing.unknown).view(n, n_each).mean(dim=1)
    return equation.initial_weights @ th.linalg.solve(th.eye(n, dtype=th.float64) - matrix, earned)


@pytest.mark.slow
@pytest.mark.parametrize("n_each", [1, 4])
@pytest.mark.parametrize("name", TRACEABLE)
def test_the_gradient_is_that_of_autograd_through_the_solve(name, n_each):
    equation = equation_of(model_of(name))
    actions = actions_at(equation, n_each, seed=2).requires_grad_(True)
    with th.no_grad():
        solution = solved(equation, actions)
        found = derivative_on_nodes(equation, solution)
    estimated = dense_return(equation, actions, solution.landing)
    assert solution.estimated_return == pytest.approx(float(estimated.detach()), rel=1e-10)
    (expected,) = th.autograd.grad(estimated, actions)
    assert float((found - expected).norm() / expected.norm()) <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("policy_class", [DeterministicMlpPolicy, GaussianMlpPolicy])
def test_the_gradient_reaches_the_policy_s_parameters(policy_class):
    """NOPG-D and NOPG-S: what the optimiser gets is minus autograd's."""
    model = model_of("two actions and their products")
    equation = equation_of(model)
    policy = make_policy(policy_class, equation).double()
    noise = None
    if policy.is_stochastic:
        noise = th.randn(equation.n_nodes, 5, 2, generator=th.Generator().manual_seed(0), dtype=th.float64)
    solution = gradient_on_nodes(equation, policy, noise, WarmStart(), 1e-13)
    actions = policy.sample_actions(equation.observations, noise)
    expected = th.autograd.grad(dense_return(equation, actions, solution.landing), list(policy.parameters()))
    for parameter, wanted in zip(policy.parameters(), expected, strict=True):
        assert float((parameter.grad + wanted).norm()) <= 1e-8 * float(wanted.norm()) + 1e-14


def make_policy(policy_class, equation: NodeEquation):
    th.manual_seed(0)
    n_observations, n_actions = equation.observations.shape[1], len(equation.model.action_range[0])
    return policy_class(
        spaces.Box(-9, 9, (n_observations,)), spaces.Box(-1, 1, (n_actions,)), lambda _: 1e-3, activation_fn=th.nn.Tanh
    )
