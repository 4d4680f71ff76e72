"""What a policy does, for a few states at a time and many times over, and how that depends on states and parameters."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch as th

from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, NOPGPolicy
from sb3_nopg.policies.plain_network import PlainNetwork, RememberingNetwork, is_plain

#: observations (m, d_s), and standard normal draws (m, d_a) or None for the mean, to actions (m, d_a)
StepFunction = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


class Answers(Protocol):
    """A step function that remembers what it was asked; :class:`RememberingNetwork` says what its methods do."""

    def __call__(self, observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray: ...

    def answers(self) -> tuple[th.Tensor, th.Tensor]: ...

    def push_back(self, derivative: th.Tensor) -> None: ...


def step_function(policy: NOPGPolicy) -> StepFunction:
    """
    :param policy: as it is now: what changes afterwards is not seen
    """
    if isinstance(policy, DeterministicMlpPolicy) and is_plain(policy):
        return PlainNetwork(policy)
    return _in_torch(policy)


def remembered(policy: NOPGPolicy) -> Answers:
    """
    :param policy: whose parameters get gradients
    """
    # A GPU takes all states at once, faster than a processor that has done half of the work already.
    on_processor = policy.observation_mean.device.type == "cpu"
    if on_processor and isinstance(policy, DeterministicMlpPolicy) and is_plain(policy):
        return RememberingNetwork(policy)
    return _AskedAgain(policy)


class _AskedAgain:
    """
    Any policy: asked for all states once more, by torch, for their derivatives.

    :param policy: whose parameters get gradients
    """

    def __init__(self, policy: NOPGPolicy):
        self._policy, self._step, self._actions = policy, step_function(policy), th.empty(0)
        self._calls: list[tuple[np.ndarray, np.ndarray | None]] = []

    def __call__(self, observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        self._calls.append((observations, noise))
        return self._step(observations, noise)

    def answers(self) -> tuple[th.Tensor, th.Tensor]:
        observations, draws = zip(*self._calls, strict=True)
        device = self._policy.observation_mean.device
        seen = th.from_numpy(np.concatenate(observations)).to(device).requires_grad_(True)
        noise = None if draws[0] is None else th.from_numpy(np.concatenate(draws)).to(device)[:, None]
        self._actions = self._policy.sample_actions(seen, noise)[:, 0]
        columns = self._actions.unbind(dim=1)
        slopes = [th.autograd.grad(column.sum(), seen, retain_graph=True)[0] for column in columns]
        return self._actions.detach(), th.stack(slopes, dim=1)

    def push_back(self, derivative: th.Tensor) -> None:
        self._actions.backward(derivative.to(self._actions.dtype))


def _in_torch(policy: NOPGPolicy) -> StepFunction:
    device = policy.observation_mean.device

    def step(observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        with th.no_grad():
            seen = th.from_numpy(observations).to(device)
            mean, std = policy.action_distribution(seen)
            if std is not None and noise is not None:
                mean = mean + std * th.from_numpy(noise).to(mean)
            return mean.cpu().numpy()

    return step
