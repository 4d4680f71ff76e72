"""
Bring the parts that ``scale.py`` measured together: results/scale.json, a table and a picture.

    python benchmarks/scale_report.py cpu.json cuda.json accuracy.json ranks.json
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

RESULT = Path(__file__).parent / "results" / "scale.json"


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of all parts, each with the conditions that it was measured under."""
    result: dict[str, Any] = {"updates": {}, "conditions": {}}
    for part in parts:
        conditions = part.pop("conditions")
        for name, value in part.items():
            if name == "updates":
                for place, figures in value.items():
                    device = place if place == "cuda" else f"{place}, {figures['threads']} thread(s)"
                    # Sizes measured one after the other make one table, in which a later part takes the place of an earlier.
                    earlier = result["updates"].get(device, {"rows": [], "copy_bandwidths": []})
                    result["updates"][device] = {
                        "threads": figures["threads"],
                        "copy_bandwidths": [*earlier["copy_bandwidths"], figures["copy_bandwidth"]],
                        "rows": _newest(
                            [*earlier["rows"], *({**row, "commit": conditions.get("commit")} for row in figures["rows"])]
                        ),
                    }
                    result["conditions"].setdefault(f"updates on {device}", []).append(conditions)
            else:
                result[name] = value
                result["conditions"][name] = conditions
    for figures in result["updates"].values():
        figures["rows"].sort(key=lambda row: (row["n"], row["weights"]))
        figures["exponents"] = exponents(figures["rows"])
    return result


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of those that measure the same."""
    return list({(row["n"], row["weights"], row["pessimism"], row.get("precision", "float64")): row for row in rows}.values())


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """
    Of the growth of an update's seconds with n, from 3000 transitions on, where constant costs hardly count any more; of rows
    measured with one version of the code, that of most of them.
    """
    fitted = {}
    commit, _ = Counter(row.get("commit") for row in rows).most_common(1)[0]
    rows = [row for row in rows if row.get("commit") == commit]
    for weights in ("local_constant", "local_linear"):
        points = [(row["n"], seconds(row)) for row in plain(rows, weights) if row["n"] >= 3_000]
        if len(points) > 1:
            fitted[weights] = float(np.polyfit(*np.log(np.array(points)).T, 1)[0])
    return fitted


def seconds(row: dict[str, Any]) -> float:
    """Of an update: the processor's on the CPU, which other programs do not disturb, and by the clock on a GPU."""
    return float(row["update_processor_seconds"] if row["device"] == "cpu" else row["update_seconds"])


def plain(rows: list[dict[str, Any]], weights: str) -> list[dict[str, Any]]:
    """Those that differ in nothing but n, the smallest first."""
    chosen = [row for row in rows if row["weights"] == weights and row["pessimism"] == 0.0]
    chosen = [row for row in chosen if row.get("precision", "float64") == "float64"]
    return sorted({row["n"]: row for row in reversed(chosen)}.values(), key=lambda row: row["n"])


def table(result: dict[str, Any]) -> str:
    lines = ["# Scale", "", "Written by `benchmarks/scale_report.py` from `scale.json`.", ""]
    for device, figures in result["updates"].items():
        lines += [
            f"## Updates on {device}",
            "",
            f"Copies at {' and '.join(f'{speed / 1e9:.1f}' for speed in figures['copy_bandwidths'])} GB/s. "
            + ", ".join(f"{name}: time grows as n^{value:.2f}" for name, value in figures["exponents"].items()),
            "",
            "| n | weights | lists, s | update, ms | processor, ms | policy | weights | solve | gradient | step "
            "| iterations q, μ | peak, MB | stated, MB | product of copy bandwidth, float64, float32 | commit |",
            "|" + " --- |" * 15,
        ]
        lines += [_line(row) for row in figures["rows"]]
        lines.append("")
    if "accuracy" in result:
        lines += ["## Accuracy of 64 neighbours", "", "| n | weights | beside | Ĵ | values | gradient |", "|" + " --- |" * 6]
        for row in result["accuracy"]:
            errors = " | ".join(f"{row[f'{name}_error']:.1e}" for name in ("return", "values", "gradient"))
            lines.append(f"| {row['n']} | {row['weights']} | {row['reference']} | {errors} |")
        lines.append("")
    if "ranks" in result:
        lines += ["## Processes of one thread each", "", "| n | processes | update, ms | preparation, s |", "|" + " --- |" * 4]
        for row in result["ranks"]:
            update_ms = 1e3 * row["update_seconds"]
            lines.append(f"| {row['n']} | {row['ranks']} | {update_ms:.0f} | {row['preparation_seconds']:.1f} |")
        lines.append("")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    stages = " | ".join(f"{1e3 * seconds:.1f}" for seconds in row["stages"].values())
    kind = row["weights"] + (f", κ = {row['pessimism']}" if row["pessimism"] else "")
    kind += ", float32" if row.get("precision") == "float32" else ""
    peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"
    shares = [row.get(f"product_{dtype}_share_of_copy_bandwidth") for dtype in ("float64", "float32")]
    return (
        f"| {row['n']} | {kind} | {row['neighbor_seconds']:.2f} | {1e3 * row['update_seconds']:.1f} "
        f"| {1e3 * row['update_processor_seconds']:.1f} | {stages} "
        f"| {row['q_iterations']:.1f}, {row['visitation_iterations']:.1f} "
        f"| {peak} | {row['estimated_bytes'] / 1e6:.0f} "
        f"| {', '.join('–' if share is None else f'{share:.2f}' for share in shares)} | {row['commit'] or '–'} |"
    )


def picture(result: dict[str, Any]) -> Figure:
    """Seconds and memory of an update against n."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    time_axis, memory_axis = figure.subplots(1, 2)
    for device, figures in result["updates"].items():
        for weights in ("local_constant", "local_linear"):
            rows = plain(figures["rows"], weights)
            n = [row["n"] for row in rows]
            time_axis.loglog(n, [seconds(row) for row in rows], "o-", label=f"{device}, {weights}")
            peaks = [np.nan if row["peak_bytes"] is None else row["peak_bytes"] / 1e6 for row in rows]
            line = memory_axis.loglog(n, peaks, "o-", label=f"{device}, {weights}")[0]
            memory_axis.loglog(n, [row["estimated_bytes"] / 1e6 for row in rows], "--", color=line.get_color())
    time_axis.set(xlabel="transitions", ylabel="seconds an update (of processor on the CPU)")
    memory_axis.set(xlabel="transitions", ylabel="peak memory, MB (stated: dashed)")
    time_axis.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, nargs="+")
    result = merged([json.loads(path.read_text()) for path in parser.parse_args().parts])
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    RESULT.with_suffix(".md").write_text(table(result))
    picture(result).savefig(RESULT.with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
