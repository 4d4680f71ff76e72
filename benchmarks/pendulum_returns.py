"""
Undiscounted return of policies learned from a grid of pendulum transitions, every seed, beside the paper's numbers.

    python benchmarks/pendulum_returns.py [--seeds 3]

500 steps from hanging; the paper's appendix has the same grid and gives means over ten runs of NOPG-D.
"""

import os

# One thread, and it must be said before NumPy is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch as th

import nopg_envs
from machine import conditions
from sb3_nopg import NOPG, TransitionDataset

GAMMA = 0.97
UPDATES = 400
HANGING = [-1.0, 0.0, 0.0]
GRIDS = {200: (10, 10, 2), 450: (15, 15, 2), 800: (20, 20, 2), 3200: (40, 40, 2)}
PAPER = {200: -3775, 450: -593, 800: -579, 3200: -432}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "effective neighbours": {
        name: "effective_neighbors" for name in ("state_bandwidth", "action_bandwidth", "next_state_bandwidth")
    },
    "local-linear": {"weights": "local_linear"},
}
RESULT = Path(__file__).parent / "results" / "pendulum_returns.json"


def actual_return(model: NOPG, env: gym.Env) -> float:
    """
    :return: sum of rewards over one episode from hanging
    """
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, … below this")
    arguments = parser.parse_args()
    th.set_num_threads(1)
    env = gym.make("nopg/Pendulum-v0")
    rows = []
    for n, levels in GRIDS.items():
        data = TransitionDataset(**nopg_envs.grid(env, levels=levels))
        for name, settings in SETTINGS.items():
            returns, start = [], time.perf_counter()
            for seed in range(arguments.seeds):
                model = NOPG(
                    "MlpPolicy", env, dataset=data, gamma=GAMMA, initial_states=HANGING, seed=seed, device="cpu", **settings
                )
                returns.append(round(actual_return(model.learn(UPDATES, log_interval=None), env)))
            seconds = round((time.perf_counter() - start) / arguments.seeds, 1)
            rows.append({"n": n, "settings": name, "returns": returns, "paper": PAPER[n], "seconds": seconds})
            print(f"| {n} | {name} | {' '.join(map(str, returns))} | {PAPER[n]} | {seconds} |", flush=True)
    RESULT.write_text(
        json.dumps({"conditions": conditions(("numpy", "torch")), "updates": UPDATES, "gamma": GAMMA, "rows": rows}, indent=2)
        + "\n"
    )


if __name__ == "__main__":
    main()
