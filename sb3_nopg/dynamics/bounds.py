"""
Where the task ends, and where what is known ends.

A task's end shows where terminal next states lie beyond all others in a coordinate. A user can name limits of columns too. In
every other direction the recorded range ends without anybody knowing what follows: there the worst is expected.
All are smooth at the edge, so that a policy that drifts towards one has a gradient that says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import is_count
from sb3_nopg.dynamics.coordinates import Coordinates, column_called
from sb3_nopg.dynamics.stops import Stop

# Width of an edge as a share of the recorded range; its middle lies three widths outside, where little is lost inside.
_SOFTNESS, _MARGIN = 0.01, 3.0
# Of a limit, in widths: somebody may start just there, in single precision.
_ROUNDING = 1e-3
# Beyond the edge by so many widths a state is as lost as it can be, and stays there.
_PADDING = 10.0

#: room of a system that is known everywhere, in recorded ranges: who has gone so far is lost all the same
EVERYWHERE = 100.0
#: smallest and largest value of a column within a limit, None for no end on that side
Limit = tuple[float | None, float | None]


@dataclass(frozen=True)
class Crossing:
    """
    What becomes of m states.

    :param goes_on: probability of being within all bounds, s, (m,)
    :param unknown: probability of having left what is known, or a limit, e, (m,)
    :param goes_on_slope: ∂s/∂x, (m, d)
    :param unknown_slope: ∂e/∂x, (m, d)
    """

    goes_on: th.Tensor
    unknown: th.Tensor
    goes_on_slope: th.Tensor
    unknown_slope: th.Tensor


@dataclass(frozen=True)
class Bounds:
    """
    :param coordinates: of the states
    :param low: of all states that were seen and did not end the task, (d,)
    :param high: of the same states, (d,)
    :param ends_low: whether the task ends below, (d,)
    :param ends_high: whether the task ends above, (d,)
    :param limit_columns: columns of the observation that have limits, (c,)
    :param limits: their ends, infinite for none, (c, 2)
    :param limit_width: softness of each, (c,)
    :param unexplained_ends: share of the terminal states that lie among the others
    :param room: how far trajectories may leave the recorded range in each coordinate before they count as lost, (d,)
    :param lowest: where each coordinate stops, and goes no further down, (d,); infinite where nothing stops it
    :param highest: the same upwards, (d,)
    """

    coordinates: Coordinates
    low: th.Tensor
    high: th.Tensor
    ends_low: th.Tensor
    ends_high: th.Tensor
    limit_columns: th.Tensor
    limits: th.Tensor
    limit_width: th.Tensor
    unexplained_ends: float
    room: th.Tensor
    lowest: th.Tensor
    highest: th.Tensor

    @classmethod
    def of(
        cls,
        coordinates: Coordinates,
        states: th.Tensor,
        next_states: th.Tensor,
        terminals: th.Tensor,
        limits: Mapping[int | str, Limit] | None = None,
        stops: Sequence[Stop] = (),
    ) -> "Bounds":
        """
        :param coordinates: of the states
        :param states: (n, d)
        :param next_states: (n, d)
        :param terminals: whether the task ended with the next state, (n,)
        :param limits: smallest and largest value of columns of the observation
        :param stops: where coordinates stop
        """
        inner = th.cat([states, next_states[~terminals]])
        low, high, last = inner.min(dim=0).values, inner.max(dim=0).values, next_states[terminals]
        ends_low, ends_high, unexplained = _sides(last < low, last > high)
        columns, ends, widths = _checked_limits(limits or {}, coordinates, states)
        lowest, highest = th.full_like(low, -math.inf), th.full_like(high, math.inf)
        for stop in stops:
            (highest if stop.above else lowest)[stop.coordinate] = stop.value
        return cls(
            coordinates,
            low,
            high,
            ends_low & ~coordinates.round,
            ends_high & ~coordinates.round,
            columns,
            ends,
            widths,
            unexplained,
            th.zeros_like(low),
            lowest,
            highest,
        )

    def to(self, device: th.device) -> "Bounds":
        """The same on a device."""
        of_ends = ("low", "high", "ends_low", "ends_high", "room", "lowest", "highest")
        names = (*of_ends, "limit_columns", "limits", "limit_width")
        tensors: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        return replace(self, coordinates=self.coordinates.to(device), **tensors)

    @property
    def known_everywhere(self) -> bool:
        """Whether a state may go any distance from the data and still count as known."""
        return bool((self.room >= EVERYWHERE * (self.high - self.low)).all())

    def _beyond(self) -> tuple[th.Tensor, th.Tensor]:
        """How far beyond the recorded range a model is believed below and above, (d,) each."""
        return self.room.masked_fill(self.ends_low, 0.0), self.room.masked_fill(self.ends_high, 0.0)

    def _free(self) -> tuple[th.Tensor, th.Tensor]:
        """Coordinates that can go below and above all that was recorded without being lost, (d,) each."""
        everywhere, turns = self.known_everywhere, self.coordinates.round
        below, above = turns | self.lowest.isfinite(), turns | self.highest.isfinite()
        return below | (~self.ends_low & everywhere), above | (~self.ends_high & everywhere)

    @property
    def width(self) -> th.Tensor:
        """Softness of each coordinate's edges, (d,)."""
        return _SOFTNESS * (self.high - self.low).clamp_min(1e-9)

    @property
    def has_ends(self) -> bool:
        """Whether the task is known to end anywhere."""
        return bool((self.ends_low | self.ends_high).any())

    @cached_property
    def edges(self) -> tuple[th.Tensor, th.Tensor]:
        """Beyond which nothing more can be lost, or nothing can go, (d,) each; angles without ends have none."""
        padding, free, (below, above) = _PADDING * self.width, self.coordinates.round, self._beyond()
        low = th.where(self.lowest.isfinite(), self.lowest, self.low - padding - below)
        high = th.where(self.highest.isfinite(), self.highest, self.high + padding + above)
        return low.masked_fill(free, -math.inf), high.masked_fill(free, math.inf)

    def hold(self, states: th.Tensor) -> th.Tensor:
        """
        States that have run far beyond an edge, brought back to where nothing more can be lost, or against a stop, to it.

        :param states: (m, d)
        """
        low, high = self.edges
        return th.minimum(th.maximum(states, low), high)

    def left_alone(self, held: th.Tensor) -> th.Tensor:
        """
        :param held: from :meth:`hold`
        :return: which coordinates it did not touch
        """
        low, high = self.edges
        return (held > low) & (held < high)

    def cross(self, states: th.Tensor) -> Crossing:
        """
        :param states: (m, d)
        """
        width, (below_free, above_free), (more_below, more_above) = self.width, self._free(), self._beyond()
        margin = _MARGIN * width
        log_above = _log_inside((self.high + margin + more_above - states) / width, above_free)
        log_below = _log_inside((states - self.low + margin + more_below) / width, below_free)
        nothing = th.zeros_like(log_above)
        # Of each side the logarithm of staying, and its slope: d log σ(y)/dy = 1 − σ(y).
        slope_above, slope_below = (log_above.exp() - 1.0) / width, (1.0 - log_below.exp()) / width
        slope_above, slope_below = slope_above.masked_fill(above_free, 0.0), slope_below.masked_fill(below_free, 0.0)
        ends = th.where(self.ends_high, log_above, nothing) + th.where(self.ends_low, log_below, nothing)
        ends_slope = th.where(self.ends_high, slope_above, nothing) + th.where(self.ends_low, slope_below, nothing)
        not_ended = ends.sum(dim=1).exp()
        known = (log_above + log_below - ends).sum(dim=1)
        known_slope = slope_above + slope_below - ends_slope
        if len(self.limit_columns):
            inside, inside_slope = self._inside_limits(states)
            known, known_slope = known + inside, known_slope + inside_slope
        known = known.exp()
        goes_on, unknown = not_ended * known, not_ended * (1.0 - known)
        return Crossing(
            goes_on,
            unknown,
            goes_on[:, None] * (ends_slope + known_slope),
            unknown[:, None] * ends_slope - goes_on[:, None] * known_slope,
        )

    def _inside_limits(self, states: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Logarithm of being within the limits that a user named, and its slope, (m,) and (m, d)."""
        observations = self.coordinates.decode(states)
        columns = observations[:, self.limit_columns]
        above = th.nn.functional.logsigmoid((self.limits[:, 1] - columns) / self.limit_width)
        below = th.nn.functional.logsigmoid((columns - self.limits[:, 0]) / self.limit_width)
        gradient = th.zeros_like(observations)
        gradient[:, self.limit_columns] = (above.exp() - below.exp()) / self.limit_width
        return (above + below).sum(dim=1), self.coordinates.pull_back(states, gradient)

    def fate(self, states: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        The same without softness, for trajectories that are looked at and not learned from.

        :param states: (m, d)
        :return: whether the task has ended, and whether what is known was left, (m,) each
        """
        margin, (more_below, more_above) = _MARGIN * self.width, self._beyond()
        above, below = states > self.high + margin + more_above, states < self.low - margin - more_below
        above, below = above & ~self.coordinates.round, below & ~self.coordinates.round
        ended = ((above & self.ends_high) | (below & self.ends_low)).any(dim=1)
        left = ((above & ~self.ends_high) | (below & ~self.ends_low)).any(dim=1)
        if len(self.limit_columns):
            left = left | ~self._within(self.coordinates.decode(states))
        return ended, left & ~ended

    def within_limits(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: (m, d_s)
        :return: which of them lie within all limits that a user named, but for rounding, (m,)
        """
        return np.asarray(self._within(th.from_numpy(observations).to(self.limits)).cpu().numpy())

    def _within(self, observations: th.Tensor) -> th.Tensor:
        columns, rounding = observations[:, self.limit_columns], _ROUNDING * self.limit_width
        return ((columns <= self.limits[:, 1] + rounding) & (columns >= self.limits[:, 0] - rounding)).all(dim=1)

    def farthest_out(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :return: the coordinate in which each is nearest to an end of its range, or farthest beyond it, (m,)
        """
        beyond = th.maximum(self.low - states, states - self.high) / (self.high - self.low).clamp_min(1e-9)
        return beyond.masked_fill(self.coordinates.round, -math.inf).argmax(dim=1)


def _sides(below: th.Tensor, above: th.Tensor) -> tuple[th.Tensor, th.Tensor, float]:
    """
    The fewest sides that explain the ends: who falls fast is beyond the recorded speeds too, but that is not why it ended.

    :param below: which coordinates of each terminal state lie below all others, (e, d)
    :param above: which lie above, (e, d)
    :return: sides at which the task ends, (d,) each, and the share of the ends that none of them explains
    """
    beyond = th.cat([below, above], dim=1)
    chosen = th.zeros(beyond.shape[1], dtype=th.bool)
    open_ = beyond.any(dim=1)
    n_ends, n_explained = len(beyond), int(open_.sum())
    while bool(open_.any()):
        best = int(beyond[open_].sum(dim=0).argmax())
        chosen[best] = True
        open_ = open_ & ~beyond[:, best]
    d = below.shape[1]
    return chosen[:d], chosen[d:], 1.0 - n_explained / n_ends if n_ends else 0.0


def _log_inside(distance: th.Tensor, free: th.Tensor) -> th.Tensor:
    return th.nn.functional.logsigmoid(distance).masked_fill(free, 0.0)


def _checked_limits(
    limits: Mapping[int | str, Limit], coordinates: Coordinates, states: th.Tensor
) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """Columns, ends and softness of the limits that a user named."""
    if not isinstance(limits, Mapping):
        raise InputError("limits", f"{limits!r} names no columns", "Give {column: (smallest, largest)}, None for no end")
    observations = coordinates.decode(states)
    n_columns = observations.shape[1]
    columns, ends, widths = [], [], []
    for named, limit in limits.items():
        column: Any = column_called(named, coordinates.columns)
        if not is_count(column, 0, n_columns - 1):
            names = f", or {', '.join(coordinates.columns)}" if coordinates.columns else ""
            raise InputError(
                "limits", f"{named!r} is no column", f"Name columns 0 to {n_columns - 1} of the observation{names}"
            )
        if int(column) in columns:
            raise InputError("limits", f"{named!r} is named twice", "Name each column once")
        try:
            low, high = (bound if end is None else float(end) for end, bound in zip(limit, (-math.inf, math.inf), strict=True))
        except (TypeError, ValueError) as error:
            raise InputError("limits", f"{limit!r} for column {named}", "Give (smallest, largest), None for no end") from error
        if math.isnan(low) or math.isnan(high):
            raise InputError("limits", f"{limit!r} for column {named}", "Give (smallest, largest), None for no end")
        values = observations[:, int(column)]
        inside = int(((values >= low) & (values <= high)).sum())
        if not low < high or not inside:
            raise InputError(
                "limits",
                f"no sample lies within {low:g} to {high:g} in column {named}, which goes from "
                f"{float(values.min()):g} to {float(values.max()):g}",
                "Give limits in the units of the data that leave some of it inside",
            )
        columns.append(int(column))
        ends.append((low, high))
        spread = min(high, float(values.max())) - max(low, float(values.min()))
        widths.append(_SOFTNESS * max(spread, 1e-9))
    return (
        th.tensor(columns, dtype=th.long),
        states.new_tensor(ends).reshape(-1, 2),
        states.new_tensor(widths),
    )
