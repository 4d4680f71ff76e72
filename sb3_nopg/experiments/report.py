"""From results to what people read: means with intervals, tables that can be read back, figures, numbers."""

import csv
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from sb3_nopg.common.files import replacing
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.results_file import Record
from sb3_nopg.experiments.versions import version_numbers, versions_told

if TYPE_CHECKING:
    # Every nopg command imports this file, few draw.
    from matplotlib.figure import Figure

NOTHING = "–"


def mean_interval(values: Iterable[float | None], level: float = 0.95) -> tuple[float, float | None]:
    """
    Mean and half the width of its confidence interval, by Student's t.

    :param values: one for each seed; what is not there, None or NaN, does not count
    :param level: of confidence
    :return: NaN for the mean of nothing, None for the half-width of fewer than two
    """
    counted = np.array([value for value in values if value is not None and not math.isnan(value)], dtype=np.float64)
    if len(counted) == 0:
        return math.nan, None
    if len(counted) == 1:
        return float(counted[0]), None
    error = float(counted.std(ddof=1)) / math.sqrt(len(counted))
    return float(counted.mean()), float(stdtrit(len(counted) - 1, 0.5 + level / 2.0)) * error


def interval_cell(values: Iterable[float | None], digits: int = 0) -> str:
    """
    :param values: one for each seed
    :param digits: after the point
    :return: for instance ``-382 ± 12``
    """
    mean, half_width = mean_interval(values)
    if math.isnan(mean):
        return NOTHING
    return f"{mean:.{digits}f}" + ("" if half_width is None else f" ± {half_width:.{digits}f}")


def read_interval(cell: str) -> tuple[float, float | None]:
    """
    What :func:`interval_cell` wrote.

    :param cell: of a table
    :return: mean and half-width, as far as the cell has them
    """
    mean, _, half_width = cell.partition("±")
    return (math.nan if mean.strip() == NOTHING else float(mean)), (float(half_width) if half_width else None)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """
    :param rows: with the columns of the first one; a list is written with spaces between, None as a dash
    """
    if not rows:
        return ""
    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(_cell(row[column]) for column in rows[0]) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def read_markdown_tables(text: str) -> list[list[dict[str, str]]]:
    """
    :param text: Markdown
    :return: the rows of each table in it
    """
    tables: list[list[dict[str, str]]] = []
    columns: list[str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            columns = None
        elif columns is None:
            columns = cells
            tables.append([])
        elif not all(set(cell) <= set("-:") for cell in cells):
            tables[-1].append(dict(zip(columns, cells, strict=True)))
    return tables


def _cell(value: Any) -> str:
    if value is None:
        return NOTHING
    return " ".join(map(_cell, value)) if isinstance(value, list | tuple) else str(value)


def conditions_line(conditions: Mapping[str, Any]) -> str:
    """
    :param conditions: as in the JSON
    :return: one line of Markdown: command, seeds, hours and versions
    """
    command = f"`{conditions['command']}`, " if conditions["command"] else ""
    seeds = f"seeds 0 to {conditions['seeds'] - 1}" if conditions["seeds"] > 1 else "seed 0"
    n_states = len(conditions["trials by code version"])
    code = f"from {n_states} states of the code; " if n_states > 1 else ""
    n_unknown = conditions.get("trials whose time is not known")
    hours = f"{conditions['hours']} hours of trials" + (f" and {n_unknown} more whose time is not known" if n_unknown else "")
    return f"{command}{seeds}, {hours}; {code}{versions_told(conditions['versions'])}."


def new_figure(width: float, height: float) -> "Figure":
    """
    :param width: in inches
    :param height: in inches
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Made without pyplot, which would keep it and might look for a screen.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: pathlib.Path, extent: Extent) -> None:
    """
    :param figure: done
    :param path: ``.png``
    :param extent: how much of the experiment it is, which the figure says where it is not the whole
    """
    if extent.notes:
        figure.supxlabel("\n".join(extent.notes), fontsize="small", color="firebrick")
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)


def write_numbers(folder: pathlib.Path, name: str, conditions: Mapping[str, Any], records: Sequence[Record]) -> None:
    """
    Every trial, as ``<name>.json``, and what of it are single numbers or words also as ``<name>.csv``.

    :param folder: to write to
    :param name: that the files get
    :param conditions: command, versions and time; each trial tells the number of its own in the list of versions
    :param records: of the trials
    """
    numbers = version_numbers([record.versions for record in records], conditions["versions"])
    trials = [
        {"trial": r.trial, "result": r.result, "seconds": r.seconds, "code": r.code, "versions": number}
        for r, number in zip(records, numbers, strict=True)
    ]
    content = json.dumps(_strict({"conditions": dict(conditions), "trials": trials}), indent=1, ensure_ascii=False)
    with replacing(folder / f"{name}.json") as partial:
        partial.write_text(content + "\n", encoding="utf-8")
    rows = [{**_single(record.trial), **_single(record.result)} for record in records]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with replacing(folder / f"{name}.csv") as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _single(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words, those of a record inside under ``its name.their name``; no lists."""
    singles: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            singles.update({f"{name}.{inner}": single for inner, single in _single(value).items()})
        elif not isinstance(value, list):
            singles[name] = value
    return singles


def _strict(value: Any) -> Any:
    """The same without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
