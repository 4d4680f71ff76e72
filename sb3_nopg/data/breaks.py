"""Where the rows of an episode do not begin where the row before them ended, although both were recorded."""

import logging
import os

import numpy as np

from sb3_nopg.data.episode_labels import episode_labels, numbered_as_they_begin
from sb3_nopg.data.files.files import first_rows
from sb3_nopg.data.transitions import Transitions

_logger = logging.getLogger(__name__)
# Share of a column's range that files may round by.
_ROUNDING = 1e-6


def find_breaks(dataset: Transitions) -> np.ndarray:
    """
    :param dataset: the data
    :return: numbers of the rows that the next row of their episode does not carry on; none where the data know no episodes
    """
    ids = episode_labels(dataset)
    if ids is None:
        return np.empty(0, dtype=np.intp)
    number = numbered_as_they_begin(ids)
    # Rows of an episode together.
    order = np.argsort(number, kind="stable")
    rows, following = order[:-1], order[1:]
    with np.errstate(all="ignore"):
        rounding = _ROUNDING * np.ptp(dataset.observations.astype(np.float64), axis=0)
        away = np.abs(dataset.next_observations[rows] - dataset.observations[following].astype(np.float64))
    # Not "greater": what overflows is no rounding either.
    broken = ~(away <= rounding).all(axis=1) & (number[rows] == number[following])
    return np.sort(rows[broken])


def tell_breaks(path: str | os.PathLike[str], dataset: Transitions) -> None:
    """
    :param path: that the data were read from
    :param dataset: the data
    """
    rows = find_breaks(dataset)
    if len(rows):
        _logger.warning(
            "%s: %d row(s) do not begin where the row before them in the episode ended, the first after row %s; every row "
            "is taken as it is.",
            path,
            len(rows),
            first_rows(rows),
        )
