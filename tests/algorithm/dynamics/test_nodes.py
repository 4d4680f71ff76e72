"""Where nodes are: where the data are, and on the way there from starts that nobody recorded."""

import numpy as np
import pytest
import torch as th

from helpers.systems import on_circle, pendulum, record
from sb3_nopg.dynamics.nodes import choose_nodes
from sb3_nopg.experiments.pendulum_trials import random_data
from sb3_nopg.prediction.model_estimator import ModelEstimator

HANGING = np.array([[-1.0, 0.0, 0.0]])
GAMMA = 0.97


def upright(states, actions, next_states):
    return np.cos(states[:, 0])


def fast(states, action):
    """Away from the bottom, whatever the random action was."""
    return np.where(np.abs(states[:, 1:]) < 2.5, np.sign(states[:, 1:]), action)


@pytest.fixture(scope="module")
def estimator():
    data = record(pendulum, upright, start=(0.5, 3.5), observe=on_circle, act=fast, n_episodes=30)
    slow = np.abs(data.observations[:, 2]) < 1.0
    at_the_bottom = slow & (data.observations[:, 0] < -0.7)
    return ModelEstimator.fit(data.filter(~at_the_bottom), HANGING, GAMMA, "cpu", seed=0)


def near_the_start(estimator):
    nodes = estimator.dynamics.nodes.states
    start = estimator.dynamics.coordinates.encode(th.from_numpy(HANGING))
    away = estimator.dynamics.coordinates.difference(nodes, start).abs()
    return int((away < th.tensor([1.0, 0.5])).all(dim=1).sum())


def test_nodes_lead_away_from_a_start_that_nobody_recorded(estimator):
    assert near_the_start(estimator) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("n_starts", [1, 200])
def test_value_iteration_finds_the_way_up_from_there(n_starts):
    """Episodes that start upright and never come to rest at the bottom, where the task starts, everywhere nearly the same."""
    data, _ = random_data(500, seed=0)
    starts = HANGING + 0.1 * np.random.default_rng(0).normal(size=(n_starts, 3)) * (n_starts > 1)
    estimator = ModelEstimator.fit(data, starts, GAMMA, "cpu", seed=0, n_nodes=2500)
    found = float(estimator.equation.initial_weights @ estimator.greedy.values)
    hanging_for_ever = -(np.pi**2) / (1.0 - GAMMA)
    assert hanging_for_ever + 100.0 < found < -100.0


@pytest.mark.slow
def test_starts_among_the_data_need_no_nodes_of_their_own(estimator):
    """As few draws as before: what is chosen does not depend on a start that is there anyway."""
    model = estimator.dynamics
    recorded = model.coordinates.encode(th.from_numpy(on_circle(np.random.default_rng(0).uniform(-1, 1, (400, 2)))))

    def stay(states, actions):
        return states

    def chosen(first):
        drawn = th.Generator().manual_seed(0)
        choose_nodes(recorded, first, model.coordinates, th.ones(2), 300, stay, model.bounds, model.action_range, drawn)
        return drawn.get_state()

    assert th.equal(chosen(recorded[:0]), chosen(recorded[:3]))
    assert not th.equal(chosen(recorded[:0]), chosen(recorded[:3] + 100.0))
