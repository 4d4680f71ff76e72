"""Data as others write them: trajectories, the authors' arrays of objects, flight logs."""

import numpy as np
from gymnasium import spaces

from nopg_robot.flight.recorder import FlightRecorder, Sample
from sb3_nopg import TransitionDataset


def trajectories(lengths=(4, 3), seed=0, dtype=np.float64):
    """Episodes in which each state follows the one before; the first ends for good, the others by the clock."""
    rng = np.random.default_rng(seed)
    records = [rng.normal(size=(length + 1, 2)).astype(dtype) for length in lengths]
    n, last = sum(lengths), np.cumsum(lengths) - 1
    return TransitionDataset(
        observations=np.concatenate([record[:-1] for record in records]),
        actions=rng.uniform(-1, 1, size=(n, 1)).astype(dtype),
        rewards=rng.normal(size=n).astype(dtype),
        next_observations=np.concatenate([record[1:] for record in records]),
        terminals=np.arange(n) == last[0],
        timeouts=np.isin(np.arange(n), last[1:]),
        episode_ids=np.repeat(np.arange(len(lengths)), lengths),
        observation_space=spaces.Box(-np.inf, np.inf, (2,), dtype=dtype),
        action_space=spaces.Box(-1, 1, (1,), dtype=dtype),
    )


def write_npy(path, trajectories):
    array = np.empty(len(trajectories), dtype=object)
    for number, trajectory in enumerate(trajectories):
        array[number] = trajectory
    np.save(path, array, allow_pickle=True)
    return path


def steps(n, d_s=2, first=0.0, done=True):
    """As the authors' own code makes them: an object array of (s, a, r, s', done)."""
    result = np.empty((n, 5), dtype=object)
    for row in range(n):
        state = first + np.arange(d_s) + row
        result[row] = [None] * 5
        for column, part in enumerate((state, np.array([0.5 * row]), -float(row), state + 1, done and row == n - 1)):
            result[row, column] = part
    return result


def record_flight(path):
    with FlightRecorder(path, {}) as recorder:
        for number in range(41):
            recorder.record(
                Sample(
                    0.002 * number,
                    "run",
                    0.0,
                    0.0,
                    0.01 * number,
                    0.02 * number,
                    0.1,
                    0.2,
                    1.0,
                    1.0,
                    0.0,
                    0.0,
                    number % 10 == 0,
                    0,
                )
            )
        recorder.end_episode(0, "time", False)
    return path
