"""Policies that map raw observations to actions in the environment's units, normalisation and squashing included."""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number, is_count


def _numbers(name: str, value: Any, fix: str) -> np.ndarray:
    """:raises InputError: unless the value is made of numbers"""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(name, f"does not hold numbers ({error})", fix) from error


def _layer_sizes(net_arch: Any) -> list[int]:
    """Of the policy's network, in whichever way SB3 writes them."""
    if isinstance(net_arch, dict) and set(net_arch) == {"pi", "qf"}:
        warnings.warn("There is no critic: of net_arch, qf has no effect.", stacklevel=3)
        net_arch = net_arch["pi"]
    sizes = _PAPERS_NETWORK if net_arch is None else net_arch
    if not isinstance(sizes, list | tuple) or not all(is_count(n) for n in sizes):
        raise InputError("net_arch", f"{net_arch} is no list of layer sizes", "Give one list: there is no critic to size")
    return list(sizes)


_PAPERS_NETWORK = (50,)
# Of the last layer's weights, in a network that is to start from next to nothing.
_CALM = 0.1


class NOPGPolicy(BasePolicy):
    """
    What the algorithm asks of a policy: actions at many states, as a differentiable function of its parameters.

    Subclasses define :meth:`action_distribution`. Statistics for normalising observations are part of the policy, so a
    saved or exported policy takes observations as the environment gives them.

    :param observation_space: Box
    :param action_space: Box with finite bounds
    :param optimizer_class: how parameters follow the gradient
    :param optimizer_kwargs: for the optimiser
    :param final_std_scale: shrink a stochastic policy's σ linearly to this share over training; None to leave it
    """

    observation_space: spaces.Box
    action_space: spaces.Box
    observation_mean: th.Tensor
    observation_std: th.Tensor
    normalization_fitted: th.Tensor
    std_scale: th.Tensor
    action_center: th.Tensor
    action_half_range: th.Tensor
    is_stochastic: ClassVar[bool] = False
    # Whether other controllers can be imitated: a policy that starts where a user put it is not to be moved away from there.
    can_be_taught: bool = True
    # Constructor arguments beyond the common ones, stored under their own names.
    own_arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        final_std_scale: float | None = None,
    ):
        check_number("final_std_scale", final_std_scale, 0.0, 1.0, high_included=True, optional=True)
        # Not SB3's squash_output: our actions are in the environment's units already, and predict() must not scale them again.
        super().__init__(
            observation_space,
            action_space,
            squash_output=False,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        self.final_std_scale = final_std_scale
        n_observations = observation_space.shape[0]
        #: of the action, whatever its shape
        self.n_actions = int(np.prod(action_space.shape))
        # In float64, also for a network in float32: a small spread about a large mean would drown in rounding.
        self.register_buffer("observation_mean", th.zeros(n_observations, dtype=th.float64))
        self.register_buffer("observation_std", th.ones(n_observations, dtype=th.float64))
        # A number, 0 or 1: SB3's users treat all that a state dict holds as numbers.
        self.register_buffer("normalization_fitted", th.tensor(0.0))
        self.register_buffer("std_scale", th.tensor(1.0))
        low, high = (th.from_numpy(bound.ravel()).float() for bound in (action_space.low, action_space.high))
        self.register_buffer("action_center", (high + low) / 2, persistent=False)
        self.register_buffer("action_half_range", (high - low) / 2, persistent=False)

    def _build_optimizer(self, lr_schedule: Schedule) -> None:
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def actor(self) -> "NOPGPolicy":
        """The policy itself: where SB3's policies have a critic beside the network that acts, ours have none."""
        return self

    def begin_calmly(self) -> None:
        """Start from next to nothing, in the middle of the actions' range; a policy that has other ideas keeps them."""

    def fit_normalization(self, observations: np.ndarray, least_spread: float = 1e-8) -> None:
        """
        Take mean and standard deviation from data. A policy that has them keeps them: other data must not change what it does.

        :param observations: (n, d_s)
        :param least_spread: share of a dimension's size that it must vary by, or it is only centred
        """
        if bool(self.normalization_fitted):
            return
        std = observations.std(axis=0, dtype=np.float64)
        # What hardly changes, a cosine near upright for instance, would only be blown up.
        std[std <= least_spread * np.maximum(1e-8, np.abs(observations).max(axis=0))] = 1.0
        self.observation_mean.copy_(th.from_numpy(observations.mean(axis=0, dtype=np.float64)))
        self.observation_std.copy_(th.from_numpy(std))
        self.normalization_fitted.fill_(1.0)

    def normalize(self, observations: th.Tensor) -> th.Tensor:
        normalized = (observations.to(self.observation_mean.dtype) - self.observation_mean) / self.observation_std
        return normalized.to(self.action_center.dtype)

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        """
        :param observations: raw, (m, d_s)
        :return: mean action and its standard deviation, None for a deterministic policy; environment's units, (m, d_a) each
        """
        raise NotImplementedError

    def sample_actions(self, observations: th.Tensor, noise: th.Tensor | None) -> th.Tensor:
        """
        Actions by reparametrisation, a = mean(s) + σ(s)·ξ, differentiable in the parameters.

        :param observations: (m, d_s)
        :param noise: ξ, standard normal, (m, a, d_a); None for a deterministic policy
        :return: (m, a, d_a)
        """
        mean, std = self.action_distribution(observations)
        if std is None or noise is None:
            return mean[:, None, :]
        return mean[:, None, :] + std[:, None, :] * noise.to(mean.dtype)

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        return self._predict(obs, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        assert isinstance(observation, th.Tensor)
        mean, std = self.action_distribution(observation)
        return mean if std is None or deterministic else mean + std * th.randn_like(mean)

    def set_std_scale(self, scale: float) -> None:
        """Scale the standard deviation of a stochastic policy; a deterministic one has none to scale."""
        self.std_scale.fill_(scale)

    def shrink_std(self, done: float) -> None:
        """:param done: share of the training that is over"""
        if self.final_std_scale is not None:
            self.set_std_scale(1.0 + (self.final_std_scale - 1.0) * done)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {name: getattr(self, name) for name in self.own_arguments}
        return dict(
            observation_space=self.observation_space,
            action_space=self.action_space,
            lr_schedule=self._dummy_schedule,
            optimizer_class=self.optimizer_class,
            optimizer_kwargs=self.optimizer_kwargs,
            final_std_scale=self.final_std_scale,
            **arguments,
        )


class DeterministicMlpPolicy(NOPGPolicy):
    """
    A network with a tanh output, scaled to the action space.

    :param observation_space: Box
    :param action_space: Box
    :param lr_schedule: learning rate
    :param net_arch: units of each hidden layer; None for the paper's one layer of 50. Of SB3's dict with ``pi`` and ``qf``, it
        is ``pi``: there is no critic
    :param activation_fn: between layers
    :param features_extractor_class: of the network before it, which sees normalised observations, (m, d_s)
    :param features_extractor_kwargs: for it
    :param kwargs: optimiser, see :class:`NOPGPolicy`
    """

    own_arguments: ClassVar[tuple[str, ...]] = (
        "net_arch",
        "activation_fn",
        "features_extractor_class",
        "features_extractor_kwargs",
    )
    n_heads = 1

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: Sequence[int] | dict[str, Sequence[int]] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(observation_space, action_space, **kwargs)
        self.net_arch, self.activation_fn = _layer_sizes(net_arch), activation_fn
        self.features_extractor_class = features_extractor_class
        self.features_extractor_kwargs = features_extractor_kwargs or {}
        self.features_extractor = self.make_features_extractor()
        n_features, outputs = self.features_extractor.features_dim, self.n_heads * self.n_actions
        self.network = nn.Sequential(*create_mlp(n_features, outputs, self.net_arch, activation_fn))
        self._build_optimizer(lr_schedule)

    def network_output(self, observations: th.Tensor) -> th.Tensor:
        """Before it is squashed, (m, n_heads · d_a)."""
        return self.network(self.features_extractor(self.normalize(observations)))

    def begin_calmly(self) -> None:
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        with th.no_grad():
            last.weight.mul_(_CALM)
            last.bias.zero_()

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        return self.action_center + self.action_half_range * th.tanh(self.network_output(observations)), None


class GaussianMlpPolicy(DeterministicMlpPolicy):
    """
    A Gaussian with tanh mean and sigmoid standard deviation, two heads of one network.

    :param max_std: largest standard deviation, as a share of half the action range: 0.5 is the paper's σ ≤ 1 for ±2
    """

    own_arguments = (*DeterministicMlpPolicy.own_arguments, "max_std")
    is_stochastic = True
    n_heads = 2

    def __init__(self, *args: Any, max_std: float = 0.5, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_number("max_std", max_std, 0.0, np.inf, fix="Give a positive share of half the action range")
        self.max_std = max_std

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        mean, log_odds = self.network_output(observations).chunk(2, dim=-1)
        std = self.std_scale * self.max_std * self.action_half_range * th.sigmoid(log_odds)
        return self.action_center + self.action_half_range * th.tanh(mean), std


class DeterministicLinearPolicy(NOPGPolicy):
    """
    A gain matrix, a = K s, on raw observations and without squashing: the policy of the LQR experiment.

    :param observation_space: Box
    :param action_space: Box
    :param lr_schedule: learning rate
    :param diagonal: learn the diagonal of K only
    :param initial_gain: K to start from, (d_a, d_s), zero if None
    :param kwargs: optimiser, see :class:`NOPGPolicy`
    """

    own_arguments: ClassVar[tuple[str, ...]] = ("diagonal", "initial_gain")

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        diagonal: bool = False,
        initial_gain: Any = None,
        **kwargs: Any,
    ):
        super().__init__(observation_space, action_space, **kwargs)
        shape = (self.n_actions, observation_space.shape[0])
        gain = np.zeros(shape) if initial_gain is None else _numbers("initial_gain", initial_gain, "Give K with a = K s")
        if gain.shape != shape or not np.isfinite(gain).all():
            raise InputError(
                "initial_gain", f"shape {gain.shape} where {shape} finite numbers are expected", "Give K with a = K s"
            )
        self.diagonal, self.initial_gain, self.can_be_taught = diagonal, initial_gain, initial_gain is None
        gain_tensor = th.as_tensor(gain, dtype=th.float32)
        self.weight = nn.Parameter(th.diagonal(gain_tensor).clone() if diagonal else gain_tensor)
        self._build_optimizer(lr_schedule)

    @property
    def gain(self) -> th.Tensor:
        """K, (d_a, d_s)."""
        if not self.diagonal:
            return self.weight
        # Products with identity matrices: scattering into a diagonal cannot be exported to ONNX.
        n, n_actions, n_observations = len(self.weight), self.n_actions, self.observation_space.shape[0]
        wide, high = (th.eye(rows, columns).to(self.weight) for rows, columns in ((n_actions, n), (n, n_observations)))
        return (wide * self.weight) @ high

    def fit_normalization(self, observations: np.ndarray, least_spread: float = 0.0) -> None:
        """Nothing to fit: the gain acts on raw observations, so that it can be read and compared."""

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        return observations.to(self.weight.dtype) @ self.gain.T, None

    def fit_gain(self, observations: th.Tensor, targets: th.Tensor, weights: th.Tensor) -> None:
        """
        Weighted least squares: K s as near to targets as it can be.

        :param observations: s, (n, d_s)
        :param targets: actions, (n, d_a)
        :param weights: (n,)
        """
        share = weights.sqrt()[:, None]
        seen, wanted = share * observations.to(targets), share * targets
        if self.diagonal:
            n = len(self.weight)
            seen, wanted = seen[:, :n], wanted[:, :n]
            found = (seen * wanted).sum(dim=0) / seen.square().sum(dim=0).clamp_min(th.finfo(seen.dtype).tiny)
        else:
            found = th.from_numpy(np.linalg.lstsq(seen.cpu().numpy(), wanted.cpu().numpy(), rcond=None)[0].T)
        with th.no_grad():
            self.weight.copy_(found)


class GaussianLinearPolicy(DeterministicLinearPolicy):
    """
    A gain matrix with Gaussian noise of a fixed size, a = K s + σ ξ.

    :param std: σ in the environment's units, a number or one for each action dimension
    """

    own_arguments: ClassVar[tuple[str, ...]] = (*DeterministicLinearPolicy.own_arguments, "std")
    is_stochastic = True
    noise_std: th.Tensor

    def __init__(self, *args: Any, std: Any = 0.1, **kwargs: Any):
        super().__init__(*args, **kwargs)
        fix = "Give the size of the noise in the environment's units, one number or one for each action"
        values = _numbers("std", std, fix)
        if values.shape not in ((), self.action_space.shape):
            raise InputError("std", f"shape {values.shape} where the actions have {self.action_space.shape}", fix)
        values = np.broadcast_to(values, self.action_space.shape).ravel()
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError("std", f"{std} is not positive", "Give the size of the noise in the environment's units")
        self.std = std
        self.register_buffer("noise_std", th.as_tensor(values.copy(), dtype=th.float32))

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        mean, _ = super().action_distribution(observations)
        return mean, (self.std_scale * self.noise_std).expand_as(mean)
