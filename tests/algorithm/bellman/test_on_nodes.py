"""The Bellman equation on nodes, against an oracle in loops."""

import numpy as np
import pytest
import torch as th

from helpers import node_oracle
from helpers.node_equations import ALL, TRACEABLE, actions_at, equation_of, model_of, oracle_of, solved
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.common.errors import SolverError

pytestmark = pytest.mark.slow


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
