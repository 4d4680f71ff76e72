"""Fitted models with all that the equation on nodes has to deal with, the equation on them, and the same for the oracle."""

import functools

import numpy as np
import torch as th

from helpers import node_oracle
from helpers.systems import cart, linear, linear_reward, on_circle, pendulum, pendulum_reward, record, two_forces
from sb3_nopg import DynamicsModel
from sb3_nopg.bellman.on_nodes import NodeEquation, NodeSolution

GAMMA = 0.95
N_NODES = 40

PLAIN = ["angle, local reward", "ends, quadratic reward", "two actions and their products", "earlier actions, one map"]
# What the oracle knows, and what autograd can go through.
ALL, TRACEABLE = [*PLAIN, "given reward"], [*PLAIN, "limits"]


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


def solved(equation: NodeEquation, actions: th.Tensor) -> NodeSolution:
    return equation.solve(actions, tolerance=1e-13)
