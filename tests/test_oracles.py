"""The oracle against itself, and against facts worked out by hand."""

import dataclasses

import numpy as np
import pytest
import torch as th

import oracles


def random_problem(n_samples: int | None = None, n_neighbors: int | None = None, gamma: float = 0.9) -> oracles.OracleProblem:
    """Twelve transitions in two state and two action dimensions, two of them terminal, and three start states."""
    rng = np.random.default_rng(0)
    n, d_s, d_a = 12, 2, 2
    return oracles.OracleProblem(
        states=rng.normal(size=(n, d_s)),
        actions=rng.normal(size=(n, d_a)),
        rewards=rng.normal(size=n),
        next_states=rng.normal(size=(n, d_s)),
        terminals=np.isin(np.arange(n), [3, 7]),
        initial_states=rng.normal(size=(3, d_s)),
        state_bandwidth=np.array([0.5, 0.8]),
        action_bandwidth=np.array([0.6, 0.9]),
        next_state_bandwidth=np.array([0.2, 0.3]),
        gamma=gamma,
        next_state_noise=None if n_samples is None else rng.normal(size=(n_samples, n, d_s)),
        n_neighbors=n_neighbors,
    )


def random_policy(stochastic: bool) -> tuple[oracles.Policy, list[th.Tensor]]:
    """A small tanh network, with a state-dependent standard deviation if asked for, and its parameters."""
    generator = th.Generator().manual_seed(0)
    shapes = [(2, 3), (3,), (3, 2), (2,), (3, 2)]
    parameters = [th.randn(shape, generator=generator, dtype=th.float64).requires_grad_() for shape in shapes]
    hidden_weight, hidden_bias, mean_weight, mean_bias, log_std_weight = parameters

    def policy(states: th.Tensor) -> th.Tensor | tuple[th.Tensor, th.Tensor]:
        hidden = th.tanh(states @ hidden_weight + hidden_bias)
        mean = hidden @ mean_weight + mean_bias
        return (mean, th.exp(0.3 * hidden @ log_std_weight)) if stochastic else mean

    return policy, parameters if stochastic else parameters[:4]


def random_action_noise(problem: oracles.OracleProblem, stochastic: bool) -> np.ndarray | None:
    """Four draws of the action noise at every query, or None."""
    n_queries = problem.n_transitions * problem.n_next_state_samples + len(problem.initial_states)
    return np.random.default_rng(1).normal(size=(n_queries, 4, 2)) if stochastic else None


cases = pytest.mark.parametrize(
    ("n_samples", "n_neighbors", "stochastic"),
    [(None, None, False), (3, None, False), (None, 5, False), (None, None, True), (2, 5, True)],
)


@cases
def test_loops_equal_dense(n_samples: int | None, n_neighbors: int | None, stochastic: bool):
    problem = random_problem(n_samples, n_neighbors)
    policy, _ = random_policy(stochastic)
    action_noise = random_action_noise(problem, stochastic)
    slow = oracles.evaluate_loops(problem, policy, action_noise)
    dense = oracles.evaluate(problem, policy, action_noise)
    for field in dataclasses.fields(oracles.OracleSolution):
        np.testing.assert_allclose(getattr(dense, field.name), getattr(slow, field.name), rtol=1e-10, atol=1e-13)
    assert oracles.autograd_return(problem, policy, action_noise).item() == pytest.approx(slow.estimated_return, rel=1e-10)


@cases
def test_gradient_equals_finite_differences(n_samples: int | None, n_neighbors: int | None, stochastic: bool):
    problem = random_problem(n_samples, n_neighbors)
    policy, parameters = random_policy(stochastic)
    action_noise = random_action_noise(problem, stochastic)
    before = [parameter.detach().clone() for parameter in parameters]
    gradient = oracles.autograd_gradient(problem, policy, parameters, action_noise)
    differences = oracles.finite_difference_gradient(problem, policy, parameters, action_noise)
    assert gradient.shape == (sum(parameter.numel() for parameter in parameters),)
    assert gradient.norm() > 0.01
    th.testing.assert_close(gradient, differences, rtol=1e-6, atol=1e-8)
    assert all(th.equal(parameter, old) for parameter, old in zip(parameters, before, strict=True))


