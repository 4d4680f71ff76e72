"""
Settings of a model as JSON: what can be written down without a pickle, and read again without running anything.

SB3 pickles every setting that JSON does not know. Those of our models are numbers, arrays, spaces, classes that come with the
packages, and records of numbers; each has a form here. Whatever has none stays a pickle.
"""

import base64
import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule

from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
)

# Nothing happens when one of these is made, whatever its arguments.
_CLASSES: dict[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        DeterministicMlpPolicy,
        GaussianMlpPolicy,
        DeterministicLinearPolicy,
        GaussianLinearPolicy,
        FlattenExtractor,
        th.nn.Tanh,
        th.nn.ReLU,
        th.nn.LeakyReLU,
        th.nn.ELU,
        th.nn.GELU,
        th.nn.SiLU,
        th.nn.Softplus,
        th.nn.Sigmoid,
        th.nn.Identity,
        th.optim.Adam,
        th.optim.AdamW,
        th.optim.SGD,
        th.optim.RMSprop,
    )
}
_NUMBERS = re.compile(r"[<>|=]?[biuf?]\d{0,2}")
_DEEPEST = 20


class NotPlainError(ValueError):
    """A value that has no such form, or a form that has no value."""


def to_plain(value: Any) -> Any:
    """
    :param value: a setting
    :return: for JSON
    :raises NotPlainError: where only a pickle would do
    """
    # Not by isinstance: a subclass may be more than its numbers.
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return {kind.__name__: [to_plain(item) for item in value]}
    if kind is dict:
        return {"dict": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    if kind is deque:
        return {"deque": [to_plain(item) for item in value], "maxlen": value.maxlen}
    if isinstance(value, np.generic) or kind is np.ndarray:
        return _plain_array("array" if kind is np.ndarray else "number", np.asarray(value))
    if kind is spaces.Box:
        return {"box": [_plain_array("array", value.low), _plain_array("array", value.high)]}
    if kind is FloatSchedule and type(value.value_schedule) is ConstantSchedule:
        return {"constant": to_plain(value.value_schedule.val)}
    if isinstance(value, type) and _CLASSES.get(f"{value.__module__}.{value.__qualname__}") is value:
        return {"class": f"{value.__module__}.{value.__qualname__}"}
    if dataclasses.is_dataclass(kind):
        return {"record": kind.__name__, "fields": {name: to_plain(item) for name, item in vars(value).items()}}
    raise NotPlainError(f"{kind.__name__} has no plain form")


def _plain_array(kind: str, array: np.ndarray) -> dict[str, Any]:
    if not _NUMBERS.fullmatch(array.dtype.str):
        raise NotPlainError(f"an array of {array.dtype} has no plain form")
    content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {kind: content, "dtype": array.dtype.str, "shape": list(array.shape)}


def from_plain(content: Any, records: Iterable[type] = ()) -> Any:
    """
    :param content: what `to_plain` made, or anything else
    :param records: dataclasses that may be in it
    :raises NotPlainError: where it is anything else
    """
    try:
        return _read(content, {record.__name__: record for record in records}, 0)
    # What a damaged text raises depends on where it is damaged.
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise NotPlainError(f"damaged ({error})") from error


def _read(content: Any, records: dict[str, type], depth: int) -> Any:
    if depth > _DEEPEST:
        raise NotPlainError("too deep")
    if not isinstance(content, dict):
        if content is None or isinstance(content, bool | int | float | str):
            return content
        raise NotPlainError(f"{type(content).__name__} where a value should be")

    def inner(item: Any) -> Any:
        return _read(item, records, depth + 1)

    readers: dict[str, Callable[[Any], Any]] = {
        "list": lambda items: [inner(item) for item in items],
        "tuple": lambda items: tuple(inner(item) for item in items),
        "dict": lambda pairs: {inner(key): inner(item) for key, item in pairs},
        "deque": lambda items: deque((inner(item) for item in items), maxlen=content["maxlen"]),
        "array": lambda _: _array(content, "array"),
        "number": lambda _: _array(content, "number")[()],
        "box": lambda bounds: _box(*(_array(bound, "array") for bound in bounds)),
        "constant": lambda value: FloatSchedule(float(value)),
        "class": lambda name: _CLASSES[name],
        "record": lambda name: records[name](**{field: inner(item) for field, item in content["fields"].items()}),
    }
    kind = next(iter(content), "nothing")
    return readers[kind](content[kind])


def _array(content: dict[str, Any], kind: str) -> np.ndarray:
    if not _NUMBERS.fullmatch(content["dtype"]):
        raise NotPlainError("an array of something else than numbers")
    numbers = np.frombuffer(base64.b64decode(content[kind], validate=True), dtype=content["dtype"])
    return numbers.reshape([int(length) for length in content["shape"]]).copy()


def _box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    return spaces.Box(low, high, dtype=low.dtype.type)
