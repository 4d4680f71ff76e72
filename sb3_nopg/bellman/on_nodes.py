"""
The Bellman equation on nodes, for one policy after another.

The model says where each node's action leads, x'_i = z_i + c_i + B_i ψ(a_i), and the interpolation between which nodes that
is, Φ_il = φ_l(x'_i). With s_i the probability of going on and e_i that of leaving what is known, which has the worst value w:

    V = r + γ e w + γ s ∘ (Φ V)        values of the nodes
    μ = ε₀ + γ Φᵀ (s ∘ μ)              how often the policy visits each node
    Ĵ = ε₀ᵀ V

This is the paper's equation with the model's transition in the place of the recorded one. An update costs what the nodes
cost, however many samples there are. The policy gradient is in gradient.py.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
import torch as th

from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.solvers import Solution, SolutionHistory, solve
from sb3_nopg.common.errors import SolverError
from sb3_nopg.dynamics.bounds import Crossing
from sb3_nopg.dynamics.interpolation import Weights
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.rewards import StepReward


def check_actions(actions: th.Tensor) -> None:
    """:raises SolverError: unless all are finite"""
    if not bool(actions.isfinite().all()):
        raise SolverError("The policy's actions are not finite any more. Try a smaller learning_rate.")


@dataclass(frozen=True)
class Landing:
    """
    Where actions at nodes lead, of m rows: one for each node and action.

    :param applied: actions within their range, (m, d_a)
    :param asked_for: which were within it, (m, d_a)
    :param next_states: x', (m, d)
    :param kept: coordinates that the bounds left alone, (m, d)
    :param reward: r with its slopes
    :param crossing: of the bounds
    :param weights: of the nodes at x'
    """

    applied: th.Tensor
    asked_for: th.Tensor
    next_states: th.Tensor
    kept: th.Tensor
    reward: StepReward
    crossing: Crossing
    weights: Weights


@dataclass(frozen=True)
class NodeSolution:
    """
    The equation solved for one policy.

    :param landing: of all nodes' actions
    :param estimated_return: Ĵ
    :param value_solve: V and how it was found
    :param visitation_solve: μ and how it was found
    """

    landing: Landing
    estimated_return: float
    value_solve: Solution
    visitation_solve: Solution

    @property
    def values(self) -> th.Tensor:
        """V, (n,)."""
        return self.value_solve.value

    @property
    def visitation(self) -> th.Tensor:
        """μ, (n,)."""
        return self.visitation_solve.value


class NodeEquation:
    """
    :param model: of the system
    :param starts: states where the task starts, (n₀, d)
    :param gamma: discount
    """

    def __init__(self, model: DynamicsModel, starts: th.Tensor, gamma: float):
        self.model, self.gamma, self.worst = model, gamma, model.worst_value(gamma)
        interpolation = model.nodes.interpolation
        weights = interpolation.weights(starts, interpolation.locate(starts))
        spread = weights.values.reshape(-1) / len(starts)
        #: ε₀, (n,)
        self.initial_weights = starts.new_zeros(len(model.nodes)).index_add(0, weights.nodes.reshape(-1), spread)
        self.observations = model.coordinates.decode(model.nodes.states)
        # Beyond the nodes there are no values, however far the system itself is known.
        self.bounds = replace(model.bounds, room=th.zeros_like(model.bounds.room))

    @property
    def n_nodes(self) -> int:
        return len(self.model.nodes)

    def land(self, actions: th.Tensor) -> Landing:
        """
        :param actions: one for each node, (n, d_a)
        """
        model, nodes = self.model, self.model.nodes
        applied = model.clip(actions)
        values = nodes.without_past.at_own_states(model.features(applied))
        next_states = self.bounds.hold(nodes.states + values[:, : model.coordinates.dim])
        weights = nodes.interpolation.weights(next_states, nodes.interpolation.locate(next_states))
        reward = self._reward(applied, next_states, values)
        asked_for, kept = model.asked_for(applied), self.bounds.left_alone(next_states)
        return Landing(applied, asked_for, next_states, kept, reward, self.bounds.cross(next_states), weights)

    def _reward(self, applied: th.Tensor, next_states: th.Tensor, values: th.Tensor) -> StepReward:
        model = self.model
        states, d = model.nodes.states, model.coordinates.dim
        if model.reward is not None:
            return model.reward.with_slopes(states, applied, next_states)
        low, high = model.reward_range
        raw = values[:, d]
        within = ((raw >= low) & (raw <= high))[:, None]
        slope = model.nodes.without_past.action_slope[:, d]
        of_inputs = th.where(within, slope, th.zeros_like(slope))
        of_action = model.features.pull_back(applied, of_inputs)
        return StepReward(raw.clamp(low, high), th.zeros_like(states), of_action, th.zeros_like(states))

    def solve(self, actions: th.Tensor, warm_start: WarmStart | None = None, tolerance: float = 1e-8) -> NodeSolution:
        """
        :param actions: the policy's at every node, (n, a, d_a)
        :param warm_start: solutions for similar policies
        :param tolerance: relative residual of both solves
        """
        check_actions(actions)
        warm_start, n_each = warm_start or WarmStart(), actions.shape[1]
        landings = [self.land(actions[:, i]) for i in range(n_each)]
        landing = landings[0] if n_each == 1 else _interleaved(landings)
        matrix = _Rows(landing, self.gamma, self.n_nodes, n_each)
        rhs = landing.reward.value + self.gamma * self.worst * landing.crossing.unknown
        rhs = rhs.view(-1, n_each).mean(dim=1)
        value_solve = matrix.solve(rhs, warm_start.q_history, tolerance, transposed=False)
        visitation_solve = matrix.solve(self.initial_weights, warm_start.visitation_history, tolerance, transposed=True)
        self._check_bound(value_solve.value, tolerance * float(th.linalg.vector_norm(rhs)))
        estimated_return = float(th.dot(self.initial_weights, value_solve.value))
        return NodeSolution(landing, estimated_return, value_solve, visitation_solve)

    def _check_bound(self, values: th.Tensor, slack: float) -> None:
        """Rows sum to one at most: no value exceeds R_max / (1 − γ), or the worst value, by more than the solve's error."""
        largest_reward = max(abs(bound) for bound in self.model.reward_range)
        bound = max(largest_reward / (1.0 - self.gamma), abs(self.worst)) * (1.0 + 1e-6) + slack / (1.0 - self.gamma)
        largest = float(values.abs().max())
        if self.model.reward_is_bounded and not largest <= bound:
            raise SolverError(
                f"A value of {largest:.3g} exceeds {bound:.3g}, which no solution can. Try a smaller solver_tolerance."
            )


