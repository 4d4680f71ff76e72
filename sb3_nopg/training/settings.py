"""NOPG's own settings: checks that are made before any work starts, and what they imply."""

from typing import Any

import numpy as np
import torch as th

from sb3_nopg.bellman.settings import NAMES
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number, is_number
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy, GaussianMlpPolicy

# What took the place of arguments that are gone.
_REPLACED = {
    "variant": ("the class says it", 'Use NOPGD instead of variant="D", NOPGS instead of variant="S"'),
    "final_std_scale": ("it is an argument of the policy", 'Write policy_kwargs={"final_std_scale": …}'),
    **dict.fromkeys(
        ("n_steps", "n_attempts", "n_restarts", "value_iteration_start"),
        ("a model of the system takes its place", 'Leave it out: transitions="model" is the default'),
    ),
}
#: what of :meth:`sb3_nopg.DynamicsModel.fit` a user can set through a model
MODEL_SETTINGS = ("angles", "bandwidth", "limits", "n_earlier_steps", "n_nodes", "noise_scale", "reward")

_SMOOTH_NETWORK: dict[str, Any] = {"net_arch": [64, 64], "activation_fn": th.nn.Tanh}


def check_no_old_names(given: dict[str, Any]) -> None:
    """
    :param given: arguments that the constructor does not have
    :raises InputError: telling where a setting of earlier versions has gone
    """
    for name in given:
        if name in _REPLACED:
            raise InputError(name, *_REPLACED[name])
        if name in NAMES:
            fix = f"Write estimator_kwargs={{{name!r}: …}}"
            raise InputError(name, "it is a setting of the estimator", fix)
        raise TypeError(f"NOPG has no argument {name!r}")


def check_settings(settings: Any) -> None:
    """
    :param settings: object with NOPG's arguments as attributes
    :raises InputError: naming the first argument that cannot be right
    """
    check_number("gamma", settings.gamma, 0.0, 1.0, low_included=True)
    if not callable(settings.learning_rate):
        # Beyond this, torch cannot even write a step in float32.
        check_number("learning_rate", settings.learning_rate, 0.0, 1e36)
    check_count("patience", settings.patience, optional=True)
    check_count("stats_window_size", settings.stats_window_size)
    if settings.held_out is not None and not isinstance(settings.held_out, TransitionDataset):
        check_number("held_out", settings.held_out, 0.0, 1.0)
    if settings.keep not in ("last", "best_heldout"):
        raise InputError("keep", f"{settings.keep!r} is unknown", 'Give "last" or "best_heldout"')
    if settings.transitions not in ("model", "samples"):
        raise InputError("transitions", f"{settings.transitions!r} is unknown", 'Give "model" or "samples"')
    _check_horizon(settings.horizon)
    _check_model_kwargs(settings.model_kwargs)
    if settings.distributed and settings.transitions == "model":
        raise InputError(
            "distributed",
            "the model's nodes are one process's work, however many samples there are",
            'Use transitions="samples"',
        )


def _check_horizon(horizon: Any) -> None:
    if isinstance(horizon, str):
        if horizon != "auto":
            raise InputError("horizon", f"{horizon!r} is unknown", 'Give a number of steps, 0, infinity or "auto"')
    elif not is_number(horizon) or not horizon >= 0:
        raise InputError("horizon", f"{horizon!r} is no number of steps", 'Give one, 0, infinity or "auto"')
    elif horizon != np.inf and horizon != int(horizon):
        raise InputError("horizon", f"{horizon} is no whole number", 'Give steps, 0, infinity or "auto"')


def _check_model_kwargs(given: Any) -> None:
    if not isinstance(given, dict | None):
        raise InputError("model_kwargs", f"{given!r} is no dict", f"Give some of {', '.join(MODEL_SETTINGS)}")
    unknown = sorted(set(given or {}) - set(MODEL_SETTINGS))
    if unknown:
        raise InputError("model_kwargs", f"{unknown[0]!r} is unknown", f"Use {', '.join(MODEL_SETTINGS)}")


def full_policy_kwargs(policy_class: type[Any], policy_kwargs: dict[str, Any], transitions: str) -> dict[str, Any]:
    """
    :param policy_class: to build
    :param policy_kwargs: given by the user; as everywhere in SB3, a ``net_arch`` of None asks for the default
    :param transitions: ``"model"`` or ``"samples"``
    :return: with the defaults that the settings imply
    """
    given = {name: value for name, value in policy_kwargs.items() if name != "net_arch" or value is not None}
    # The policies' default is the paper's network. One that trajectories are differentiated through is to be smooth.
    is_network = policy_class in (DeterministicMlpPolicy, GaussianMlpPolicy)
    return {**(_SMOOTH_NETWORK if transitions == "model" and is_network else {}), **given}


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
