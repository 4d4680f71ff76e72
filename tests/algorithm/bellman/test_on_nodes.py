"""The Bellman equation on nodes and its gradient, against an oracle in loops and against autograd through a dense solve."""

import functools

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers import node_oracle
from helpers.systems import cart, linear, linear_reward, on_circle, pendulum, pendulum_reward, record, two_forces
from sb3_nopg import DynamicsModel
from sb3_nopg.bellman.gradient import derivative_on_nodes, gradient_on_nodes
from sb3_nopg.bellman.on_nodes import Landing, NodeEquation, NodeSolution
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.common.errors import SolverError
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, GaussianMlpPolicy

pytestmark = pytest.mark.slow

GAMMA = 0.95
N_NODES = 40


def off_the_rail(state: np.ndarray) -> bool:
    return abs(state[0]) > 1.0


@functools.cache
def model_of(name: str) -> DynamicsModel:
    """One for each thing that the equation has to deal with."""
    if name == "angle, local reward":
        data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
        return DynamicsModel.fit(data, n_nodes=N_NODES, bandwidth=0.7)
    if name == "ends, quadratic reward":
        return DynamicsModel.fit(record(cart, start=(0.8, 0.8), ends=off_the_rail), n_nodes=N_NODES, n_earlier_steps=0)
    if name == "two actions and their products":
        return DynamicsModel.fit(record(two_forces, d_a=2), n_nodes=N_NODES, n_earlier_steps=0)
    if name == "earlier actions, one map":
        return DynamicsModel.fit(record(linear, linear_reward, delay=1), n_nodes=N_NODES)
    if name == "limits":
        limits = {0: (-0.6, 0.6), 1: (None, 0.9)}
        return DynamicsModel.fit(record(cart, start=(0.8, 0.8)), n_nodes=N_NODES, limits=limits, n_earlier_steps=0)
    assert name == "given reward"
    reward = "cos(2 * s2[0]) - 0.1 * a**2 + 0.2 * s[1] * s2[1]"
    return DynamicsModel.fit(record(cart, start=(0.8, 0.8)), n_nodes=N_NODES, reward=reward, n_earlier_steps=0)


PLAIN = ["angle, local reward", "ends, quadratic reward", "two actions and their products", "earlier actions, one map"]
# What the oracle knows, and what autograd can go through.
ALL, TRACEABLE = [*PLAIN, "given reward"], [*PLAIN, "limits"]


def test_the_models_are_what_their_names_say():
    angle, ends, two, earlier, given = (model_of(name) for name in ALL)
    assert angle.coordinates.round.any()
    assert angle.reward is None
    assert ends.bounds.has_ends
    assert ends.reward is not None
    assert ends.reward_is_bounded
    assert two.choices.products
    assert len(two.action_range[0]) == 2
    assert earlier.choices.n_earlier_steps == 1
    assert earlier.nodes.single
    assert not given.reward_is_bounded
    assert not given.nodes.single


def equation_of(model: DynamicsModel, gamma: float = GAMMA) -> NodeEquation:
    # Not where nodes are: between them.
    starts = model.nodes.states[:5] * 0.7 + 0.01
    return NodeEquation(model, starts, gamma)


def actions_at(equation: NodeEquation, n_each: int, seed: int = 0) -> th.Tensor:
    """Some of them beyond what can be applied, (n, a, d_a)."""
    generator = th.Generator().manual_seed(seed)
    shape = (equation.n_nodes, n_each, len(equation.model.action_range[0]))
    return 0.7 * th.randn(shape, generator=generator, dtype=th.float64)