def test_gradient_equals_the_papers_closed_form():
    """∇J = (∂ε₀)ᵀ q + γ μᵀ (∂P) q, with q and μ held constant, needs no derivative of the solve."""
    problem = random_problem(n_samples=2)
    policy, parameters = random_policy(stochastic=False)
    solution = oracles.evaluate_loops(problem, policy)
    transition, initial_weights = oracles._dense_weights(problem, policy, None)
    q, mu = th.as_tensor(solution.q), th.as_tensor(solution.mu)
    closed_form = th.autograd.grad(initial_weights @ q + problem.gamma * mu @ transition @ q, parameters)
    expected = th.cat([part.reshape(-1) for part in closed_form])
    th.testing.assert_close(oracles.autograd_gradient(problem, policy, parameters), expected, rtol=1e-9, atol=1e-12)


def test_parameter_without_influence_has_zero_gradient():
    policy, parameters = random_policy(stochastic=False)
    unused = th.ones(2, dtype=th.float64, requires_grad=True)
    gradient = oracles.autograd_gradient(random_problem(), policy, [*parameters, unused])
    assert th.equal(gradient[-2:], th.zeros(2, dtype=th.float64))


@cases
def test_rows_sum_to_one_or_to_zero(n_samples: int | None, n_neighbors: int | None, stochastic: bool):
    problem = random_problem(n_samples, n_neighbors)
    policy, _ = random_policy(stochastic)
    solution = oracles.evaluate_loops(problem, policy, random_action_noise(problem, stochastic))
    np.testing.assert_allclose(solution.transition.sum(axis=1), np.where(problem.terminals, 0.0, 1.0), atol=1e-12)
    assert solution.initial_weights.sum() == pytest.approx(1.0)
    assert (solution.transition >= 0.0).all()


@cases
def test_visitation_satisfies_the_papers_identity(n_samples: int | None, n_neighbors: int | None, stochastic: bool):
    """μᵀ = ε₀ᵀ + γ μᵀ P̂, and the return read from μ is the return read from q."""
    problem = random_problem(n_samples, n_neighbors)
    policy, _ = random_policy(stochastic)
    solution = oracles.evaluate_loops(problem, policy, random_action_noise(problem, stochastic))
    np.testing.assert_allclose(solution.mu, solution.initial_weights + problem.gamma * solution.mu @ solution.transition)
    assert solution.mu @ problem.rewards == pytest.approx(solution.estimated_return, rel=1e-12)


def test_visitation_without_terminals_adds_up_to_the_horizon():
    problem = dataclasses.replace(random_problem(), terminals=np.zeros(12, dtype=bool))
    policy, _ = random_policy(stochastic=False)
    assert oracles.evaluate_loops(problem, policy).mu.sum() == pytest.approx(1.0 / (1.0 - problem.gamma))


def test_without_future_the_return_is_the_smoothed_reward():
    problem = random_problem(gamma=0.0)
    policy, _ = random_policy(stochastic=False)
    solution = oracles.evaluate_loops(problem, policy)
    np.testing.assert_array_equal(solution.q, problem.rewards)
    np.testing.assert_array_equal(solution.mu, solution.initial_weights)
    assert solution.estimated_return == pytest.approx(solution.initial_weights @ problem.rewards)


def test_values_satisfy_the_nonparametric_bellman_equation():
    """With the kernel's mean as the only next state, q_i = r_i + γ V(s'_i); nothing follows a terminal transition."""
    problem = random_problem()
    policy, _ = random_policy(stochastic=False)
    solution = oracles.evaluate_loops(problem, policy)
    next_values = oracles.value(problem, solution, policy, problem.next_states) * ~problem.terminals
    np.testing.assert_allclose(solution.q, problem.rewards + problem.gamma * next_values, rtol=1e-10)
    start_values = oracles.value(problem, solution, policy, problem.initial_states)
    assert start_values.mean() == pytest.approx(solution.estimated_return)


# --- Facts worked out by hand --------------------------------------------------------------------------------------------

STAY, GO = -1.0, 1.0
LEFT, RIGHT = 0.0, 10.0
HALF = 0.5  # the discount factor of the two-state problem


