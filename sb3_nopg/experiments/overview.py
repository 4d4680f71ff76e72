"""
Which method for which data: all tasks and all sizes of a folder's reports in one figure, with the time that learning takes.

A task is solved or not, by a bar that its experiment names; the figure shows the share of the seeds that solve it. Every
method is judged by the policy that it ends with: the best of several that were tried in the true environment is nothing that
a user without one could choose.
"""

import importlib
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.experiments.comparison import SECONDS, Comparison
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.numbers_file import read_numbers
from sb3_nopg.experiments.report import NOTHING, markdown_table, new_figure, save_figure

NAME = "overview"
# Experiments that compare policies, in the order of the columns.
_COMPARED = ("pendulum_grid", "pendulum_random", "cartpole_random", "cartpole_swing_up", "mountain_car")
_FLIGHTS = "real-recordings"
#: what is in tables to be compared with, and learns nothing
NO_METHODS = ("behaviour", "demonstrator", "example")
# In results of methods that gave no policy: why not.
_REFUSED = "refused"
#: name of the last evaluation in results whose return is the best of several
LAST = "last"


@dataclass(frozen=True)
class Cell:
    """
    A method on one kind of data.

    :param column: task, system and size
    :param method: its name
    :param solved: share of the seeds that solve the task, of flights the share of rigs
    :param n_seeds: how many
    :param seconds: median of what learning took where it was not refused; None where no result tells
    :param n_refused: of the seeds, those with no policy, which count as doing nothing
    """

    column: str
    method: str
    solved: float
    n_seeds: int
    seconds: float | None
    n_refused: int = 0


def write_overview(folder: pathlib.Path, extent: Extent) -> str:
    """
    Write ``overview.png`` and ``overview.md`` (``overview-quick`` of quick runs).

    :param folder: with ``NAME.json`` of experiments, as reports write them, or ``NAME.json.gz``
    :param extent: whose files are read
    :return: Markdown
    :raises InputError: where there are none
    """
    cells, bars, by_last = [], [], dict[str, None]()
    for module in _COMPARED:
        comparison: Comparison = importlib.import_module(f"sb3_nopg.experiments.{module}").COMPARISON
        results = _read(folder, comparison.name, extent)
        cells += cells_of(comparison, results)
        by_last |= {trial["method"]: None for trial, result in results if LAST in result}
        bars += [f"{comparison.name}: {comparison.solved.meaning}."] if results and comparison.solved else []
    flown = [(trial, result) for trial, result in _read(folder, _FLIGHTS, extent) if "task" in trial]
    cells += _grouped([(f"{_FLIGHTS}, {t['task'].replace('_', ' ')}", t["method"], r["return"], r) for t, r in flown])
    bars += [f"{_FLIGHTS}: share of the plausible rigs on which it holds."] if flown else []
    if not cells:
        raise InputError("--output", f"{folder} has no report of an experiment that compares methods", "Run one first")
    _draw(cells, folder / f"{extent.file_name(NAME)}.png", extent)
    text = _text(cells, [*_notes(cells, list(by_last)), *bars], extent)
    with replacing(folder / f"{extent.file_name(NAME)}.md") as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def cells_of(comparison: Comparison, results: Sequence[tuple[Trial, Result]]) -> list[Cell]:
    """
    :param comparison: with a bar
    :param results: of its experiment
    :return: one for each method, system and size, in the order of the results
    """
    found = []
    for trial, result in results:
        n = trial.get(comparison.across)
        if n is None or trial["method"] in NO_METHODS:
            continue
        system = "" if trial.get("system") is None else f", {trial['system']}"
        column = f"{comparison.name}{system}, {n:,}"
        judged = {**result, "return": result.get(LAST, result["return"])}
        found.append((column, trial["method"], float(comparison.solves(trial, judged)), result))
    return _grouped(found)


def _grouped(found: Sequence[tuple[str, str, float, Result]]) -> list[Cell]:
    groups: dict[tuple[str, str], list[tuple[float, Result]]] = {}
    for column, method, solved, result in found:
        groups.setdefault((column, method), []).append((solved, result))
    cells = []
    for (column, method), group in groups.items():
        # How long it takes to refuse is no time to learn.
        seconds = [result[SECONDS] for _, result in group if SECONDS in result and _REFUSED not in result]
        median = float(np.median(seconds)) if seconds else None
        n_refused = sum(_REFUSED in result for _, result in group)
        cells.append(Cell(column, method, float(np.mean([solved for solved, _ in group])), len(group), median, n_refused))
    return cells


