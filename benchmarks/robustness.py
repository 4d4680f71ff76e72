"""
How dependable is learning with the defaults? Several tasks and sizes, ten seeds each, every one reported.

    python benchmarks/robustness.py                      all rows, ten seeds, into benchmarks/results/robustness.json
    python benchmarks/robustness.py --device cuda        the same, trained on a GPU
    python benchmarks/robustness.py --rows 3 4 --seeds 0 3 --set weights='"local_constant"' -o trial.json

A model knows its task (discount, start states) and the data of its seed; all else is as it comes, or as ``--set`` says.
"""

import argparse
import dataclasses
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Trials run beside each other, one core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch as th

from machine import conditions
from robustness_report import write_report
from robustness_tasks import HELD_OUT_SEED, tasks
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.prospects import TrajectoryJudge


def run_trial(row: int, seed: int, settings: dict[str, Any], n_updates: int | None, device: str = "cpu") -> dict[str, Any]:
    """
    Train once and look.

    :param row: number of the task
    :param seed: of the data and of the model
    :param settings: arguments of the model beside its task
    :param n_updates: None for as many as ``learn`` makes by itself
    :param device: to train on
    """
    th.set_num_threads(1)
    task = tasks()[row]
    data, unseen = (TransitionDataset(**task.collect(s)) for s in (seed, HELD_OUT_SEED + seed))
    arguments = {"gamma": task.gamma, "initial_states": task.initial_states, "seed": seed, "device": device, **settings}
    densify = arguments.pop("densify", None)
    began = time.perf_counter()
    if densify is not None:
        if arguments["initial_states"] is None:
            arguments["initial_states"] = data.observations[data.episode_starts]
        data = data.densify(**densify)
    model = NOPG("MlpPolicy", gym.make(task.env_id), dataset=data, **arguments)
    model.learn(*([] if n_updates is None else [n_updates]), log_interval=None)
    seconds = time.perf_counter() - began
    # Step by step a processor is the quicker one.
    model.policy.to("cpu")
    real = task.evaluate(model)
    prospects = TrajectoryJudge.of(model).prospects(model.act)
    model.policy.to(model.device)
    return {
        "task": task.name,
        "n": task.size,
        "seed": seed,
        "real": real,
        "estimated_return": model.estimated_return(),
        "held_out_return": model.estimated_return(unseen),
        "trajectory_reward": prospects.score,
        "trajectories_lasting": prospects.lasting,
        "attempts": [dataclasses.asdict(attempt) for attempt in model.attempts],
        "start": [trial.name for trial in model.start_trials][:1],
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=range(len(tasks())), help="numbers of the tasks")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), metavar=("FROM", "TO"))
    parser.add_argument("--updates", type=int, help="policy updates; by default as many as learn() makes")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="arguments of NOPG")
    parser.add_argument("--device", default="cpu", help="to train on; trials share a GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results" / "robustness.json")
    arguments = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in arguments.set)}

    how = {"settings": settings, "device": arguments.device, "updates": arguments.updates}
    results = {"conditions": conditions(("torch", "stable_baselines3")), **how, "trials": []}
    if arguments.output.exists():
        before = json.loads(arguments.output.read_text(encoding="utf-8"))
        if (was := {name: before.get(name) for name in how}) != how:
            parser.error(f"{arguments.output} holds results of other runs: {was}")
        results["trials"] = before["trials"]
    done = {(trial["task"], trial["n"], trial["seed"]) for trial in results["trials"]}
    order = [(task.name, task.size) for task in tasks()]
    jobs = [(row, seed) for row in arguments.rows for seed in range(*arguments.seeds) if (*order[row], seed) not in done]
    # Long ones first, so that no core waits for one of them at the end.
    jobs.sort(key=lambda job: -tasks()[job[0]].size)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_trial, row, seed, settings, arguments.updates, arguments.device) for row, seed in jobs]
        for number, finished in enumerate(as_completed(running), 1):
            trial = finished.result()
            worst = {start: round(float(np.min(values))) for start, values in trial["real"].items()}
            print(f"{number}/{len(running)} {trial['task']}, n = {trial['n']}, seed {trial['seed']}: {worst}", flush=True)
            results["trials"].append(trial)
            # After every trial: what was interrupted goes on where it stopped.
            arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    results["trials"].sort(key=lambda trial: (order.index((trial["task"], trial["n"])), trial["seed"]))
    write_report(arguments.output, results)


if __name__ == "__main__":
    main()
