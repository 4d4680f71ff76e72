"""Experiments of next to no work, to run, stop and report."""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import time

import numpy as np
import torch as th
from joblib.externals.loky.backend import context

from sb3_nopg.experiments import Experiment
from sb3_nopg.experiments.report import markdown_table
from sb3_nopg.experiments.runner import run_trials

# What every worker imports.
PRELOADED = ["distributed", "sb3_nopg.experiments.runner"]


@contextlib.contextmanager
def copied_workers():
    """Processes that run trials are copies of one that has imported torch: once, and not each of them, for seconds."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    context.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        context.set_start_method(None, force=True)


# What trials do. Each leaves a line in a file, so that one can count who ran how often.


def note(trial):
    with open(trial["log"], "a") as log:
        log.write(f"{trial['number']} {os.getpid()}\n")


def square(trial):
    note(trial)
    time.sleep(trial.get("seconds", 0.0))
    return {"square": trial["number"] ** 2, "threads": th.get_num_threads()}


def kills_its_worker(trial):
    killed = pathlib.Path(trial["log"] + ".killed")
    if trial.get("deadly") == "always" or (trial.get("deadly") == "once" and not killed.exists()):
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(trial)


def fails(trial):
    if trial["number"] == 1 and not os.path.exists(trial["log"] + ".mended"):
        raise ZeroDivisionError("one is too few")
    return square(trial)


def gives_a_matrix(trial):
    return {"matrix": np.zeros(2)}


def summarize(results, folder, extent):
    return markdown_table([{"number": trial["number"], "square": result["square"]} for trial, result in results])


def experiment_of(run, folder, n=4, **more):
    log = str(folder / "log.txt")

    def trials(quick, n_seeds):
        return [{"number": number, "log": log, **more} for number in range(n_seeds)]

    return Experiment("squares", "nowhere", trials, run, summarize)


def executions(folder):
    log = folder / "log.txt"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def squares(records):
    return [record.result["square"] for record in records]


def run_some(n, run, folder, workplace, deadly=None):
    log = str(folder / "log.txt")
    trials = [{"number": number, "log": log, "deadly": (deadly or {}).get(number)} for number in range(n)]
    return run_trials(experiment_of(run, folder), trials, folder, workplace)


def run_four(run, folder, workplace, deadly=None):
    return run_some(4, run, folder, workplace, deadly)


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