def _read(folder: pathlib.Path, experiment: str, extent: Extent) -> list[tuple[Trial, Result]]:
    """Parameters and results of a report; none where there is no report."""
    plain = folder / f"{extent.file_name(experiment)}.json"
    packed = plain.with_name(f"{plain.name}.gz")
    file = plain if plain.exists() else packed
    return [(record.trial, record.result) for record in read_numbers(file, experiment)] if file.exists() else []


def _notes(cells: Sequence[Cell], by_last: Sequence[str]) -> list[str]:
    """What a reader must know of those methods that are not counted like the others."""
    notes = []
    if by_last:
        notes.append(
            f"{'; '.join(by_last)}: by the last evaluation, as all others. Their own reports have the best of several "
            "in the true environment, which flatters them."
        )
    if any(cell.n_refused for cell in cells):
        notes.append("Refused: it gave no policy, which counts as doing nothing; its time is left out.")
    return notes


def _text(cells: Sequence[Cell], notes: Sequence[str], extent: Extent) -> str:
    methods, columns = _order(cells)
    by_place = {(cell.column, cell.method): cell for cell in cells}
    rows = []
    for column in columns:
        row: dict[str, Any] = {"data": column}
        for method in methods:
            cell = by_place.get((column, method))
            row[method] = NOTHING if cell is None else _told(cell)
        rows.append(row)
    head = "".join(f"**{note}.**\n\n" for note in extent.notes)
    told = "Share of the seeds that solve the task, and the median time to learn:\n"
    return "\n".join([head + told, markdown_table(rows), *(f"- {note}" for note in notes)]) + "\n"


def _told(cell: Cell) -> str:
    refused = f", {cell.n_refused} refused" if cell.n_refused else ""
    time = "" if cell.seconds is None else f", {_seconds(cell.seconds)}"
    return f"{100 * cell.solved:.0f} % of {cell.n_seeds}{refused}{time}"


def figure_label(cell: Cell) -> str:
    """
    :param cell: of the figure
    :return: per cent and number of seeds in two lines, with a star where some of them were refused
    """
    return f"{100 * cell.solved:.0f}\nof {cell.n_seeds}{'*' * bool(cell.n_refused)}"


def _draw(cells: Sequence[Cell], path: pathlib.Path, extent: Extent) -> None:
    """On the left who solves what, on the right how long each takes."""
    methods, columns = _order(cells)
    shares = np.full((len(columns), len(methods)), np.nan)
    for cell in cells:
        shares[columns.index(cell.column), methods.index(cell.method)] = cell.solved
    figure = new_figure(6.0 + 0.75 * len(methods), 2.5 + 0.28 * len(columns))
    left, right = figure.subplots(1, 2, width_ratios=(max(3.0, 0.6 * len(methods)), 2.0))
    image = left.imshow(shares, aspect="auto", vmin=0.0, vmax=1.0, cmap="YlGn")
    left.set_xticks(range(len(methods)), methods, rotation=60, ha="right", fontsize="small")
    left.set_yticks(range(len(columns)), columns, fontsize="small")
    for cell in cells:
        place = methods.index(cell.method), columns.index(cell.column)
        # On dark green black cannot be read.
        color = "white" if cell.solved > 0.6 else "black"
        left.text(*place, figure_label(cell), color=color, ha="center", va="center", fontsize="xx-small", linespacing=0.9)
    starred = "\n* some gave no policy, and count as doing nothing" if any(cell.n_refused for cell in cells) else ""
    left.set_title(f"per cent of the seeds that solve the task by the last policy, of how many{starred}", fontsize="small")
    figure.colorbar(image, ax=left, location="left", shrink=0.5)
    for number, method in enumerate(methods):
        seconds = [cell.seconds for cell in cells if cell.method == method and cell.seconds is not None]
        # Doing nothing takes no time, which a logarithmic axis does not have.
        right.plot(np.maximum(seconds, 1e-3), [number] * len(seconds), "o", color="tab:blue", alpha=0.5, markersize=4)
    right.set_yticks(range(len(methods)), methods, fontsize="small")
    right.set_ylim(len(methods) - 0.5, -0.5)
    if any(cell.seconds is not None for cell in cells):
        right.set_xscale("log")
    right.set_xlabel("seconds to learn,\nthe median of seeds;\na point for each kind of data", fontsize="small")
    right.grid(alpha=0.3)
    save_figure(figure, path, extent)


def _order(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Methods and columns, as they come."""
    return list(dict.fromkeys(cell.method for cell in cells)), list(dict.fromkeys(cell.column for cell in cells))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10.0 else f"{seconds:.2g} s"
