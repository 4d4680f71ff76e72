"""Records of states without the state that followed: it is found in the next row, and no further than an episode reaches."""

import logging
from typing import Any

import numpy as np

from sb3_nopg.common.arrays import check_finite, flags, labels, real_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.column_heads import spelled
from sb3_nopg.data.continuity import MOST_JUMPS, Jumps, find_jumps
from sb3_nopg.data.episode_labels import labels_from_ends
from sb3_nopg.data.files.files import first_rows
from sb3_nopg.data.quantities import Quantities

_logger = logging.getLogger(__name__)


def with_next_observations(path: str, values: dict[str, Any], *, keep_jumps: bool = False) -> dict[str, Any]:
    """
    Take s' from the next row of the episode. The last row of an episode has none: it is dropped, and the one before it ends
    the record as a time limit would; a terminal one stays, because no algorithm looks beyond a true end. Where a row cannot
    follow from the one before it, another episode begins.

    :param path: for the log
    :param values: arguments of `TransitionDataset` without ``next_observations``
    :param keep_jumps: whether to take every row for what follows from the one before it
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
    if not keep_jumps:
        jumps = _jumps(path, values, observations, order, last)
        if len(jumps):
            last[jumps] = True
            ids = np.empty_like(ids)
            ids[order] = labels_from_ends(last)
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


def _jumps(path: str, values: dict[str, Any], states: np.ndarray, order: np.ndarray, last: np.ndarray) -> np.ndarray:
    """
    :param path: for messages
    :param values: arguments of `TransitionDataset`
    :param states: (n, d_s)
    :param order: rows, those of an episode together, (n,)
    :param last: which of them end an episode, (n,)
    :return: places in the order whose row the next one does not follow from
    """
    actions = np.asarray(values["actions"])
    if actions.ndim != 2 or len(actions) != len(states) or not np.isfinite(actions).all():
        # Refused later, by name.
        return order[:0]
    places = np.flatnonzero(~last)
    rows, following = order[places], order[np.minimum(places + 1, len(order) - 1)]
    found = find_jumps(states[rows], actions[rows], states[following], labels_from_ends(last)[places])
    quantities = values.get("quantities") or Quantities.neutral(states.shape[1], actions.shape[1])
    _check_related(path, found, rows)
    _tell_wrapped(path, found, quantities)
    if found.steps.any():
        columns = ", ".join(quantities.observation_names[column] for column in found.columns)
        _logger.warning(
            "%s: %d jump(s) in %s, after row %s: what follows does not follow from it, so that each begins a new episode.",
            path,
            int(found.steps.sum()),
            columns,
            first_rows(rows[found.steps]),
        )
    return places[found.steps]


def _check_related(path: str, found: Jumps, rows: np.ndarray) -> None:
    n_jumps, keep = int(found.steps.sum()), "keep_jumps=True (--keep-jumps) takes them as they are"
    if found.unrelated:
        raise InputError(
            path,
            "no row says anything about the next one, so that they are no steps of one process: shuffled, or far apart",
            f"Sort them by time, or name the columns of the next state (next_obs); {keep}",
        )
    if n_jumps > MOST_JUMPS * len(rows):
        raise InputError(
            path,
            f"{n_jumps} of {len(rows)} steps are jumps, the first after row {first_rows(rows[found.steps])}",
            f"Name a column of the episode or of the time; {keep}",
        )


def _tell_wrapped(path: str, found: Jumps, quantities: Quantities) -> None:
    for column, circle in found.wrapped.items():
        name, unit = quantities.observation_names[column], quantities.observation_units[column]
        in_degrees = circle > 2 * np.pi
        wrong = f" It is in degrees, and its unit says {unit}." if in_degrees and spelled(unit) == "rad" else ""
        _logger.warning(
            "%s: %s wraps around at %s, and a step across counts as a step all the way back.%s Log its cosine and sine.",
            path,
            name,
            "360" if in_degrees else "2π",
            wrong,
        )


def _rows(name: str, value: Any, kept: np.ndarray) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if len(value) != len(kept):
        raise InputError(name, f"has {len(value)} rows where observations has {len(kept)}", "Give one for each row")
    return value[kept]
