"""How much a file may ask for, checked by what it declares before anything is allocated."""

import os
import pathlib

from sb3_nopg.common.errors import InputError

# No state of a kernel method has as many dimensions; a file that does was transposed, or is a trap.
MAX_COLUMNS = 10_000
_UNKNOWN_MEMORY = 8 * 2**30
_PathLike = str | os.PathLike[str]


def size_limit() -> int:
    """
    :return: bytes that one data set may take, half of what is free because checked arrays are copies
    """
    free = [value for value in (_memory_available(), _memory_of_container()) if value is not None]
    return min(free, default=_UNKNOWN_MEMORY) // 2


def check_size(path: _PathLike, part: str, n_bytes: int) -> None:
    """:raises InputError: when a part of a file declares more than there is memory for"""
    limit = size_limit()
    if n_bytes > limit:
        raise InputError(
            str(path),
            f"{part} would take {_gib(n_bytes)} of memory, and {_gib(limit)} may be used here",
            "The file may be damaged; if it is not, split it or use a computer with more memory",
        )


def check_columns(path: _PathLike, part: str, n_columns: int) -> None:
    """:raises InputError: when a part of a file has more columns than any state"""
    if n_columns > MAX_COLUMNS:
        raise InputError(
            str(path),
            f"{part} has {n_columns:,} columns, at most {MAX_COLUMNS:,} are read",
            "Give one row for each transition; a transposed table looks like this",
        )


def check_declared(path: _PathLike, part: str, shape: tuple[int, ...], itemsize: int) -> None:
    """:raises InputError: when an array of this shape is too large or too wide"""
    if len(shape) > 1:
        check_columns(path, part, shape[-1])
    n_bytes = itemsize
    for length in shape:
        n_bytes *= length
    check_size(path, part, n_bytes)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.3g} GiB"


def _memory_available() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _memory_of_container() -> int | None:
    try:
        return int(pathlib.Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    # "max" where there is no limit
    except (OSError, ValueError):
        return None
