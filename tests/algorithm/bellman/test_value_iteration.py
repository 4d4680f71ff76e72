"""Value iteration on nodes: against plain sweeps over a dense table, and on a problem whose answer is known."""

import numpy as np
import pytest
import torch as th
from scipy.stats import qmc

from helpers.systems import cart, on_circle, pendulum, pendulum_reward, record, two_forces
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.bellman.on_nodes import NodeEquation
from sb3_nopg.bellman.value_iteration import candidate_actions, iterate_values


def on_a_line(n: int = 200) -> TransitionDataset:
    """A point that a step moves by at most 0.2, and that wants to be at zero."""
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1, 1, size=(n, 1)), rng.uniform(-1, 1, size=(n, 1))
    states[:2] = [[-1.0], [1.0]]
    actions[:2] = 0.0
    after = states + 0.2 * actions
    return TransitionDataset(states, actions, -np.square(states[:, 0]), after, np.zeros(n, bool), episode_ids=np.arange(n))


@pytest.mark.slow
def test_a_problem_whose_answer_is_known():
    gamma = 0.9
    model = DynamicsModel.fit(on_a_line(), n_nodes=200)
    choice = iterate_values(NodeEquation(model, th.zeros(1, 1, dtype=th.float64), gamma))
    states = model.nodes.states[:, 0]
    # By 0.2 a step towards zero, and there it stays.
    expected = -sum(gamma**t * (states.abs() - 0.2 * t).clamp_min(0.0).square() for t in range(12))
    inside = states.abs() < 0.95
    assert float((choice.values - expected)[inside].abs().max()) < 0.03
    far = inside & (states.abs() > 0.25)
    np.testing.assert_allclose(choice.actions[far, 0].numpy(), -np.sign(states[far].numpy()), atol=0.02)
    at_home = states.abs() < 0.01
    assert float(choice.actions[at_home].abs().max()) < 0.3
    # Farther out more is at stake than at home.
    assert float(choice.stakes[far].mean()) > float(choice.stakes[at_home].mean()) > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cart", "pendulum", "two actions"])
def test_it_is_plain_value_iteration(name):
    data = {
        "cart": lambda: record(cart, start=(0.8, 0.8), ends=lambda state: abs(state[0]) > 1.0),
        "pendulum": lambda: record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle),
        "two actions": lambda: record(two_forces, d_a=2),
    }[name]()
    gamma = 0.9
    model = DynamicsModel.fit(data, n_nodes=40, n_earlier_steps=0)
    equation = NodeEquation(model, model.nodes.states[:3], gamma)
    choice = iterate_values(equation)
    n, (low, high) = equation.n_nodes, model.action_range
    candidates = th.tensor(candidate_actions(low.numpy(), high.numpy()))
    tables, rewards = [], []
    for action in candidates:
        landing = equation.land(action.expand(n, -1))
        table = th.zeros(n, n, dtype=th.float64)
        # A node may be among a row's neighbours more than once.
        table.scatter_add_(1, landing.weights.nodes, gamma * landing.crossing.goes_on[:, None] * landing.weights.values)
        tables.append(table)
        rewards.append(landing.reward.value + gamma * equation.worst * landing.crossing.unknown)
        if len(tables) == 1:
            assert float(table.sum(dim=1).max()) <= gamma + 1e-12
    tables, rewards = th.stack(tables), th.stack(rewards)
    values = th.zeros(n, dtype=th.float64)
    for _ in range(400):
        values = (rewards + tables @ values).max(dim=0).values
    size = float(values.abs().max())
    th.testing.assert_close(choice.values, values, rtol=0, atol=1e-4 * size)
    # Its actions are as good as the best candidates.
    followed = equation.solve(choice.actions[:, None], tolerance=1e-10).values
    th.testing.assert_close(followed, values, rtol=0, atol=1e-4 * size)
    # No single action everywhere does better.
    for action in candidates[:: max(1, len(candidates) // 5)]:
        held = equation.solve(action.expand(n, 1, -1), tolerance=1e-10).values
        assert float((held - values).max()) <= 1e-4 * size


def test_candidates_hold_both_ends():
    one = candidate_actions(np.array([-2.0]), np.array([1.0]))
    assert one.shape == (9, 1)
    assert one.min() == -2.0
    assert one.max() == 1.0
    two = candidate_actions(np.array([-2.0, 0.0]), np.array([1.0, 5.0]))
    assert len(two) == 81
    assert {(-2.0, 0.0), (1.0, 5.0), (-2.0, 5.0), (1.0, 0.0)} <= {tuple(row) for row in two}


def test_many_dimensions_are_scattered():
    low, high = -np.ones(5), np.ones(5)
    many = candidate_actions(low, high)
    assert many.shape == (192, 5)
    assert (np.abs(many) <= 1.0).all()
    assert (np.abs(many) == 1.0).all(axis=1).sum() == 64
    np.testing.assert_array_equal(many, candidate_actions(low, high))
    # Evenly: better than draws.
    assert qmc.discrepancy((many[:128] + 1.0) / 2.0) < 0.05
