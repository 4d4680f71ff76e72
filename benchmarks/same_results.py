"""
Whether today's code still gives what the committed results of the comparisons say: of every method that was run on a
processor one trial again, of one seed where it has it and another amount of data each time, beside what was committed. DDPG
online, kernel value iteration and d3rlpy's algorithms are left out.

    python benchmarks/same_results.py                # about twelve minutes
    python benchmarks/same_results.py --seed 5
"""

import argparse
import subprocess
import time
from typing import Any

import torch as th

from machine import conditions
from sb3_nopg.experiments import load_experiment
from sb3_nopg.experiments.d3rlpy_trials import METHODS as D3RLPY_METHODS
from sb3_nopg.experiments.report import markdown_table
from sb3_nopg.experiments.workers import run_one
from which_method import COMPARISONS, RESULTS, trials_of

# Ten minutes a trial take DDPG online, which learns by acting, and d3rlpy's. Value iteration was mostly run on a GPU.
LEFT_OUT = ("DDPG online", "KBRL", *D3RLPY_METHODS)


def chosen(name: str, seed: int) -> list[dict[str, Any]]:
    """One of each method: of the seed, or where it has none of that, of any."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for entry in trials_of(name):
        trial = entry["trial"]
        if "device" not in trial and trial["method"] not in LEFT_OUT and "return" in entry["result"]:
            by_method.setdefault(trial["method"], []).append(entry)
    picked = []
    for number, entries in enumerate(by_method.values()):
        own = [entry for entry in entries if entry["trial"]["seed"] == seed] or entries
        picked.append(own[(seed + number) % len(own)])
    return picked


def again(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    trial, began = entry["trial"], time.perf_counter()
    outcome = run_one(load_experiment(name).run, 0, trial)
    before, now = entry["result"]["return"], None if outcome.result is None else outcome.result["return"]
    which = [str(trial[key]) for key in ("system", "samples", "demonstrations") if key in trial]
    if outcome.failure is not None:
        print(outcome.failure)
    row = {
        "comparison": name,
        "method": trial["method"],
        "data": ", ".join(which) or "–",
        "seed": trial["seed"],
        "committed": f"{before:,.2f}",
        "now": "failed" if now is None else f"{now:,.2f}",
        "same": "to the digit" if now == before else "",
    }
    print(*row.values(), f"{time.perf_counter() - began:.0f} s", sep=" | ", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=3)
    seed = parser.parse_args().seed
    th.set_num_threads(1)
    told = conditions(("torch", "numpy", "scipy", "stable-baselines3"))
    rows = [again(name, entry) for name in COMPARISONS for entry in chosen(name, seed)]
    versions = ", ".join(f"{key} {value}" for key, value in told.items() if key in ("python", "torch", "numpy", "scipy"))
    same = sum(bool(row["same"]) for row in rows)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    head = f"`python benchmarks/same_results.py --seed {seed}`, commit {commit}, {versions}: "
    head += f"{same} of {len(rows)} returns are the same to the digit.\n"
    (RESULTS / "same_results.md").write_text(f"{head}\n{markdown_table(rows)}", encoding="utf-8")


if __name__ == "__main__":
    main()
