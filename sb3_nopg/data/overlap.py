"""Whether two data sets hold the same transitions: data that were learned from cannot check what was learned."""

import numpy as np

from sb3_nopg.data.dataset import TransitionDataset


def shared_rows(a: TransitionDataset, b: TransitionDataset) -> int:
    """
    Rewards do not count: they may have been recomputed for the same steps.

    :param a: transitions to look for
    :param b: of as many dimensions; where one set holds single-precision numbers, both are compared in these
    :return: how many rows of ``a`` have the same state, action and next state as some row of ``b``
    """
    if (a.observation_dim, a.action_dim) != (b.observation_dim, b.action_dim):
        return 0
    # A file may have kept fewer digits of the same recording.
    digits = min(_digits(a), _digits(b), key=lambda dtype: dtype.itemsize)
    return int(np.isin(_rows(a, digits), _rows(b, digits)).sum())


def _arrays(data: TransitionDataset) -> tuple[np.ndarray, ...]:
    return data.observations, data.actions, data.next_observations


def _digits(data: TransitionDataset) -> np.dtype:
    return min((array.dtype for array in _arrays(data)), key=lambda dtype: dtype.itemsize)


def _rows(data: TransitionDataset, dtype: np.dtype) -> np.ndarray:
    """Each row as one item, (n,)."""
    # Adding zero makes −0 and 0 the same bits.
    table = np.hstack([array.astype(dtype) for array in _arrays(data)]) + dtype.type(0)
    return np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1] * dtype.itemsize)))[:, 0]
