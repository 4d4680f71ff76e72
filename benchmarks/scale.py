"""
Seconds and memory of one policy update against the number of transitions, by stage, beside what the memory's speed allows.

    python benchmarks/scale.py updates --device cpu --threads 2 --output cpu.json
    python benchmarks/scale.py updates --device cuda --output cuda.json
    python benchmarks/scale.py accuracy --device cuda --output accuracy.json
    python benchmarks/scale.py ranks --output ranks.json
    python benchmarks/scale_report.py cpu.json cuda.json accuracy.json ranks.json     # writes results/scale.*

Transitions of a cart-pole from states and forces drawn uniformly: five state dimensions on a surface of four, any number of
transitions, the density growing and not the range. NOPG-D, γ = 0.99, 64 neighbours, the default tolerance, no pessimism.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

from machine import conditions, peak_memory_bytes
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.bellman.on_samples import solve_bellman
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.problem_size import size_of
from sb3_nopg.kernels.neighbors import find_neighbors
from sb3_nopg.training.distributed import process_group
from scale_problem import GAMMA, N_NEIGHBORS, fitting_bandwidth, our_model, random_cartpole

STAGES = ("policy", "weights", "solve", "gradient", "step")
FORMS = ("local_constant", "local_linear")
RANK_FIGURES = ("update_seconds", "preparation_seconds")
SIZES = {
    "cpu": (1_000, 3_162, 10_000, 31_623, 100_000),
    "cuda": (1_000, 10_000, 100_000, 1_000_000, 5_000_000),
}


def wait(device: str) -> None:
    if device == "cuda":
        th.cuda.synchronize()


def seconds_of(work: Callable[[], Any], device: str, n_times: int = 1) -> float:
    """Of one call, the mean of several."""
    wait(device)
    start = time.perf_counter()
    for _ in range(n_times):
        work()
    wait(device)
    return (time.perf_counter() - start) / n_times


def copy_bandwidth(device: str) -> float:
    """Bytes read and written a second by a copy that no cache holds."""
    source = th.zeros(2**27 if device == "cuda" else 2**25, dtype=th.float64, device=device)
    target = th.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device, 5)


def staged_update(model: NOPG, problem: BellmanProblem, stages: dict[str, float]) -> tuple[int, int]:
    """``NOPG._update_policy`` with a stop after each stage, so that a GPU's work counts where it is asked for."""
    clock = []

    def stop() -> None:
        wait(problem.rewards.device.type)
        clock.append(time.perf_counter())

    stop()
    actions = model.evaluation.policy_actions()
    stop()
    with th.no_grad():
        weights = problem.support.kernel_weights(problem.queries, actions)
        stop()
        solution = solve_bellman(
            problem, weights, model._training.warm_start, model.estimator.settings.samples.solver_tolerance
        )
        stop()
        derivative = derivative_on_samples(problem, solution)
    stop()
    model.policy.optimizer.zero_grad()
    actions.backward(-derivative)
    model.policy.optimizer.step()
    stop()
    model._training.warm_start.remember(solution)
    problem.coarse_model.grow_older()
    for stage, seconds in zip(STAGES, np.diff(clock), strict=True):
        stages[stage] += float(seconds)
    return solution.q_solve.n_iterations, solution.visitation_solve.n_iterations


def product_figures(problem: BellmanProblem, bandwidth: float) -> dict[str, float]:
    """How near products with P̂ and its transpose come to the speed at which memory is copied."""
    transition, device = problem.transition, problem.rewards.device.type
    figures = {}
    own = problem.rewards.dtype
    for dtype in (own, th.float32) if transition.in_single_precision else (own,):
        n_bytes = 4 + dtype.itemsize
        x = problem.rewards.to(dtype)
        # Values and column numbers once; the vector, in and out, is small beside them.
        moved = problem.n_next_states * problem.queries.neighbors.n_neighbors * n_bytes
        products = {
            "product": lambda x=x: transition.bellman_operator(x, GAMMA),
            "transposed_product": lambda x=x: transition.bellman_operator_transposed(x, GAMMA),
        }
        for name, product in products.items():
            product()
            seconds = seconds_of(product, device, 10)
            figures[f"{name}_{str(dtype)[6:]}_seconds"] = seconds
            figures[f"{name}_{str(dtype)[6:]}_share_of_copy_bandwidth"] = moved / seconds / bandwidth
    return figures


