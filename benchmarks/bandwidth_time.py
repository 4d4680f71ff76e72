"""
Seconds to choose the bandwidths of a three-dimensional data set, beside cross-validation as one would write it from the paper.

    python benchmarks/bandwidth_time.py
"""

import os

# One thread, and it must be said before NumPy is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from machine import conditions
from sb3_nopg.kernels.bandwidth import select_bandwidth
from sb3_nopg.kernels.bandwidth_rules import MARGINAL_RULES

SIZES = (200, 800, 3200, 10_000, 100_000)
LARGEST_TEXTBOOK_SIZE = 3200
SEED = 0
RESULT = Path(__file__).parent / "results" / "bandwidth_time.json"


def textbook_cross_validation(samples: np.ndarray, n_folds: int = 10, n_candidates: int = 50) -> np.ndarray:
    """
    Cross-validation over a grid of bandwidths with a dense kernel matrix for each fold, on all samples.

    :param samples: (n, d)
    :param n_folds: number of shuffled folds
    :param n_candidates: number of bandwidths compared, from 1 % of the standard deviation to the whole of it
    :return: bandwidths, (d,)
    """
    folds = np.array_split(np.random.default_rng(SEED).permutation(len(samples)), n_folds)
    bandwidths = []
    for column in samples.T:
        candidates = column.std() * np.geomspace(0.01, 1, n_candidates)
        scores = np.zeros(n_candidates)
        for fold in folds:
            training = np.delete(column, fold)
            squared_distances = (column[fold][:, None] - training[None, :]) ** 2
            for i, bandwidth in enumerate(candidates):
                density = np.exp(-0.5 * squared_distances / bandwidth**2).mean(axis=1) / bandwidth
                scores[i] += np.log(density + np.finfo(float).tiny).sum()
        bandwidths.append(candidates[np.argmax(scores)])
    return np.array(bandwidths)


def fastest(function: Callable[[], np.ndarray], n_repeats: int) -> tuple[float, list[float]]:
    """
    :param function: chooses bandwidths
    :param n_repeats: how often to time it; other work on the machine only ever adds
    :return: seconds of the fastest run, and the bandwidths
    """
    seconds = []
    for _ in range(n_repeats):
        started = time.perf_counter()
        bandwidths = function()
        seconds.append(time.perf_counter() - started)
    return min(seconds), [round(float(bandwidth), 4) for bandwidth in bandwidths]


def measure(n_samples: int) -> dict:
    """
    :param n_samples: size of the data set
    :return: seconds and bandwidths by rule
    """
    rng = np.random.default_rng(SEED)
    # One dimension of each kind: a bell, two clusters, and a bounded one.
    clusters = np.where(rng.random(n_samples) < 0.5, rng.normal(-3, 0.5, n_samples), rng.normal(3, 1, n_samples))
    samples = np.column_stack([rng.normal(size=n_samples), clusters, rng.uniform(-1, 1, n_samples)])
    row: dict = {"n": n_samples}
    for rule in MARGINAL_RULES:
        choose = partial(select_bandwidth, samples, rule, name=rule)
        row[rule], row[f"{rule}_bandwidths"] = fastest(choose, n_repeats=3)
    if n_samples <= LARGEST_TEXTBOOK_SIZE:
        row["textbook"], row["textbook_bandwidths"] = fastest(partial(textbook_cross_validation, samples), n_repeats=1)
        row["textbook / cross_validation"] = row["textbook"] / row["cross_validation"]
    return row


def main() -> None:
    start_conditions = conditions(("numpy", "scipy", "torch"))
    columns = ("cross_validation", "silverman", "textbook", "textbook / cross_validation")
    print("seconds, three dimensions, one thread\n" + f"{'n':>8}" + "".join(f"{column:>30}" for column in columns))
    rows = []
    for n_samples in SIZES:
        rows.append(measure(n_samples))
        cells = (f"{rows[-1][column]:.4g}" if column in rows[-1] else "-" for column in columns)
        print(f"{n_samples:>8}" + "".join(f"{cell:>30}" for cell in cells))
    record = {
        "conditions": start_conditions,
        "unit": "seconds; ours the fastest of three runs, the textbook's one run",
        "methods": {
            "cross_validation": "leave-one-out; from n = 1,000 on within at most eight random parts of 500 samples",
            "silverman": "closed form, all samples",
            "textbook": "ten shuffled folds, 50 candidates, all samples",
        },
        "n_dimensions": 3,
        "n_threads": 1,
        "seed": SEED,
        "rows": rows,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
