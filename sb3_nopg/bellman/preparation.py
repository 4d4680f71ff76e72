"""From a data set in NumPy to a Bellman equation on the device, ready to be solved."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb3_nopg.bellman.problem import BellmanProblem, prepare_problem
from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.overlap import shared_rows
from sb3_nopg.kernels.bandwidth import Bandwidths, varies
from sb3_nopg.kernels.partition import halve_repeatedly
from sb3_nopg.kernels.support import Support

_N_RESETS = 16
# From so many transitions on they are put in order, and so many that lie close together are left as they come.
_WORTH_ORDERING, _ORDERED_TOGETHER = 2**17, 32
# Share of held-out transitions that may coincide with some of training by accident.
_MOST_SHARED = 0.01


def build_problem(
    data: TransitionDataset,
    bandwidths: Bandwidths,
    initial_states: np.ndarray,
    gamma: float,
    next_state_noise: th.Tensor | None,
    dtype: th.dtype,
    device: th.device,
    processes: Processes | None = None,
    **support_settings: Any,
) -> BellmanProblem:
    """
    :param data: the transitions
    :param bandwidths: of the three kernels
    :param initial_states: (n₀, d_s)
    :param gamma: discount
    :param next_state_noise: standard normal draws, (n, N, d_s); None for the kernel's mean
    :param dtype: of all computations
    :param device: of all computations
    :param processes: that share the work; None for one alone
    :param support_settings: of :class:`sb3_nopg.kernels.support.Support`
    """

    def tensor(array: np.ndarray) -> th.Tensor:
        return th.tensor(array).to(device, dtype)

    next_observations, state_bandwidth = tensor(data.next_observations), tensor(bandwidths.state)
    order = _order_in_space(next_observations / state_bandwidth)

    def ordered(x: th.Tensor) -> th.Tensor:
        return x if order is None else x[order]

    support = Support(
        observations=ordered(tensor(data.observations)),
        actions=ordered(tensor(data.actions)),
        state_bandwidth=state_bandwidth,
        action_bandwidth=tensor(bandwidths.action),
        **support_settings,
    )
    # A dimension that never changes has a bandwidth only for form's sake: noise there would show the policy states that
    # cannot be.
    constant = ~varies(data.next_observations)
    problem = prepare_problem(
        support,
        ordered(tensor(data.rewards)),
        ordered(next_observations),
        ordered(th.tensor(data.terminals).to(device)),
        tensor(initial_states),
        gamma,
        tensor(np.where(constant, 0.0, bandwidths.next_state)),
        None if next_state_noise is None else ordered(next_state_noise),
        processes,
    )
    return replace(problem, order=order)


def _order_in_space(states: th.Tensor) -> th.Tensor | None:
    """
    Neighbours in space as neighbours in memory: what a row of P̂ is multiplied with then lies together, where a product with
    a large matrix would otherwise wait for one number after another. On a GPU that makes an update nearly twice as fast.

    :param states: (n, d_s)
    :return: their numbers in that order, (n,); None where there are too few for it to matter
    """
    if len(states) < _WORTH_ORDERING:
        return None
    return halve_repeatedly(states, int(math.log2(len(states) / _ORDERED_TOGETHER))).order


def find_initial_states(given: np.ndarray | None, data: TransitionDataset, env: VecEnv | None, seed: int | None) -> np.ndarray:
    """
    Where the task starts: as given, or as the data's episodes start, or as the environment does.

    :param given: (n₀, d_s)
    :param data: the transitions
    :param env: reset only if neither of the others tells
    :param seed: for those resets
    :return: (n₀, d_s)
    """
    if given is not None:
        return check_states("initial_states", given, data.observation_dim)
    if data.episode_starts is not None:
        return data.observations[data.episode_starts]
    assert env is not None
    if seed is not None:
        env.seed(seed)
    n_rounds = -(-_N_RESETS // env.num_envs)
    return np.concatenate([np.asarray(env.reset()) for _ in range(n_rounds)])


def split_off(
    data: TransitionDataset, held_out: float | TransitionDataset | None
) -> tuple[TransitionDataset, TransitionDataset | None]:
    """
    :param data: all transitions
    :param held_out: share to keep from training, or data that already are
    :return: what to learn from, and what to check on
    """
    if held_out is None:
        return data, None
    if isinstance(held_out, TransitionDataset):
        _check_unseen(held_out, data)
        return data, held_out
    if data.episode_starts is not None and len(data.episode_starts) == 1:
        # Of one episode its end: neighbours in time of what is held out would give it away.
        n_training = min(max(2, round(len(data) * (1.0 - held_out))), len(data) - 2)
        before = np.arange(len(data)) < n_training
        return data.filter(before), data.filter(~before)
    training, checking = data.split((1.0 - held_out, held_out), by="transition" if data.episode_starts is None else "episode")
    return training, checking


def _check_unseen(held_out: TransitionDataset, data: TransitionDataset) -> None:
    n_shared = shared_rows(held_out, data)
    if n_shared > _MOST_SHARED * len(held_out):
        raise InputError(
            "held_out", f"{n_shared} of {len(held_out)} transitions are among those learned from", "Give others, or a share"
        )