class _Rows:
    """γ s ∘ Φ as a sparse matrix, averaged over each node's actions."""

    def __init__(self, landing: Landing, gamma: float, n: int, n_each: int):
        self.n = n
        self._columns = landing.weights.nodes.reshape(n, -1)
        entries = landing.weights.values * (gamma * landing.crossing.goes_on / n_each)[:, None]
        self._entries = entries.reshape(n, -1)
        self._matrix: scipy.sparse.csr_array | None = None
        if self._entries.device.type == "cpu":
            k = self._columns.shape[1]
            pointers = np.arange(0, n * k + 1, k)
            columns = self._columns.reshape(-1).numpy()
            self._matrix = scipy.sparse.csr_array((self._entries.reshape(-1).numpy(), columns, pointers), shape=(n, n))
            self._transposed = self._matrix.T.tocsr()

    def times(self, x: th.Tensor) -> th.Tensor:
        if self._matrix is not None:
            return th.from_numpy(self._matrix @ x.numpy())
        return (self._entries * x[self._columns]).sum(dim=1)

    def transposed_times(self, x: th.Tensor) -> th.Tensor:
        if self._matrix is not None:
            return th.from_numpy(self._transposed @ x.numpy())
        return th.zeros_like(x).index_add_(0, self._columns.reshape(-1), (self._entries * x[:, None]).reshape(-1))

    def solve(self, rhs: th.Tensor, history: SolutionHistory, tolerance: float, *, transposed: bool) -> Solution:
        product = self.transposed_times if transposed else self.times

        def operator(x: th.Tensor) -> th.Tensor:
            return x - product(x)

        def to_dense() -> th.Tensor:
            dense = th.zeros(self.n, self.n, dtype=rhs.dtype, device=rhs.device)
            dense.scatter_add_(1, self._columns, self._entries)
            dense = th.eye(self.n, dtype=rhs.dtype, device=rhs.device) - dense
            return dense.T if transposed else dense

        return solve(operator, rhs, to_dense, None, history.guess(operator, rhs), tolerance)


def _interleaved(landings: list[Landing]) -> Landing:
    """Actions of one node one after the other."""

    def joined(parts: list[th.Tensor]) -> th.Tensor:
        return th.stack(parts, dim=1).flatten(0, 1)

    def together(records: list[Any]) -> Any:
        first = records[0]
        return replace(
            first,
            **{
                name: joined([getattr(record, name) for record in records])
                if isinstance(getattr(first, name), th.Tensor)
                else together([getattr(record, name) for record in records])
                for name in first.__dataclass_fields__
            },
        )

    return together(landings)
