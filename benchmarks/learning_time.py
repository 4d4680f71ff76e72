"""
From data to a judged policy: seconds of NOPG-D, of kernel value iteration and of d3rlpy's IQL on the same data in one run.

    python benchmarks/learning_time.py                        pendulum and cart-pole, seed 0
    python benchmarks/learning_time.py --methods NOPG-D KBRL --seeds 0 1 2

IQL runs in an environment of its own, as `nopg reproduce --with-d3rlpy` makes it. One thread for everybody. Seconds by the
clock are those of learning alone; seconds of processor time count the evaluation too, and hardly depend on what else the
machine does.
"""

import argparse
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Of every process that is started from here, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch as th

from machine import conditions
from sb3_nopg.experiments import cartpole_trials, pendulum_trials
from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import D3RLPY_VERSION
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.random_agent import updates_of

RESULTS = Path(__file__).parent / "results" / "learning_time.json"
# Names of the experiments' methods.
METHODS = {"NOPG-D": "NOPG-D, defaults", "KBRL": "KBRL", "IQL": "IQL"}
TASKS: dict[str, tuple[Callable[[Trial], Result], Trial]] = {
    "pendulum, 1,000 random samples": (pendulum_trials.run_on_random_data, {"samples": 1000}),
    "cart-pole from rest, 5,000 samples": (
        cartpole_trials.run,
        {"system": "identified rig", "samples": 5000, "evaluation_steps": 10_000},
    ),
}


def main() -> None:
    """Write benchmarks/results/learning_time.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    th.set_num_threads(1)
    trials: list[dict[str, Any]] = []
    for task in TASKS:
        for seed in asked.seeds:
            for method in asked.methods:
                trials.append(_trial(task, method, seed))
                print(trials[-1], flush=True)
                # After every trial: the next one may take long.
                _write(asked.output, {"conditions": conditions(("torch", "stable_baselines3")), "trials": trials})


def _trial(task: str, method: str, seed: int) -> dict[str, Any]:
    run, parameters = TASKS[task]
    trial = {"method": METHODS[method], **parameters, "seed": seed, **_updates(method)}
    before = _processor_seconds()
    result = run(trial)
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "learning_seconds": result["learning_seconds"],
        "processor_seconds": round(_processor_seconds() - before, 1),
        # On the cart-pole the mean of ten starts: the one of the paper proves little.
        "return": result.get("perturbed", result["return"]),
    }


def _updates(method: str) -> Trial:
    """As many as in the experiments."""
    if method == "IQL":
        return {"updates": d3rlpy_trials([{}], quick=False, n_seeds=1)[0]["updates"]}
    return updates_of(METHODS[method], quick=False)


def _processor_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = ["| task | method | seed | learning / s | processor / s | return |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {x['task']} | {x['method']} | {x['seed']} | {x['learning_seconds']:.1f} | {x['processor_seconds']:.1f} "
        f"| {x['return']:,.0f} |"
        for x in results["trials"]
    ]
    said = results["conditions"]
    notes = (
        "Learning: by the clock, from data to the policy that was chosen, without its evaluation. Processor: with it, of "
        f"one core. NOPG-D with its defaults, {_updates('NOPG-D')['updates']} updates and the candidates' judging; IQL of "
        f"d3rlpy {D3RLPY_VERSION}, {_updates('IQL')['updates']:,} updates. Returns: of 500 steps from hanging; of "
        "10,000 steps, mean of ten starts."
    )
    path.with_suffix(".md").write_text(
        "\n".join([*lines, "", notes, "", f"`{said['command']}`, load {said['load_average']}", ""]), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
