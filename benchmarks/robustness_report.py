"""Results of the robustness yardstick as JSON, as a table that holds every seed, and as a picture."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import spearmanr

FULL_BALANCE = 10_000


def write_report(path: Path, results: dict[str, Any]) -> None:
    """
    :param path: of the JSON file; table and picture lie beside it
    :param results: with ``conditions``, ``settings`` and ``trials``
    """
    trials = results["trials"]
    results["rank_correlation"] = {
        name: {"within_rows": _within_rows(trials, name), "pooled": _pooled(trials, name)}
        for name in ("estimated_return", "held_out_return", "trajectory_reward")
        if all(name in trial for trial in trials)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = _table(results)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)
    _draw(path.with_suffix(".png"), trials)


def outcome(trial: dict[str, Any]) -> float:
    """One number for a trial: the mean over its starts."""
    return float(np.mean([np.mean(values) for values in trial["real"].values()]))


def _rows(trials: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(f"{name}, n = {n}", list(of_row)) for (name, n), of_row in groupby(trials, lambda t: (t["task"], t["n"]))]


def _within_rows(trials: list[dict[str, Any]], name: str) -> float:
    """Of all trials, each ranked among those of its own row: tasks with other scales of reward are not compared."""
    predicted, real = [], []
    for _, of_row in _rows(trials):
        if len(of_row) > 1:
            predicted += _ranks([trial[name] for trial in of_row])
            real += _ranks([outcome(trial) for trial in of_row])
    return round(float(spearmanr(predicted, real).statistic), 3) if predicted else float("nan")


def _pooled(trials: list[dict[str, Any]], name: str) -> float:
    """Of all trials together, whatever their scale."""
    return round(float(spearmanr([trial[name] for trial in trials], [outcome(trial) for trial in trials]).statistic), 3)


def _ranks(values: list[float]) -> list[float]:
    order = np.argsort(np.argsort(values))
    return [float(rank) / (len(values) - 1) for rank in order]


def _table(results: dict[str, Any]) -> str:
    lines = ["| row | starts | each seed | median | in full | seconds |", "| --- | --- | --- | --- | --- | --- |"]
    for name, of_row in _rows(results["trials"]):
        for start in of_row[0]["real"]:
            balance = name.startswith("cart-pole")
            # Of ten starts the worst counts, on the mountain the mean over all.
            each = [min(trial["real"][start]) if balance else float(np.mean(trial["real"][start])) for trial in of_row]
            full = "-"
            if balance:
                starts = sum(value >= FULL_BALANCE for trial in of_row for value in trial["real"][start])
                seeds = sum(value >= FULL_BALANCE for value in each)
                full = f"{seeds} of {len(each)} seeds, {starts} of {sum(len(t['real'][start]) for t in of_row)} starts"
            seconds = float(np.median([trial["seconds"] for trial in of_row]))
            seeds = " ".join(f"{value:.0f}" for value in each)
            lines.append(f"| {name} | {start} | {seeds} | {np.median(each):.0f} | {full} | {seconds:.0f} |")
    correlation, commit = results["rank_correlation"], results["conditions"].get("commit")
    lines += [
        "",
        "Cart-pole: steps survived from the worst of ten starts. Others: return. In full: 10,000 steps.",
        "",
        "Rank correlation with what really happened, within rows (pooled): "
        + "; ".join(f"{name} {value['within_rows']} ({value['pooled']})" for name, value in correlation.items()),
        "",
        f"`{results['conditions']['command']}`" + (f", commit {commit}" if commit else ""),
    ]
    return "\n".join(lines) + "\n"


def _draw(path: Path, trials: list[dict[str, Any]]) -> None:
    rows = [(name, start, of_row) for name, of_row in _rows(trials) for start in of_row[0]["real"]]
    figure, axes = plt.subplots(len(rows), 1, figsize=(8, 0.9 * len(rows) + 0.6), squeeze=False)
    for axis, (name, start, of_row) in zip(axes[:, 0], rows, strict=True):
        for height, trial in enumerate(of_row):
            axis.plot(trial["real"][start], [height] * len(trial["real"][start]), ".", markersize=4)
        axis.set_yticks([])
        axis.set_ylabel(f"{name}\n{start}", rotation=0, ha="right", va="center", fontsize=8)
    axes[-1, 0].set_xlabel("steps survived (cart-pole) or return; one line of dots a seed")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
