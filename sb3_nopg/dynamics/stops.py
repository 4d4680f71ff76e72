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

# A value at an end of the range is no accident if so many steps end there, and so many times as many as at any value between.
_LEAST_STEPS, _TIMES_AS_MANY = 3, 3.0
# Where more than this share of the steps ends, somebody rests, or the column has few values.
_MOST_STEPS = 0.5


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

    def reached(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: (n, d)
        :return: which of them are at the stop, (n,)
        """
        values = states[:, self.coordinate]
        return values >= self.value if self.above else values <= self.value


def stopped_rows(next_states: th.Tensor, stops: Sequence[Stop]) -> th.Tensor:
    """
    :param next_states: (n, d)
    :param stops: of their coordinates
    :return: which steps ended at a stop, (n,)
    """
    stopped = th.zeros(len(next_states), dtype=th.bool, device=next_states.device)
    for stop in stops:
        stopped |= stop.reached(next_states)
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
        between = times[1:-1].max(initial=1)
        for above in (False, True):
            value, n_steps = (values[-1], times[-1]) if above else (values[0], times[0])
            is_end_of_space = space is not None and math.isclose(value, space[int(above)][column], rel_tol=1e-6)
            is_often_met = n_steps >= max(_LEAST_STEPS, _TIMES_AS_MANY * between)
            if (is_end_of_space or is_often_met) and n_steps <= _MOST_STEPS * len(next_states):
                found.append(Stop(number, above, float(value)))
    return found
