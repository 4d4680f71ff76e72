"""Data sets in files: which format a path means, and the readers and writers, one file each."""

import os
import pathlib
import re
from importlib import import_module
from typing import Any

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.trust import check_trusted
from sb3_nopg.data.files import flight_log, minari_folder, npz_file, table_columns
from sb3_nopg.data.transitions import Transitions

_SUFFIXES = {
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pkl": "replay_buffer",
    ".npy": "object_array",
    ".journal": "flight_log",
}
# data.v2, gamma_0.95, run.2024-05-01: part of a name, no ending.
_NUMBER = re.compile(r"\.v?\d[\d_-]*")
_MODULES = {
    "npz": "npz_file",
    "hdf5": "hdf5_file",
    "csv": "csv_file",
    "parquet": "parquet_file",
    "minari": "minari_folder",
    "replay_buffer": "replay_pickle",
    "object_array": "object_array",
    "flight_log": "flight_log",
}
#: names of all formats
FORMATS = tuple(_MODULES)
_READ_ONLY = ("object_array", "flight_log")
_PICKLES = ("replay_buffer", "object_array")
_OPTIONS = {"csv": (*table_columns.OPTIONS, "delimiter"), "parquet": table_columns.OPTIONS, "hdf5": ("keep_jumps",)}


def read_fields(
    path: str | os.PathLike[str], format: str | None = None, trust: bool = False, **options: Any
) -> dict[str, Any]:
    """
    :param path: file, folder of a Minari data set, or ``minari:ID``
    :param format: one of `FORMATS`; without it, by the suffix
    :param trust: whether to read pickles, which may run any program
    :param options: of tables, see `sb3_nopg.data.files.table_columns.Columns`; of CSV also ``delimiter``
    :return: arguments of :class:`sb3_nopg.TransitionDataset`
    """
    try:
        source, chosen = _source(path, format)
        unknown = sorted(set(options) - set(_OPTIONS.get(chosen, ())))
        if unknown:
            known = ", ".join(_OPTIONS.get(chosen, ())) or "none"
            raise InputError(unknown[0], f"not an option of the format {chosen}", f"Its options: {known}")
        if chosen in _PICKLES:
            check_trusted(path, "a file of this kind, a pickle,", trust)
        found: dict[str, Any] = _module(chosen).read(source, **options)
        return found
    except PermissionError as error:
        raise InputError(str(path), f"cannot be read ({one_line(error)})", "Ask its owner for permission") from error
    except MemoryError as error:
        raise InputError(str(path), "does not fit into memory", "Split it, or use a computer with more memory") from error


def write_dataset(dataset: Transitions, path: str | os.PathLike[str], format: str | None = None) -> pathlib.Path:
    """
    :param dataset: the data
    :param path: file to write; one without a suffix becomes an ``.npz``
    :param format: one of `FORMATS`; without it, by the suffix
    :return: the file written
    """
    chosen, target = _format_of(path, format), target_of(path, format)
    _module(chosen).write(dataset, path if chosen == "minari" else target)
    return target


def target_of(path: str | os.PathLike[str], format: str | None = None) -> pathlib.Path:
    """
    :param path: that `write_dataset` is given
    :param format: and the format
    :return: the file, or the folder of Minari's, that it will write
    """
    chosen = _format_of(path, format)
    if chosen in _READ_ONLY:
        raise InputError(str(path), f"the format {chosen} is only read, not written", "Save as .npz")
    if chosen == "minari":
        return minari_folder.folder_of(path)
    return npz_file.with_suffix(pathlib.Path(path)) if chosen == "npz" and format is None else pathlib.Path(path)


def _module(chosen: str) -> Any:
    # Only now, because each draws in the packages of its format.
    return import_module(f"sb3_nopg.data.files.{_MODULES[chosen]}")


def _format_of(path: str | os.PathLike[str], format: str | None) -> str:
    if format is not None and format not in FORMATS:
        raise InputError("format", f"{format!r} is unknown", f"Use one of {', '.join(FORMATS)}")
    if format == "minari" or (format is None and os.fspath(path).startswith(minari_folder.PREFIX)):
        return "minari"
    if pathlib.Path(path).name in ("", ".."):
        raise InputError("path", f"{os.fspath(path)!r} names no file", "Give the name of a data set")
    return _format_of_suffix(path) if format is None else format


def _format_of_suffix(path: str | os.PathLike[str]) -> str:
    suffix = pathlib.Path(path).suffix.lower()
    if not suffix or _NUMBER.fullmatch(suffix):
        return "npz"
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InputError(str(path), f"the ending {suffix} is not known", f"Use one of {known}, or none for .npz")
    return _SUFFIXES[suffix]


def _source(path: str | os.PathLike[str], format: str | None) -> tuple[pathlib.Path, str]:
    """The file that a path means, and its format."""
    if not os.fspath(path):
        raise InputError("path", "is empty", "Give the name of a data set")
    source = pathlib.Path(path)
    if format is None and _is_minari_folder(source):
        return source, "minari"
    chosen = _format_of(path, format)
    if chosen == "minari":
        return source, chosen
    if chosen == "npz" and not source.is_file() and npz_file.with_suffix(source).is_file():
        source = npz_file.with_suffix(source)
    if not source.exists():
        if chosen in ("npz", "flight_log") and flight_log.journal_of(source).is_file():
            return flight_log.journal_of(source), "flight_log"
        raise FileNotFoundError(f"No data set at {path}")
    if chosen == "npz" and format is None and flight_log.is_flight_log(source):
        chosen = "flight_log"
    if source.is_file():
        # So that a file nobody may read is told apart from a damaged one, in every format.
        open(source, "rb").close()
    return source, chosen


def _is_minari_folder(source: pathlib.Path) -> bool:
    """Whether a path without a format means the folder there; a file ``run.npz`` goes before a folder ``run``."""
    if not source.is_dir() or (source.name and npz_file.with_suffix(source).is_file()):
        return False
    if minari_folder.is_minari(source):
        return True
    # A folder with the ending of a file is for the reader of that format to refuse.
    if source.suffix.lower() not in _SUFFIXES:
        raise InputError(str(source), "is a folder, and no Minari data set", "Give the name of a file")
    return False
