"""Rows with a time: where a step is not as long as the others, another episode begins."""

import logging
import os

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.episode_labels import labels_from_ends
from sb3_nopg.data.files.files import first_rows

_logger = logging.getLogger(__name__)
# A step that took half as long again as most, or not half as long, is not the same step of the same process.
_LONGEST_STEPS, _SHORTEST_STEPS = 1.5, 0.5
# Where more of the steps are irregular, there is no step that the others could differ from.
_MOST_IRREGULAR = 0.5


def split_at_gaps(
    path: str | os.PathLike[str], name: str, times: np.ndarray, ids: np.ndarray | None, gap: float | None
) -> tuple[np.ndarray, float | None]:
    """
    :param path: of the table
    :param name: of the column
    :param times: of the rows, (n,)
    :param ids: of episodes that are known, (n,)
    :param gap: longest step that is regular; None for one by the median, and then a short step is irregular too
    :return: numbers of episodes that also end where time jumps ahead, stands still or runs back, (n,), and the usual step, in
        the unit of the column; None where time never goes ahead
    """
    steps = np.diff(times)
    same = np.ones(len(steps), dtype=bool) if ids is None else ids[1:] == ids[:-1]
    forward = steps[same & (steps > 0)]
    usual = float(np.median(forward)) if len(forward) else np.inf
    longest = _LONGEST_STEPS * usual if gap is None else gap
    late, back = same & (steps > longest), same & (steps <= 0)
    early = same & (steps > 0) & (steps < (_SHORTEST_STEPS * usual if gap is None else 0.0))
    irregular = late | early | back
    kinds = (("longer", late), ("shorter", early), ("backwards or standing still", back))
    told = ", ".join(f"{int(which.sum())} {kind}" for kind, which in kinds if which.any())
    if irregular.sum() > max(1, _MOST_IRREGULAR * same.sum()):
        raise InputError(
            str(path),
            f"{int(irregular.sum())} of {int(same.sum())} steps in {name!r} are not about {usual:.4g} long ({told}), "
            f"the first after row {int(irregular.argmax())}",
            'Log at equal steps; gap= names the longest one that is regular, time="none" leaves the column out',
        )
    where = f" ({told}), after row {first_rows(irregular)}" if told else ""
    _logger.warning("%s: steps of %.4g; %d gap(s) in %r%s; each begins a new episode.", path, usual, int(irregular.sum()),
                    name, where)  # fmt: skip
    # Times in a file are rounded, and their differences more so.
    return labels_from_ends(np.append(irregular | ~same, True)), float(f"{usual:.6g}") if len(forward) else None
