"""Returns of several methods against the amount of data: the table, every seed, and the figure."""

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_notes
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.first_tries import refusal_notes
from sb3_nopg.experiments.report import (
    NOTHING,
    interval_cell,
    markdown_table,
    mean_interval,
    new_figure,
    save_figure,
)

#: name of the time that learning took in results
SECONDS = "learning_seconds"
_SECONDS_HEADING = "Seconds to learn on one core or on the device, judging left out:\n"
_PAPER_STYLES = ("x--", "+-.", "^:")
_COLORS = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Bar:
    """
    :param above: return above which the task is done, in the unit of returns or, with ``share_of``, as a share
    :param meaning: of that, in words
    :param share_of: parameter of trials that the return is a share of; None where the bar is the same for all
    """

    above: float
    meaning: str
    share_of: str | None = None

    def is_passed(self, trial: Trial, value: float) -> bool:
        """
        :param trial: parameters
        :param value: its return
        :raises InputError: where the trial does not tell what the bar is a share of
        """
        if self.share_of is None:
            return value > self.above
        if self.share_of not in trial:
            raise InputError(
                self.share_of,
                f"a trial of {trial.get('method')} does not have it, and the bar is a share of it",
                "Run its experiment again",
            )
        return value > self.above * float(trial[self.share_of])