def measure(n: int, device: str, bandwidth: float, **arguments: Any) -> dict[str, Any]:
    """One line of the result, in the process that calls this."""
    memory_before = _memory_before(device)
    model = our_model(n, device, **arguments)
    preparation = seconds_of(lambda: model.estimator.problem, device)
    problem = model.estimator.problem
    support = problem.support

    def find() -> None:
        find_neighbors(problem.queries.states, support.observations, support.state_bandwidth, support.n_neighbors)

    n_updates = 20 if n < 1_000_000 and (device == "cuda" or n < 100_000) else 10
    model._setup_learn(1)
    model.train(5)
    stages, iterations = dict.fromkeys(STAGES, 0.0), []
    for _ in range(n_updates):
        iterations.append(staged_update(model, problem, stages))
    # Solves take fewer iterations as training goes on, and now and then a coarse model is built: many updates tell what one
    # costs in a run.
    n_timed = 100 if n <= (1_000_000 if device == "cuda" else 100_000) else n_updates
    processor_start = time.process_time()
    seconds = seconds_of(lambda: model.train(n_timed), device) / n_timed
    processor_seconds = (time.process_time() - processor_start) / n_timed
    peak = _peak_memory(device) - memory_before
    row = {
        "n": n,
        "device": device,
        "weights": model.estimator.settings.samples.weights,
        "pessimism": model.estimator.settings.samples.pessimism,
        "precision": model.estimator.settings.samples.precision,
        "n_neighbors": problem.queries.neighbors.n_neighbors,
        "truncation_error": problem.queries.neighbors.truncation_error,
        "neighbor_seconds": seconds_of(find, device),
        "preparation_seconds": preparation,
        "update_seconds": seconds,
        "updates_timed": n_timed,
        # What the processors worked for it, all threads together: other programs do not count in.
        "update_processor_seconds": processor_seconds,
        "stages": {stage: total / n_updates for stage, total in stages.items()},
        "q_iterations": float(np.mean([pair[0] for pair in iterations])),
        "visitation_iterations": float(np.mean([pair[1] for pair in iterations])),
        "peak_bytes": peak,
        "estimated_bytes": size_of(model, _dataset(model), problem.n_initial_states).total,
        **product_figures(problem, bandwidth),
    }
    _show(row)
    return row


def _dataset(model: NOPG) -> TransitionDataset:
    assert model.dataset is not None
    return model.dataset


def _show(row: dict[str, Any]) -> None:
    stages = " ".join(f"{stage} {1e3 * seconds:.2f}" for stage, seconds in row["stages"].items())
    update_ms, processor_ms = (1e3 * row[name] for name in ("update_seconds", "update_processor_seconds"))
    print(
        f"{row['device']} n={row['n']} {row['weights']} κ={row['pessimism']} lists {row['neighbor_seconds']:.2f} s, "
        f"update {update_ms:.2f} ms, {processor_ms:.2f} ms of processor ({stages}), "
        f"iterations {row['q_iterations']:.1f} and {row['visitation_iterations']:.1f}, "
        f"left out {row['truncation_error']:.1e}, {row['peak_bytes'] / 1e6:.0f} MB "
        f"(stated {row['estimated_bytes'] / 1e6:.0f}), "
        + ", ".join(f"{name} {value:.3g}" for name, value in row.items() if "product" in name),
        flush=True,
    )


def _memory_before(device: str) -> int:
    """What is in use already, to be taken off the peak that follows."""
    if device == "cuda":
        th.cuda.reset_peak_memory_stats()
    return _peak_memory(device)


def _peak_memory(device: str) -> int:
    if device == "cuda":
        return th.cuda.max_memory_allocated()
    return peak_memory_bytes()


def _measure_apart(n: int, device: str, bandwidth: float, threads: int, arguments: dict[str, Any]) -> dict[str, Any]:
    th.set_num_threads(threads)
    # What a first run loads and never gives back is not what a size costs.
    warm_up = our_model(300, device, n_neighbors=16, weights=arguments["weights"])
    warm_up._setup_learn(1)
    warm_up.train(2)
    return measure(n, device, bandwidth, **arguments)


