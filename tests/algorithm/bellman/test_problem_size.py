"""Memory: the stated formula against what a process really takes, and refusal of what does not fit before any work."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th

from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman import problem_size
from sb3_nopg.bellman.problem_size import ProblemSize, available_memory, check_memory, size_of
from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels.support import Support
from sb3_nopg.prediction import estimator

# Peak of memory of a process that trains, beyond what it takes to train on next to nothing.
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np, torch as th
from sb3_nopg import NOPGD, NOPGS, TransitionDataset
from sb3_nopg.bellman.problem_size import size_of
from sb3_nopg.bellman.settings import grouped

th.set_num_threads(1)

def peak():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024

def train(n, n_neighbors, **settings):
    rng = np.random.default_rng(0)
    observations, actions = rng.uniform(size=(n, 3)), rng.uniform(-1, 1, (n, 2))
    data = TransitionDataset(observations, actions, observations[:, 0], observations, np.zeros(n, dtype=bool))
    algorithm = NOPGS if settings.pop("variant", "D") == "S" else NOPGD
    model = algorithm("MlpPolicy", None, dataset=data, initial_states=[[0.5, 0.5, 0.5]], gamma=0.9, seed=0, device="cpu",
                 transitions="samples", **grouped(settings, state_bandwidth=0.5, action_bandwidth=1.0,
                 next_state_bandwidth=0.1, n_neighbors=n_neighbors))
    model.learn(2, log_interval=None)
    return size_of(model.estimator.settings, data, 1, model.processes)

# What torch imports with the first optimizer is imported once.
train(300, 16)
for name, (n, n_neighbors, settings) in json.loads(sys.argv[1]).items():
    # A process of its own for each peak, without importing everything again.
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    train(300, 16, **dict(settings))
    before = peak()
    size = train(n, n_neighbors, **settings)
    figures = {"measured": peak() - before, "stated": size.total, "pairs": size.n_pairs * size.bytes_a_pair}
    print(json.dumps([name, figures]), flush=True)
    os._exit(0)
"""
CASES = {
    "local-constant": (2_500, 128, {"variant": "D", "weights": "local_constant"}),
    "local-linear": (2_500, 128, {"variant": "D", "weights": "local_linear"}),
    "stochastic": (2_000, 48, {"variant": "S", "n_action_samples": 6, "weights": "local_linear", "precision": "float32"}),
    "all-neighbours": (1_000, None, {"variant": "D", "weights": "local_constant"}),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
def test_a_run_takes_what_the_formula_says():
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures_of = dict(json.loads(line) for line in told.splitlines() if line.startswith("["))
    assert set(figures_of) == set(CASES)
    for name, figures in figures_of.items():
        assert figures["measured"] <= 1.5 * figures["stated"], name
        # Not by stating too much: pairs, which all grows with, are no more than what is really taken.
        assert figures["measured"] >= figures["pairs"] / 1.5, name


def small_model(n: int = 200, **settings: object) -> NOPG:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(n, 2))
    data = TransitionDataset(
        observations, rng.uniform(-1, 1, (n, 1)), observations[:, 0], observations, np.zeros(n, dtype=bool)
    )
    arguments = {"state_bandwidth": 0.5, "action_bandwidth": 0.5, "next_state_bandwidth": 0.1, **settings}
    arguments["transitions"] = "samples"
    return make_nopg("MlpPolicy", None, dataset=data, initial_states=[[0.0, 0.0]], seed=0, device="cpu", **arguments)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_the_search(monkeypatch):
    model = small_model(n_neighbors=20)
    monkeypatch.setattr(estimator, "available_memory", lambda device: 2**20)
    with monkeypatch.context() as patch:
        patch.setattr(Support, "locate", lambda *_: pytest.fail("The search has begun."))
        with pytest.raises(InputError, match=r"200 transitions with 20 neighbours each take .* 1 MiB are free on cpu"):
            model.learn(1)
    monkeypatch.setattr(estimator, "available_memory", lambda device: 2**30)
    model.learn(1, log_interval=None)


def test_the_advice_fits():
    size = ProblemSize(n=10_000_000, n_queries=10_000_001, n_neighbors=64, d_s=5, d_a=1)
    available = int(0.7 * size.total)
    with pytest.raises(InputError) as refusal:
        check_memory(size, available)
    message = str(refusal.value)
    assert "precision='float32'" in message
    n_neighbors = int(message.split("n_neighbors=")[1].split(",")[0])
    subsample = int(message.split("a subsample of ")[1].split()[0])
    for smaller in (
        ProblemSize(n=10_000_000, n_queries=10_000_001, n_neighbors=n_neighbors, d_s=5, d_a=1),
        ProblemSize(n=subsample, n_queries=subsample + 1, n_neighbors=64, d_s=5, d_a=1),
        ProblemSize(n=10_000_000, n_queries=10_000_001, n_neighbors=64, d_s=5, d_a=1, n_bytes=4),
    ):
        check_memory(smaller, available)
    check_memory(size, None)


@pytest.mark.slow
def test_size_of_a_model():
    model = small_model(variant="S", n_action_samples=7, n_next_state_samples=3, n_neighbors="auto", precision="float32")
    assert model.dataset is not None
    size = size_of(model.estimator.settings, model.dataset, 4, model.processes)
    assert (size.n, size.n_queries, size.n_neighbors, size.d_s, size.d_a) == (200, 604, 32, 2, 1)
    assert (size.n_action_samples, size.n_bytes, size.n_units, size.local_linear) == (7, 4, 52, True)
    other = small_model(n_neighbors=None, weights="local_constant")
    exact = size_of(other.estimator.settings, model.dataset, 1, other.processes)
    assert (exact.n_pairs, exact.n_action_samples, exact.local_linear) == (201 * 200, 1, False)


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(problem_size, "free_memory", lambda: 8000)
    assert available_memory(th.device("cpu")) == 8000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_memory(th.device("cpu")) == 2000
    # Nobody knows.
    assert available_memory(th.device("meta")) is None
