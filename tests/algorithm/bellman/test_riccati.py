"""A linear system with quadratic reward, where values, gradient and the best controller are known in closed form."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.linalg import solve_discrete_are

from helpers.systems import A, B, Q, R, linear, linear_reward, record
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman.bundle import Bundle
from sb3_nopg.bellman.gradient import gradient_along_trajectories
from sb3_nopg.bellman.riccati import LinearController, best_controller, riccati_controller
from sb3_nopg.dynamics.affine import Samples
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.rewards import QuadraticReward
from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy
from sb3_nopg.training.candidates import RICCATI
from sb3_nopg.training.imitation import imitate
from sb3_nopg.training.teaching import teach

GAMMA = 0.95
GAIN = np.array([[-0.8, -0.6]])
STARTS = np.array([[0.5, 0.0], [-0.3, 0.4], [0.2, -0.4], [-0.1, -0.3]])


def recorded() -> TransitionDataset:
    """With the best of all states, the middle, among those recorded: predicted rewards stay within what was seen."""
    data = record(linear, linear_reward)
    zeros = np.zeros((1, 2))

    def with_zeros(array):
        return np.concatenate([array, np.zeros((1, *array.shape[1:]), dtype=array.dtype)])

    return TransitionDataset(
        with_zeros(data.observations),
        with_zeros(data.actions),
        with_zeros(data.rewards),
        np.concatenate([data.next_observations, zeros]),
        with_zeros(data.terminals),
        episode_ids=np.append(data.episode_ids, 99),
        action_space=data.action_space,
    )


def cost_to_go(gain: np.ndarray) -> np.ndarray:
    """P of V(x) = −xᵀPx under a = K x: P = Q + KᵀRK + γ MᵀPM with M = A + BK, a linear system of equations."""
    closed = A + B @ gain
    stage = Q + gain.T @ R @ gain
    return np.linalg.solve(np.eye(4) - GAMMA * np.kron(closed.T, closed.T), stage.reshape(-1)).reshape(2, 2)


def expected_return(gain: np.ndarray) -> float:
    return float(-np.mean(np.einsum("ni,ij,nj->n", STARTS, cost_to_go(gain), STARTS)))


def expected_gradient(gain: np.ndarray) -> np.ndarray:
    """∂J/∂K = −2 (RK + γBᵀPM) Σ with Σ = Σ₀ + γ MΣMᵀ, the discounted second moment of the states."""
    closed, first = A + B @ gain, STARTS.T @ STARTS / len(STARTS)
    moment = np.linalg.solve(np.eye(4) - GAMMA * np.kron(closed, closed), first.reshape(-1)).reshape(2, 2)
    return -2.0 * (R @ gain + GAMMA * B.T @ cost_to_go(gain) @ closed) @ moment


def best_gain() -> np.ndarray:
    """Of the discounted problem."""
    slope, effect = np.sqrt(GAMMA) * A, np.sqrt(GAMMA) * B
    values = solve_discrete_are(slope, effect, Q, R)
    return -np.linalg.solve(R + effect.T @ values @ effect, effect.T @ values @ slope)


@pytest.fixture(scope="module")
def model() -> NOPG:
    return NOPG(
        "LinearPolicy",
        None,
        dataset=recorded(),
        gamma=GAMMA,
        seed=0,
        device="cpu",
        initial_states=STARTS,
        model_kwargs={"n_nodes": 100},
        policy_kwargs={"initial_gain": GAIN},
    )


def test_the_closed_form_is_right():
    """Followed step by step, and by differences."""
    total, states = 0.0, STARTS
    for t in range(600):
        actions = states @ GAIN.T
        total += GAMMA**t * linear_reward(states, actions, states).mean()
        states = linear(states, actions)
    assert expected_return(GAIN) == pytest.approx(total, rel=1e-10)
    step = 1e-6
    for column in range(2):
        moved = step * np.eye(2)[column : column + 1]
        slope = (expected_return(GAIN + moved) - expected_return(GAIN - moved)) / (2 * step)
        assert expected_gradient(GAIN)[0, column] == pytest.approx(slope, rel=1e-6)
    np.testing.assert_allclose(expected_gradient(best_gain()), 0.0, atol=1e-8)


@pytest.mark.slow
def test_values_are_those_of_the_closed_form(model):
    expected = -np.einsum("ni,ij,nj->n", STARTS, cost_to_go(GAIN), STARTS)
    # The policy's gain is in float32.
    np.testing.assert_allclose(model.value(STARTS), expected, rtol=1e-5)
    assert model.estimated_return() == pytest.approx(expected_return(GAIN), rel=1e-5)


@pytest.mark.slow
def test_the_gradient_is_that_of_the_closed_form(model):
    np.testing.assert_allclose(model.policy_gradient(), expected_gradient(GAIN)[0], rtol=1e-4)


@pytest.mark.slow
def test_in_double_precision_both_are_exact_to_what_the_ridge_leaves(model):
    dynamics = model.dynamics
    policy = DeterministicLinearPolicy(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)), lambda _: 1e-3).double()
    with th.no_grad():
        policy.weight.copy_(th.tensor(GAIN))
    bundle = Bundle(dynamics.coordinates.encode(th.tensor(STARTS)), 300, GAMMA)
    trajectories = gradient_along_trajectories(dynamics, policy, bundle)
    assert float(trajectories.returns.mean()) == pytest.approx(expected_return(GAIN), rel=1e-6)
    np.testing.assert_allclose(-policy.weight.grad.numpy(), expected_gradient(GAIN), rtol=1e-5)


def test_visits_are_counted_once_a_step(model):
    # Nothing ends here, so that they sum to what discounting leaves.
    n_steps = model.estimator.model.steps_to_the_end
    assert model.visitation.sum() == pytest.approx((1.0 - GAMMA**n_steps) / (1.0 - GAMMA), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("horizon", ["auto", 20])
def test_learning_comes_near_the_best_controller(horizon):
    model = NOPG(
        "LinearPolicy",
        None,
        dataset=recorded(),
        gamma=GAMMA,
        seed=0,
        device="cpu",
        initial_states=STARTS,
        horizon=horizon,
        model_kwargs={"n_nodes": 100},
        learning_rate=0.05,
    )
    model.learn(40)
    found = expected_return(model.policy.gain.detach().numpy().astype(np.float64))
    nothing, best = expected_return(np.zeros((1, 2))), expected_return(best_gain())
    assert best > nothing
    # Training also counts what changes of the action cost, so that it stops a little before.
    assert (found - nothing) / (best - nothing) > 0.8
    assert found <= best + 1e-9


# --- Least squares and a Riccati equation ----------------------------------------------------------------------------------


def samples(advance, n: int = 200, d: int = 2, d_a: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, actions, changes."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, size=(n, d)), rng.uniform(-1, 1, size=(n, d_a))
    return states, actions, advance(states, actions) - states


def controller_for(advance, reward=lambda states: -np.square(states).sum(axis=1), half_range=1.0, d_a=1):
    states, actions, changes = samples(advance, d_a=d_a)
    coordinates = Coordinates.of(th.tensor(states))
    return riccati_controller(coordinates, states, actions, changes, reward(states), np.full(d_a, half_range)), states


def costs(states: np.ndarray, half_range: float) -> tuple[np.ndarray, np.ndarray]:
    """By Bryson's rule: one where a state is two deviations from where it earns most, one where an action is at its end."""
    rewards = -np.square(states).sum(axis=1)
    center = states[rewards >= np.quantile(rewards, 0.9)].mean(axis=0)
    spread = np.sqrt(np.square(states - center).mean(axis=0))
    return np.diag(1.0 / (2.0 * spread) ** 2), np.eye(1) / half_range**2


