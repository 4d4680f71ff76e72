"""
A policy's network in NumPy, where it is a plain one: layers with tanh or ReLU between, and a squashed head.

Along trajectories it is asked for a few states at a time and many times over, where calls are most of the work. What it
computed on the way is all that its derivatives need, so that nothing is computed a second time for them.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch as th
from scipy.special import expit
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, GaussianMlpPolicy, NOPGPolicy


class _Activation(NamedTuple):
    """
    :param apply: in place
    :param slope: from what it gave
    """

    apply: Callable[[np.ndarray], object]
    slope: Callable[[np.ndarray], np.ndarray]


_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.Tanh: _Activation(lambda values: np.tanh(values, out=values), lambda given: 1.0 - given * given),
    nn.ReLU: _Activation(lambda values: np.maximum(values, 0.0, out=values), lambda given: given > 0.0),
}
# Policies that do what they were written to do; whoever overrides that is asked.
_PLAIN = (DeterministicMlpPolicy.action_distribution, GaussianMlpPolicy.action_distribution)


class _Layer(NamedTuple):
    """
    :param linear: of the policy
    :param across: its weight transposed, (in, out)
    :param bias: (out,)
    :param activation: after it; None for none
    """

    linear: nn.Linear
    across: np.ndarray
    bias: np.ndarray
    activation: _Activation | None


class PlainNetwork:
    """
    :param policy: for which :func:`is_plain` holds, as it is now: what changes afterwards is not seen
    """

    def __init__(self, policy: DeterministicMlpPolicy):
        self._mean, self._std = _array(policy.observation_mean), _array(policy.observation_std)
        self._center, self._half_range = _array(policy.action_center), _array(policy.action_half_range)
        self._layers, modules = [], list(policy.network)
        for linear, after in zip(modules, [*modules[1:], None], strict=True):
            if isinstance(linear, nn.Linear):
                activation = None if after is None else _ACTIVATIONS.get(type(after))
                self._layers.append(_Layer(linear, _array(linear.weight).T.copy(), _array(linear.bias), activation))
        self._largest_std = None
        if isinstance(policy, GaussianMlpPolicy):
            self._largest_std = float(policy.std_scale) * policy.max_std * self._half_range

    def __call__(self, observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """
        :param observations: (m, d_s)
        :param noise: standard normal draws, (m, d_a); None for the mean
        :return: actions, (m, d_a)
        """
        return self._head(self._forward(observations)[-1], noise)

    def _forward(self, observations: np.ndarray) -> list[np.ndarray]:
        """What goes into the first layer, and what comes out of each."""
        found = [((observations - self._mean) / self._std).astype(self._center.dtype)]
        for _, across, bias, activation in self._layers:
            values = found[-1] @ across
            values += bias
            if activation is not None:
                activation.apply(values)
            found.append(values)
        return found

    def _head(self, outputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        n = len(self._center)
        mean = self._center + self._half_range * np.tanh(outputs[:, :n])
        if self._largest_std is None or noise is None:
            return mean
        return mean + self._largest_std * expit(outputs[:, n:]) * noise.astype(mean.dtype)

    def _head_slopes(self, outputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Of each action with respect to the outputs, (d_a, m, n_outputs)."""
        n = len(self._center)
        slopes = np.zeros((n, *outputs.shape), dtype=outputs.dtype)
        own, squashed = range(n), np.tanh(outputs[:, :n])
        slopes[own, :, own] = (self._half_range * (1.0 - squashed * squashed)).T
        if self._largest_std is not None and noise is not None:
            share = expit(outputs[:, n:])
            slopes[own, :, range(n, 2 * n)] = (self._largest_std * share * (1.0 - share) * noise.astype(share.dtype)).T
        return slopes


