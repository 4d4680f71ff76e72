"""
Which method solves which task from how much data, as far as committed results tell: one figure and one table.

    python benchmarks/which_method.py

Of every comparison in results/reproduction, with d3rlpy's algorithms where they were run. Rows of NOPG's defaults are those of
today (results/reproduction/todays-defaults); what older defaults got is left out.
"""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from sb3_nopg.experiments.d3rlpy_trials import METHODS as D3RLPY_METHODS
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.overview import write_overview

RESULTS = Path(__file__).parent / "results"
COMPARISONS = ("pendulum-grid", "pendulum-random", "cartpole-random", "mountain-car")


def trials_of(name: str) -> list[dict[str, Any]]:
    """
    :param name: of a comparison
    :return: parameters and result of each trial
    """
    folder = RESULTS / "reproduction"
    trials = [trial for trial in _full_run(folder / f"{name}.json.gz") if not _method(trial).endswith(", defaults")]
    trials += [trial for trial in _full_run(folder / "with-d3rlpy" / f"{name}.json.gz") if _method(trial) in D3RLPY_METHODS]
    today = folder / "todays-defaults" / f"{name}.jsonl"
    lines = today.read_text(encoding="utf-8").splitlines() if today.exists() else []
    # First of all methods in figure and table.
    return [*({key: line[key] for key in ("trial", "result")} for line in map(json.loads, lines)), *trials]


def _full_run(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["trials"] if path.exists() else []


def _method(trial: dict[str, Any]) -> str:
    return trial["trial"]["method"]


def write(into: Path) -> None:
    """:param into: folder for which_method.md and .png"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for comparison in COMPARISONS:
            (folder / f"{comparison}.json").write_text(json.dumps({"trials": trials_of(comparison)}), encoding="utf-8")
        write_overview(folder, Extent())
        for kind in ("md", "png"):
            (into / f"which_method.{kind}").write_bytes((folder / f"overview.{kind}").read_bytes())


if __name__ == "__main__":
    write(RESULTS)