@pytest.fixture
def two_states() -> oracles.OracleProblem:
    """
    Two states far apart and two actions far apart, so that the kernels tell them apart to machine precision.

    | from  | action | reward | to           |
    | ----- | ------ | ------ | ------------ |
    | left  | stay   | 0      | left         |
    | left  | go     | 1      | right        |
    | right | stay   | 3      | right        |
    | right | go     | 5      | the end      |
    """
    return oracles.OracleProblem(
        states=np.array([[LEFT], [LEFT], [RIGHT], [RIGHT]]),
        actions=np.array([[STAY], [GO], [STAY], [GO]]),
        rewards=np.array([0.0, 1.0, 3.0, 5.0]),
        next_states=np.array([[LEFT], [RIGHT], [RIGHT], [RIGHT]]),
        terminals=np.array([0.0, 0.0, 0.0, 1.0]),
        initial_states=np.array([[LEFT]]),
        state_bandwidth=np.array([0.1]),
        action_bandwidth=np.array([0.1]),
        next_state_bandwidth=np.array([0.1]),
        gamma=HALF,
    )


def choose(left: float, right: float) -> oracles.Policy:
    """The policy that does one thing on the left and another on the right."""
    return lambda states: th.where(states < 5.0, left, right).to(th.float64)


@pytest.mark.parametrize("evaluate", [oracles.evaluate, oracles.evaluate_loops])
@pytest.mark.parametrize(
    ("left", "right", "value_left", "value_right", "visitation"),
    [
        # Right for good: 3 / (1 − ½) = 6; left, 1 + ½ · 6.
        (GO, STAY, 4.0, 6.0, [0.0, 1.0, 1.0, 0.0]),
        # Ends with the 5: 1 + ½ · 5.
        (GO, GO, 3.5, 5.0, [0.0, 1.0, 0.0, 0.5]),
        # Never leaves, never earns.
        (STAY, GO, 0.0, 5.0, [2.0, 0.0, 0.0, 0.0]),
    ],
)
def test_two_states_by_hand(two_states, evaluate, left, right, value_left, value_right, visitation):
    policy = choose(left, right)
    solution = evaluate(two_states, policy)
    assert solution.estimated_return == pytest.approx(value_left)
    np.testing.assert_allclose(solution.mu, visitation, atol=1e-12)
    queries = np.array([[LEFT], [RIGHT]])
    np.testing.assert_allclose(oracles.value(two_states, solution, policy, queries), [value_left, value_right], atol=1e-12)
    chosen = [visitation[0 if left == STAY else 1], visitation[2 if right == STAY else 3]]
    np.testing.assert_allclose(oracles.state_distribution(two_states, solution, policy, queries), chosen, atol=1e-12)


