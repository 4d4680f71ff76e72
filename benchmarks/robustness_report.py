"""Results of the robustness yardstick as JSON, as a table that holds every seed, and as a picture."""

import json
import math
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from robustness_tasks import Row
from sb3_nopg.common.files import replacing

Trial = dict[str, Any]


def write_results(path: Path, results: dict[str, Any]) -> None:
    """
    :param path: of the JSON file, which is whole at any time
    :param results: with ``conditions``, ``settings`` and ``trials``
    """
    with replacing(path) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def write_report(path: Path, results: dict[str, Any], rows: Mapping[str, Row]) -> None:
    """
    :param path: of the JSON file; table and picture lie beside it
    :param results: with ``conditions``, ``settings`` and ``trials``
    :param rows: of the yardstick, by name
    """
    order = list(rows)
    known = [trial for trial in results["trials"] if trial["row"] in rows]
    known.sort(key=lambda trial: (order.index(trial["row"]), trial["method"] != "nopg", trial["method"], trial["seed"]))
    groups = [(rows[name], method, list(each)) for (name, method), each in groupby(known, lambda t: (t["row"], t["method"]))]
    results["rows"] = [_summary(row, method, trials) for row, method, trials in groups]
    write_results(path, results)
    table = _table(results)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)
    _draw(path.with_suffix(".png"), groups)


def _summary(row: Row, method: str, trials: list[Trial]) -> dict[str, Any]:
    """One line of the table. A trial that ended with an error has the worst outcome there is."""
    outcomes = [row.outcome(trial["real"]) if "real" in trial else -math.inf for trial in trials]
    starts = [value for trial in trials for value in trial.get("real", [-math.inf])]
    full = [outcome for outcome in outcomes if row.full is not None and outcome >= row.full]
    summary: dict[str, Any] = {
        "row": row.name,
        "method": method,
        "unit": row.unit,
        "seeds": [trial["seed"] for trial in trials],
        "outcomes": [outcome if math.isfinite(outcome) else None for outcome in outcomes],
        "median": _finite(float(np.median(outcomes))),
        "bar": str(row.bar),
        "met": row.bar.met(outcomes, starts, len(full)),
        "seconds": float(np.median([trial["seconds"] for trial in trials])),
        # Of the seed that is least still; trials of before do not know it.
        "chatter": max((trial["chatter"] for trial in trials if "chatter" in trial), default=None),
        "errors": {trial["seed"]: trial["error"] for trial in trials if "error" in trial},
    }
    if row.full is not None:
        n_starts = sum(value >= row.full for value in starts)
        summary["full"] = f"{len(full)} of {len(outcomes)} seeds, {n_starts} of {len(starts)} starts"
    return summary


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(results: dict[str, Any]) -> str:
    lines = [
        "| row | method | each seed | median | in full | bar | met | chatter | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in results["rows"]:
        seeds = " ".join(_number(outcome, each["unit"]) for outcome in each["outcomes"])
        median, met = _number(each["median"], each["unit"]), "yes" if each["met"] else "**no**"
        chatter = "-" if each["chatter"] is None else f"{100 * each['chatter']:.1f} %"
        cells = [each["row"], each["method"], seeds, median, each.get("full", "-"), each["bar"], met, chatter]
        lines.append(f"| {' | '.join([*cells, format(each['seconds'], '.0f')])} |")
    errors = [
        f"- {each['row']}, {each['method']}, seed {seed}: {error}"
        for each in results["rows"]
        for seed, error in each["errors"].items()
    ]
    conditions = results["conditions"]
    asked = ", ".join(f"{name}={value}" for name, value in results["settings"].items()) or "the defaults"
    lines += [
        "",
        "Cart-pole: of 10,000 steps those survived from the worst of ten starts, the operator's or, with data from rest, "
        "|x| ≤ 1 cm and |θ| ≤ 0.5°; evaluations end at 0.2 rad, whatever ended the episodes of the data. Swing-up: from the "
        "worst of ten starts, steps upright (cos θ > 0.95) of the last 250 of 750, none where the cart left its rail. "
        "Pendulum: return of 500 steps from hanging. Mountain car: mean return of 100 starts, −500 where the flag is not "
        "reached. LQR: the lowest of four mean cosines, NOPG-S and NOPG-D at the behaviour and 1.6 away from it. `riccati` is "
        "least squares with a Riccati equation, `nothing` a zero action. Chatter: mean change of the action in the last 100 "
        "steps, as a share of its range, of the seed that is least still. In full: from every start. Bars are NOPG's; bars "
        "for ten seeds count in proportion where there are others.",
        "",
        *(["Ended with an error, shown as `error` above:", "", *errors, ""] if errors else []),
        f"Settings: {asked}; trained on {results['device']}. `{conditions['command']}`",
    ]
    return "\n".join(lines) + "\n"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "error"
    return f"{value:.3f}" if unit == "cosine" else f"{value:.0f}"


def _draw(path: Path, groups: list[tuple[Row, str, list[Trial]]]) -> None:
    """One strip a row and method, in it one line of dots a seed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print(f"{path.name} is not drawn: there is no matplotlib here")
        return
    if not groups:
        return
    figure, axes = plt.subplots(len(groups), 1, figsize=(8, 0.9 * len(groups) + 0.6), squeeze=False)
    for axis, (row, method, trials) in zip(axes[:, 0], groups, strict=True):
        for height, trial in enumerate(trials):
            values = trial.get("real", [])
            axis.plot(values, [height] * len(values), ".", markersize=4)
        axis.set_yticks([])
        axis.set_ylabel(f"{row.name}\n{method}, {row.unit}", rotation=0, ha="right", va="center", fontsize=8)
    axes[-1, 0].set_xlabel("one dot a start, one line of dots a seed")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
