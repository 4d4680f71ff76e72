"""NumPy archives: our own format, plain arrays and nothing that is ever unpickled."""

import pathlib
import zipfile
import zlib
from typing import IO, Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.files.fields import STORED, from_arrays, to_arrays
from sb3_nopg.data.files.files import unreadable
from sb3_nopg.data.files.limits import check_declared, check_size
from sb3_nopg.data.transitions import Transitions

SUFFIX = ".npz"
#: what a damaged archive raises depends on the byte it breaks at
DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def with_suffix(path: pathlib.Path) -> pathlib.Path:
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def names(path: pathlib.Path) -> set[str]:
    """
    :param path: of a file
    :return: names of the arrays in it, none if it is no archive
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except DAMAGE:
        return set()


def read(path: pathlib.Path) -> dict[str, Any]:
    """
    :param path: what `write` wrote, or any archive whose arrays carry our names
    :return: arguments of `TransitionDataset`
    """
    try:
        check_archive(path, STORED)
        # Opened here, because np.load leaves a file that it cannot read open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name in STORED}
    except InputError:
        raise
    except DAMAGE as error:
        raise unreadable(path, ".npz", error) from error
    return from_arrays(path, arrays)


def write(dataset: Transitions, path: pathlib.Path) -> None:
    """
    :param dataset: the data
    :param path: file to write
    """
    with replacing(path) as partial, open(partial, "wb") as file:
        np.savez_compressed(file, **to_arrays(dataset))  # type: ignore[arg-type]


def check_archive(path: pathlib.Path, wanted: tuple[str, ...]) -> None:
    """
    :param path: of an archive
    :param wanted: names of the arrays that will be read
    :raises InputError: when they declare more than may be read, before any of it is
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in wanted:
                continue
            check_size(path, name, member.file_size)
            with archive.open(member) as file:
                check_npy_header(path, name, file)


def check_npy_header(path: pathlib.Path, name: str, file: IO[bytes]) -> np.dtype[Any]:
    """
    :param path: for the message
    :param name: of the array
    :param file: at the beginning of an array in NumPy's own format
    :return: its dtype
    :raises InputError: when the header declares more than may be read; NumPy would allocate it on the header's word
    """
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    check_declared(path, name, shape, dtype.itemsize)
    return dtype
