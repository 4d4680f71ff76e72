"""
Where a coordinate stops: a speed that grows no further, a sensor at the end of its range.

What follows a step against a stop says where the stop is and not how the system moves. So it is kept from the regressions, and
predictions end at the stop. Samples that ran into it would bend the model all around it otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates

# A value at an end of the range that occurs so often, and so many times as often as any other, is no accident.
_LEAST_TIMES, _TIMES_AS_OFTEN = 3, 3.0


@dataclass(frozen=True)
class Stop:
    """
    :param coordinate: its number
    :param above: whether it stops what grows; what shrinks otherwise
    :param value: where
    """

    coordinate: int
    above: bool
    value: float


def stopped_rows(next_states: th.Tensor, stops: Sequence[Stop]) -> th.Tensor:
    """
    :param next_states: (n, d)
    :param stops: of their coordinates
    :return: which steps ended at a stop, (n,)
    """
    stopped = th.zeros(len(next_states), dtype=th.bool)
    for stop in stops:
        values = next_states[:, stop.coordinate]
        stopped |= values >= stop.value if stop.above else values <= stop.value
    return stopped


def ends_reached_often(
    coordinates: Coordinates, next_states: th.Tensor, space: tuple[np.ndarray, np.ndarray] | None
) -> list[Stop]:
    """
    What may be stops: ends of the recorded range that were met again and again, or that are an end of the observation space.

    :param coordinates: of the states
    :param next_states: (n, d)
    :param space: smallest and largest observation; None where nobody knows
    """
    found = []
    for number, column in enumerate(coordinates.plain):
        values, times = np.unique(next_states[:, number].numpy(), return_counts=True)
        # The other end may be a stop, too.
        others = times[1:-1].max(initial=1)
        for above in (False, True):
            value, often = (values[-1], times[-1]) if above else (values[0], times[0])
            is_end_of_space = space is not None and math.isclose(value, space[int(above)][column], rel_tol=1e-6)
            if is_end_of_space or often >= max(_LEAST_TIMES, _TIMES_AS_OFTEN * others):
                found.append(Stop(number, above, float(value)))
    return found
