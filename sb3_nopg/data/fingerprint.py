"""
Short names for large things, to tell whether two of them are the same.

Files keep them, data sets' in checkpoints, models and what lies beside them, parameters' in exported policies and reports: how
they are made must stay as it is.
"""

import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.data.dataset import TransitionDataset

# Data sets never change, and may be large.
_known: weakref.WeakKeyDictionary[TransitionDataset, str] = weakref.WeakKeyDictionary()
# What may differ between two runs that compute the same.
_WITHOUT_EFFECT = {
    "policy",
    "env",
    "stats_window_size",
    "tensorboard_log",
    "verbose",
    "device",
    "dataset",
    "distributed",
    "_init_setup_model",
}


def array_fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """
    :param arrays: whose values, shapes and types count
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def dataset_fingerprint(dataset: TransitionDataset) -> str:
    """
    :param dataset: whose transitions count, in their order, and where its episodes begin and end
    """
    if dataset not in _known:
        arrays = {field.name: getattr(dataset, field.name) for field in fields(dataset)}
        present = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
        _known[dataset] = hashlib.sha256(f"{list(present)}{array_fingerprint(present.values())}".encode()).hexdigest()
    return _known[dataset]


def parameter_fingerprint(module: th.nn.Module) -> str:
    """
    :param module: whose parameters and buffers count, with their names
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        array = tensor.cpu().numpy()
        if name.endswith("normalization_fitted"):
            # As the first files had it.
            array = array.astype(bool)
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def settings_of(model: Any, names: Iterable[str]) -> dict[str, str]:
    """
    :param model: with its arguments as attributes
    :param names: of the arguments
    :return: the value of each that has a say in what is computed; of functions, which cannot be compared, the names
    """
    return {name: _describe(getattr(model, name)) for name in names if name not in _WITHOUT_EFFECT and hasattr(model, name)}


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {array_fingerprint([value])}"
    if isinstance(value, TransitionDataset):
        return f"{len(value)} transitions {dataset_fingerprint(value)}"
    if isinstance(value, dict):
        return str({name: _describe(entry) for name, entry in value.items()})
    if isinstance(value, list | tuple):
        return str([_describe(entry) for entry in value])
    if value is None or isinstance(value, str | bool | int | float | np.generic):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