@pytest.mark.parametrize("evaluate", [oracles.evaluate, oracles.evaluate_loops])
def test_two_states_with_a_coin_by_hand(two_states, evaluate):
    """
    Either action with probability one half, as two draws at −1 and +1 of a unit normal:
    V(right) = ½ (3 + ½ V(right)) + ½ · 5 = 16/3 and V(left) = ½ · ½ V(left) + ½ (1 + ½ V(right)) = 22/9.
    """
    coin = np.tile(np.array([[STAY], [GO]]), (5, 1, 1))

    def policy(states: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return th.zeros_like(states), th.ones(1, dtype=th.float64)

    solution = evaluate(two_states, policy, coin)
    assert solution.estimated_return == pytest.approx(22.0 / 9.0)
    queries = np.array([[LEFT], [RIGHT]])
    values = oracles.value(two_states, solution, policy, queries, coin[:2])
    np.testing.assert_allclose(values, [22.0 / 9.0, 16.0 / 3.0])


def test_action_noise_is_read_in_query_order(two_states):
    """Noise that says "stay" at every query but one changes that query's row and no other."""
    problem = dataclasses.replace(two_states, next_state_noise=np.zeros((2, 4, 1)))
    noise = np.full((4 * 2 + 1, 1, 1), STAY)
    noise[1 * 2 + 1] = GO  # transition 1, sample 1

    def policy(states: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return th.zeros_like(states), th.ones_like(states)

    expected = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    for evaluate in (oracles.evaluate, oracles.evaluate_loops):
        np.testing.assert_allclose(evaluate(problem, policy, noise).transition, expected, atol=1e-12)


def test_weights_are_normalised_before_they_are_averaged(two_states):
    """
    One sampled action lies on the data, the other far beyond it. Each owns half of the weight; averaging kernels
    before normalising would give the first one everything.
    """
    noise = np.array([[STAY], [GO + 2.0]])

    def policy(states: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return th.zeros_like(states), th.ones_like(states)

    weights = oracles.policy_responsibilities(two_states, policy, np.array([LEFT]), noise)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0, 0.0], atol=1e-12)


def test_gaussian_log_kernel_is_a_density():
    x = np.array([1.0, -2.0])
    center = np.array([0.5, 1.0])
    bandwidth = np.array([0.5, 2.0])
    density = np.exp(-0.5 * (1.0 + 2.25)) / (2.0 * np.pi * 0.5 * 2.0)
    assert oracles.gaussian_log_kernel(x, center, bandwidth) == pytest.approx(np.log(density))


def test_responsibilities_by_hand_and_far_from_all_data():
    states, actions = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
    one = np.ones(1)
    # Squared scaled distances: 0 and 1 + 4, so the log-weights differ by 2.5.
    near = oracles.responsibilities(np.array([0.0]), np.array([0.0]), states, actions, one, one)
    np.testing.assert_allclose(near, np.array([1.0, np.exp(-2.5)]) / (1.0 + np.exp(-2.5)))
    far = oracles.responsibilities(np.array([1e4]), np.array([0.0]), states, actions, one, one)
    np.testing.assert_allclose(far, [0.0, 1.0])


def test_nearest_rows_use_the_scaled_metric():
    states = np.array([[0.0, 3.0], [2.0, 0.0], [5.0, 5.0]])
    query = np.zeros((1, 2))
    assert oracles.nearest_rows(query, states, np.array([1.0, 1.0]), 2).tolist() == [[1, 0]]
    assert oracles.nearest_rows(query, states, np.array([1.0, 10.0]), 2).tolist() == [[0, 1]]


def test_truncated_mass_by_hand():
    states = np.array([[2.0], [0.0], [1.0]])
    kernels = np.exp([-2.0, 0.0, -0.5])
    masses = [oracles.truncated_mass(np.zeros((1, 1)), states, np.ones(1), k)[0] for k in (1, 2, 3)]
    expected = [(kernels[0] + kernels[2]) / kernels.sum(), kernels[0] / kernels.sum(), 0.0]
    np.testing.assert_allclose(masses, expected)
    # Far below rounding error of one, and still there.
    tiny = oracles.truncated_mass(np.zeros((1, 1)), np.array([[0.0], [10.0]]), np.ones(1), 1)[0]
    assert tiny == pytest.approx(np.exp(-50.0))


def test_truncated_mass_bounds_the_change_of_the_weights_when_actions_do_not_matter():
    """With a flat action kernel the dropped mass is exactly half the L1 distance between full and truncated rows."""
    problem = dataclasses.replace(random_problem(), action_bandwidth=np.array([1e9, 1e9]))
    policy, _ = random_policy(stochastic=False)
    full = oracles.evaluate_loops(problem, policy).transition
    kept = oracles.evaluate_loops(dataclasses.replace(problem, n_neighbors=4), policy).transition
    dropped = oracles.truncated_mass(problem.next_states, problem.states, problem.state_bandwidth, 4)
    goes_on = ~problem.terminals
    assert dropped.max() > 1e-3
    np.testing.assert_allclose(0.5 * np.abs(full - kept).sum(axis=1)[goes_on], dropped[goes_on], rtol=1e-6)


def test_a_policy_of_the_wrong_kind_is_refused(two_states):
    deterministic = choose(GO, STAY)
    for evaluate in (oracles.evaluate, oracles.evaluate_loops):
        with pytest.raises(AssertionError, match="returns \\(mean, std\\)"):
            evaluate(two_states, deterministic, np.zeros((5, 1, 1)))
        with pytest.raises(AssertionError, match="needs action_noise"):
            evaluate(two_states, lambda states: (states, states))
