"""Policy gradients on a model of the system: into the policy's parameters, by one backward pass each."""

from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.bellman.on_nodes import NodeEquation, NodeSolution
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.common.errors import SolverError
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import Trajectories, follow, sweep_back, weigh
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import step_function


@dataclass(frozen=True)
class Friction:
    """
    Small actions do less than data of large ones tell: dry friction holds what they should move. What is left of one,

        a − (1 − e) s tanh(a / s)

    is a share of e of a small action, and of a large one all but (1 − e) s. With e above one it is the other way about.

    :param effect: e, of each trajectory, (m, 1), on the processor
    :param size: s, what a small action is, (d_a,), on the processor
    """

    effect: th.Tensor
    size: th.Tensor

    def left_of(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: (…, m, d_a)
        """
        size, lost = self.size.to(actions), (1.0 - self.effect).to(actions)
        return actions - lost * size * th.tanh(actions / size)


@dataclass(frozen=True)
class Bundle:
    """
    Trajectories to follow, all but the policy.

    :param starts: states, (m, d)
    :param n_steps: H
    :param gamma: discount
    :param noise: of the system, (H, m, d); None for none
    :param action_noise: standard normal draws of a stochastic policy, (H, m, d_a); None for a deterministic one
    :param node_values: V at the nodes for what follows the last step, (n,); None for nothing
    :param costs_by: what steps cost beside their reward; None for nothing
    :param earlier: what the steps before the starts did, (m, n_earlier · (d_a + d)); None for rest
    :param friction: that actions have to overcome; None for none but the model's
    """

    starts: th.Tensor
    n_steps: int
    gamma: float
    noise: th.Tensor | None = None
    action_noise: th.Tensor | None = None
    node_values: th.Tensor | None = None
    costs_by: Costs | None = None
    earlier: th.Tensor | None = None
    friction: Friction | None = None


def nodes_gradient(
    equation: NodeEquation, policy: NOPGPolicy, action_noise: th.Tensor | None, warm_start: WarmStart, tolerance: float
) -> NodeSolution:
    """
    ∇Ĵ on the nodes, added to the gradients of the policy's parameters with a minus, because optimisers descend.

    :param equation: on the nodes
    :param policy: its parameters get gradients
    :param action_noise: standard normal draws of a stochastic policy, (n, a, d_a)
    :param warm_start: solutions for similar policies; remembers this one's
    :param tolerance: relative residual of the solves
    :return: of the policy as it was
    """
    actions = policy.sample_actions(equation.observations, action_noise).to(equation.initial_weights.dtype)
    with th.no_grad():
        # V and μ are solutions, not graph nodes: no derivative is taken through the solve.
        solution = equation.solve(actions.detach(), warm_start, tolerance)
        derivative = equation.return_derivative(solution)
    actions.backward(-derivative)
    warm_start.q_history.add(solution.values)
    warm_start.visitation_history.add(solution.visitation)
    return solution


def follow_policy(model: DynamicsModel, policy: NOPGPolicy, bundle: Bundle) -> Trajectories:
    """
    :param model: of the system
    :param policy: to follow
    :param bundle: how
    """

    step, noise = step_function(policy), bundle.action_noise
    draws = None if noise is None else noise.cpu().numpy()

    def act(seen: np.ndarray, t: int) -> np.ndarray:
        asked_for = step(seen, None if draws is None else draws[t])
        if bundle.friction is None:
            return asked_for
        return bundle.friction.left_of(th.from_numpy(np.asarray(asked_for, dtype=np.float64))).numpy()

    path = follow(
        model,
        act,
        bundle.starts,
        bundle.n_steps,
        bundle.noise,
        bundle.earlier,
    )
    with th.no_grad():
        return weigh(model, path, bundle.gamma, bundle.node_values, bundle.costs_by)


def trajectory_gradient(
    model: DynamicsModel, policy: NOPGPolicy, bundle: Bundle, most_weight: float | None = None
) -> Trajectories:
    """
    ∇Ĵ_H along trajectories, the mean of all, added to the gradients of the policy's parameters with a minus.

    :param model: of the system
    :param policy: its parameters get gradients
    :param bundle: trajectories to follow
    :param most_weight: of one trajectory's derivative, in medians of all: those that tumble have derivatives of any size, and
        would drown the others'; None for the gradient as it is
    :return: of the policy as it was
    """
    trajectories = follow_policy(model, policy, bundle)
    n_steps, m, n_columns = trajectories.observations.shape
    seen = trajectories.observations.reshape(-1, n_columns).requires_grad_(True)
    noise = None if bundle.action_noise is None else bundle.action_noise.reshape(n_steps * m, 1, -1)
    actions = policy.sample_actions(seen, noise)[:, 0]
    if bundle.friction is not None:
        actions = bundle.friction.left_of(actions.view(n_steps, m, -1)).flatten(0, 1)
    if not bool(actions.isfinite().all()):
        raise SolverError("The policy's actions are not finite any more. Try a smaller learning_rate.")
    # K = ∂a/∂o at every state that was passed: what the sweep needs to know of the policy.
    slopes = [th.autograd.grad(actions[:, i].sum(), seen, retain_graph=True)[0] for i in range(actions.shape[1])]
    policy_slopes = th.stack(slopes, dim=1).view(n_steps, m, actions.shape[1], n_columns)
    with th.no_grad():
        derivative = sweep_back(model, trajectories, policy_slopes, bundle.gamma)
        if most_weight is not None:
            size = derivative.square().sum(dim=(0, 2)).sqrt()
            derivative = derivative * (most_weight * size.median() / size.clamp_min(1e-300)).clamp_max(1.0)[:, None]
    actions.backward(-derivative.reshape(n_steps * m, -1).to(actions.dtype) / m)
    return trajectories
