"""What a policy does, for a few states at a time and many times over: in NumPy, where its network is a plain one."""

from collections.abc import Callable

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, GaussianMlpPolicy, NOPGPolicy

#: observations (m, d_s), and standard normal draws (m, d_a) or None for the mean, to actions (m, d_a)
StepFunction = Callable[[np.ndarray, np.ndarray | None], np.ndarray]

_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.Tanh: np.tanh,
    nn.ReLU: lambda values: np.maximum(values, 0.0),
}
# Policies that do what they were written to do; whoever overrides that is asked.
_PLAIN = (DeterministicMlpPolicy.action_distribution, GaussianMlpPolicy.action_distribution)


def step_function(policy: NOPGPolicy) -> StepFunction:
    """
    :param policy: as it is now: what changes afterwards is not seen
    """
    own = type(policy)
    plain = own.action_distribution in _PLAIN and own.sample_actions is NOPGPolicy.sample_actions
    if plain and own.normalize is NOPGPolicy.normalize and isinstance(policy, DeterministicMlpPolicy):
        layers = list(policy.network)
        known = all(type(layer) is nn.Linear or type(layer) in _ACTIVATIONS for layer in layers)
        if known and type(policy.features_extractor) is FlattenExtractor:
            return _in_numpy(policy, layers)
    return _in_torch(policy)


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


def _in_numpy(policy: DeterministicMlpPolicy, layers: list[nn.Module]) -> StepFunction:
    observation_mean, observation_std = _array(policy.observation_mean), _array(policy.observation_std)
    center, half_range = _array(policy.action_center), _array(policy.action_half_range)
    dtype, n_actions = center.dtype, len(center)
    compiled = [
        (_array(layer.weight).T.copy(), _array(layer.bias)) if isinstance(layer, nn.Linear) else _ACTIVATIONS[type(layer)]
        for layer in layers
    ]
    largest_std = float(policy.std_scale) * policy.max_std * half_range if isinstance(policy, GaussianMlpPolicy) else None

    def step(observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        values = ((observations - observation_mean) / observation_std).astype(dtype)
        for layer in compiled:
            values = values @ layer[0] + layer[1] if isinstance(layer, tuple) else layer(values)
        mean = center + half_range * np.tanh(values[:, :n_actions])
        if largest_std is None or noise is None:
            return mean
        return mean + largest_std / (1.0 + np.exp(-values[:, n_actions:])) * noise.astype(dtype)

    return step


def _array(tensor: th.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
