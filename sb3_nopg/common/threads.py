"""How many threads some work is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th

# Below this many entries of P̂ an operation takes less time than waking a second thread for it, and very much less than
# waiting for one that another program keeps from running.
_WORTH_SHARING = 2**20


@contextmanager
def threads_for(n_entries: int) -> Iterator[None]:
    """
    Work on one thread while the work is small, and leave torch's setting as it was.

    :param n_entries: entries of the transition matrix, or of whatever else one operation works on
    """
    n_threads = th.get_num_threads()
    if n_entries < _WORTH_SHARING:
        th.set_num_threads(1)
    try:
        yield
    finally:
        th.set_num_threads(n_threads)
