"""Training on a model from data of every kind: whatever they hold, a policy with finite figures comes out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch as th

from helpers.models import make_nopg
from helpers.systems import cart, linear, linear_reward, on_circle, pendulum, pendulum_reward, record, two_forces
from sb3_nopg import NOPG, TransitionDataset

pytestmark = pytest.mark.slow


def make(data: TransitionDataset, **settings) -> NOPG:
    arguments = {"gamma": 0.8, "seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [16]}}
    # To find out that earlier steps do not count takes most of the time.
    arguments["model_kwargs"] = {"n_nodes": 60, "n_earlier_steps": 0}
    return make_nopg("MlpPolicy", None, dataset=data, **{**arguments, **settings})


def recorded() -> TransitionDataset:
    return record(cart, start=(0.8, 0.8))


@pytest.mark.parametrize("name", ["an angle", "two actions", "a delay", "constant actions", "a constant column", "a formula"])
def test_data_of_every_kind(name):
    settings = {}
    if name == "an angle":
        data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    elif name == "two actions":
        data = record(two_forces, d_a=2)
    elif name == "a delay":
        data, settings = record(linear, linear_reward, delay=1), {"model_kwargs": {"n_nodes": 60}}
    elif name == "constant actions":
        data = replace(recorded(), actions=np.zeros((len(recorded()), 1)))
    elif name == "a constant column":
        data = record(linear, linear_reward, observe=lambda s: np.column_stack([s, np.full(len(s), 2.0)]))
    else:
        formula = {"reward": "cos(s2[0]) - 0.1 * a**2"}
        data, settings = recorded(), {"model_kwargs": {"n_nodes": 60, "n_earlier_steps": 0, **formula}}
    model = make(data, **settings).learn(8)
    assert np.isfinite(th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()).all()
    assert np.isfinite([candidate.score for candidate in model.candidates]).all()
    assert math.isfinite(model.estimated_return())
    assert np.isfinite(model.policy_gradient()).all()
    assert np.isfinite(model.value(data.observations[:5])).all()


def test_rows_in_no_order_with_starts():
    data = recorded()
    order = np.random.default_rng(0).permutation(len(data))
    columns = (data.observations, data.actions, data.rewards, data.next_observations, data.terminals)
    loose = TransitionDataset(*(column[order] for column in columns), action_space=data.action_space)
    model = make(loose, initial_states=[[0.3, 0.0]]).learn(8)
    assert {candidate.trained_on for candidate in model.candidates} == {"half", "all"}
