"""What a report says, as figures: for programs, and for a rig that must not fly a policy on another one's report."""

import dataclasses
import json
import math
import pathlib
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from sb3_nopg.common.errors import InputError
from sb3_nopg.report.band import PredictedBand
from sb3_nopg.report.bounds import BiasBounds
from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.portraits import DimensionRange
from sb3_nopg.report.stress import StressFigures
from sb3_nopg.report.support import SupportFigures
from sb3_nopg.report.trajectories import TrajectoryFigures
from sb3_nopg.report.verdict import Bandwidth, Returns

FORMAT_VERSION = 2


@dataclass(frozen=True)
class DataSummary:
    """
    :param transitions: that predictions are made from, see ``Returns.learned_from``
    :param episodes: recorded; None where the data knows none
    :param ends: transitions with which the task ended
    :param held_out: transitions that were held out; None without any
    :param fingerprint: of the transitions
    """

    transitions: int
    episodes: int | None
    ends: int
    held_out: int | None
    fingerprint: str


@dataclass(frozen=True)
class CandidateFigures:
    """
    A policy that training has tried.

    :param recipe: where it started: ``"value_iteration"``, ``"own"``, ``"riccati"`` or ``"behaviour"``
    :param trained_on: ``"half"`` of the episodes, or ``"all"``
    :param score: rewards along a predicted trajectory, not discounted
    :param lasting: share of its trajectories that neither end nor leave the data
    :param n_updates: that it was trained for
    :param unseen_score: the same score by a model of the half of the episodes that it was not trained on; None for what has
        seen both
    :param unseen_lasting: share of these trajectories that neither end nor leave the data
    """

    recipe: str
    trained_on: str
    score: float
    lasting: float
    n_updates: int
    unseen_score: float | None = None
    unseen_lasting: float | None = None


@dataclass(frozen=True)
class ReportSummary:
    """
    :param verdict: ``"go"``, ``"care"`` or ``"no"``
    :param reasons: what speaks against the policy, grave objections first
    :param notes: worth knowing, although they change nothing
    :param policy_digest: of the policy's numbers
    :param algorithm: what trained it
    :param n_updates: how long
    :param gamma: discount
    :param returns: predicted
    :param limits: that the user gave
    :param support: behind the estimates
    :param state_ranges: where the policy is predicted to be, and where the data are
    :param bandwidths: of the kernels
    :param bounds: on the systematic error
    :param data: that all this rests on
    :param trajectories: predicted step by step; None where they were not asked for or the data are too few
    :param transitions: where predictions come from: ``"model"`` of the system, or ``"samples"``
    :param system: what the model of the system has found, line by line
    :param candidates: that training has tried, the chosen one first
    :param margin: how the candidates compare, in a sentence; "" where nobody knows
    :param policy_files: SHA-256 of each exported file that does what this policy does, as far as any is known
    :param band: in which predicted trajectories stay; None where there are none
    :param stress: what became of the policy on simulated rigs; None where nobody has tried
    :param format_version: of the file
    """

    verdict: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    policy_digest: str
    algorithm: str
    n_updates: int
    gamma: float
    returns: Returns
    limits: tuple[LimitFinding, ...]
    support: SupportFigures
    state_ranges: tuple[DimensionRange, ...]
    bandwidths: tuple[Bandwidth, ...]
    bounds: BiasBounds
    data: DataSummary
    trajectories: TrajectoryFigures | None = None
    transitions: str = "samples"
    system: tuple[str, ...] = ()
    candidates: tuple[CandidateFigures, ...] = ()
    margin: str = ""
    policy_files: tuple[str, ...] = ()
    band: PredictedBand | None = None
    stress: StressFigures | None = None
    format_version: int = FORMAT_VERSION

    def unseen_text(self) -> str:
        """What episodes say of the policy that were not in its training, or of one that began alike; "" where nobody knows."""
        if not self.candidates:
            return ""
        kept = self.candidates[0]
        alike = [kept] if kept.unseen_score is not None else [one for one in self.candidates if one.recipe == kept.recipe]
        # The best of those is what training goes on with, on all of the data.
        told = max(alike, key=lambda one: -math.inf if one.unseen_score is None else one.unseen_score)
        if told.unseen_score is None or told.unseen_lasting is None:
            return ""
        who = "" if told is kept else "a policy that began alike and saw one half of them "
        return (
            f"{who}earns {told.unseen_score:.5g} a trajectory, not discounted, and {100 * told.unseen_lasting:.0f} % of them "
            "last, through a model of the half that it has not seen"
        )

    def to_json(self) -> str:
        """The same figures give the same text. What is no number, and says so in the verdict, becomes null."""
        return json.dumps(_writable(dataclasses.asdict(self)), indent=2, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "ReportSummary":
        """
        :param text: from :meth:`to_json`
        """
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
                raise ValueError(f"format_version is not {FORMAT_VERSION}")
            return _build(cls, content)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError("report", f"not the figures of a report ({error})", "Make the report again") from error


def summary_path(page: pathlib.Path) -> pathlib.Path:
    """
    Where a page's figures go: ``report.html`` has ``report.json``, ``first.html`` has ``first.report.json``. Never
    ``first.json``, which is what ``nopg train`` calls the record of ``first.zip``.

    :param page: of the report
    """
    return page.with_name(f"{page.stem}.json" if page.stem.endswith("report") else f"{page.stem}.report.json")


def _writable(value: Any) -> Any:
    """JSON has no word for NaN and infinity."""
    if isinstance(value, dict):
        return {name: _writable(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_writable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _build(kind: Any, value: Any) -> Any:
    """A record from what JSON made of it."""
    if kind is float and value is None:
        return math.nan
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        # A file from before a figure was added lacks it.
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        missing = [name for name in hints if name not in value and defaults[name] is dataclasses.MISSING]
        if missing:
            raise KeyError(f"{kind.__name__} lacks {', '.join(missing)}")
        return kind(**{name: _build(hint, value[name]) for name, hint in hints.items() if name in value})
    if get_origin(kind) is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise TypeError(f"{value!r} is no list")
        return tuple(_build(get_args(kind)[0], item) for item in value)
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    record = next((option for option in options if dataclasses.is_dataclass(option)), None)
    if record is not None and value is not None:
        return _build(record, value)
    # JSON writes a whole float as it likes; bool is no number here.
    accepted = tuple(option for option in options) + ((int,) if float in options else ())
    if not isinstance(value, accepted) or isinstance(value, bool) != (bool in options):
        raise TypeError(f"{value!r} is no {kind}")
    return value