@pytest.mark.parametrize("half_range", [0.5, 3.0])
def test_the_gain_is_that_of_the_riccati_equation(half_range):
    controller, states = controller_for(linear, half_range=half_range)
    state_cost, action_cost = costs(states, half_range)
    values = solve_discrete_are(A, B, state_cost, action_cost)
    expected = np.linalg.solve(action_cost + B.T @ values @ B, B.T @ values @ A)
    np.testing.assert_allclose(controller.gain, expected, rtol=1e-6)


def test_no_other_gain_costs_less():
    controller, states = controller_for(linear)
    state_cost, action_cost = costs(states, 1.0)

    def cost(gain: np.ndarray) -> float:
        total, state = 0.0, np.array([[0.5, -0.2], [0.1, 0.4]])
        for _ in range(400):
            action = -state @ gain.T
            total += np.einsum("ni,ij,nj", state, state_cost, state) + np.einsum("ni,ij,nj", action, action_cost, action)
            state = linear(state, action)
        return total

    least = cost(controller.gain)
    for moved in ([[0.05, 0]], [[-0.05, 0]], [[0, 0.05]], [[0, -0.05]]):
        assert cost(controller.gain + np.array(moved)) > least


def test_it_rests_where_nothing_drifts():
    drift = np.array([0.02, -0.05])
    controller, _ = controller_for(lambda s, a: linear(s, a) + drift)
    rest, action = controller.state[None], controller.action[None]
    np.testing.assert_allclose(linear(rest, action) + drift, rest, atol=1e-8)
    np.testing.assert_allclose(controller(rest), action, atol=1e-12)
    state = np.array([[0.5, 0.5]])
    for _ in range(300):
        state = linear(state, controller(state)) + drift
    np.testing.assert_allclose(state, rest, atol=1e-6)


