"""The data and the model that ``scale.py`` measures."""

from typing import Any

import numpy as np
import torch as th

from sb3_nopg import NOPG, NOPGD, TransitionDataset
from sb3_nopg.bellman.settings import grouped
from sb3_nopg.kernels.neighbors import find_neighbors

GAMMA, SEED, N_NEIGHBORS = 0.99, 0, 64


def random_cartpole(n: int) -> dict[str, np.ndarray]:
    """Position, cosine and sine of the angle, two speeds; force. One step of 20 ms."""
    rng = np.random.default_rng(SEED)
    x, theta, speed, spin = (rng.uniform(-high, high, n) for high in (1.0, np.pi, 2.0, 8.0))
    force = rng.uniform(-1, 1, n)
    spin_next = np.clip(spin + 0.02 * (15 * np.sin(theta) - 10 * force * np.cos(theta)), -8, 8)
    speed_next = np.clip(speed + 0.02 * 10 * force, -2, 2)
    theta_next, x_next = theta + 0.02 * spin_next, np.clip(x + 0.02 * speed_next, -1, 1)
    return {
        "observations": np.column_stack([x, np.cos(theta), np.sin(theta), speed, spin]),
        "actions": force[:, None],
        "rewards": np.cos(theta) - 0.1 * x**2,
        "next_observations": np.column_stack([x_next, np.cos(theta_next), np.sin(theta_next), speed_next, spin_next]),
        "terminals": np.zeros(n, dtype=bool),
    }


def fitting_bandwidth(observations: np.ndarray, device: str, n_neighbors: int = N_NEIGHBORS) -> np.ndarray:
    """For which the neighbours at hand hold most of a state's kernel mass: the last one lies at 3.5 bandwidths."""
    samples, spread = th.tensor(observations, device=device), th.tensor(observations.std(axis=0), device=device)
    lists = find_neighbors(samples[:512], samples, spread, min(n_neighbors, len(samples)))
    farthest = (-2.0 * lists.log_state_kernel[:, -1]).sqrt().median()
    return (spread * farthest / 3.5).cpu().numpy()


def our_model(n: int, device: str, bandwidth: np.ndarray | None = None, **arguments: Any) -> NOPG:
    data = random_cartpole(n)
    bandwidth = fitting_bandwidth(data["observations"], device) if bandwidth is None else bandwidth
    settings = {
        "n_neighbors": N_NEIGHBORS,
        "weights": "local_constant",
        "pessimism": 0.0,
        **arguments,
    }
    return NOPGD(
        "MlpPolicy",
        None,
        gamma=GAMMA,
        seed=SEED,
        device=device,
        dataset=TransitionDataset(**data),
        initial_states=[[0.0, -1.0, 0.0, 0.0, 0.0]],
        transitions="samples",
        **grouped({"state_bandwidth": bandwidth, "next_state_bandwidth": bandwidth, "action_bandwidth": 0.5, **settings}),
    )
