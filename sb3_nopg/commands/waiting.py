"""A sign of life while something takes long."""

from collections.abc import Iterator
from contextlib import contextmanager

from sb3_nopg.common.progress import phase, shown


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """
    A phase of the one display that there is.

    :param what: is being done
    """
    with shown(), phase(what):
        yield
