"""Log-densities of policies at the actions of a data set."""

import math
from typing import Any

import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.policies.nopg_policy import NOPGPolicy


def policy_log_density(
    policy: Any, observations: th.Tensor, actions: th.Tensor, bounds: tuple[th.Tensor, th.Tensor] | None = None
) -> th.Tensor:
    """
    log π(a|s), differentiable in the policy's parameters.

    :param policy: stochastic :class:`sb3_nopg.NOPGPolicy`, or any module with ``log_prob(observations, actions)``, which is
        then asked
    :param observations: (n, d_s)
    :param actions: (n, d_a)
    :param bounds: low and high of the actions, (d_a,) each, where draws past them are clipped; None where they are not
    :return: (n,), summed over the dimensions of the action
    """
    if hasattr(policy, "log_prob"):
        # Whether its draws are clipped is its own affair.
        return policy.log_prob(observations, actions)
    if not isinstance(policy, NOPGPolicy) or not policy.is_stochastic:
        raise InputError(
            "policy",
            f"{type(policy).__name__} has no density",
            "Give a stochastic policy such as GaussianMlpPolicy, or a module with log_prob(observations, actions)",
        )
    mean, std = policy.action_distribution(observations)
    assert std is not None
    return gaussian_log_density(actions, mean.double(), std.double(), bounds).sum(dim=-1)


def gaussian_log_density(
    values: th.Tensor, mean: th.Tensor, std: th.Tensor, bounds: tuple[th.Tensor, th.Tensor] | None = None
) -> th.Tensor:
    """
    Of each value by itself. A value on a bound stands for all draws that were clipped to it and has their probability, not a
    density; ratios of two policies are right where both count so.

    :param values: any shape
    :param mean: broadcastable to it
    :param std: broadcastable to it
    :param bounds: low and high, broadcastable; None where nothing is clipped
    """
    standard = (values - mean) / std
    inside = -0.5 * standard.square() - std.log() - 0.5 * math.log(2.0 * math.pi)
    if bounds is None:
        return inside
    # Data that went through float32 may miss a bound by a rounding error.
    low, high = bounds
    slack = 1e-6 * (high - low)
    below, above = values <= low + slack, values >= high - slack
    # Far tails are looked at on a bound only: torch's derivative of them overflows.
    distance = th.where(below, (low - mean) / std, th.where(above, (mean - high) / std, th.zeros_like(standard)))
    tail = th.special.log_ndtr(distance)
    return th.where(below | above, tail, inside)
