"""Checks of what a user passes to the algorithm, made before any work starts."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_nopg.common.arrays import check_box, check_finite, flat_box, regular_array
from sb3_nopg.common.errors import InputError


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """:raises InputError: unless observations are vectors, and actions a Box of whatever shape with a finite range"""
    check_box("observation_space", observation_space)
    actions = flat_box("action_space", action_space)
    if not np.isfinite([actions.low, actions.high]).all():
        raise InputError("action_space", f"{action_space} has no bounds", "Give the actions a finite range")
    if not (actions.low < actions.high).all():
        raise InputError("action_space", f"{action_space} leaves an action no room", "Drop action dimensions without a range")


def check_not_normalized(env: Any) -> None:
    """:raises InputError: where a wrapper of the environment would feed the policy other observations than the data holds"""
    if isinstance(env, VecEnv) and unwrap_vec_normalize(env) is not None:
        raise InputError(
            "env",
            "VecNormalize takes its statistics from steps that never happen here",
            "Pass the environment without it: observations are normalised by the data's statistics",
        )


def check_states(name: str, given: Any, observation_dim: int) -> np.ndarray:
    """
    :param name: what to call them in an error
    :param given: one state (d_s,) or several (m, d_s)
    :param observation_dim: d_s
    :return: (m, d_s)
    """
    states = regular_array(name, given)
    if states.dtype.kind not in "fiu":
        raise InputError(name, f"dtype {states.dtype} is not numeric", "Give states as observations, (m, d_s)")
    if states.size == 0:
        raise InputError(name, "is empty", "Give at least one state")
    states = np.atleast_2d(states).astype(np.float64)
    if states.ndim != 2 or states.shape[1] != observation_dim:
        raise InputError(name, f"shape {np.shape(given)}", f"Give states as observations, (m, {observation_dim})")
    check_finite(name, states)
    return states


def check_rows(name: str, given: Any, n: int, width: int, *, or_more: bool = False) -> np.ndarray:
    """
    :param name: what to call them in an error
    :param given: numbers for each of n observations, (n, width), or as many in another shape
    :param n: rows
    :param width: columns
    :param or_more: whether more columns will do
    :return: (n, columns)
    """
    rows = regular_array(name, given)
    if rows.dtype.kind not in "fiub" or rows.size % n or (or_more and len(rows) != n):
        raise InputError(name, f"dtype {rows.dtype}, shape {rows.shape}", f"Give numbers, ({n}, {width})")
    rows = rows.reshape(n, rows.size // n).astype(np.float64)
    if rows.shape[1] != width and not (or_more and rows.shape[1] > width):
        raise InputError(name, f"shape {np.shape(given)}", f"Give numbers, ({n}, {width})")
    check_finite(name, rows)
    return rows
