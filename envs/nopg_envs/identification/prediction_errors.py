"""Prediction errors of a recording as a function of the cart-pole's parameters: what a fit makes small."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.prediction import LONGEST_DELAY_S, Windows, errors
from nopg_envs.identification.recordings import Array

# Residuals are compared every 20 ms: neighbours say the same thing.
RESIDUAL_S = 0.02
# What counts as a small error. Beyond it the loss grows linearly: a pole that falls to the other side must not decide the fit.
X_SCALE_M = 0.002
THETA_SCALE_RAD = 0.015
# A fit needs no finer integration: the error of this step, 0.01 mm in half a second, is a hundredth of what is being fitted.
COARSE_STEP_S = 0.004
# So that cart and pole together always weigh more than the pole.
LARGEST_COUPLING = 0.9


@dataclass(frozen=True)
class Fitted:
    """
    One parameter that can be fitted.

    :param unit: for people
    :param low: smallest value
    :param high: largest value
    :param scale: how far rigs of this kind differ, the step of the search
    """

    unit: str
    low: float
    high: float
    scale: float


FITTED = {
    "input_gain": Fitted("m/s²/V", 0.05, 20.0, 0.8),
    "cart_damping": Fitted("1/s", 0.0, 60.0, 5.0),
    "cart_coulomb": Fitted("m/s²", 0.0, 3.0, 0.4),
    "pole_coupling": Fitted("m", 0.0, 0.3, 0.02),
    "inverse_pole_length": Fitted("1/m", 0.5, 20.0, 2.0),
    "pole_damping": Fitted("1/s", 0.0, 5.0, 0.2),
    "pole_coulomb": Fitted("rad/s²", 0.0, 3.0, 0.2),
    "voltage_offset": Fitted("V", -1.0, 1.0, 0.2),
    "input_delay_s": Fitted("s", 0.0, LONGEST_DELAY_S - 0.002, 0.01),
}


class Problem:
    """
    Residuals of windows as a function of some parameters, in units of their scales.

    :param batches: the windows
    :param start: values of the parameters that are not varied
    :param names: of those that are
    """

    def __init__(self, batches: Sequence[Windows], start: CartPoleParameters, names: Sequence[str]) -> None:
        self.batches, self.start, self.names = batches, start, tuple(names)
        self.scales = np.array([FITTED[name].scale for name in names])
        self.low = np.array([FITTED[name].low for name in names]) / self.scales
        self.high = np.array([FITTED[name].high for name in names]) / self.scales

    def vector(self, parameters: CartPoleParameters) -> Array:
        values = np.array([getattr(parameters, name) for name in self.names]) / self.scales
        return np.clip(values, self.low, self.high)

    def parameters(self, vector: Array) -> CartPoleParameters:
        values = dict(zip(self.names, (vector * self.scales).tolist(), strict=True))
        length = values.get("inverse_pole_length", self.start.inverse_pole_length)
        coupling = values.get("pole_coupling", self.start.pole_coupling)
        return self.start.replace(**{**values, "pole_coupling": min(coupling, LARGEST_COUPLING / length)})

    def residuals(self, vector: Array) -> Array:
        return self._residuals([vector])[0]

    def jacobian(self, vector: Array) -> Array:
        """Forward differences, all in one simulation; away from an upper bound they go backward."""
        step = np.where(vector + 1e-4 > self.high, -1e-4, 1e-4)
        varied = self._residuals([vector, *(vector + np.diag(step))])
        return ((varied[1:] - varied[0]) / step[:, None]).T

    def groups(self, block_s: float | None) -> np.ndarray:
        """Number of the recording, or of the block of ``block_s`` seconds within it, that each residual belongs to."""
        numbers = []
        for batch in self.batches:
            block = np.zeros(len(batch), int) if block_s is None else (batch.first * batch.dt_s // block_s).astype(int)
            numbers.append(np.repeat(batch.source * 100_000 + block, 2 * len(_compared(batch))))
        return np.concatenate(numbers)

    def _residuals(self, vectors: Sequence[Array]) -> Array:
        """One row for each vector."""
        sets = [self.parameters(vector) for vector in vectors]
        rows = []
        for batch in self.batches:
            chosen = _compared(batch)
            x, theta = errors(sets, batch, longest_step_s=COARSE_STEP_S)
            both = np.concatenate([x[..., chosen] / X_SCALE_M, theta[..., chosen] / THETA_SCALE_RAD], axis=-1)
            rows.append(both.reshape(len(sets), -1))
        return np.hstack(rows)


def _compared(batch: Windows) -> np.ndarray:
    every = max(1, round(RESIDUAL_S / batch.dt_s))
    return np.arange(every - 1, batch.x.shape[1], every)