def updates(device: str, sizes: tuple[int, ...], threads: int, forms: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """What is measured so far, after each case."""
    bandwidth = copy_bandwidth(device)
    print(f"{device}: copies at {bandwidth / 1e9:.1f} GB/s, {threads} threads", flush=True)
    rows = []
    cases: list[tuple[int, dict[str, Any]]] = [(n, {"weights": weights}) for n in sizes for weights in forms]
    if 1_000_000 in sizes and "local_linear" in forms:
        cases.append((1_000_000, {"weights": "local_linear", "pessimism": 1e-3}))
    if 1_000_000 in sizes and "local_constant" in forms:
        cases.append((1_000_000, {"weights": "local_constant", "precision": "float32"}))
    for n, arguments in cases:
        if device == "cuda":
            rows.append(measure(n, device, bandwidth, **arguments))
            th.cuda.empty_cache()
        else:
            # A process for each size, whose peak of memory is then that size's own.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append(pool.apply(_measure_apart, (n, device, bandwidth, threads, arguments)))
        yield {"updates": {device: {"copy_bandwidth": bandwidth, "threads": threads, "rows": rows}}}


def accuracy(device: str, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Ĵ, values and gradient with 64 neighbours beside all of them, or 512 where all do not fit."""
    rows = []
    for n in sizes:
        data = random_cartpole(n)
        bandwidth = fitting_bandwidth(data["observations"], device)
        reference = None if n <= 10_000 else 512
        for weights in ("local_constant", "local_linear"):
            ours, better = (
                _answers(our_model(n, device, bandwidth, n_neighbors=k, weights=weights)) for k in (N_NEIGHBORS, reference)
            )
            row = {"n": n, "weights": weights, "reference": "all" if reference is None else reference}
            for name, (mine, theirs) in {name: (ours[name], better[name]) for name in ours}.items():
                row[f"{name}_error"] = float((mine - theirs).norm() / theirs.norm())
            rows.append(row)
            print(row, flush=True)
            yield {"accuracy": rows}


def _answers(model: NOPG) -> dict[str, th.Tensor]:
    """For the policy that training starts from."""
    problem = model.estimator.problem
    actions = model.evaluation.policy_actions()
    with th.no_grad():
        weights = problem.support.kernel_weights(problem.queries, actions)
        solution = solve_bellman(problem, weights, None, 1e-10)
        derivative = derivative_on_samples(problem, solution)
    actions.backward(derivative)
    gradient = th.cat([parameter.grad.reshape(-1) for parameter in model.policy.parameters() if parameter.grad is not None])
    return {"return": th.tensor([solution.estimated_return]), "values": solution.q_values, "gradient": gradient}


def ranks(n: int) -> Iterator[dict[str, Any]]:
    """One, two and four processes of one thread each, exchanging by gloo."""
    rows = []
    for n_ranks in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "row.json"
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}", __file__]
            command = [sys.executable, *launch, "rank", "--sizes", str(n), "--output", str(output)]
            # Without the GPUs, of which there may be fewer than processes.
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
            figures = json.loads(output.read_text())
            rows.append({"n": n, "ranks": n_ranks, **{name: figures[name] for name in RANK_FIGURES}})
        print(rows[-1], flush=True)
        yield {"ranks": rows}


def rank(n: int) -> Iterator[dict[str, Any]]:
    """What each process of :func:`ranks` does."""
    with process_group(timeout_s=300):
        model = our_model(n, "cpu", distributed=True)
        preparation = seconds_of(lambda: model.estimator.problem, "cpu")
        model._setup_learn(1)
        model.train(5)
        seconds = seconds_of(lambda: model.train(10), "cpu") / 10
        if model.processes.is_main:
            yield dict(zip(RANK_FIGURES, (seconds, preparation), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["updates", "accuracy", "ranks", "rank"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--weights", nargs="+", default=FORMS, choices=FORMS, help="of updates")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    th.set_num_threads(1 if arguments.what == "rank" else arguments.threads)
    start_conditions = conditions(("torch", "numpy", "scipy"))
    if arguments.what == "updates":
        results = updates(
            arguments.device, tuple(arguments.sizes or SIZES[arguments.device]), arguments.threads, arguments.weights
        )
    elif arguments.what == "accuracy":
        results = accuracy(arguments.device, tuple(arguments.sizes or (1_000, 3_162, 10_000, 100_000)))
    elif arguments.what == "ranks":
        results = ranks((arguments.sizes or [100_000])[0])
    else:
        results = rank(arguments.sizes[0])
    # Each time there is more to write, so that a run which is interrupted leaves what it had.
    for result in results:
        arguments.output.write_text(json.dumps({**result, "conditions": start_conditions}, indent=2) + "\n")


if __name__ == "__main__":
    main()