def test_two_actions():
    effect = np.array([[0.1, 0.0], [0.05, 0.2]])
    controller, _ = controller_for(lambda s, a: 1.05 * s + a @ effect.T, d_a=2)
    assert controller.gain.shape == (2, 2)
    # What grows by itself does not under this controller.
    assert np.abs(np.linalg.eigvals(1.05 * np.eye(2) - effect @ controller.gain)).max() < 1.0


def test_an_angle_is_steered_the_short_way():
    """Upright is where rewards are highest, at the cut of the angle in the data's coordinates."""
    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-3.1, 3.1, size=400), rng.uniform(-1, 1, size=400)
    actions = rng.uniform(-1, 1, size=(400, 1))
    seen = np.column_stack([np.cos(angle + np.pi), np.sin(angle + np.pi), speed])
    after_speed = speed + 0.1 * (2.0 * np.sin(angle) + 3.0 * actions[:, 0])
    after = angle + 0.1 * after_speed
    seen_after = np.column_stack([np.cos(after + np.pi), np.sin(after + np.pi), after_speed])
    coordinates = Coordinates.of(th.tensor(np.concatenate([seen, seen_after])))
    states, next_states = (coordinates.encode(th.tensor(part)) for part in (seen, seen_after))
    changes = coordinates.difference(next_states, states).numpy()
    controller = riccati_controller(coordinates, states.numpy(), actions, changes, np.cos(angle), np.ones(1))
    upright = coordinates.encode(th.tensor([[-1.0, 0.0, 0.0]], dtype=th.float64)).numpy()
    difference = coordinates.difference(th.tensor(controller.state), th.tensor(upright[0]))
    assert float(difference.abs().max()) < 0.3
    # A pole that leans one way by a little, and the other way: pushed against each.
    leaning = th.tensor([[np.cos(np.pi + lean), np.sin(np.pi + lean), 0.0] for lean in (0.5, -0.5)], dtype=th.float64)
    pushes = controller(coordinates.encode(leaning).numpy())[:, 0]
    assert pushes[0] < 0 < pushes[1]
    assert np.abs(pushes).max() < 5.0


def test_where_the_equation_has_no_solution_there_is_no_controller():
    # One coordinate grows, and no action reaches it.
    out_of_reach, _ = controller_for(lambda s, a: np.column_stack([1.5 * s[:, 0], 0.9 * s[:, 1] + a[:, 0]]))
    assert out_of_reach is None


def test_where_all_is_known_the_linear_controller_is_the_best_one(model):
    controller = model.estimator.model.linear_controller
    np.testing.assert_allclose(-controller.gain, best_gain(), rtol=1e-4)
    np.testing.assert_allclose(controller.action - controller.state @ controller.gain.T, 0.0, atol=1e-4)


