"""Recordings of a simulated rig in which the pole hangs, swings and is held up, in the layout of a real one's files."""

from pathlib import Path

import numpy as np

from helpers.simulated_recordings import DT_S, chirp, record
from nopg_envs.cartpole.parameters import PARAMETER_SETS


def record_swings(folder: Path, n: int = 4, seconds: float = 4.0) -> Path:
    """Half of them chirps from hanging, half steps of random height from about upright."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, parameters = np.random.default_rng(0), PARAMETER_SETS["identified"]
    for number in range(n):
        if number % 2 == 0:
            voltage, angle = chirp(seconds, amplitude=2.0 + 0.3 * number), np.pi - 0.2 * number
        else:
            steps = rng.uniform(-3.0, 3.0, size=round(seconds / 0.2) + 1)
            voltage, angle = np.repeat(steps, round(0.2 / DT_S))[: round(seconds / DT_S)], 0.05 * number
        record(folder / f"swing_{number}.npz", parameters, voltage, (0.0, float(angle), 0.0, 0.0), fine_s=DT_S)
    return folder
