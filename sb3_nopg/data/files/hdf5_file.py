"""HDF5 in D4RL's layout: one array for each key at the root of the file."""

import pathlib
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.files.episodes import with_next_observations
from sb3_nopg.data.files.fields import REQUIRED, STORED, SYNTHETIC, from_arrays, to_arrays
from sb3_nopg.data.files.files import optional_module, unreadable
from sb3_nopg.data.files.hdf5_links import check_own
from sb3_nopg.data.files.limits import check_declared
from sb3_nopg.data.quantities import FIELDS as NAMES
from sb3_nopg.data.transitions import Transitions

_VECTORS = ("observations", "actions", "next_observations")
_NUMBERS = ("rewards", "terminals", "timeouts", "episode_ids", SYNTHETIC)


def read(path: pathlib.Path, keep_jumps: bool = False) -> dict[str, Any]:
    """
    :param path: ``next_observations`` may be missing, then each is the observation of the next row of its episode
    :param keep_jumps: of such a file, whether rows that cannot follow from the one before them do all the same
    :return: arguments of `TransitionDataset`
    """
    h5py = optional_module("h5py", path)
    try:
        with h5py.File(path, "r") as file:
            # By its links: what a dangling one is called would not be "in" the file.
            arrays = {name: _array(h5py, path, file, name) for name in STORED if file.get(name, getlink=True) is not None}
    except InputError:
        raise
    # What a damaged file raises depends on the byte it breaks at.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise unreadable(path, "HDF5 file", error) from error
    values = from_arrays(path, arrays, required=tuple(name for name in REQUIRED if name != "next_observations"))
    if values["next_observations"] is not None:
        return values
    return with_next_observations(str(path), values, keep_jumps=keep_jumps)


def _array(h5py: Any, path: pathlib.Path, file: Any, name: str) -> np.ndarray:
    check_own(h5py, path, file, name)
    item = file[name]
    wanted, kinds = ("texts of fixed length", "S") if name in NAMES else ("numbers", "biuf")
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in kinds or item.shape is None:
        raise InputError(str(path), f"{name} is not an array of {wanted}", "Use the key layout of D4RL")
    check_declared(path, name, item.shape, item.dtype.itemsize)
    array = np.asarray(item[()])
    if name in NAMES:
        return np.char.decode(array, "utf-8")
    # D4RL's files differ in whether a single number a step is a column or not.
    if name in _VECTORS and array.ndim == 1:
        return array[:, None]
    if name in _NUMBERS and array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    return array


def write(dataset: Transitions, path: pathlib.Path) -> None:
    """
    :param dataset: the data
    :param path: file to write
    """
    h5py = optional_module("h5py", path)
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        for name, array in to_arrays(dataset).items():
            array = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
            # HDF5 compresses arrays, not single numbers.
            file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