def oracle_of(equation: NodeEquation) -> node_oracle.NodeProblem:
    model = equation.model
    interpolation, bounds, nodes = model.nodes.interpolation, model.bounds, model.nodes
    low, high = model.action_range
    reward = None
    if model.reward is not None:

        def reward(state: np.ndarray, action: np.ndarray, after: np.ndarray) -> float:
            return float(model.reward(*(th.tensor(part[None]) for part in (state, action, after))))

    return node_oracle.NodeProblem(
        nodes=nodes.states.numpy(),
        angular=model.coordinates.angular.numpy(),
        round=model.coordinates.round.numpy(),
        scale=interpolation.scale.numpy(),
        around=interpolation.around.numpy(),
        squared_width=interpolation.squared_width.numpy(),
        value=nodes.without_past.value.numpy(),
        action_slope=nodes.without_past.action_slope.numpy(),
        products=model.features.quadratic,
        action_low=low.numpy(),
        action_high=high.numpy(),
        low=bounds.low.numpy(),
        high=bounds.high.numpy(),
        ends_low=bounds.ends_low.numpy(),
        ends_high=bounds.ends_high.numpy(),
        reward=reward,
        reward_range=model.reward_range,
        initial=(model.nodes.states[:5] * 0.7 + 0.01).numpy(),
        worst=model.worst_value(equation.gamma),
        gamma=equation.gamma,
    )


def nearest_of(landing: Landing, n_each: int) -> np.ndarray:
    return landing.weights.nodes[:, 0].view(-1, n_each).numpy()


def solved(equation: NodeEquation, actions: th.Tensor) -> NodeSolution:
    return equation.solve(actions, tolerance=1e-13)


@pytest.mark.parametrize("n_each", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_values_and_visitation_are_the_oracle_s(name, n_each):
    equation = equation_of(model_of(name))
    actions = actions_at(equation, n_each)
    found = solved(equation, actions)
    expected = node_oracle.solve(oracle_of(equation), actions.numpy())
    np.testing.assert_allclose(found.values.numpy(), expected.values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.visitation.numpy(), expected.visitation, rtol=1e-9, atol=1e-9)
    assert found.estimated_return == pytest.approx(expected.estimated_return, rel=1e-9)


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


@pytest.mark.parametrize("name", ALL)
def test_rows_sum_to_one_or_less(name):
    equation = equation_of(model_of(name))
    # As far out as actions lead.
    landing = equation.land(20.0 * actions_at(equation, 1)[:, 0])
    weights, crossing = landing.weights.values, landing.crossing
    assert float(weights.min()) >= 0.0
    th.testing.assert_close(weights.sum(dim=1), th.ones(len(weights), dtype=th.float64), rtol=0, atol=1e-12)
    assert float(crossing.goes_on.max()) <= 1.0
    assert float((crossing.goes_on + crossing.unknown).max()) <= 1.0 + 1e-12
    assert float(equation.initial_weights.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", TRACEABLE)
def test_values_stay_within_what_can_be_earned(name, gamma):
    equation = equation_of(model_of(name), gamma)
    low, high = equation.model.reward_range
    for seed in range(3):
        solution = solved(equation, 3.0 * actions_at(equation, 2, seed))
        values = solution.values
        if equation.model.reward_is_bounded:
            assert float(values.max()) <= max(high, 0.0) / (1.0 - gamma) + 1e-9
            assert float(values.min()) >= min(low / (1.0 - gamma), equation.worst) - 1e-9
        # μ sums to 1 / (1 − γ) where nothing ends.
        assert float(solution.visitation.min()) >= -1e-12
        assert float(solution.visitation.sum()) <= 1.0 / (1.0 - gamma) + 1e-9


def test_without_a_future_a_value_is_a_reward():
    equation = equation_of(model_of("ends, quadratic reward"), gamma=0.0)
    solution = solved(equation, actions_at(equation, 1))
    th.testing.assert_close(solution.values, solution.landing.reward.value, rtol=1e-10, atol=1e-12)
    th.testing.assert_close(solution.visitation, equation.initial_weights, rtol=1e-10, atol=1e-12)


def test_a_second_solve_does_not_depend_on_the_first():
    model = model_of("ends, quadratic reward")
    equation, warm_start = equation_of(model), WarmStart()
    first, second = actions_at(equation, 1, 0), actions_at(equation, 1, 5)
    warm_start.q_history.add(solved(equation, first).values)
    again = equation.solve(second, warm_start, 1e-12)
    fresh = solved(equation_of(model), second)
    th.testing.assert_close(again.values, fresh.values, rtol=1e-8, atol=1e-8)


def test_actions_that_are_not_finite_are_told():
    equation = equation_of(model_of("ends, quadratic reward"))
    actions = actions_at(equation, 1)
    actions[3] = th.nan
    with pytest.raises(SolverError, match="learning_rate"):
        equation.solve(actions)
