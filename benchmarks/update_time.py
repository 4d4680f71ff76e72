"""
Seconds and memory of one policy update with the paper's weights, beside a dense autograd implementation of them in the same
process and on one thread, and how many times that our weights of first order take: with as many draws of the action at each
state, and with as many as there are by default. Then the same of trajectories through a model, with their gradient.

    python benchmarks/update_time.py            # everything, about seven minutes
    python benchmarks/update_time.py --quick    # small sizes only
"""

import os

# One thread, and it must be said before NumPy and torch are imported.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

import nopg_envs
from dense_autograd import DenseNOPG
from machine import conditions, peak_memory_bytes
from sb3_nopg import NOPG, NOPGD, NOPGS, SampleSettings, TransitionDataset
from sb3_nopg.bellman.bundle import Bundle, follow_policy
from sb3_nopg.bellman.gradient import gradient_along_trajectories
from sb3_nopg.bellman.settings import grouped
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import draw_noise
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import remembered
from scale_problem import random_cartpole

RESULT = Path(__file__).parent / "results" / "update_time.json"
GAMMA, SEED, N_ACTION_SAMPLES = 0.97, 0, 15
AS_PRINTED = {"n_action_samples": N_ACTION_SAMPLES, "spread_actions": False, "weights": "local_constant"}
BY_DEFAULT = {name: getattr(SampleSettings(), name) for name in AS_PRINTED}
INITIAL_STATES = np.array([[-1.0, 0.0, 0.0]])
GRIDS = {200: 10, 450: 15, 800: 20, 1250: 25, 1800: 30, 3200: 40}
LARGEST = {"D": 3200, "S": 1800}
GROWTH_SIZES = (1_000, 3_162, 10_000, 31_623, 100_000)
GROWTH_NEIGHBORS = 64
STAGES = ("policy", "weights", "solve", "gradient", "step")
N_UPDATES = 40
N_TRAJECTORIES, N_STEPS, N_TRANSITIONS = 64, 100, 5_000


def pendulum_grid(n_levels: int) -> dict[str, np.ndarray]:
    return nopg_envs.grid(gym.make("nopg/Pendulum-v0"), (n_levels, n_levels, 2))


def random_pendulum(n: int) -> dict[str, np.ndarray]:
    """Transitions from states and torques drawn uniformly: a data set of any size whose density, not its range, grows."""
    rng = np.random.default_rng(SEED)
    theta, speed, torque = rng.uniform(-np.pi, np.pi, n), rng.uniform(-8, 8, n), rng.uniform(-2, 2, n)
    next_speed = np.clip(speed + (15 * np.sin(theta) + 3 * torque) * 0.05, -8, 8)
    next_theta = theta + 0.05 * next_speed
    return {
        "observations": np.column_stack([np.cos(theta), np.sin(theta), speed]),
        "actions": torque[:, None],
        "rewards": -(theta**2) - 0.1 * speed**2 - 0.001 * torque**2,
        "next_observations": np.column_stack([np.cos(next_theta), np.sin(next_theta), next_speed]),
        "terminals": np.zeros(n, dtype=bool),
    }


def our_model(data: dict[str, np.ndarray], variant: str, **arguments: Any) -> NOPG:
    env = gym.make("nopg/Pendulum-v0")
    return (NOPGS if variant == "S" else NOPGD)(
        "MlpPolicy",
        env,
        gamma=GAMMA,
        seed=SEED,
        device="cpu",
        dataset=TransitionDataset(**data),
        initial_states=INITIAL_STATES,
        transitions="samples",
        # By name: the paper's are not the default.
        **grouped({**AS_PRINTED, **arguments}),
    )


def dense_model(data: dict[str, np.ndarray], variant: str, model: NOPG) -> DenseNOPG:
    assert model.bandwidths is not None
    n_samples = None if variant == "D" else N_ACTION_SAMPLES
    return DenseNOPG(
        data,
        INITIAL_STATES,
        model.bandwidths.state,
        model.bandwidths.action,
        GAMMA,
        2.0,
        n_action_samples=n_samples,
        seed=SEED,
    )


def time_updates(model: NOPG, n_updates: int) -> tuple[float, dict[str, float]]:
    """Mean seconds an update of a model in the middle of training, and of its stages."""
    stages = dict.fromkeys(STAGES, 0.0)

    def collect(local_variables: dict[str, Any], _: dict[str, Any]) -> bool:
        logged = local_variables["self"].logger.name_to_value
        for stage in STAGES:
            stages[stage] += logged[f"time/{stage}_seconds"] / n_updates
        return True

    start = time.perf_counter()
    model.learn(n_updates, callback=collect, log_interval=None, reset_num_timesteps=False)
    return (time.perf_counter() - start) / n_updates, stages


