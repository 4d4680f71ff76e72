"""
Is a verdict to be trusted? Every candidate of every training is judged by the data that it was trained on, as a report judges
it, and then really followed: those that work should be called "go", and those called "go" should work.

    python benchmarks/verdict.py                                     five rows of the robustness yardstick, seeds 24 to 28
    python benchmarks/verdict.py --rows pendulum --seeds 0 2 --jobs 2 -o trial.json

A policy works where at least nine of ten starts do: on its pole for 10,000 steps, upright in the end, at the flag, or with a
return above the yardstick's bar. Candidates that were never trained are judged too: many of these do not work.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

# Trials run beside each other, one core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch as th

from machine import conditions
from robustness_evaluation import CAR_STEPS, Listener
from robustness_report import write_results
from robustness_tasks import Task, chosen_rows, rows

ROWS = (
    "pendulum-random-500",
    "cart-pole-operator-200",
    "cart-pole-rest-identified-5000",
    "swing-up-8v-5000",
    "mountain-car-scripted-2",
)
LEVELS = ("go", "care", "no")
# Of those called go, that work; of those that work, that are called go.
RIGHT_GO, FOUND = 0.95, 0.8
# Of the starts, for a policy to work: as many as a verdict asks of predicted trajectories.
WORKING = 0.9


def run_trial(name: str, seed: int, updates: int | None) -> dict[str, Any]:
    """
    Train once, and judge and follow every candidate.

    :param name: of a row
    :param seed: of the data and of the model
    :param updates: None for as many as learn() makes
    :return: ``policies``, each with its verdict and what it really does, the chosen one first
    """
    from sb3_nopg import NOPG, TransitionDataset
    from sb3_nopg.training.keeping import load_parameters

    th.set_num_threads(1)
    task = rows()[name]
    assert isinstance(task, Task)
    began = time.perf_counter()
    data = TransitionDataset(**task.collect(seed))
    given: dict[str, Any] = {"gamma": task.gamma, "initial_states": task.initial_states, "seed": seed, "device": "cpu"}
    model = NOPG("MlpPolicy", task.make_env(), dataset=data, **given)
    with candidates_kept() as kept:
        model.learn(*([] if updates is None else [updates]), log_interval=None)
    seconds, chosen = round(time.perf_counter() - began, 1), [str(candidate) for candidate in model.candidates]
    # In the order of the candidates, which begin with their names.
    kept.sort(key=lambda one: next(number for number, text in enumerate(chosen) if text.startswith(one[0])))
    judged, space = _judged(model, kept), _space(task)
    policies = []
    for (known_as, parameters), figures in zip(kept, judged, strict=True):
        load_parameters(model.policy, parameters)
        listener = Listener(model.policy, space.low, space.high)
        real = task.evaluate(listener)
        policies.append({"name": known_as, **figures, "real": real, "works": works(task, real), "chatter": listener.chatter})
    first = {name: policies[0][name] for name in ("real", "chatter")}
    return {"row": name, "seed": seed, "seconds": seconds, "candidates": chosen, **first, "policies": policies}


def works(task: Task, real: list[float]) -> bool:
    """
    :param task: of the policy
    :param real: what it got, one number a start
    """
    enough = next(bar for bar in (task.full, task.bar.worst, float(1 - CAR_STEPS)) if bar is not None)
    return bool(np.mean(np.asarray(real) >= enough) >= WORKING)


@contextlib.contextmanager
def candidates_kept() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Names and parameters of all candidates of a training, of which a model keeps the chosen one alone."""
    from sb3_nopg.training.candidates import name_of
    from sb3_nopg.training.course import Course

    kept: list[tuple[str, dict[str, Any]]] = []
    original = Course.finish

    def finish(course: Course, again: Any) -> Any:
        found = original(course, again)
        kept.extend((name_of(one), one.parameters) for one in course.trained)
        return found

    with mock.patch.object(Course, "finish", finish):
        yield kept


