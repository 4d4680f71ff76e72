"""The policy that recorded the data, as something to evaluate beside what was learned from it, and its log-density."""

from collections.abc import Callable

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike

from sb3_nopg.common.arrays import check_box
from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.baselines.densities import gaussian_log_density

Act = Callable[[np.ndarray], ArrayLike]
LogDensity = Callable[[np.ndarray, np.ndarray], np.ndarray]


class BehaviorPolicy:
    """
    Any function from one observation to one action, with SB3's ``predict``. Called like a function it collects data.

    :param act: maps an observation (d_s,) to an action (d_a,), at random or not; clipped to the action space
    :param action_space: Box
    :param log_density: log β(a|s) of states (n, d_s) and actions (n, d_a), None where nobody knows it
    """

    def __init__(self, act: Act, action_space: spaces.Box, log_density: LogDensity | None = None):
        self.act, self.action_space, self._log_density = act, action_space, log_density

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        action = np.asarray(self.act(observation))
        if action.shape != self.action_space.shape:
            raise InputError(
                "act", f"gave an action of shape {action.shape}", f"The action space has shape {self.action_space.shape}"
            )
        return np.clip(action, self.action_space.low, self.action_space.high).astype(self.action_space.dtype)

    def predict(
        self,
        observation: np.ndarray,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        As in SB3, for one observation (d_s,) or several (m, d_s). ``deterministic`` changes nothing: it acts as it acted.
        """
        observation = np.asarray(observation)
        if observation.ndim == 1:
            return self(observation), state
        return np.stack([self(row) for row in observation]), state

    def log_density(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """
        :param observations: (n, d_s)
        :param actions: (n, d_a)
        :return: log β(a|s), (n,)
        """
        if self._log_density is None:
            raise InputError(
                "log_density",
                "is not known for this behaviour",
                "Give BehaviorPolicy(..., log_density=...) if you know it",
            )
        return self._log_density(np.asarray(observations), np.asarray(actions))


def uniform_behavior(action_space: spaces.Box, seed: int | None = None) -> BehaviorPolicy:
    """
    Every action equally likely.

    :param action_space: bounded
    :param seed: of the draws
    """
    low, high = _bounds(action_space)
    rng = np.random.default_rng(seed)

    def log_density(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        inside = ((actions >= low) & (actions <= high)).all(axis=1)
        return np.where(inside, -np.log(high - low).sum(), -np.inf)

    return BehaviorPolicy(lambda observation: rng.uniform(low, high), action_space, log_density)


def mixture_behavior(
    action_space: spaces.Box,
    seed: int | None = None,
    means: ArrayLike = (-0.75, 0.0, 0.75),
    std: float = 0.25,
) -> BehaviorPolicy:
    """
    Equally likely Gaussians, drawn at every step, for every action dimension on its own, clipped to the action space.

    The defaults are those of ``gaussian_mixture`` of the simulators' package. An action on an end of the space has the
    probability of all draws beyond it for its density, as :class:`.PWIS` expects.

    :param action_space: bounded
    :param seed: of the draws
    :param means: of the Gaussians, as shares of half the action range from its middle
    :param std: of each, as a share of half the action range
    """
    low, high = _bounds(action_space)
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    centers = np.asarray(means, dtype=np.float64)
    rng = np.random.default_rng(seed)

    def act(observation: np.ndarray) -> np.ndarray:
        return middle + half * (rng.choice(centers, size=middle.shape) + std * rng.standard_normal(middle.shape))

    def log_density(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        # (components, n, d_a), the mixture's sum first and then the product over dimensions.
        components = th.stack([_gaussian(actions, middle + half * center, half * std, (low, high)) for center in centers])
        return (th.logsumexp(components, dim=0) - np.log(len(centers))).sum(dim=1).numpy()

    return BehaviorPolicy(act, action_space, log_density)


def linear_gaussian_behavior(
    gain: ArrayLike, std: ArrayLike, action_space: spaces.Box, seed: int | None = None
) -> BehaviorPolicy:
    """
    a = K s + σ ξ, the behaviour of the LQR experiment, clipped to the action space; density as in :func:`mixture_behavior`.

    :param gain: K, (d_a, d_s)
    :param std: σ, one number or one for each action, positive
    :param action_space: bounded
    :param seed: of the draws
    """
    bounds = _bounds(action_space)
    matrix = np.array(gain, dtype=np.float64)
    sigma = np.broadcast_to(np.array(std, dtype=np.float64), action_space.shape).copy()
    if matrix.ndim != 2 or matrix.shape[0] != action_space.shape[0]:
        raise InputError("gain", f"shape {matrix.shape}", f"Give K with a = K s, ({action_space.shape[0]}, d_s)")
    if not (sigma > 0).all():
        raise InputError("std", f"{std!r} is not positive", "Give the size of the noise in the environment's units")
    rng = np.random.default_rng(seed)

    def log_density(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return _gaussian(actions, observations @ matrix.T, sigma, bounds).sum(dim=1).numpy()

    return BehaviorPolicy(
        lambda observation: matrix @ observation + sigma * rng.standard_normal(sigma.shape), action_space, log_density
    )


def _gaussian(actions: np.ndarray, mean: np.ndarray, std: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]) -> th.Tensor:
    """Log-density of each entry of the actions, (n, d_a)."""
    values, centers, sizes, low, high = (
        th.as_tensor(np.array(array, dtype=np.float64)) for array in (actions, mean, std, *bounds)
    )
    return gaussian_log_density(values, centers, sizes, (low, high))


def _bounds(action_space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    check_box("action_space", action_space)
    if not action_space.is_bounded():
        raise InputError("action_space", f"{action_space} has no ends to draw between", "Give the actions a finite range")
    return action_space.low.astype(np.float64), action_space.high.astype(np.float64)
