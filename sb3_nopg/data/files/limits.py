"""How much a file may ask for, checked by what it declares before anything is allocated."""

import os

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.memory import free_memory

# No state of a kernel method has as many dimensions; a file that does was transposed, or is a trap.
MAX_COLUMNS = 10_000
_PathLike = str | os.PathLike[str]


def size_limit() -> int:
    """
    :return: bytes that one data set may take, half of what is free because checked arrays are copies
    """
    return free_memory() // 2


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