def best_of(data: TransitionDataset) -> LinearController | None:
    states, actions, rewards = (th.tensor(part) for part in (data.observations, data.actions, data.rewards[:, None]))
    reward = QuadraticReward.fit(Samples(Coordinates.of(states, ()), states, actions, rewards), 1, exact=True)
    return best_controller(data.observations, data.actions, data.next_observations - data.observations, reward, GAMMA)


@pytest.mark.slow
def test_the_best_controller_of_a_system_that_drifts_towards_a_goal_elsewhere():
    """No neighbour of it earns more, whether its gain or its offset differs."""
    drift, goal = np.array([0.01, -0.03]), np.array([0.4, 0.1])

    def earns(states, actions, next_states):
        return 2.0 + linear_reward(states - goal, actions + 0.2, None) - 0.1 * states[:, 0] * actions[:, 0]

    def advance(states, actions):
        return linear(states, actions) + drift

    data = record(advance, earns, seed=1)
    found = best_of(data)

    def discounted(gain, offset):
        states, total = STARTS, 0.0
        for t in range(400):
            actions = states @ gain.T + offset
            total += GAMMA**t * earns(states, actions, None).mean()
            states = advance(states, actions)
        return total

    best, (gain, offset) = discounted(-found.gain, found.action), (-found.gain, found.action)
    for direction in (np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])):
        for step in (-0.05, 0.05):
            assert discounted(gain + step * direction, offset) < best
    for step in (-0.02, 0.02):
        assert discounted(gain, offset + step) < best


@pytest.mark.parametrize(("of_state", "of_action"), [(-0.1, 10.0), (50.0, -0.1)])
def test_what_only_pays_has_no_best_controller(of_state, of_action):
    """Neither an action that pays, nor a state that pays more than the action that leads there costs."""

    def earns(states, actions, _):
        return of_state * np.square(states).sum(axis=1) + of_action * actions[:, 0] ** 2

    assert best_of(record(linear, earns)) is None


def test_actions_that_cost_nothing_have_a_best_controller():
    data = record(linear, lambda states, actions, _: -np.square(states).sum(axis=1))
    found = best_of(data)
    closed = A - B @ found.gain
    assert np.abs(np.linalg.eigvals(closed)).max() < 1.0
    values = solve_discrete_are(np.sqrt(GAMMA) * A, np.sqrt(GAMMA) * B, np.eye(2), np.array([[1e-9]]))
    expected = np.linalg.solve(B.T @ values @ B, B.T @ values @ A)
    np.testing.assert_allclose(found.gain, expected, rtol=1e-3)


@pytest.mark.slow
def test_a_gain_is_taught_beyond_the_recorded_actions():
    """Of a system that is known everywhere: weak pushes were recorded, and strong ones are best."""
    data = record(linear, linear_reward, start=(5.0, 5.0))
    model = NOPG("LinearPolicy", None, dataset=data, gamma=GAMMA, seed=0, device="cpu", initial_states=5.0 * STARTS)
    estimator = model.estimator.model
    assert estimator.dynamics.choices.exact
    teach(model.policy, RICCATI, estimator, 0)
    np.testing.assert_allclose(model.policy.gain.detach().numpy(), best_gain(), rtol=1e-3)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_gain_is_taught_at_once(diagonal):
    rng = np.random.default_rng(0)
    states, gain = rng.normal(size=(200, 2)), np.diag([1.5, -0.4]) if diagonal else np.array([[1.5, 0.2], [-0.3, -0.4]])
    policy = DeterministicLinearPolicy(spaces.Box(-9, 9, (2,)), spaces.Box(-4, 4, (2,)), lambda _: 1e-3, diagonal=diagonal)
    # Half of the targets are wrong, and do not matter.
    targets, importance = states @ gain.T, np.repeat([1.0, 0.0], 100)
    targets[100:] = 3.0
    policy.fit_gain(*(th.from_numpy(part) for part in (states, targets, importance)))
    np.testing.assert_allclose(policy.gain.detach().numpy(), gain, atol=1e-6)
    assert imitate(policy, th.from_numpy(states), th.from_numpy(states @ gain.T)) < 1e-10
