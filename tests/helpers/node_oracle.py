"""
The Bellman equation on nodes, slow and obvious, in loops over NumPy arrays: what the fast one is tested against.

Nothing here imports the package under test. A fitted model's public numbers are copied into :class:`NodeProblem`, and all that
is computed from them is written out again: where actions lead, what lies beyond the bounds, weights between nodes, two solves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: state (d,), action (d_a,), next state (d,) to a number; None where the nodes' own maps have the reward as their last target
Reward = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class NodeProblem:
    """
    :param nodes: z, (n, d)
    :param angular: which coordinates are angles, (d,)
    :param round: which are angles without ends, (d,)
    :param scale: of the interpolation, (d,)
    :param around: nodes that count at and around each, itself first, (n, k)
    :param squared_width: of each node's Gaussian, (n,)
    :param value: of each node's map at the node and no action, (n, t)
    :param action_slope: of each node's map, (n, t, p)
    :param products: whether products of actions count
    :param action_low: (d_a,)
    :param action_high: (d_a,)
    :param low: of the states, (d,)
    :param high: of the states, (d,)
    :param ends_low: whether the task ends below, (d,)
    :param ends_high: whether it ends above, (d,)
    :param reward: a function; None for the maps' last target
    :param reward_range: that such a reward is kept within
    :param initial: start states, (n₀, d)
    :param worst: value of what is not known
    :param gamma: discount
    """

    nodes: np.ndarray
    angular: np.ndarray
    round: np.ndarray
    scale: np.ndarray
    around: np.ndarray
    squared_width: np.ndarray
    value: np.ndarray
    action_slope: np.ndarray
    products: bool
    action_low: np.ndarray
    action_high: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ends_low: np.ndarray
    ends_high: np.ndarray
    reward: Reward | None
    reward_range: tuple[float, float]
    initial: np.ndarray
    worst: float
    gamma: float


@dataclass(frozen=True)
class NodeAnswer:
    """
    :param matrix: γ s ∘ Φ, (n, n)
    :param values: V, (n,)
    :param visitation: μ, (n,)
    :param estimated_return: Ĵ
    """

    matrix: np.ndarray
    values: np.ndarray
    visitation: np.ndarray
    estimated_return: float


def difference(problem: NodeProblem, to: np.ndarray, from_: np.ndarray) -> np.ndarray:
    """The way from one state to another, the shorter one around a circle."""
    way = to - from_
    for j in range(len(way)):
        if problem.angular[j]:
            while way[j] > math.pi:
                way[j] -= 2.0 * math.pi
            while way[j] < -math.pi:
                way[j] += 2.0 * math.pi
    return way


def nearest_node(problem: NodeProblem, state: np.ndarray) -> int:
    distances = [np.square(difference(problem, node, state) / problem.scale).sum() for node in problem.nodes]
    return int(np.argmin(distances))


def interpolation(problem: NodeProblem, state: np.ndarray, nearest: int) -> np.ndarray:
    """Weight of every node at a state, (n,)."""
    d, chosen = len(state), problem.around[nearest]
    # By way of the nearest node: half around a circle, either way is as short, and a weight must not jump there.
    first = difference(problem, problem.nodes[nearest], state)
    ways = np.array(
        [(first + difference(problem, problem.nodes[node], problem.nodes[nearest])) / problem.scale for node in chosen]
    )
    exponents = np.array([-0.5 * way @ way / problem.squared_width[node] for node, way in zip(chosen, ways, strict=True)])
    gaussian = np.exp(exponents - exponents.max())
    gaussian /= gaussian.sum()
    mean, moment, width = np.zeros(d), np.zeros((d, d)), 0.0
    for weight, way, node in zip(gaussian, ways, chosen, strict=True):
        mean += weight * way
        moment += weight * np.outer(way, way)
        width += weight * problem.squared_width[node]
    tilt = np.linalg.solve(moment + 0.01 * width * np.eye(d), -mean)
    weights = np.zeros(len(problem.nodes))
    for weight, way, node in zip(gaussian, ways, chosen, strict=True):
        weights[node] += weight * max(1.0 + tilt @ way, 0.02)
    return weights / weights.sum()


def landing(problem: NodeProblem, node: int, action: np.ndarray) -> tuple[np.ndarray, float]:
    """Where an action leads from a node, and what it earns."""
    d, applied = problem.nodes.shape[1], np.clip(action, problem.action_low, problem.action_high)
    features = list(applied)
    if problem.products:
        features += [applied[i] * applied[j] for i in range(len(applied)) for j in range(i, len(applied))]
    found = problem.value[node] + problem.action_slope[node] @ np.array(features)
    after = problem.nodes[node] + found[:d]
    for j in range(d):
        if not problem.round[j]:
            padding = 0.1 * (problem.high[j] - problem.low[j])
            after[j] = min(max(after[j], problem.low[j] - padding), problem.high[j] + padding)
    if problem.reward is not None:
        return after, problem.reward(problem.nodes[node], applied, after)
    return after, min(max(found[d], problem.reward_range[0]), problem.reward_range[1])


def fate(problem: NodeProblem, state: np.ndarray) -> tuple[float, float]:
    """Probability of going on, and of having left what is known."""
    not_ended, known = 1.0, 1.0
    for j in range(len(state)):
        if problem.round[j]:
            continue
        width = 0.01 * (problem.high[j] - problem.low[j])
        below_the_top = 1.0 / (1.0 + math.exp(-(problem.high[j] + 3.0 * width - state[j]) / width))
        above_the_bottom = 1.0 / (1.0 + math.exp(-(state[j] - problem.low[j] + 3.0 * width) / width))
        for stays, ends in ((below_the_top, problem.ends_high[j]), (above_the_bottom, problem.ends_low[j])):
            if ends:
                not_ended *= stays
            else:
                known *= stays
    return not_ended * known, not_ended * (1.0 - known)


def solve(problem: NodeProblem, actions: np.ndarray, nearest: np.ndarray | None = None) -> NodeAnswer:
    """
    :param problem: what is known
    :param actions: of the policy at every node, (n, a, d_a)
    :param nearest: node next to where each action leads, (n, a); None to look for it
    """
    n, n_each, _ = actions.shape
    matrix, earned = np.zeros((n, n)), np.zeros(n)
    for node in range(n):
        for number in range(n_each):
            after, reward = landing(problem, node, actions[node, number])
            goes_on, unknown = fate(problem, after)
            near = nearest_node(problem, after) if nearest is None else int(nearest[node, number])
            earned[node] += (reward + problem.gamma * unknown * problem.worst) / n_each
            matrix[node] += problem.gamma * goes_on * interpolation(problem, after, near) / n_each
    starts = np.zeros(n)
    for state in problem.initial:
        starts += interpolation(problem, state, nearest_node(problem, state)) / len(problem.initial)
    values = np.linalg.solve(np.eye(n) - matrix, earned)
    visitation = np.linalg.solve(np.eye(n) - matrix.T, starts)
    return NodeAnswer(matrix, values, visitation, float(starts @ values))
