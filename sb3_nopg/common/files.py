"""Files that are there whole or not at all."""

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """
    Write a file beside its target and move it there when it is whole; whatever fails, an older file stays as it was.

    :param target: where the file shall be; its folder is made where there is none
    :return: where to write it
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another program may be writing the same file.
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield partial
        # On the disk before it takes the name of the one before: a power cut must not leave neither.
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
