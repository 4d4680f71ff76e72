"""The arrays and spaces of a data set under the names that files give them."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.quantities import FIELDS as NAMES
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.data.recorded import check_recorded
from sb3_nopg.data.transitions import Transitions

FORMAT_VERSION = 1
REQUIRED = ("observations", "actions", "rewards", "next_observations", "terminals")
SPACES = ("observation_space", "action_space")
ARRAYS = tuple(field.name for field in fields(Transitions) if field.name not in (*SPACES, "quantities"))
#: array of older files, whose transitions a model may have made
SYNTHETIC = "synthetic"
#: seconds of a step, where the data know them
PERIOD = "control_period_s"
#: every name that a file of arrays may use
STORED = (
    "format_version",
    *ARRAYS,
    SYNTHETIC,
    *NAMES,
    PERIOD,
    *(f"{space}_{bound}" for space in SPACES for bound in ("low", "high")),
)


def to_arrays(dataset: Transitions) -> dict[str, np.ndarray]:
    """
    :param dataset: the data
    :return: all of it as plain arrays, a space as its two bounds
    """
    arrays: dict[str, np.ndarray] = {"format_version": np.array(FORMAT_VERSION)}
    for field in fields(dataset):
        value = getattr(dataset, field.name)
        if isinstance(value, spaces.Box):
            arrays[f"{field.name}_low"], arrays[f"{field.name}_high"] = value.low, value.high
        elif isinstance(value, Quantities):
            arrays.update({name: np.array(texts) for name, texts in value.texts().items()})
            if value.control_period_s is not None:
                arrays[PERIOD] = np.array(value.control_period_s)
        elif value is not None:
            arrays[field.name] = value
    return arrays


def from_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], required: tuple[str, ...] = REQUIRED
) -> dict[str, Any]:
    """
    :param path: the arrays were read from
    :param arrays: under our names; others are left alone
    :param required: names that must be there
    :return: arguments of `TransitionDataset`
    """
    missing = [name for name in required if name not in arrays]
    if missing:
        raise InputError(
            str(path), f"not a transition data set, without {', '.join(missing)}", f"It needs {', '.join(required)}"
        )
    version = arrays.get("format_version", np.array(0))
    if version.shape != () or version.dtype.kind not in "iu" or version > FORMAT_VERSION:
        raise InputError(str(path), "written by a newer version of sb3-nopg", "Upgrade sb3-nopg to read it")
    check_recorded(path, arrays.get(SYNTHETIC))
    values: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    values["quantities"] = quantities_from(path, {name: arrays[name].tolist() for name in (*NAMES, PERIOD) if name in arrays})
    for name in SPACES:
        if not {f"{name}_low", f"{name}_high"} & set(arrays):
            continue
        try:
            low, high = arrays[f"{name}_low"], arrays[f"{name}_high"]
            values[name] = spaces.Box(low, high, dtype=low.dtype.type)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(name, f"makes no sense in {path} ({error})", "Save the data set again") from error
    return values


def quantities_from(path: str | os.PathLike[str], texts: Any) -> Quantities | None:
    """
    :param path: the texts were read from
    :param texts: what `Quantities.texts` made; of names alone the units are not known, without any there is nothing
    """
    if not texts:
        return None
    try:
        names = {kind: texts[f"{kind}_names"] for kind in ("observation", "action")}
        units = {f"{kind}_units": texts.get(f"{kind}_units", [""] * len(found)) for kind, found in names.items()}
        found = {f"{kind}_names": texts_of for kind, texts_of in names.items()}
        return Quantities(**found, **units, control_period_s=texts.get(PERIOD))
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(str(path), f"its names of columns make no sense ({error})", "Save the data set again") from error


def describe_space(space: spaces.Box | None) -> dict[str, Any] | None:
    """
    :param space: None for none
    :return: for JSON, which knows no arrays
    """
    return None if space is None else {"dtype": str(space.dtype), "low": space.low.tolist(), "high": space.high.tolist()}


def space_from_description(path: str | os.PathLike[str], name: str, description: Any) -> spaces.Box | None:
    """
    :param path: the description was read from
    :param name: of the space
    :param description: what `describe_space` made
    """
    if description is None:
        return None
    try:
        dtype = np.dtype(description["dtype"])
        low, high = (np.array(description[bound], dtype=dtype) for bound in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(name, f"makes no sense in {path} ({error})", "Save the data set again") from error
