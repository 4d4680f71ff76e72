"""What an exported policy says of itself: names, units, limits, rate, range of the training data, digest, versions."""

import math
import platform
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number
from sb3_nopg.data.fingerprint import parameter_fingerprint
from sb3_nopg.data.quantities import FIELDS, Quantities, check_same, check_same_period
from sb3_nopg.policies.told_names import quantities_of, told_by_environment

FORMAT_VERSION = 1


def describe(model: BaseAlgorithm, deployed: th.nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """
    :param model: any SB3 model with vectors as observations and actions
    :param deployed: what is exported, of which every number counts for the digest
    :param given: what the caller says of it; the environment and then the data are asked where a value is None
    :return: what can be written as JSON, under the names of the file's metadata
    """
    assert isinstance(model.observation_space, spaces.Box)
    assert isinstance(model.action_space, spaces.Box)
    env, own = model.get_env(), getattr(model, "quantities", None)
    told = told_by_environment(env, warns=True)
    sizes = [int(np.prod(space.shape)) for space in (model.observation_space, model.action_space)]
    known, neutral = quantities_of(env, own, *sizes), Quantities.neutral(*sizes)
    description: dict[str, Any] = {}
    for kind, space in (("observation", model.observation_space), ("action", model.action_space)):
        n = int(np.prod(space.shape))
        # Not the neutral names of states whose actions have names, or the other way round: a file has its own.
        if known is not None and getattr(known, f"{kind}_names") != getattr(neutral, f"{kind}_names"):
            told |= {field: text for field, text in known.texts().items() if field.startswith(kind)}
        for field, default in (
            (f"{kind}_names", [f"{kind}_{i}" for i in range(n)]),
            (f"{kind}_units", [""] * n),
        ):
            description[field] = _labels(field, given[field], told.get(field), default)
        if len(set(description[f"{kind}_names"])) != n:
            raise InputError(f"{kind}_names", f"{description[f'{kind}_names']} has a name twice", "Tell them apart")
    if own is not None:
        written: dict[str, Any] = {field: tuple(description[field]) for field in FIELDS}
        check_same("observation_names", own, "the data", Quantities(**written), "what is asked for")
    told_s = (given["control_period_s"], told.get("control_period_s"), None if own is None else own.control_period_s)
    period_s = next((period_s for period_s in told_s if period_s is not None), None)
    check_number("control_period_s", period_s, 0.0, math.inf, optional=True, fix="Give the seconds between two actions")
    if own is not None:
        check_same_period("control_period_s", own.control_period_s, "the data", given["control_period_s"], "what is asked for")
    low, high = data_range(model)
    return {
        **description,
        # As the file has them.
        "action_low": model.action_space.low.ravel().astype(np.float32).tolist(),
        "action_high": model.action_space.high.ravel().astype(np.float32).tolist(),
        "control_period_s": None if period_s is None else float(period_s),
        "data_low": low,
        "data_high": high,
        "digest": parameter_fingerprint(deployed),
        "algorithm": type(model).__name__,
        "created_by": f"sb3-nopg {_version('sb3_nopg')}",
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("stable_baselines3", "torch", "onnx")},
        },
        "format_version": FORMAT_VERSION,
    }


def _labels(field: str, given: Any, told: Any, default: list[str]) -> list[str]:
    if given is None:
        given = default if told is None else told
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or len(given) != len(default) or not all(isinstance(label, str) for label in given):
        raise InputError(field, f"{given!r} is not {len(default)} strings", "Give one for each dimension, in order")
    return list(given)


def data_range(model: BaseAlgorithm) -> tuple[list[float], list[float]]:
    """Smallest and largest observation of the training data in each dimension; empty where the model holds no data."""
    buffer = getattr(model, "replay_buffer", None)
    # A rollout buffer holds the last few steps only, and normalised ones.
    if not isinstance(buffer, ReplayBuffer) or buffer.size() == 0:
        return [], []
    observations = buffer.observations[: buffer.size()]
    return observations.min(axis=(0, 1)).tolist(), observations.max(axis=(0, 1)).tolist()


def _version(module: str) -> str:
    return str(import_module(module).__version__)
