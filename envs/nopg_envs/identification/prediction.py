"""Many short simulations at once, each started from a measured state and driven by the recorded voltage."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np

from nopg_envs.cartpole.dynamics import rk4_step
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.recordings import Array, Recording, RecordingError

# Physics at 500 Hz or finer.
LONGEST_STEP_S = 0.002
# Voltage from before a window is kept for this long, so that every delay up to it knows what reaches the motor.
LONGEST_DELAY_S = 0.05
# A cart this close to a rail end may be touching it.
RAIL_MARGIN_M = 0.005


@dataclass(frozen=True)
class Windows:
    """
    Pieces of recordings, all equally long and equally sampled.

    :param dt_s: time between samples, s
    :param start: measured x, θ, ẋ, θ̇ at the beginning, (n, 4)
    :param u: voltages, from ``n_before`` samples before the beginning, V, (n, n_before + k)
    :param x: measured after each of the k steps, m, (n, k)
    :param theta: measured after each of the k steps, rad, (n, k)
    :param first: sample each window starts from, (n,)
    :param source: which recording each window is from, (n,)
    """

    dt_s: float
    start: Array
    u: Array
    x: Array
    theta: Array
    first: np.ndarray
    source: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, chosen: np.ndarray | slice) -> "Windows":
        """
        :param chosen: indices, a mask or a slice over the windows
        """
        names = ("start", "u", "x", "theta", "first", "source")
        return dataclasses.replace(self, **{name: getattr(self, name)[chosen] for name in names})


def windows_of(
    recording: Recording,
    window_s: float,
    *,
    every_s: float,
    rail_length_m: float,
    longest_delay_s: float = LONGEST_DELAY_S,
    source: int = 0,
) -> tuple[Windows, int]:
    """
    :param recording: to cut up
    :param window_s: length of a window, s
    :param every_s: time from the start of a window to the start of the next, s
    :param rail_length_m: windows in which the cart comes to its ends are left out: a stop is not part of the model
    :param longest_delay_s: the first window starts this late, so that it knows the voltages still under way
    :param source: number of the recording
    :return: the windows, and how many were left out
    """
    n_steps, n_before = max(1, round(window_s / recording.dt_s)), math.ceil(longest_delay_s / recording.dt_s) + 1
    first = np.arange(n_before, len(recording.x) - n_steps, max(1, round(every_s / recording.dt_s)))
    if not len(first):
        needed = (n_before + n_steps + 1) * recording.dt_s
        raise RecordingError(f"{recording.name}: too short, a window of {window_s:g} s needs {needed:.2f} s of recording")
    after = first[:, None] + np.arange(1, n_steps + 1)
    at_end = (np.abs(recording.x[after]) > 0.5 * rail_length_m - RAIL_MARGIN_M).any(axis=1)
    if at_end.all():
        raise RecordingError(f"{recording.name}: the cart is at an end of the rail in every window of {window_s:g} s")
    first, after = first[~at_end], after[~at_end]
    state = np.stack([recording.x, recording.theta, recording.x_dot, recording.theta_dot], axis=-1)
    windows = Windows(
        dt_s=recording.dt_s,
        start=state[first],
        u=recording.u[first[:, None] + np.arange(-n_before, n_steps)],
        x=recording.x[after],
        theta=recording.theta[after],
        first=first,
        source=np.full(len(first), source),
    )
    return windows, int(at_end.sum())


def joined(parts: Sequence[Windows]) -> list[Windows]:
    """Windows of several recordings as few large batches, one for each sampling time."""
    batches: dict[float, list[Windows]] = {}
    for part in parts:
        batches.setdefault(part.dt_s, []).append(part)
    names = ("start", "u", "x", "theta", "first", "source")
    return [
        Windows(dt_s=dt_s, **{name: np.concatenate([getattr(part, name) for part in same]) for name in names})
        for dt_s, same in batches.items()
    ]


def predict(
    parameters: Sequence[CartPoleParameters], windows: Windows, *, longest_step_s: float = LONGEST_STEP_S
) -> tuple[Array, Array]:
    """
    Simulate every window with every parameter set; sets with the same delay share one pass.

    :param parameters: p sets
    :param windows: n windows of k steps
    :param longest_step_s: of the integration, s
    :return: predicted x and θ, each (p, n, k)
    """
    shape = (len(parameters), len(windows), windows.x.shape[1])
    x, theta = np.empty(shape), np.empty(shape)
    delays = np.array([p.input_delay_s for p in parameters])
    for delay_s in np.unique(delays):
        same = np.flatnonzero(delays == delay_s)
        x[same], theta[same] = _predict_at_delay(
            _stacked([parameters[int(i)] for i in same]), delay_s, windows, longest_step_s
        )
    return x, theta


def errors(
    parameters: Sequence[CartPoleParameters], windows: Windows, *, longest_step_s: float = LONGEST_STEP_S
) -> tuple[Array, Array]:
    """Predicted less measured x and θ, each (p, n, k); θ goes the short way round."""
    x, theta = predict(parameters, windows, longest_step_s=longest_step_s)
    return x - windows.x, wrapped(theta - windows.theta)


def wrapped(angle: Array) -> Array:
    """The same angle in [−π, π)."""
    return (angle + np.pi) % (2.0 * np.pi) - np.pi


def _stacked(parameters: Sequence[CartPoleParameters]) -> CartPoleParameters:
    """Parameter sets as one whose fields are columns, (p, 1), which the equations of motion take as they take numbers."""
    names = [field.name for field in dataclasses.fields(CartPoleParameters)]
    columns = {name: np.array([[getattr(p, name)] for p in parameters]) for name in names}
    return cast(CartPoleParameters, SimpleNamespace(**columns))


def _predict_at_delay(
    stacked: CartPoleParameters, delay_s: float, windows: Windows, longest_step_s: float
) -> tuple[Array, Array]:
    dt_s, n_steps = windows.dt_s, windows.x.shape[1]
    n_before = windows.u.shape[1] - n_steps
    n_whole = math.floor(delay_s / dt_s + 1e-9)
    rest_s = max(0.0, delay_s - n_whole * dt_s)
    if n_whole + 1 > n_before:
        raise ValueError(f"input_delay_s: {delay_s:g} s is longer than the {n_before * dt_s:g} s kept before each window")
    # Between two samples the motor first sees the voltage from n_whole + 1 samples ago, then, once the rest of the delay has
    # passed, that from n_whole samples ago. Splitting the step there makes the delay exact.
    pieces = [(n_whole + 1, rest_s), (n_whole, dt_s - rest_s)]
    state = np.broadcast_to(windows.start, (len(stacked.input_gain), *windows.start.shape))  # type: ignore[arg-type]
    x, theta = np.empty((2, *state.shape[:-1], n_steps))
    for step in range(n_steps):
        for n_back, duration_s in pieces:
            if duration_s < 1e-9:
                continue
            voltage = windows.u[:, n_before + step - n_back]
            n_parts = math.ceil(duration_s / longest_step_s - 1e-6)
            for _ in range(n_parts):
                state = rk4_step(stacked, state, voltage, duration_s / n_parts)
        x[..., step], theta[..., step] = state[..., 0], state[..., 1]
    return x, theta
