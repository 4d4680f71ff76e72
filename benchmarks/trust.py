"""
Does the judge tell good policies from bad ones before any of them has moved anything? On each of four tasks, one data set and
forty policies of very different quality: what `sb3_nopg.judge` says of them, beside what they really get.

    python benchmarks/trust.py                           four tasks, five data sets each, into benchmarks/results/trust.json
    python benchmarks/trust.py --tasks pendulum --seeds 0 2 --jobs 2 -o trial.json

Rank correlation (Spearman) is that of the judge's scores with real returns, AUC the chance that of a policy that succeeds
and one that does not the first has the higher score, regret what the judge's first choice gets less than the best one.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Trials run beside each other, one core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import rankdata, spearmanr

from machine import conditions
from robustness_report import write_results
from robustness_tasks import Task, rows
from trust_policies import Controller, balance_policies, pendulum_policies, swing_up_policies
from trust_simulation import Outcome, balance_outcomes, pendulum_outcomes, swing_up_outcomes, swing_up_starts

BAR = 0.9
N_POLICIES = 40


@dataclass(frozen=True)
class TrustTask:
    """
    :param row: of the robustness yardstick, whose data it has
    :param n_steps: that the judge follows, and that real returns count
    :param policies: so many, drawn from a generator
    :param outcomes: what each really gets
    :param initial_states: for the judge; None for the starts of the data's episodes
    """

    row: str
    n_steps: int
    policies: Callable[[int, np.random.Generator], dict[str, Controller]]
    outcomes: Callable[[list[Controller], int], list[Outcome]]
    initial_states: Callable[[], Any]


TASKS = (
    TrustTask("pendulum-random-1000", 500, pendulum_policies, pendulum_outcomes, lambda: [[-1.0, 0.0, 0.0]]),
    TrustTask("pendulum-grid-450", 500, pendulum_policies, pendulum_outcomes, lambda: [[-1.0, 0.0, 0.0]]),
    TrustTask("cart-pole-operator-1500", 1000, lambda n, rng: balance_policies(n, 5.0, rng), balance_outcomes, lambda: None),
    TrustTask(
        "swing-up-8v-10000", 750, lambda n, rng: swing_up_policies(n, 8.0, rng), swing_up_outcomes, lambda: swing_up_starts()
    ),
)


def run_trial(name: str, seed: int, settings: dict[str, Any], n_policies: int) -> dict[str, Any]:
    """
    :param name: of the task's row
    :param seed: of the data and of the policies
    :param settings: arguments of the judge beside its task
    :param n_policies: how many
    :return: statistics and every policy, or ``error``
    """
    trial: dict[str, Any] = {"task": name, "seed": seed}
    try:
        task = next(task for task in TASKS if task.row == name)
        row = rows()[name]
        assert isinstance(row, Task)
        policies = task.policies(n_policies, np.random.default_rng([seed, n_policies]))
        outcomes = dict(zip(policies, task.outcomes(list(policies.values()), task.n_steps), strict=True))
        judged, trial["seconds"] = _judge(task, row, policies, seed, settings)
        trial["policies"] = [
            {"name": name, **judged[name], **{"return": outcomes[name].total, "success": outcomes[name].success}}
            for name in judged
        ]
        trial |= statistics(trial["policies"])
    # As in robustness.py: the other trials must not be lost by it.
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        trial["error"] = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    return trial


def _judge(
    task: TrustTask, row: Task, policies: dict[str, Controller], seed: int, settings: dict[str, Any]
) -> tuple[dict[str, dict[str, float]], float]:
    """What the judge says of each policy, best first, and the seconds that it took."""
    import torch as th

    from sb3_nopg import TransitionDataset, judge

    th.set_num_threads(1)
    data = TransitionDataset(**row.collect(seed))
    began = time.perf_counter()
    verdict = judge(data, policies, gamma=row.gamma, initial_states=task.initial_states(), n_steps=task.n_steps, **settings)
    seconds = round(time.perf_counter() - began, 1)
    fields = ("score", "low", "high", "lasting")
    return {each.name: {field: float(getattr(each, field)) for field in fields} for each in verdict.ranking}, seconds


def statistics(policies: list[dict[str, Any]]) -> dict[str, Any]:
    """
    :param policies: best first in the judge's eyes, each with ``score``, ``return`` and ``success``
    :return: rank correlation, AUC (None where all succeed or none does), regret of the first and as share of best minus worst
    """
    scores = np.array([policy["score"] for policy in policies])
    returns = np.array([policy["return"] for policy in policies])
    success = np.array([policy["success"] for policy in policies])
    n_good, n_bad = int(success.sum()), int((~success).sum())
    auc = None
    if n_good and n_bad:
        auc = float((rankdata(scores)[success].sum() - n_good * (n_good + 1) / 2) / (n_good * n_bad))
    regret = float(returns.max() - returns[0])
    return {
        "rank_correlation": float(spearmanr(scores, returns).statistic),
        "auc": auc,
        "regret": regret,
        "regret_share": regret / max(float(np.ptp(returns)), 1e-12),
        "pick_succeeds": bool(success[0]),
        "n_succeeding": n_good,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=[""], metavar="NAME", help="how their names begin; all by default")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 5), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--policies", type=int, default=N_POLICIES, help="for each data set, ten or more")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="arguments of the judge")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results" / "trust.json")
    arguments = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in arguments.set)}
    names = [task.row for task in TASKS if task.row.startswith(tuple(arguments.tasks))]

    how = {"settings": settings, "n_policies": arguments.policies}
    results: dict[str, Any] = {"conditions": conditions(("torch", "stable_baselines3")), **how, "trials": []}
    if arguments.output.exists():
        before = json.loads(arguments.output.read_text(encoding="utf-8"))
        if (was := {name: before.get(name) for name in how}) != how:
            parser.error(f"{arguments.output} holds results of other runs: {was}")
        results["trials"] = before["trials"]
    done = {(trial["task"], trial["seed"]) for trial in results["trials"]}
    jobs = [(name, seed) for name in reversed(names) for seed in range(*arguments.seeds) if (name, seed) not in done]
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(run_trial, *job, settings, arguments.policies) for job in jobs]
        for number, finished in enumerate(as_completed(running), 1):
            trial = finished.result()
            outcome = trial.get("error") or f"rank correlation {trial['rank_correlation']:.3f}, AUC {_text(trial['auc'])}"
            print(f"{number}/{len(running)} {trial['task']}, seed {trial['seed']}: {outcome}", flush=True)
            results["trials"].append(trial)
            write_results(arguments.output, results)
    order = [task.row for task in TASKS]
    results["trials"].sort(key=lambda trial: (order.index(trial["task"]), trial["seed"]))
    write_results(arguments.output, results)
    table = report(results)
    arguments.output.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


def report(results: dict[str, Any]) -> str:
    """
    :param results: with ``trials`` in the order of the table
    :return: Markdown
    """
    lines = [
        "| task | rank correlation, each data set | mean | AUC, each data set | mean | regret of the pick, share of "
        "best − worst | picks that succeed | policies that do | both ≥ 0.9 | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    errors = []
    for name in dict.fromkeys(trial["task"] for trial in results["trials"]):
        of_task = [trial for trial in results["trials"] if trial["task"] == name]
        errors += [f"- {name}, seed {trial['seed']}: {trial['error']}" for trial in of_task if "error" in trial]
        trials = [trial for trial in of_task if "error" not in trial]
        if not trials:
            continue
        correlations = [trial["rank_correlation"] for trial in trials]
        aucs = [math.nan if trial["auc"] is None else trial["auc"] for trial in trials]
        mean_auc = float(np.nanmean(aucs)) if not np.isnan(aucs).all() else math.nan
        # A data set on which the judge failed is no reason for trust.
        met = len(trials) == len(of_task) and np.mean(correlations) >= BAR and mean_auc >= BAR
        cells = (
            name,
            " ".join(_text(value) for value in correlations),
            _text(float(np.mean(correlations))),
            " ".join(_text(value) for value in aucs),
            _text(mean_auc),
            " ".join(_text(trial["regret_share"]) for trial in trials),
            f"{sum(trial['pick_succeeds'] for trial in trials)} of {len(trials)}",
            " ".join(str(trial["n_succeeding"]) for trial in trials),
            "yes" if met else "**no**",
            f"{np.median([trial['seconds'] for trial in trials]):.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"{results['n_policies']} policies for each data set, made from the simulators' equations and from no data. Returns "
        "are real ones of as many steps as the judge follows: pendulum 500 from hanging, cart-pole 1,000 and swing-up 750, "
        "means over ten operator's starts. Success: pendulum, upright (cos θ > 0.95) throughout the last 100 steps; "
        "cart-pole, 10,000 steps from every start; swing-up, upright for the last 250 steps from at least half of the starts.",
        "",
        *(["Ended with an error:", "", *errors, ""] if errors else []),
        f"`{results['conditions']['command']}`",
    ]
    return "\n".join(lines) + "\n"


def _text(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
