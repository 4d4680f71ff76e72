"""How much a policy moves its actuator: what wears a motor out, and shows that a policy holds still by trembling."""

from dataclasses import dataclass

import numpy as np

# Frequencies above this share of the highest that can be seen are fast: a period of less than four steps.
_FAST = 0.5


@dataclass(frozen=True)
class Chatter:
    """
    :param change: mean change of the action from step to step, as a share of its range
    :param fast: share of the actions' variance that is faster than a period of four steps; about one half for white noise
    """

    change: float
    fast: float

    def text(self) -> str:
        return f"{100 * self.change:.2g} % of its range a step, {100 * self.fast:.0f} % of it faster than four steps"


def chatter_of(actions: np.ndarray, span: np.ndarray) -> Chatter:
    """
    :param actions: of m trajectories, NaN after their ends, (T, m, d_a)
    :param span: of the actions' range, (d_a,)
    """
    scaled = actions / np.where(span > 0, span, 1.0)
    changes = np.abs(np.diff(scaled, axis=0))
    if not np.isfinite(changes).any():
        return Chatter(0.0, 0.0)
    power, fast = 0.0, 0.0
    for path in scaled.transpose(1, 0, 2):
        path = path[np.isfinite(path).all(axis=1)]
        if len(path) < 2:
            continue
        spectrum = np.square(np.abs(np.fft.rfft(path - path.mean(axis=0), axis=0)))
        # Each frequency stands for itself and for its negative, but for the highest, which is both.
        spectrum[1 : (len(path) + 1) // 2] *= 2.0
        power += float(spectrum.sum())
        fast += float(spectrum[round(_FAST * (len(spectrum) - 1)) + 1 :].sum())
    return Chatter(float(np.nanmean(changes)), fast / power if power > 0.0 else 0.0)