class RememberingNetwork(PlainNetwork):
    """
    One that remembers every call, for the derivatives of all its actions.

    :param policy: whose parameters get gradients
    """

    def __init__(self, policy: DeterministicMlpPolicy):
        super().__init__(policy)
        self._calls: list[tuple[list[np.ndarray], np.ndarray | None]] = []
        # Of all calls together: what went into each layer, and the actions' slopes by what came out of it, one each, (m, out).
        self._inputs: list[np.ndarray] = []
        self._slopes: list[list[np.ndarray]] = []

    def __call__(self, observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        values = self._forward(observations)
        self._calls.append((values, noise))
        return self._head(values[-1], noise)

    def answers(self) -> tuple[th.Tensor, th.Tensor]:
        """
        :return: the actions of all calls, (n, d_a), and K = ∂a/∂o at each, (n, d_a, d_s)
        """
        every, draws = zip(*self._calls, strict=True)
        *self._inputs, outputs = (np.concatenate(values) for values in zip(*every, strict=True))
        noise = None if draws[0] is None else np.concatenate(draws)
        slopes, self._slopes = list(self._head_slopes(outputs, noise)), []
        for number in reversed(range(len(self._layers))):
            self._slopes.insert(0, slopes)
            slopes = [slope @ self._layers[number].across.T for slope in slopes]
            if number > 0 and (activation := self._layers[number - 1].activation) is not None:
                steep = activation.slope(self._inputs[number])
                for slope in slopes:
                    slope *= steep
        of_observations = np.stack(slopes, axis=1) / self._std
        return th.from_numpy(self._head(outputs, noise)), th.from_numpy(of_observations)

    def push_back(self, derivative: th.Tensor) -> None:
        """
        Add Σ derivative · ∂a/∂θ to the gradients of the policy's parameters.

        :param derivative: by every action of :meth:`answers`, (n, d_a)
        """
        columns = [column[:, None] for column in derivative.numpy().astype(self._center.dtype).T]
        for layer, inputs, slopes in zip(self._layers, self._inputs, self._slopes, strict=True):
            by_output = sum(
                (column * slope for column, slope in zip(columns[1:], slopes[1:], strict=True)), columns[0] * slopes[0]
            )
            _add_gradient(layer.linear.weight, by_output.T @ inputs)
            _add_gradient(layer.linear.bias, by_output.sum(axis=0))


def is_plain(policy: NOPGPolicy) -> bool:
    """
    :param policy: any
    :return: whether :class:`PlainNetwork` does what it does
    """
    own = type(policy)
    written_so = own.action_distribution in _PLAIN and own.sample_actions is NOPGPolicy.sample_actions
    written_so = written_so and own.normalize is NOPGPolicy.normalize
    if not (written_so and isinstance(policy, DeterministicMlpPolicy)):
        return False
    if type(policy).network_output is not DeterministicMlpPolicy.network_output or type(policy.network) is not nn.Sequential:
        return False
    kinds = [type(module) for module in policy.network]
    known = set(kinds) <= {nn.Linear, *_ACTIVATIONS} and kinds[0] is nn.Linear and kinds[-1] is nn.Linear
    # Of two activations after one layer only the first would be seen.
    alone = all(nn.Linear in pair for pair in pairwise(kinds))
    own_weights = all(_has_weights_of_its_own(module) for module in policy.network if isinstance(module, nn.Linear))
    unwatched = not any(_is_watched(module) for module in policy.modules())
    return known and alone and own_weights and unwatched and type(policy.features_extractor) is FlattenExtractor


def _has_weights_of_its_own(layer: nn.Linear) -> bool:
    """Whether they are parameters, and not made of others, left out or changed on the way by a hook."""
    return all(isinstance(one, nn.Parameter) and not one._backward_hooks for one in (layer.weight, layer.bias))


def _is_watched(module: nn.Module) -> bool:
    """Whether something wants to be called, and may change what is computed."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _add_gradient(parameter: th.Tensor, gradient: np.ndarray) -> None:
    if parameter.requires_grad:
        found = th.from_numpy(gradient).to(parameter)
        parameter.grad = found if parameter.grad is None else parameter.grad + found


def _array(tensor: th.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
