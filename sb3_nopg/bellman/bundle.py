"""Trajectories of a policy through the model that training differentiates along: where from, and against what."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch as th

from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import Trajectories, step_through, weigh
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import StepFunction, step_function


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

    def left_of(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: (m, d_a)
        """
        size, lost = self._in_numpy
        return actions - lost * np.tanh(actions / size)

    @cached_property
    def _in_numpy(self) -> tuple[np.ndarray, np.ndarray]:
        return self.size.numpy(), ((1.0 - self.effect) * self.size).numpy()

    def slope(self, actions: th.Tensor) -> th.Tensor:
        """
        Of :meth:`left_of`.

        :param actions: (…, m, d_a)
        """
        size, lost = self.size.to(actions), (1.0 - self.effect).to(actions)
        return 1.0 - lost * (1.0 - th.tanh(actions / size).square())


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


def follow_policy(model: DynamicsModel, policy: NOPGPolicy | StepFunction, bundle: Bundle) -> Trajectories:
    """
    :param model: of the system
    :param policy: to follow
    :param bundle: how
    """
    step, noise = step_function(policy) if isinstance(policy, NOPGPolicy) else policy, bundle.action_noise
    draws = None if noise is None else noise.cpu().numpy()

    def act(seen: np.ndarray, t: int) -> np.ndarray:
        asked_for = step(seen, None if draws is None else draws[t])
        return asked_for if bundle.friction is None else bundle.friction.left_of(asked_for.astype(np.float64))

    path = step_through(
        model,
        act,
        bundle.starts,
        bundle.n_steps,
        bundle.noise,
        bundle.earlier,
    )
    with th.no_grad():
        return weigh(model, path, bundle.gamma, bundle.node_values, bundle.costs_by)
