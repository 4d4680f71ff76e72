"""What columns of states and actions are called, in which units they are, how long a step is: from the file to the rig."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number
from sb3_nopg.data.column_heads import KNOWN_UNITS, identifier, label, parsed_together, spelled

#: the record's fields, by which environments, exported policies and files of arrays call them too
FIELDS = ("observation_names", "observation_units", "action_names", "action_units")
_LONGEST = 100
# Periods of one rate, measured twice, differ by less than this factor.
_SAME_PERIOD = 1.1


@dataclass(frozen=True)
class Quantities:
    """
    Names and units of the columns of a data set, in their order, and the time of a step.

    :param observation_names: one for each column of the state
    :param observation_units: ``""`` where unknown, ``"1"`` for a pure number
    :param action_names: one for each column of the action
    :param action_units: like those of the state
    :param control_period_s: seconds of a step; None where unknown
    """

    observation_names: tuple[str, ...]
    observation_units: tuple[str, ...]
    action_names: tuple[str, ...]
    action_units: tuple[str, ...]
    control_period_s: float | None = None

    def __post_init__(self) -> None:
        for field in FIELDS:
            given = getattr(self, field)
            if isinstance(given, str) or not all(isinstance(text, str) for text in given):
                raise InputError(field, f"{given!r} is no list of texts", "Give one for each column, in order")
            texts = tuple(text.strip() for text in given)
            for text in texts:
                if len(text) > _LONGEST or not text.isprintable():
                    raise InputError(
                        field, f"{text[:40]!r} is no name", f"Use at most {_LONGEST} characters that can be printed"
                    )
            object.__setattr__(self, field, texts)
        check_number("control_period_s", self.control_period_s, 0.0, math.inf, optional=True, fix="Give the seconds of a step")
        for kind in ("observation", "action"):
            names, units = getattr(self, f"{kind}_names"), getattr(self, f"{kind}_units")
            if len(names) != len(units):
                raise InputError(f"{kind}_units", f"{len(units)} for {len(names)} names", "Give one for each")
            if "" in names or len(set(names)) < len(names):
                raise InputError(f"{kind}_names", f"{list(names)} has a name twice or none", "Tell the columns apart")

    @classmethod
    def of(
        cls, observations: Sequence[str], actions: Sequence[str], known: Mapping[str, tuple[str, str]] | None = None
    ) -> "Quantities":
        """
        :param observations: names, with units where they are known: ``position [m]``, ``theta (rad)``, ``u_V``
        :param actions: the same for actions
        :param known: name and unit of each of these texts, where they are known and not to be read from the text
        """
        for field, texts in (("observation_names", observations), ("action_names", actions)):
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise InputError(field, f"{texts!r} is no list of texts", "Give one for each column, in order")
        heads = parsed_together([*observations, *actions]) if known is None else known
        names, units = _told_apart(observations, heads)
        action_names, action_units = _told_apart(actions, heads)
        return cls(names, units, action_names, action_units)

    @classmethod
    def neutral(cls, n_observations: int, n_actions: int) -> "Quantities":
        """
        :param n_observations: columns of the state
        :param n_actions: columns of the action
        :return: names for what has none: ``s[0]``, …, ``a[0]``, …
        """
        states, actions = ([f"{symbol}[{i}]" for i in range(n)] for symbol, n in (("s", n_observations), ("a", n_actions)))
        return cls(tuple(states), ("",) * n_observations, tuple(actions), ("",) * n_actions)

    @classmethod
    def told_by(
        cls, told: Mapping[str, Any], n_observations: int, n_actions: int, own: "Quantities | None" = None
    ) -> "Quantities | None":
        """
        :param told: an environment's ``metadata``, under the names of this record's fields
        :param n_observations: columns of the state
        :param n_actions: columns of the action
        :param own: names for states or actions where only the others' are told; without it, neutral ones
        :return: None where there are no names, or not as many as columns
        """
        found: dict[str, Any] = {}
        for kind, n in (("observation", n_observations), ("action", n_actions)):
            names, units = (tuple(told.get(f"{kind}_{what}") or ()) for what in ("names", "units"))
            if len(names) == n:
                # What an environment says of itself was not written for us: units that do not fit are no reason to stop.
                found |= {f"{kind}_names": names, f"{kind}_units": units if len(units) == n else ("",) * n}
        return replace(own or cls.neutral(n_observations, n_actions), **found) if found else None

    @property
    def observation_labels(self) -> list[str]:
        """For axes and tables: ``position [m]``."""
        return [label(name, unit) for name, unit in zip(self.observation_names, self.observation_units, strict=True)]

    @property
    def action_labels(self) -> list[str]:
        """The same for actions."""
        return [label(name, unit) for name, unit in zip(self.action_names, self.action_units, strict=True)]

    def texts(self) -> dict[str, list[str]]:
        """For files of arrays and metadata."""
        return {field: list(getattr(self, field)) for field in FIELDS}

    def described(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.texts(), "control_period_s": self.control_period_s}

    def variables(self, **parts: np.ndarray) -> dict[str, np.ndarray]:
        """
        :param parts: ``observations``, ``actions`` and ``next_observations``, or some of them, (n, d)
        :return: columns by the names that formulas use, ``next_…`` for the next state's; ``x [m]`` is ``x``, and ``x_m`` too
        """
        found: dict[str, np.ndarray] = {}
        with_units: dict[str, np.ndarray] = {}
        for part, prefix, kind in (
            ("actions", "", "action"), ("next_observations", "next_", "observation"), ("observations", "", "observation"),
        ):  # fmt: skip
            if part not in parts:
                continue
            for number, (name, unit) in enumerate(
                zip(getattr(self, f"{kind}_names"), getattr(self, f"{kind}_units"), strict=True)
            ):
                found[prefix + identifier(name)] = column = parts[part][:, number]
                if unit not in ("", "1"):
                    with_units[prefix + identifier(f"{name}_{unit}")] = column
        # A column that is called x_m goes before one that is x in metres.
        return {**with_units, **found}


def _told_apart(texts: Sequence[str], heads: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names, units = zip(*(heads[text] for text in texts), strict=True) if texts else ((), ())
    # x_m and x_V would both be x.
    return (names, units) if len(set(names)) == len(names) else (tuple(texts), ("",) * len(texts))


def common_quantities(found: Sequence[Quantities | None]) -> Quantities | None:
    """
    :param found: of data sets that are to be one; those that know none take the others'
    """
    known = [quantities for quantities in found if quantities is not None]
    for other in known[1:]:
        check_same("datasets", known[0], "the first", other, "another")
        if other.observation_names != known[0].observation_names or other.action_names != known[0].action_names:
            problem = f"their columns are {_listed(known[0])} and {_listed(other)}"
            raise InputError("datasets", problem, "Merge data with the same columns; data.named() gives other names")
    periods = [quantities.control_period_s for quantities in known if quantities.control_period_s is not None]
    if periods:
        check_same_period("datasets", min(periods), "one", max(periods), "another")
    return replace(known[0], control_period_s=periods[0] if periods else None) if known else None


def check_same_period(field: str, own_s: float | None, whose: str, other_s: float | None, whose_other: str) -> None:
    """
    A policy that was learned at one rate misleads at another.

    :param field: for the message
    :param own_s: seconds of a step of one side, None where unknown
    :param whose: that side
    :param other_s: of the other side
    :param whose_other: that one
    :raises InputError: where both are known and are not of one rate
    """
    if own_s is None or other_s is None or max(own_s, other_s) <= _SAME_PERIOD * min(own_s, other_s):
        return
    problem = f"a step takes {own_s:g} s in {whose} and {other_s:g} s in {whose_other}"
    raise InputError(field, problem, "Use data of the rate at which the policy is to act")


def check_same(field: str, own: Quantities | None, whose: str, other: Quantities | None, whose_other: str) -> None:
    """
    Columns in another order, or in other units, cannot be noticed by their numbers.

    :param field: for the message
    :param own: of one side, None where it knows none
    :param whose: that side
    :param other: of the other side
    :param whose_other: that one
    :raises InputError: where both know the same names and have them in another order, or units that differ for certain
    """
    if own is None or other is None:
        return
    for kind in ("observation", "action"):
        names, others = getattr(own, f"{kind}_names"), getattr(other, f"{kind}_names")
        if names != others and sorted(names) == sorted(others):
            problem = f"{whose} has the columns {', '.join(names)} and {whose_other} {', '.join(others)}"
            raise InputError(field, problem, "Bring them into the same order")
        units = zip(names, getattr(own, f"{kind}_units"), getattr(other, f"{kind}_units"), strict=False)
        for name, unit, other_unit in units:
            mine, theirs = spelled(unit), spelled(other_unit)
            if mine != theirs and {mine, theirs} <= KNOWN_UNITS:
                problem = f"{whose} has {name} in {unit} and {whose_other} in {other_unit}"
                raise InputError(field, problem, "Convert it: data.with_units(), nopg data convert --observation-scale")


def _listed(quantities: Quantities) -> str:
    return ", ".join((*quantities.observation_names, *quantities.action_names))
