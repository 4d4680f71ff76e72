"""What all formats share: saying in one line what is wrong with a file."""

import os
from importlib import import_module
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError, one_line

# As many rows of a kind are named.
_ROWS_NAMED = 5


def first_rows(rows: np.ndarray) -> str:
    """
    :param rows: whether each row is meant, (n,), or the numbers of those that are
    :return: the first of them, for a message
    """
    named = (np.flatnonzero(rows) if rows.dtype == bool else np.sort(rows)).tolist()
    return ", ".join(map(str, named[:_ROWS_NAMED])) + (", …" if len(named) > _ROWS_NAMED else "")


def unreadable(path: str | os.PathLike[str], kind: str, error: object) -> InputError:
    """
    :param path: as the caller gave it
    :param kind: what it should have been
    :param error: what the reading library said
    """
    return InputError(str(path), f"not a readable {kind} ({one_line(error)})", "The file may be truncated or of another kind")


def optional_module(name: str, path: str | os.PathLike[str]) -> Any:
    """
    :param name: of a package that only some formats need
    :param path: of the file that needs it
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            str(path), f"this format needs {name.partition('.')[0]} ({one_line(error)})", 'pip install "sb3-nopg[data]"'
        ) from error
