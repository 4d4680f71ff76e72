"""
Control steps a second of the simulated cart-pole, one cart and many, beside Gymnasium's ``CartPole-v1``.

    python benchmarks/env_speed.py

``CartPole-v1`` takes one Euler step for each control step, ours ten Runge-Kutta steps of four evaluations, delay and sensors.
"""

import os

# One thread, and it must be said before NumPy is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from machine import conditions
from nopg_envs.cartpole import CartPoleVectorEnv, register

OURS, THEIRS = "nopg/QuanserCartPoleBalance-v0", "CartPole-v1"
BATCHES = (10, 100, 1000, 2000)
N_ROUNDS = 15
N_SINGLE_STEPS = 2000
N_BATCH_CART_STEPS = 20_000
N_LONG_RUN_CARTS, N_LONG_RUN_STEPS = 100, 10_000
SEED = 0
RESULT = Path(__file__).parent / "results" / "env_speed.json"


def single_rate(env: gym.Env, actions: list[Any]) -> float:
    """
    :param env: environment, which starts over whenever an episode ends
    :param actions: to take one after the other
    :return: steps a second, resets included
    """
    env.reset(seed=SEED)
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions) / (time.perf_counter() - start)


def batch_seconds(env: CartPoleVectorEnv, n_steps: int) -> float:
    """
    :param env: carts, which start over by themselves
    :param n_steps: control steps of each
    :return: seconds
    """
    env.reset(seed=SEED)
    actions = np.random.default_rng(SEED).uniform(-1.0, 1.0, size=(16, env.num_envs, 1)).astype(np.float32)
    start = time.perf_counter()
    for step in range(n_steps):
        env.step(actions[step % len(actions)])
    return time.perf_counter() - start


def measurements() -> dict[str, Callable[[], float]]:
    """What is measured, each returning control steps a second."""
    rng = np.random.default_rng(SEED)
    theirs, ours = gym.make(THEIRS), gym.make(OURS)
    pushes = rng.integers(2, size=N_SINGLE_STEPS).tolist()
    voltages = list(rng.uniform(-1.0, 1.0, size=(N_SINGLE_STEPS, 1)).astype(np.float32))
    measured: dict[str, Callable[[], float]] = {
        THEIRS: lambda: single_rate(theirs, pushes),
        "single": lambda: single_rate(ours, voltages),
    }
    for n_carts in BATCHES:
        batch, n_steps = CartPoleVectorEnv(n_carts, task="balance"), max(N_BATCH_CART_STEPS // n_carts, 20)
        measured[f"batch of {n_carts}"] = lambda batch=batch, n_steps=n_steps: (  # type: ignore[misc]
            batch.num_envs * n_steps / batch_seconds(batch, n_steps)
        )
    return measured


def main() -> None:
    if OURS not in gym.registry:
        register()
    measured = measurements()
    # In turns, and the fastest of each: other work on the machine only ever adds, and meets all of them alike.
    rates = {name: 0.0 for name in measured}
    for _ in range(N_ROUNDS):
        for name, rate in measured.items():
            rates[name] = max(rates[name], rate())
    print(f"{'':>16} {'control steps/s':>16} {'/ CartPole-v1':>14} {'/ single':>9}")
    for name, rate in rates.items():
        print(f"{name:>16} {rate:16,.0f} {rate / rates[THEIRS]:14.2f} {rate / rates['single']:9.1f}")
    seconds = batch_seconds(CartPoleVectorEnv(N_LONG_RUN_CARTS), N_LONG_RUN_STEPS)
    print(f"{N_LONG_RUN_CARTS} carts for {N_LONG_RUN_STEPS:,} control steps: {seconds:.1f} s")
    result = {
        "conditions": conditions(("gymnasium", "numpy")),
        "seed": SEED,
        "control_steps_per_second": {name: round(rate) for name, rate in rates.items()},
        "single_over_cartpole_v1": round(rates["single"] / rates[THEIRS], 3),
        "batch_over_single": {str(n): round(rates[f"batch of {n}"] / rates["single"], 2) for n in BATCHES},
        "long_run": {"carts": N_LONG_RUN_CARTS, "control_steps": N_LONG_RUN_STEPS, "seconds": round(seconds, 2)},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
