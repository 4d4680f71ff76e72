"""Records of states without the state that followed: it is found in the next row, and no further than an episode reaches."""

import logging
from typing import Any

import numpy as np

from sb3_nopg.common.arrays import check_finite, flags, labels, real_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import labels_from_ends

_logger = logging.getLogger(__name__)


def with_next_observations(path: str, values: dict[str, Any]) -> dict[str, Any]:
    """
    Take s' from the next row of the episode. The last row of an episode has none: it is dropped, and the one before it ends
    the record as a time limit would; a terminal one stays, because no algorithm looks beyond a true end.

    :param path: for the log
    :param values: arguments of `TransitionDataset` without ``next_observations``
    :return: all of them, with ``timeouts`` and ``episode_ids``
    """
    observations = real_array("observations", values["observations"], ndim=2)
    terminals = flags("terminals", values["terminals"])
    given_timeouts, given_ids = values.get("timeouts"), values.get("episode_ids")
    timeouts = np.zeros(len(terminals), dtype=bool) if given_timeouts is None else flags("timeouts", given_timeouts)
    ids = None if given_ids is None else labels("episode_ids", given_ids)
    for name, array in (("terminals", terminals), ("timeouts", timeouts), ("episode_ids", ids)):
        if array is not None and len(array) != len(observations):
            raise InputError(
                name, f"has {len(array)} rows where observations has {len(observations)}", "Give one for each row"
            )
    if len(observations) == 0:
        raise InputError("observations", "0 transition(s) given", "Kernel regression needs at least two")
    check_finite("observations", observations)

    order = np.arange(len(observations)) if ids is None else np.argsort(ids, kind="stable")
    last = (terminals | timeouts)[order]
    last[-1] = True
    if ids is not None:
        last[:-1] |= ids[order][1:] != ids[order][:-1]
    else:
        ids = labels_from_ends(last)
    followed = np.where(last, order, np.roll(order, -1))
    next_observations = np.empty_like(observations)
    next_observations[order] = observations[followed]
    dropped_here = last & ~terminals[order]
    # The row before a dropped one now ends the record of its episode.
    timeouts = timeouts.copy()
    timeouts[order[:-1][dropped_here[1:] & ~last[:-1]]] = True
    kept = np.ones(len(order), dtype=bool)
    kept[order[dropped_here]] = False
    _logger.warning(
        "%s: no next observations; taken from the following row within %d episode(s), whose last %d row(s) are dropped "
        "because nothing follows them (rows that are terminal are kept).",
        path,
        int(last.sum()),
        int((~kept).sum()),
    )
    shifted = {
        **values,
        "observations": observations,
        "next_observations": next_observations,
        "terminals": terminals,
        "timeouts": timeouts,
        "episode_ids": ids,
    }
    return {name: _rows(name, value, kept) for name, value in shifted.items()}


def _rows(name: str, value: Any, kept: np.ndarray) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if len(value) != len(kept):
        raise InputError(name, f"has {len(value)} rows where observations has {len(kept)}", "Give one for each row")
    return value[kept]
