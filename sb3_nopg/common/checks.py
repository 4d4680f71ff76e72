"""Checks of what a user passes to the algorithm, made before any work starts."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_nopg.common.arrays import check_box, check_finite, regular_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.kernels.neighbors import check_neighbor_count

#: what of :meth:`sb3_nopg.DynamicsModel.fit` a user can set through a model
MODEL_SETTINGS = {"angles", "limits", "reward", "bandwidth", "n_earlier_steps", "n_nodes"}


def check_settings(settings: Any) -> None:
    """
    :param settings: object with the algorithm's arguments as attributes
    :raises InputError: naming the first argument that cannot be right
    """
    _check_number("gamma", settings.gamma, 0.0, 1.0, low_included=True)
    if not callable(settings.learning_rate):
        # Beyond this, torch cannot even write a step in float32.
        _check_number("learning_rate", settings.learning_rate, 0.0, 1e36)
    _check_number("truncation_tolerance", settings.truncation_tolerance, 0.0, 1.0)
    _check_number("solver_tolerance", settings.solver_tolerance, 0.0, 1.0)
    _check_number("pessimism", settings.pessimism, 0.0, np.inf, low_included=True)
    if settings.kl_bound is not None:
        _check_number("kl_bound", settings.kl_bound, 0.0, np.inf)
    if settings.final_std_scale is not None:
        _check_number("final_std_scale", settings.final_std_scale, 0.0, 1.0 + 1e-12)
    for name in ("n_action_samples", "n_next_state_samples", "keep_largest", "resample_interval"):
        _check_count(name, getattr(settings, name), optional=name in ("keep_largest", "resample_interval"))
    for name in ("patience", "query_batch_size"):
        _check_count(name, getattr(settings, name), optional=True)
    _check_keeping(settings)
    check_neighbor_count(settings.n_neighbors)
    if settings.variant not in settings.variants:
        raise InputError("variant", f"{settings.variant!r} is no variant of this class", f"Use one of {settings.variants}")
    _check_transitions(settings)
    if settings.weights not in ("local_constant", "local_linear"):
        raise InputError("weights", f"{settings.weights!r} is unknown", 'Give "local_constant" or "local_linear"')
    if settings.precision not in ("float32", "float64"):
        raise InputError("precision", f"{settings.precision!r} is unknown", 'Give "float64" or "float32"')


def _check_transitions(settings: Any) -> None:
    if settings.transitions not in ("model", "samples"):
        raise InputError("transitions", f"{settings.transitions!r} is unknown", 'Give "model" or "samples"')
    horizon = settings.horizon
    if isinstance(horizon, str):
        if horizon != "auto":
            raise InputError("horizon", f"{horizon!r} is unknown", 'Give a number of steps, 0, infinity or "auto"')
    elif isinstance(horizon, bool) or not isinstance(horizon, int | float | np.integer) or not horizon >= 0:
        raise InputError("horizon", f"{horizon!r} is no number of steps", 'Give one, 0, infinity or "auto"')
    elif horizon != np.inf and horizon != int(horizon):
        raise InputError("horizon", f"{horizon} is no whole number", 'Give steps, 0, infinity or "auto"')
    if not isinstance(settings.model_kwargs, dict | None):
        raise InputError("model_kwargs", f"{settings.model_kwargs!r} is no dict", f"Give some of {sorted(MODEL_SETTINGS)}")
    unknown = set(settings.model_kwargs or {}) - MODEL_SETTINGS
    if unknown:
        raise InputError("model_kwargs", f"{sorted(unknown)[0]!r} is unknown", f"Use {', '.join(sorted(MODEL_SETTINGS))}")
    if settings.distributed and settings.transitions == "model":
        raise InputError(
            "distributed",
            "the model's nodes are one process's work, however many samples there are",
            'Use transitions="samples"',
        )


def restored_model_settings(saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """
    :param saved: settings of the model, perhaps from a file: JSON has only text for keys
    :return: the same with numbers for columns, and pairs as pairs
    """
    restored = saved if saved is None else dict(saved)
    if restored is not None and isinstance(restored.get("angles"), list):
        restored["angles"] = [tuple(pair) if isinstance(pair, list) else pair for pair in restored["angles"]]
    if restored is not None and isinstance(restored.get("limits"), dict):
        restored["limits"] = {
            int(column) if str(column).isdecimal() else column: tuple(ends) if isinstance(ends, list) else ends
            for column, ends in restored["limits"].items()
        }
    return restored


def _check_keeping(settings: Any) -> None:
    held_out = settings.held_out
    if held_out is not None and not isinstance(held_out, TransitionDataset):
        _check_number("held_out", held_out, 0.0, 1.0)
    if settings.keep not in ("last", "best_heldout"):
        raise InputError("keep", f"{settings.keep!r} is unknown", 'Give "last" or "best_heldout"')


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """:raises InputError: unless both are Boxes of vectors, and actions have a finite range"""
    check_box("observation_space", observation_space)
    check_box("action_space", action_space)
    assert isinstance(action_space, spaces.Box)
    if not np.isfinite([action_space.low, action_space.high]).all():
        raise InputError("action_space", f"{action_space} has no bounds", "Give the actions a finite range")
    if not (action_space.low < action_space.high).all():
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


def _check_number(name: str, value: Any, low: float, high: float, low_included: bool = False) -> None:
    bracket = "[" if low_included else "("
    fix = f"Give a number in {bracket}{low:g}, {high:g})"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(name, f"{value!r} is not a number", fix)
    if not (low < value < high or (low_included and value == low)):
        raise InputError(name, f"{value} is out of range", fix)


def _check_count(name: str, value: Any, optional: bool) -> None:
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(name, f"{value!r} is not a positive whole number", "Give 1 or more")
