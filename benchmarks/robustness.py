"""
How dependable is learning with the defaults? Several tasks and sizes, ten seeds each, every one reported, beside what least
squares with a Riccati equation and doing nothing get on the same data and from the same starts.

    python benchmarks/robustness.py                      all rows, seeds 0 to 9, into benchmarks/results/robustness.json
    python benchmarks/robustness.py --device cuda        the same, trained on a GPU
    python benchmarks/robustness.py --rows pendulum-random cart-pole-rest --seeds 0 3 --set horizon=60 -o trial.json
    python benchmarks/robustness.py --methods riccati nothing --rows cart-pole -o baselines.json

A model knows its task (discount, start states) and the data of its seed; all else is as it comes, or as ``--set`` says. What
was interrupted goes on where it stopped. A trial that ends with an error counts as one that failed, and the table says so.
"""

import argparse
import json
import multiprocessing
import os
import time
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Trials run beside each other, one core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch as th

from machine import conditions
from robustness_evaluation import Listener, Nothing
from robustness_report import write_report, write_results
from robustness_tasks import GradientTask, Row, Task, chosen_rows, rows
from sb3_nopg.experiments.baselines.least_squares_riccati import least_squares_riccati
from sb3_nopg.experiments.cartpole_evaluation import Policy

METHODS = ("nopg", "riccati", "nothing")
# Results of the rows that there were before are not continued.
YARDSTICK = 2


def applies(method: str, row: Row) -> bool:
    """
    :param method: one of :data:`METHODS`
    :param row: of the yardstick
    """
    if isinstance(row, Task):
        return method != "riccati" or row.cost is not None
    return method == "nopg"


def run_trial(name: str, method: str, seed: int, settings: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """
    Train once and look.

    :param name: of the row
    :param method: one of :data:`METHODS`
    :param seed: of the data and of the model
    :param settings: arguments of the model beside its task
    :param how: ``device`` to train on, number of ``updates``, and ``human`` demonstrations
    :return: ``real``, one number a start, and ``chatter`` at the end; or ``error``
    """
    th.set_num_threads(1)
    trial: dict[str, Any] = {"row": name, "method": method, "seed": seed}
    began = time.perf_counter()
    try:
        row = rows(how["human"])[name]
        if isinstance(row, GradientTask):
            # Needs SB3 and more, which the baselines do not.
            from robustness_gradient import gradient_cosines

            trial["real"] = gradient_cosines(row.case, row.size, seed, settings, how["device"])
        else:
            assert isinstance(row, Task)
            policy = _baseline(row, method, seed) if method != "nopg" else _trained(row, seed, settings, how, trial)
            trial.setdefault("seconds", round(time.perf_counter() - began, 1))
            space: Any = row.make_env().action_space
            listener = Listener(policy, space.low, space.high)
            trial["real"] = row.evaluate(listener)
            trial["chatter"] = round(listener.chatter, 5)
    # Whatever it is: hours of other trials must not be lost by it, and the table shows it.
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        trial["error"] = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    trial.setdefault("seconds", round(time.perf_counter() - began, 1))
    return trial


def _baseline(task: Task, method: str, seed: int) -> Policy:
    if method == "nothing":
        return Nothing()
    assert task.cost is not None
    space: Any = task.make_env().action_space
    return least_squares_riccati(task.collect(seed), task.cost, space.low, space.high)


def _trained(task: Task, seed: int, settings: dict[str, Any], how: dict[str, Any], trial: dict[str, Any]) -> Policy:
    """Train, and note in the trial what the model says about itself."""
    from sb3_nopg import NOPG, TransitionDataset
    from sb3_nopg.bellman.settings import grouped

    data = TransitionDataset(**task.collect(seed))
    arguments = {"gamma": task.gamma, "initial_states": task.initial_states, "seed": seed, "device": how["device"], **settings}
    began = time.perf_counter()
    model = NOPG("MlpPolicy", task.make_env(), dataset=data, **grouped(arguments))
    model.learn(*([] if how["updates"] is None else [how["updates"]]), log_interval=None)
    trial["seconds"] = round(time.perf_counter() - began, 1)
    trial["candidates"] = [str(candidate) for candidate in getattr(model, "candidates", ())]
    trial["estimated_return"] = float(model.estimated_return())
    # Step by step a processor is the quicker one.
    model.policy.to("cpu")
    return model.policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="how the names of rows begin; all by default")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--updates", type=int, help="policy updates; by default as many as learn() makes")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="arguments of NOPG")
    parser.add_argument("--human", type=Path, metavar="NPZ", help="a person's demonstrations of the mountain car: more rows")
    parser.add_argument("--device", default="cpu", help="to train on; trials share a GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results" / "robustness.json")
    arguments = parser.parse_args()
    try:
        names = chosen_rows(arguments.rows, arguments.human)
    except ValueError as error:
        parser.error(str(error))
    settings = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in arguments.set)}

    how = {"yardstick": YARDSTICK, "settings": settings, "device": arguments.device, "updates": arguments.updates}
    results: dict[str, Any] = {"conditions": conditions(("torch", "stable_baselines3")), **how, "trials": []}
    if arguments.output.exists():
        before = json.loads(arguments.output.read_text(encoding="utf-8"))
        if (was := {name: before.get(name) for name in how}) != how:
            parser.error(f"{arguments.output} holds results of other runs: {was}")
        results["trials"] = before["trials"]

    every = rows(arguments.human)
    done = {(trial["row"], trial["method"], trial["seed"]) for trial in results["trials"]}
    jobs = [
        (name, method, seed)
        for name in names
        for method in arguments.methods
        # Doing nothing, from starts that are the same for every seed, is one trial.
        for seed in range(*(arguments.seeds if method != "nothing" else (0, 1)))
        if applies(method, every[name]) and (name, method, seed) not in done
    ]
    # Long ones first, so that no core waits for one of them at the end.
    jobs.sort(key=lambda job: (job[1] != "nopg", -every[job[0]].size))
    _run(jobs, settings, {**how, "human": arguments.human}, arguments.jobs, results, arguments.output)
    write_report(arguments.output, results, every)


def _run(
    jobs: list[tuple[str, str, int]],
    settings: dict[str, Any],
    how: dict[str, Any],
    n_workers: int,
    results: dict[str, Any],
    output: Path,
) -> None:
    # Spawned: a process that is forked cannot use a GPU if this one has touched it.
    with ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: list[Future[dict[str, Any]]] = [pool.submit(run_trial, *job, settings, how) for job in jobs]
        for number, finished in enumerate(as_completed(running), 1):
            trial = finished.result()
            outcome = trial.get("error") or " ".join(f"{value:.5g}" for value in trial["real"][:10])
            progress = f"{number}/{len(running)} {trial['row']}, {trial['method']}, seed {trial['seed']}"
            print(f"{progress}: {outcome} ({trial['seconds']} s)", flush=True)
            results["trials"].append(trial)
            # After every trial: what was interrupted goes on where it stopped.
            write_results(output, results)


if __name__ == "__main__":
    main()
