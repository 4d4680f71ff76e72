"""
Which method solves which task from how much data, as far as committed results tell: one figure and one table.

    python benchmarks/which_method.py

Of every comparison in results/reproduction.
"""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.overview import LAST, NO_METHODS, write_overview
from sb3_nopg.experiments.report import mean_interval

RESULTS = Path(__file__).parent / "results"
OURS = "NOPG-D, defaults"
# Ours too: no rival of it.
STOCHASTIC = "NOPG-S, defaults"
# Share of the best mean return: who never falls also sways a little less or more.
A_TRIFLE = 1e-3
COMPARISONS = ("pendulum-grid", "pendulum-random", "cartpole-random", "cartpole-swing-up", "mountain-car")


def numbers_of(name: str) -> dict[str, Any]:
    """
    :param name: of a comparison
    :return: the report's numbers: ``conditions`` and ``trials``, our own first
    """
    numbers = json.loads(gzip.decompress((RESULTS / "reproduction" / f"{name}.json.gz").read_bytes()))
    # They are the first of all methods in figure and table, too.
    ours_first = sorted(numbers["trials"], key=lambda entry: [entry["trial"]["method"] != ours for ours in (OURS, STOCHASTIC)])
    return {**numbers, "trials": ours_first}


def trials_of(name: str) -> list[dict[str, Any]]:
    """
    :param name: of a comparison
    :return: each trial with its parameters, result, seconds and version of the code
    """
    trials: list[dict[str, Any]] = numbers_of(name)["trials"]
    return trials


def first_places() -> list[str]:
    """On which of all sets of data our mean return is the best, and on which it is not, in words, a line each."""
    behind, n_sets = [], 0
    for name in COMPARISONS:
        returns: dict[tuple[str, int], dict[str, list[float]]] = {}
        for entry in trials_of(name):
            trial, result = entry["trial"], entry["result"]
            size = trial.get("samples", trial.get("demonstrations"))
            # As in the figure, by the last policy.
            earned = result.get(LAST, result.get("return"))
            if size is not None and earned is not None and trial["method"] not in (STOCHASTIC, *NO_METHODS):
                by_method = returns.setdefault((trial.get("system", ""), size), {})
                by_method.setdefault(trial["method"], []).append(earned)
        for (system, size), by_method in returns.items():
            if OURS not in by_method:
                continue
            n_sets += 1
            ours, half = mean_interval(by_method[OURS])
            best = max(by_method, key=lambda method: mean_interval(by_method[method])[0])
            first = mean_interval(by_method[best])[0]
            if first <= ours + A_TRIFLE * abs(first):
                continue
            n_seeds, where = len(by_method[best]), f"{name}{', ' * bool(system)}{system}, {size:,}"
            told = f"- {where}: {ours:,.0f}, {best} {first:,.0f} ({n_seeds} seed{'s' if n_seeds > 1 else ''})"
            reached = first <= ours + (half or 0.0)
            behind.append(told + ", which the 95 % interval of our mean reaches" * reached)
    return [
        f"On {n_sets - len(behind)} of {n_sets} sets of data our defaults, those of NOPG-D, have the best mean return, to "
        "within a thousandth. The others:",
        "",
        *behind,
    ]


def write(into: Path) -> None:
    """:param into: folder for which_method.md and .png"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for comparison in COMPARISONS:
            (folder / f"{comparison}.json").write_text(json.dumps(numbers_of(comparison)), encoding="utf-8")
        write_overview(folder, Extent())
        (into / "which_method.png").write_bytes((folder / "overview.png").read_bytes())
        text = (folder / "overview.md").read_text(encoding="utf-8")
    (into / "which_method.md").write_text("\n".join([text, *first_places(), ""]), encoding="utf-8")


if __name__ == "__main__":
    write(RESULTS)