def time_first_order(model: NOPG) -> float:
    """Mean seconds an update."""
    model.learn(5, log_interval=None)
    return time_updates(model, N_UPDATES // 4)[0]


def data_of(kind: str, n: int) -> dict[str, np.ndarray]:
    return pendulum_grid(GRIDS[n]) if kind == "grid" else random_pendulum(n)


def settings_of(kind: str) -> dict[str, float]:
    """A grid's bandwidths serve as they are; scattered samples need wider ones than the density's."""
    return {} if kind == "grid" else {"state_bandwidth_factor": 5.0, "action_bandwidth_factor": 20.0}


def same_neighbors(model: NOPG) -> dict[str, Any]:
    """So that two kinds of weights are compared on lists of one length."""
    return {"n_neighbors": model.estimator.problem.queries.neighbors.n_neighbors}


def compare(kind: str, variant: str, n: int) -> dict[str, Any]:
    data = data_of(kind, n)
    model = our_model(data, variant, **settings_of(kind))
    dense = dense_model(data, variant, model)
    model.learn(5, log_interval=None)
    dense.update()
    # Ours, theirs, ours: a machine that slows down in between slows both.
    first, stages = time_updates(model, N_UPDATES)
    n_dense = 2 if n > 1000 else 10
    start = time.perf_counter()
    for _ in range(n_dense):
        dense.update()
    dense_seconds = (time.perf_counter() - start) / n_dense
    second, _ = time_updates(model, N_UPDATES)
    seconds = (first + second) / 2
    own_settings = {**settings_of(kind), **same_neighbors(model)}
    first_order_seconds = time_first_order(our_model(data, variant, weights="local_linear", **own_settings))
    default_seconds = time_first_order(our_model(data, variant, **BY_DEFAULT, **own_settings))
    row = {
        "data": kind,
        "variant": variant,
        "n": n,
        "n_neighbors": model.estimator.problem.queries.neighbors.n_neighbors,
        "seconds": seconds,
        "dense_seconds": dense_seconds,
        "ratio": dense_seconds / seconds,
        "first_order_seconds": first_order_seconds,
        "first_order_ratio": first_order_seconds / seconds,
        "default_seconds": default_seconds,
        "default_ratio": default_seconds / seconds,
        "memory_mb": peak_memory(kind, variant, n, "ours"),
        "dense_memory_mb": peak_memory(kind, variant, n, "dense"),
        "stages": stages,
    }
    print(
        f"{kind:6} {variant} {n:6d} {row['n_neighbors']:5d} {1e3 * seconds:10.2f} {1e3 * dense_seconds:10.1f}"
        f" {row['ratio']:8.1f} {row['first_order_ratio']:8.1f} {row['default_ratio']:8.1f}"
        f" {row['memory_mb']:9.0f} {row['dense_memory_mb']:9.0f}   " + stage_columns(stages),
        flush=True,
    )
    return row


def stage_columns(stages: dict[str, float]) -> str:
    return " ".join(f"{1e3 * stages[stage]:8.2f}" for stage in STAGES)


def peak_memory(kind: str, variant: str, n: int, which: str) -> float:
    """Megabytes at the peak of a process of its own that makes three updates, imports included."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak_memory, (kind, variant, n, which))


def _peak_memory(kind: str, variant: str, n: int, which: str) -> float:
    th.set_num_threads(1)
    data = data_of(kind, n)
    model = our_model(data, variant, **settings_of(kind))
    dense = dense_model(data, variant, model)
    for _ in range(3):
        if which == "ours":
            model.learn(1, log_interval=None)
        else:
            dense.update()
    return peak_memory_bytes() / 2**20


def growth(sizes: tuple[int, ...]) -> tuple[list[dict[str, Any]], float]:
    """Seconds an update at a fixed number of neighbours, and the exponent of their growth with n."""
    rows = []
    for n in sizes:
        data = random_pendulum(n)
        # The bandwidth for which the 64 nearest samples hold all but about a hundredth of any state's kernel mass, whatever
        # the density: states lie on a cylinder, so distances shrink with the square root of n.
        bandwidth = data["observations"].std(axis=0) * 6.5 / np.sqrt(n)
        model = our_model(data, "D", n_neighbors=GROWTH_NEIGHBORS, state_bandwidth=bandwidth, action_bandwidth=1.0)
        start = time.perf_counter()
        problem = model.estimator.problem
        preparation = time.perf_counter() - start
        model.learn(5, log_interval=None)
        seconds, stages = time_updates(model, 20)
        truncation_error = problem.queries.neighbors.truncation_error
        rows.append(
            {
                "n": n,
                "preparation_seconds": preparation,
                "seconds": seconds,
                "truncation_error": truncation_error,
                "stages": stages,
            }
        )
        print(
            f"{n:8d} {preparation:9.2f} {1e3 * seconds:10.2f} {truncation_error:10.1e}   " + stage_columns(stages), flush=True
        )
    exponent = np.polyfit(np.log([row["n"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)[0]
    return rows, float(exponent)


def affine_system(n: int) -> dict[str, np.ndarray]:
    """Transitions of a damped mass that a force pushes, for which one affine map is all there is to know."""
    rng = np.random.default_rng(SEED)
    states, forces = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, (n, 1))
    return {
        "observations": states,
        "actions": forces,
        "rewards": -(states**2).sum(axis=1) - 0.1 * forces[:, 0] ** 2,
        "next_observations": states @ np.array([[1.0, 0.0], [0.05, 0.98]]) + forces @ np.array([[0.0, 0.1]]),
        "terminals": np.zeros(n, dtype=bool),
    }


def network_alone(dynamics: DynamicsModel, policy: NOPGPolicy, bundle: Bundle) -> None:
    """What the policy's network takes of a gradient: its actions one step after the other, their slopes, the backward pass."""
    steps, seen = remembered(policy), dynamics.coordinates.decode(bundle.starts).numpy()
    for _ in range(bundle.n_steps):
        steps(seen, None)
    actions, _ = steps.answers()
    steps.push_back(th.ones_like(actions))


def trajectories(name: str, data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Seconds of 64 trajectories of 100 steps through the model, with their gradient."""
    starts = data["observations"][:N_TRAJECTORIES]
    model = NOPGD(
        "MlpPolicy", None, gamma=0.99, seed=SEED, device="cpu", dataset=TransitionDataset(**data), initial_states=starts
    )
    dynamics = model.estimator.dynamics
    noise = draw_noise(dynamics, N_STEPS, N_TRAJECTORIES, th.Generator().manual_seed(SEED))
    bundle = Bundle(dynamics.coordinates.encode(th.from_numpy(starts)), N_STEPS, 0.99, noise)
    seconds = {}
    work_of = {"forward": follow_policy, "whole": gradient_along_trajectories, "network": network_alone}
    for part, work in work_of.items():
        work(dynamics, model.policy, bundle)
        start, processor_start = time.perf_counter(), time.process_time()
        for _ in range(10):
            work(dynamics, model.policy, bundle)
        seconds[f"{part}_seconds"] = (time.perf_counter() - start) / 10
        seconds[f"{part}_processor_seconds"] = (time.process_time() - processor_start) / 10
    row = {"system": name, "n_maps": [len(field.between.nodes) for field in dynamics.nodes.fields], **seconds}
    print(f"{name:10}" + " ".join(f"{1e3 * value:10.1f}" for value in seconds.values()) + f"   {row['n_maps']}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only; writes no file")
    quick = parser.parse_args().quick
    th.set_num_threads(1)
    # Far kernels underflow through numbers that processors handle slowly; the dense code, which keeps them all, would suffer
    # most.
    th.set_flush_denormal(True)
    start_conditions = conditions(("torch", "numpy", "scipy", "stable-baselines3"))

    stage_names = " ".join(f"{stage:>8}" for stage in STAGES)
    print(f"\nOne update, ms, {N_UPDATES * 2} updates of ours; peak memory, MB; our stages, ms")
    print(f"data          n     k       ours      dense    ratio  1st ord.  default      ours     dense   {stage_names}")
    cases = [("grid", variant, n) for variant in ("D", "S") for n in GRIDS if n <= (450 if quick else LARGEST[variant])]
    # Scattered samples make another system than a grid's.
    comparison = [compare(*case) for case in [*cases, ("random", "D", 450 if quick else 3200)]]
    print(f"\nGrowth with n at k = {GROWTH_NEIGHBORS}, ms an update; seconds of preparation; state-kernel mass left out")
    print(f"       n   prepare     update  truncated   {stage_names}")
    rows, exponent = growth(GROWTH_SIZES[:2] if quick else GROWTH_SIZES)
    print(f"exponent of growth: {exponent:.2f}")
    print(f"\n{N_TRAJECTORIES} trajectories of {N_STEPS} steps, n = {N_TRANSITIONS}, ms: forward, with their gradient,")
    print("the network alone; each by the clock and by the processor; numbers of maps")
    systems = {"affine": affine_system, "pendulum": random_pendulum, "cart-pole": random_cartpole}
    names = list(systems)[: 1 if quick else None]
    along = [trajectories(name, systems[name](N_TRANSITIONS)) for name in names]
    if not quick:
        result = {
            "conditions": start_conditions,
            "comparison": comparison,
            "growth": rows,
            "growth_exponent": exponent,
            "trajectories": along,
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
