"""Value iteration on nodes: the best that the model knows with a few actions. A gradient can get stuck where this cannot."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy
import torch as th

from sb3_nopg.bellman.on_nodes import NodeEquation

# Candidates for each action dimension, and for more dimensions than a grid has room for, in all.
_LEVELS, _MOST_ON_GRID, _SCATTERED = 9, 100, 128
_ROUNDS, _SWEEPS, _TOLERANCE, _SOLVE_TOLERANCE = 80, 60, 1e-6, 1e-4
# Weight of a node that the choice never visits, beside one that it visits as often as nodes are on average.
_OFF_THE_WAY = 0.3


@dataclass(frozen=True)
class GreedyChoice:
    """
    What value iteration ends with.

    :param actions: the best candidate at each node, (n, d_a)
    :param values: of the nodes when the best candidates follow, (n,)
    :param stakes: from the worst candidate's value to the best one's, (n,)
    :param visitation: how often these actions visit each node, from the start states, (n,)
    """

    actions: th.Tensor
    values: th.Tensor
    stakes: th.Tensor
    visitation: th.Tensor

    @property
    def importance(self) -> th.Tensor:
        """Weight of each node for a policy that imitates the choice: much at stake, and often visited, (n,)."""
        tiny = th.finfo(self.stakes.dtype).tiny
        visits = self.visitation.clamp_min(0.0)
        return self.stakes / self.stakes.mean().clamp_min(tiny) * (_OFF_THE_WAY + visits / visits.mean().clamp_min(tiny))


def candidate_actions(low: np.ndarray, high: np.ndarray, seed: int = 0) -> np.ndarray:
    """
    Actions to choose among: a grid that holds both ends of each range, or in many dimensions a scatter with its corners.

    :param low: smallest actions, (d_a,)
    :param high: largest, (d_a,)
    :param seed: of the scatter
    :return: (c, d_a)
    """
    if _LEVELS ** len(low) <= _MOST_ON_GRID:
        return np.array(list(product(*(np.linspace(lo, hi, _LEVELS) for lo, hi in zip(low, high, strict=True)))))
    scattered = scipy.stats.qmc.Sobol(len(low), seed=seed).random(_SCATTERED)
    # Optimal actions often lie at the ends.
    corners = np.round(scipy.stats.qmc.Sobol(len(low), seed=seed + 1).random(_SCATTERED // 2))
    return low + (high - low) * np.concatenate([scattered, corners])


@th.no_grad()
def iterate_values(equation: NodeEquation) -> GreedyChoice:
    """
    Choose the best candidate everywhere, evaluate that choice for a while, choose again, until no choice changes.

    :param equation: on the nodes
    """
    low, high = (end.cpu().numpy() for end in equation.model.action_range)
    candidates = th.as_tensor(candidate_actions(low, high)).to(equation.initial_weights)
    rewards, nodes, entries = [], [], []
    for action in candidates:
        landing = equation.land(action.expand(equation.n_nodes, -1))
        rewards.append(landing.reward.value + equation.gamma * equation.worst * landing.crossing.unknown)
        nodes.append(landing.weights.nodes)
        entries.append(landing.weights.values * (equation.gamma * landing.crossing.goes_on)[:, None])
    reward, columns, rows = th.stack(rewards), th.stack(nodes), th.stack(entries)  # (c, n), (c, n, k), (c, n, k)
    values = (reward.mean() / (1.0 - equation.gamma)).expand(equation.n_nodes)
    everywhere = th.arange(equation.n_nodes, device=values.device)
    action_values = reward + (rows * values[columns]).sum(dim=2)
    chosen = action_values.argmax(dim=0)
    for _ in range(_ROUNDS):
        own_reward, own_columns, own_rows = (part[chosen, everywhere] for part in (reward, columns, rows))
        settled = False
        for _ in range(_SWEEPS):
            before, values = values, own_reward + (own_rows * values[own_columns]).sum(dim=1)
            settled = float((values - before).abs().max()) <= _TOLERANCE * max(float(values.abs().max()), 1e-12)
            if settled:
                break
        action_values = reward + (rows * values[columns]).sum(dim=2)
        best = action_values.argmax(dim=0)
        if settled and bool((best == chosen).all()):
            break
        chosen = best
    stakes = action_values.max(dim=0).values - action_values.min(dim=0).values
    solution = equation.solve(candidates[chosen][:, None], tolerance=_SOLVE_TOLERANCE)
    return GreedyChoice(candidates[chosen], action_values.max(dim=0).values, stakes, solution.visitation)
