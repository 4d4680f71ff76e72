"""What all formats share: writing whole files or none, and saying in one line what is wrong with one."""

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sb3_nopg.common.errors import InputError

_LONGEST_REASON = 200


@contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """
    Write a file beside its target and move it there when it is whole; whatever fails, an older file stays as it was.

    :param target: where the file shall be
    :return: where to write it
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another program may be writing the same file.
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def one_line(error: object) -> str:
    """
    :param error: or any text
    :return: on one line, and no longer than a person reads
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " …"


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