def _judged(model: Any, kept: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What its trajectories by themselves say of each, and what its report says, but for simulated rigs and given limits."""
    from sb3_nopg.report import making
    from sb3_nopg.report.trajectories import make_judge
    from sb3_nopg.report.verdict import trajectory_verdict
    from sb3_nopg.training.keeping import load_parameters

    judge, found = make_judge(model.evaluation), []
    assert judge is not None
    # The models are of the data, whoever the policy is.
    with mock.patch.object(making, "make_judge", return_value=judge):
        for _, parameters in kept:
            load_parameters(model.policy, parameters)
            summary = making.make_report(model).summary
            figures = summary.trajectories
            assert figures is not None
            told = {"verdict": trajectory_verdict(figures), "report": summary.verdict, "reasons": list(summary.reasons)}
            found.append({**told, "succeeding": figures.succeeding, "poor": figures.poor})
    return found


def _space(task: Task) -> Any:
    return task.make_env().action_space


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="NAME", help="how their names begin")
    parser.add_argument("--seeds", type=int, nargs=2, default=(24, 29), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--updates", type=int, help="policy updates; by default as many as learn() makes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results" / "verdict.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"conditions": conditions(("torch",)), "updates": arguments.updates, "trials": []}
    if arguments.output.exists():
        results["trials"] = json.loads(arguments.output.read_text(encoding="utf-8"))["trials"]
    done = {(trial["row"], trial["seed"]) for trial in results["trials"]}
    jobs = [
        (name, seed) for name in chosen_rows(arguments.rows) for seed in range(*arguments.seeds) if (name, seed) not in done
    ]
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(run_trial, *job, arguments.updates) for job in jobs]
        for number, finished in enumerate(as_completed(running), 1):
            trial = finished.result()
            results["trials"].append(trial)
            said = ", ".join(
                f"{one['verdict']}, report {one['report']} ({'works' if one['works'] else 'fails'})"
                for one in trial["policies"]
            )
            print(f"{number}/{len(running)} {trial['row']}, seed {trial['seed']}: {said}", flush=True)
            write_results(arguments.output, results)
    table = report(results)
    arguments.output.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


def report(results: dict[str, Any]) -> str:
    """
    :param results: with ``trials``
    :return: Markdown
    """
    lines = [
        "| task | policies | that work | " + " | ".join(f"{level}: that work / all" for level in LEVELS) + " | report's go |",
        "| --- | --- | --- | " + " | ".join("---" for _ in LEVELS) + " | --- |",
    ]
    every: list[dict[str, Any]] = []
    weak: list[str] = []
    for name in sorted({trial["row"] for trial in results["trials"]}):
        policies = [policy for trial in results["trials"] if trial["row"] == name for policy in trial["policies"]]
        lines.append(_line(name, policies))
        weak += _weak(name, policies)
        every += policies
    lines.append(_line("**all**", every))
    called, working, both = _counts(every)
    seeds = sorted({trial["seed"] for trial in results["trials"]})
    lines += [
        "",
        f"Of {called} policies called go, {both} work ({_percent(both, called)}). Of {working} that work, {both} are called "
        f"go ({_percent(both, working)}). Seeds: {', '.join(map(str, seeds))}. Every candidate of every training is judged by "
        "the data that it was trained on. It works where at least nine of ten starts do. The verdict is that of its "
        "trajectories; the last column is that of its report without simulated rigs, where it was made.",
        "",
        f"Tasks below {100 * RIGHT_GO:.0f} % or {100 * FOUND:.0f} %: {'; '.join(weak) or 'none'}.",
        "",
        f"`{results['conditions']['command']}`",
    ]
    return "\n".join(lines) + "\n"


def _counts(policies: list[dict[str, Any]], verdict: str = "verdict") -> tuple[int, int, int]:
    """How many are called go, how many work, and how many of those are called go."""
    go = [one for one in policies if one.get(verdict) == "go"]
    return len(go), sum(one["works"] for one in policies), sum(one["works"] for one in go)


def _weak(name: str, policies: list[dict[str, Any]]) -> list[str]:
    """A total hides the tasks that are below the bar."""
    called, working, both = _counts(policies)
    found = []
    if both < RIGHT_GO * called:
        found.append(f"{name}: {both} of {called} called go work")
    if both < FOUND * working:
        found.append(f"{name}: {both} of {working} that work are called go")
    return found


def _line(name: str, policies: list[dict[str, Any]]) -> str:
    all_of = Counter(one["verdict"] for one in policies)
    good = Counter(one["verdict"] for one in policies if one["works"])
    called, _, both = _counts(policies, "report")
    reported = f"{both} / {called}" if all("report" in one for one in policies) else "-"
    cells = (
        *(name, str(len(policies)), str(sum(good.values()))),
        *(f"{good[level]} / {all_of[level]}" for level in LEVELS),
        reported,
    )
    return f"| {' | '.join(cells)} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


if __name__ == "__main__":
    main()
