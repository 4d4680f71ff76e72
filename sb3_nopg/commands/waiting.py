"""A sign of life while something takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """
    A spinner on the error stream, where somebody watches it.

    :param what: is being done
    """
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"{what} …"):
        yield
