"""Recordings of a point that is pushed about on a line."""

import numpy as np

from sb3_nopg import TransitionDataset


def pushed_point(n_episodes: int = 12, n_steps: int = 15, seed: int = 0) -> TransitionDataset:
    """A point with some friction, pushed at random; the reward is best in the middle."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(n_episodes):
        position, speed = rng.uniform(-1, 1), 0.0
        for _ in range(n_steps):
            force = rng.uniform(-1, 1)
            moved = (position + 0.1 * speed, 0.9 * speed + 0.2 * force)
            rows.append((position, speed, force, -(position**2), *moved, episode))
            position, speed = moved
    table = np.array(rows)
    return TransitionDataset(
        observations=table[:, :2],
        actions=table[:, 2:3],
        rewards=table[:, 3],
        next_observations=table[:, 4:6],
        terminals=np.zeros(len(table), dtype=bool),
        episode_ids=table[:, 6].astype(int),
    )