@dataclass(frozen=True)
class Comparison:
    """
    How an experiment's returns are shown.

    :param name: of the experiment
    :param across: name of the parameter on the x axis, a count
    :param label: of the x axis
    :param paper: mean returns that the paper prints, by method and count
    :param notes: what a reader must know, one sentence each
    :param logarithmic: whether the x axis is
    :param logarithmic_returns: whether the y axis is, for returns that are positive and differ in kind
    :param solved: when the task is done
    :param also: what else is told of every policy, by its name in the results: the heading of a table of its own
    """

    name: str
    across: str
    label: str
    paper: Mapping[str, Mapping[int, float]]
    notes: Sequence[str]
    logarithmic: bool = True
    logarithmic_returns: bool = False
    solved: Bar | None = None
    also: Mapping[str, str] = field(default_factory=dict)

    def summarize(self, results: Sequence[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
        """
        :param results: parameters and result of each trial
        :param folder: for the figure
        :param extent: how much of the experiment it is
        :return: Markdown
        """
        systems = list(dict.fromkeys(trial.get("system") for trial, _ in results))
        figure = new_figure(6.0 * len(systems) + 2.5, 4.8)
        panels = figure.subplots(1, len(systems), squeeze=False)[0]
        for panel, system in zip(panels, systems, strict=True):
            self.draw(panel, of_system(results, system))
            panel.set_title(self.name if system is None else f"{self.name}, {system}")
        share_legend(figure, panels[-1])
        save_figure(figure, folder / f"{extent.file_name(self.name)}.png", extent)
        return self.tables(results)

    def tables(self, results: Sequence[tuple[Trial, Result]]) -> str:
        """
        :param results: parameters and result of each trial
        :return: for each system, methods against counts; what else is told, and the time; and then every seed
        """
        parts = []
        for system in dict.fromkeys(trial.get("system") for trial, _ in results):
            own = of_system(results, system)
            parts += [f"### {system}\n"] if system is not None else []
            parts += [f"Return, mean ± 95 % interval over seeds, by {self.label}:\n", markdown_table(self.mean_rows(own))]
            parts += self.ends(own)
            parts += self.other_tables(own)
            parts += ["Every seed:\n", markdown_table(self.seed_rows(own))]
        notes = (*self.notes, *d3rlpy_notes(results), *refusal_notes(results))
        return "\n".join([*parts, *(f"- {note}" for note in notes)]) + "\n"

    def other_tables(self, results: Sequence[tuple[Trial, Result]]) -> list[str]:
        """Of what else is told, and of the time that learning took, where the results have it. To refuse is not to learn."""
        headings = {**{name: f"{text}, by {self.label}:\n" for name, text in self.also.items()}, SECONDS: _SECONDS_HEADING}
        tables = []
        for name, heading in headings.items():
            known = [
                (trial, {"return": result[name]})
                for trial, result in results
                if name in result and not (name == SECONDS and "refused" in result)
            ]
            if known:
                digits = 0 if name != SECONDS and max(abs(result["return"]) for _, result in known) > 10.0 else 2
                tables += [heading, markdown_table(self.own_rows(known, digits))]
        return tables

    def solves(self, trial: Trial, result: Result) -> bool:
        """
        :param trial: parameters
        :param result: of the trial
        :return: whether the task is done
        """
        assert self.solved is not None
        return self.solved.is_passed(trial, result["return"])

    def counts(self, results: Sequence[tuple[Trial, Result]]) -> list[int]:
        return sorted({trial[self.across] for trial, _ in results if trial.get(self.across) is not None})

    def mean_rows(self, results: Sequence[tuple[Trial, Result]]) -> list[dict[str, Any]]:
        """:return: for each method a row with a column for each count, and the paper's rows after ours"""
        counts = self.counts(results)
        papers = [
            {"method": f"{method} in the paper", **{str(n): _paper_cell(values.get(n)) for n in counts}}
            for method, values in self.paper.items()
        ]
        return self.own_rows(results) + papers

    def own_rows(self, results: Sequence[tuple[Trial, Result]], digits: int = 0) -> list[dict[str, Any]]:
        """
        :param results: of one system
        :param digits: after the point
        :return: for each method a row with a column for each count
        """
        counts = self.counts(results)
        return [
            {"method": method, **{str(n): interval_cell(values.get(n, values.get(None, [])), digits) for n in counts}}
            for method, values in self.returns(results).items()
        ]

    def seed_rows(self, results: Sequence[tuple[Trial, Result]]) -> list[dict[str, Any]]:
        """:return: one for each method and count"""
        return [
            {"method": method, self.across: n, "returns": [round(value) for value in values]}
            for method, by_count in self.returns(results).items()
            for n, values in by_count.items()
        ]

    def returns(self, results: Sequence[tuple[Trial, Result]]) -> dict[str, dict[int | None, list[float]]]:
        """
        Of each method at each count, seed after seed; under None what does not depend on the data. A learning curve gives
        what it shows after as many steps.
        """
        counts = self.counts(results)
        found: dict[str, dict[int | None, list[float]]] = {}
        for trial, result in results:
            by_count = found.setdefault(trial["method"], {})
            if "curve" in result:
                for steps, value in result["curve"]:
                    if steps in counts:
                        by_count.setdefault(steps, []).append(value)
            else:
                by_count.setdefault(trial.get(self.across), []).append(result["return"])
        return found

    def ends(self, results: Sequence[tuple[Trial, Result]]) -> list[str]:
        """What learning curves end with, in words."""
        ended: dict[tuple[str, int], list[float]] = {}
        for trial, result in results:
            if "curve" in result:
                ended.setdefault((trial["method"], result["curve"][-1][0]), []).append(result["curve"][-1][1])
        return [f"{method} after {steps:,} steps: {interval_cell(values)}.\n" for (method, steps), values in ended.items()]

    def draw(self, panel: Axes, results: Sequence[tuple[Trial, Result]]) -> None:
        """
        :param panel: to draw into
        :param results: of one system
        """
        counts = self.counts(results)
        curves = _curves(results)
        for number, (method, values) in enumerate(self.returns(results).items()):
            color = _COLORS[number % len(_COLORS)]
            if None in values:
                panel.axhline(mean_interval(values[None])[0], color=color, linestyle=":", label=method)
                continue
            points = curves.get(method, values)
            # A logarithmic axis has no place for the evaluation before the first step.
            shown = {n: points[n] for n in sorted(n for n in points if n)}
            _draw_line(panel, shown, color, method, seeds=method not in curves)
        for (method, paper), style in zip(self.paper.items(), _PAPER_STYLES, strict=False):
            known = [n for n in paper if n in counts]
            panel.plot(known, [paper[n] for n in known], style, color="black", markersize=6, label=f"{method} in the paper")
        _limit(panel, self.logarithmic_returns)
        if self.logarithmic:
            panel.set_xscale("log")
            _tick_at(panel, counts)
        panel.set_xlabel(self.label)
        panel.set_ylabel("return")
        panel.grid(alpha=0.3)


def of_system(results: Sequence[tuple[Trial, Result]], system: Any) -> list[tuple[Trial, Result]]:
    """
    :param results: of all systems
    :param system: one of them
    """
    return [(trial, result) for trial, result in results if trial.get("system") == system]


def share_legend(figure: Figure, panel: Axes) -> None:
    """
    :param figure: beside whose panels the legend goes
    :param panel: with all that it explains
    """
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right center", fontsize="small")


def _draw_line(panel: Axes, values: dict[Any, list[float]], color: Any, label: str, seeds: bool) -> None:
    counts = list(values)
    intervals = [mean_interval(values[n]) for n in counts]
    panel.plot(counts, [mean for mean, _ in intervals], color=color, marker="o" if seeds else None, markersize=4, label=label)
    low = [mean - (half or 0.0) for mean, half in intervals]
    high = [mean + (half or 0.0) for mean, half in intervals]
    panel.fill_between(counts, low, high, color=color, alpha=0.15)
    if seeds:
        for n in counts:
            panel.plot([n] * len(values[n]), values[n], ".", color=color, markersize=3, alpha=0.5)


def _limit(panel: Axes, logarithmic: bool) -> None:
    """To what was measured: intervals of two or three seeds reach far beyond it, and would make everything else flat."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in panel.lines])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if logarithmic and low > 0.0:
        panel.set_yscale("log")
        panel.set_ylim(low / 1.5, high * 1.5)
        return
    margin = 0.05 * (high - low) or 1.0
    panel.set_ylim(low - margin, high + margin)


def _tick_at(panel: Axes, counts: Sequence[int]) -> None:
    """Where there are data, and at powers of ten beyond, where a learning curve may go; written out."""
    beyond = [10**n for n in range(1, 10) if max(counts, default=0) < 10**n <= panel.get_xlim()[1]]
    ticks = [*counts, *beyond]
    panel.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize="small")
    panel.minorticks_off()


def _curves(results: Sequence[tuple[Trial, Result]]) -> dict[str, dict[int | None, list[float]]]:
    """Of methods that have one: returns after so many steps."""
    curves: dict[str, dict[int | None, list[float]]] = {}
    for trial, result in results:
        for steps, value in result.get("curve", []):
            curves.setdefault(trial["method"], {}).setdefault(steps, []).append(value)
    return curves


def _paper_cell(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
