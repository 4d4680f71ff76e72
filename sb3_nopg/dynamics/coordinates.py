"""
Coordinates in which a state moves smoothly: two columns that are a point on the unit circle are one angle.

cos θ near upright hardly varies and would dominate every distance; θ itself is what mechanics speaks of. Differences of angles
wrap. Columns that never change carry nothing and are left out; a decoded state has them as they were.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import is_count
from sb3_nopg.data.column_heads import angle_of, identifier, is_sine

# How far from the unit circle a pair of columns may lie, in any row: encoders and files round.
_ROUNDING = 1e-3
#: no state is farther away, and no tree of neighbours takes one that is
ANYWHERE = 1e50
# An angle that covers this much of the circle has no ends.
_WHOLE_CIRCLE = 5.5
# One that covers this much has none if one formula is right wherever it was.
_MOST_OF_THE_CIRCLE = 1.5 * math.pi
# An angle that covers less than this is as good as a straight coordinate.
_SHORT_ARC = math.pi / 2


@dataclass(frozen=True)
class Coordinates:
    """
    :param plain: columns that are coordinates themselves
    :param angles: pairs of columns (i, j), with the angle atan2(o_j, o_i)
    :param zeros: direction of each angle that counts as zero, the data's mean
    :param fixed: an observation; columns that never change are taken from it, (d_s,)
    :param round: which coordinates are angles without ends, (d,)
    :param bent: which are angles that cover so much that sine and cosine are needed for one formula for all, (d,)
    :param columns: names of the observation's columns; None where they have none
    """

    plain: tuple[int, ...]
    angles: tuple[tuple[int, int], ...]
    zeros: tuple[float, ...]
    fixed: th.Tensor
    round: th.Tensor
    bent: th.Tensor
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        observations: th.Tensor,
        angles: Sequence[tuple[int | str, int | str]] | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> "Coordinates":
        """
        :param observations: states and next states, (n, d_s)
        :param angles: pairs of columns, by number or name; None to find them
        :param columns: names of the columns; None where they have none
        """
        n_columns = observations.shape[1]
        pairs = find_angles(observations) if angles is None else _checked(observations, angles, columns)
        paired = {column for pair in pairs for column in pair}
        spread = observations.max(dim=0).values - observations.min(dim=0).values
        moves = spread > 1e-9 * observations.abs().amax(dim=0).clamp_min(1e-12)
        plain = tuple(i for i in range(n_columns) if i not in paired and bool(moves[i]))
        if not plain and not pairs:
            raise InputError("dataset", "no column of the observations ever changes", "There is nothing to learn from it")
        mean = observations.mean(dim=0)
        zeros = tuple(math.atan2(float(mean[j]), float(mean[i])) for i, j in pairs)
        dim = len(plain) + len(pairs)
        nothing = th.zeros(dim, dtype=th.bool, device=observations.device)
        found = cls(plain, pairs, zeros, observations[0].clone(), nothing, nothing.clone())
        encoded = found.encode(observations)
        extent = encoded.max(dim=0).values - encoded.min(dim=0).values
        angular = found.angular
        whole, bent = angular & (extent > _WHOLE_CIRCLE), angular & (extent > _SHORT_ARC)
        return cls(plain, pairs, zeros, found.fixed, whole, bent, columns)

    def all_around(self, extent: th.Tensor) -> "Coordinates":
        """
        The same for a system that one formula of sines and cosines describes: what is left of the circle is no end.

        :param extent: of each coordinate that the data cover, none where the task is known to end, (d,)
        """
        return replace(self, round=self.round | (self.angular & (extent > _MOST_OF_THE_CIRCLE)))

    @property
    def dim(self) -> int:
        """Number of coordinates, d."""
        return len(self.plain) + len(self.angles)

    @property
    def angular(self) -> th.Tensor:
        """Which coordinates are angles, (d,)."""
        return th.arange(self.dim, device=self.fixed.device) >= len(self.plain)

    def encode(self, observations: th.Tensor) -> th.Tensor:
        """
        :param observations: (n, d_s)
        :return: (n, d)
        """
        columns = [observations[:, i] for i in self.plain]
        for (i, j), zero in zip(self.angles, self.zeros, strict=True):
            columns.append(wrap(th.atan2(observations[:, j], observations[:, i]) - zero))
        return th.stack(columns, dim=1)

    @cached_property
    def order(self) -> th.Tensor:
        """Where each column of an observation stands among plain coordinates, cosines, sines and fixed columns, (d_s,)."""
        firsts, seconds = [i for i, _ in self.angles], [j for _, j in self.angles]
        moving = [*self.plain, *firsts, *seconds]
        return th.tensor([*moving, *self.still_columns], device=self.fixed.device).argsort()

    @cached_property
    def still_columns(self) -> tuple[int, ...]:
        """Columns that never change."""
        moving = {*self.plain, *(column for pair in self.angles for column in pair)}
        return tuple(i for i in range(len(self.fixed)) if i not in moving)

    @cached_property
    def still(self) -> th.Tensor:
        """Columns that never change, as they are, (number of them,)."""
        return self.fixed[list(self.still_columns)]

    @cached_property
    def _zero_angles(self) -> th.Tensor:
        return self.fixed.new_tensor(self.zeros)

    @cached_property
    def turns(self) -> th.Tensor:
        """1/2π for angles and nothing for other coordinates, (d,)."""
        return self.angular.to(self.fixed.dtype) / (2.0 * math.pi)

    def decode(self, states: th.Tensor) -> th.Tensor:
        """
        :param states: (..., d)
        :return: (..., d_s)
        """
        n_plain = len(self.plain)
        parts = [states[..., :n_plain]]
        if self.angles:
            angle = states[..., n_plain:] + self._zero_angles
            parts += [th.cos(angle), th.sin(angle)]
        if len(self.still):
            parts.append(self.still.expand(*states.shape[:-1], -1))
        return th.cat(parts, dim=-1).index_select(-1, self.order)

    def pull_back(self, states: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        """
        From a derivative with respect to observations to one with respect to coordinates.

        :param states: where, (..., d)
        :param gradient: ∂f/∂o, (..., d_s)
        :return: ∂f/∂x, (..., d)
        """
        n_plain = len(self.plain)
        parts = [gradient[..., list(self.plain)]] if n_plain else []
        for number, ((i, j), zero) in enumerate(zip(self.angles, self.zeros, strict=True)):
            angle = states[..., n_plain + number] + zero
            parts.append((gradient[..., j] * th.cos(angle) - gradient[..., i] * th.sin(angle))[..., None])
        return th.cat(parts, dim=-1)

    def difference(self, to: th.Tensor, from_: th.Tensor) -> th.Tensor:
        """The way from one state to another, the shorter one around a circle; both (..., d)."""
        way = to - from_
        if not self.angles:
            return way
        return way - 2.0 * math.pi * th.round(way * self.turns)

    def embed(self, states: th.Tensor, scale: th.Tensor) -> th.Tensor:
        """
        Points whose straight distance orders neighbours as differences over ``scale`` do, angles as arcs.

        :param states: (n, d)
        :param scale: of each coordinate, (d,)
        :return: (n, d + number of angles)
        """
        n_plain = len(self.plain)
        if not self.angles:
            return states / scale
        angle, radius = states[:, n_plain:], 1.0 / scale[n_plain:]
        return th.cat([states[:, :n_plain] / scale[:n_plain], radius * th.cos(angle), radius * th.sin(angle)], dim=1)

    def names(self, columns: Sequence[str] | None = None) -> tuple[str, ...]:
        """
        :param columns: names of the observation's columns; None for their own, or else ``s[0]`` and the like
        :return: of the coordinates; ``cos_theta`` and ``sin_theta`` are ``theta``
        """
        columns = self._columns(columns)
        found = [columns[i] for i in self.plain]
        for i, j in self.angles:
            angle = angle_of(columns[i], columns[j])
            found.append(f"angle({columns[i]}, {columns[j]})" if angle is None or angle in columns else angle)
        return tuple(found)

    def column_name(self, number: int) -> str:
        """
        :param number: of a column of the observation
        """
        return f"column {number}" if self.columns is None else self.columns[number]

    def _columns(self, columns: Sequence[str] | None) -> Sequence[str]:
        if columns is not None and len(columns) != len(self.fixed):
            raise InputError("names", f"{len(columns)} names for {len(self.fixed)} columns", "Give one for each")
        return columns or self.columns or [f"s[{i}]" for i in range(len(self.fixed))]

    def shown(self, states: np.ndarray, columns: Sequence[str] | None = None) -> np.ndarray:
        """
        For people: angles as they would measure them, from where cosine is one towards where sine is, and not from the data's
        mean.

        :param states: (..., d)
        :param columns: as for :meth:`names`; where these tell no cosine from a sine, the first column is taken for the cosine
        :return: (..., d)
        """
        names, found = self._columns(columns), np.array(states)
        for number, ((i, j), zero) in enumerate(zip(self.angles, self.zeros, strict=True), start=len(self.plain)):
            angle = found[..., number] + zero
            if angle_of(names[i], names[j]) is not None and is_sine(names[i]):
                angle = math.pi / 2 - angle
            found[..., number] = (angle + math.pi) % (2.0 * math.pi) - math.pi
        return found

    def to(self, device: th.device) -> "Coordinates":
        """The same on a device."""
        return Coordinates(
            self.plain,
            self.angles,
            self.zeros,
            self.fixed.to(device),
            self.round.to(device),
            self.bent.to(device),
            self.columns,
        )


def find_angles(observations: th.Tensor) -> tuple[tuple[int, int], ...]:
    """
    Pairs of columns with o_i² + o_j² = 1 in every row, both of which vary.

    :param observations: (n, d_s)
    """
    moves = observations.std(dim=0) > 1e-6
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i, j in combinations(range(observations.shape[1]), 2):
        if taken & {i, j} or not bool(moves[i] & moves[j]):
            continue
        if _off_circle(observations, i, j) < _ROUNDING:
            pairs.append((i, j))
            taken |= {i, j}
    return tuple(pairs)


def wrap(angle: th.Tensor) -> th.Tensor:
    """The same angle within ±π."""
    return angle - 2.0 * math.pi * th.round(angle / (2.0 * math.pi))


def _off_circle(observations: th.Tensor, i: int, j: int) -> float:
    return float((observations[:, i].square() + observations[:, j].square() - 1.0).abs().max())


def _checked(
    observations: th.Tensor, angles: Sequence[tuple[int | str, int | str]], columns: Sequence[str] | None
) -> tuple[tuple[int, int], ...]:
    pairs: list[tuple[int, int]] = []
    n_columns = observations.shape[1]
    if not isinstance(angles, tuple | list):
        raise InputError("angles", f"{angles!r} is no list of pairs", "Give pairs of columns, or () for none")
    for pair in angles:
        numbers = [column_called(i, columns) for i in pair] if _is_pair(pair) else []
        if len(set(numbers)) != 2 or not all(is_count(i, 0, n_columns - 1) for i in numbers):
            names = f", or of {', '.join(columns)}" if columns else ""
            fix = f"Give two of the columns 0 to {n_columns - 1}{names}"
            raise InputError("angles", f"{pair!r} is no pair of columns", fix)
        i, j = map(int, numbers)
        if {i, j} & {column for pair in pairs for column in pair}:
            raise InputError("angles", f"column {i} or {j} belongs to two angles", "Name each column once")
        off = _off_circle(observations, i, j)
        if off > 0.1:
            raise InputError(
                "angles",
                f"columns {i} and {j} are no cosine and sine: the sum of their squares is up to {off:.3g} away from one",
                "Name columns on the unit circle, or angles=() for none",
            )
        pairs.append((i, j))
    return tuple(pairs)


def column_called(named: Any, columns: Sequence[str] | None) -> Any:
    """
    :param named: a column, by number or name
    :param columns: names of all; None where they have none
    :return: its number; what is not the name of one, as it is
    """
    known = {identifier(name): number for number, name in enumerate(columns or ())}
    return known.get(identifier(named), named) if isinstance(named, str) else named


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(i, str) or is_count(i, 0) for i in pair)
