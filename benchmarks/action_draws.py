"""
How exact NOPG-S's gradient on samples is with so many draws of the action at each state, independent ones as in the paper and
spread ones: root mean square distance to the gradient from very many, as a share of its length, over ten draws of the noise.
With the weights of first order, of an untrained policy and of one after 40 updates.

    python benchmarks/action_draws.py            # about a minute and a half
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

from machine import conditions
from sb3_nopg import NOPG, NOPGS, TransitionDataset
from sb3_nopg.bellman.action_noise import independent_normals, spread_normals
from sb3_nopg.bellman.gradient import gradient_on_samples
from sb3_nopg.bellman.on_samples import WarmStart
from scale_problem import random_cartpole
from update_time import INITIAL_STATES, pendulum_grid

RESULT = Path(__file__).parent / "results" / "action_draws.json"
SEEDS = range(10)
KINDS = {"independent": independent_normals, "spread": spread_normals}
COUNTS = {"independent": (15,), "spread": (3, 4, 5, 6, 8, 15)}
# Of spread ones, four times.
N_OF_REFERENCE, REFERENCE_SEEDS = 64, range(100, 104)
N_UPDATES = (1, 40)


def tasks() -> dict[str, tuple[dict[str, np.ndarray], np.ndarray, float]]:
    """Data, start states and discount of each."""
    return {
        "pendulum, grid": (pendulum_grid(15), INITIAL_STATES, 0.97),
        "cart-pole, random": (random_cartpole(1000), random_cartpole(50)["observations"][:5], 0.99),
        "two actions": (two_actions(600), np.array([[0.5, 0.5], [-0.5, 0.2]]), 0.95),
    }


def two_actions(n: int) -> dict[str, np.ndarray]:
    """Transitions of a plane in which one action turns what the other one pushes."""
    generator = np.random.default_rng(0)
    states, actions = generator.uniform(-1, 1, (n, 2)), generator.uniform(-1, 1, (n, 2))
    crossed = 0.05 * states[:, :1] * actions[:, ::-1]
    rewards = -(states**2).sum(axis=1) - 0.1 * (actions**2).sum(axis=1) - states[:, 0] * actions[:, 0] * actions[:, 1]
    return {
        "observations": states,
        "actions": actions,
        "rewards": rewards,
        "next_observations": 0.95 * states + 0.1 * actions + crossed,
        "terminals": np.zeros(n, dtype=bool),
    }


def gradient(model: NOPG, kind: str, n: int, seed: int) -> np.ndarray:
    problem = model.estimator.problem
    noise = KINDS[kind]((problem.n_queries, n, problem.support.actions.shape[1]), th.Generator().manual_seed(seed), th.float64)
    model.policy.zero_grad()
    gradient_on_samples(problem, model.policy, noise, WarmStart(), 1e-8)
    return np.concatenate([p.grad.numpy().ravel() for p in model.policy.parameters() if p.grad is not None])


def errors(model: NOPG) -> dict[str, float]:
    """By kind and number of draws."""
    reference = np.mean([gradient(model, "spread", N_OF_REFERENCE, seed) for seed in REFERENCE_SEEDS], axis=0)
    length = float(np.linalg.norm(reference))
    found = {}
    for kind, counts in COUNTS.items():
        for n in counts:
            distances = [np.linalg.norm(gradient(model, kind, n, seed) - reference) / length for seed in SEEDS]
            found[f"{n} {kind}"] = float(np.sqrt(np.mean(np.square(distances))))
    return found


def main() -> None:
    th.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    told = conditions(("torch", "numpy"))
    for name, (data, starts, gamma) in tasks().items():
        for n_updates in N_UPDATES:
            model = NOPGS(
                "MlpPolicy",
                None,
                gamma=gamma,
                seed=0,
                device="cpu",
                dataset=TransitionDataset(**data),
                initial_states=starts,
                transitions="samples",
            ).learn(n_updates, log_interval=None)
            rows.append({"task": name, "updates": n_updates, **errors(model)})
            print(name, n_updates, *(f"{draws}: {error:.3f}" for draws, error in list(rows[-1].items())[2:]), sep="  ")
    RESULT.write_text(json.dumps({"conditions": told, "seeds": list(SEEDS), "errors": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
