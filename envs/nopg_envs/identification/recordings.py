"""Recordings of a real (or simulated) cart-pole: reading and checking the files."""

import contextlib
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Span of the polynomial behind zero-phase derivatives: short against the pole's period, long against encoder counts.
DERIVATIVE_SPAN_S = 0.06
_SHORTEST = 16
_GRAVITY = 9.81
# The angle's zero is estimated from a moving pole: at rest dry friction holds it anywhere near the vertical.
_MOVING_RAD_S = 0.2
_LARGEST_ZERO_RAD = 0.1
_ZERO_UNCERTAINTY_RAD = 0.002
# Steps that differ by less from their mean are even; what a rig's loop adds to that is taken out of flight logs.
_UNEVENNESS = 0.05
_FLIGHT_PHASES = ("run", "collect")
_FLIGHT_ARRAYS = ("time_s", "phase", "episode", "x", "theta", "applied_volt")
# Positions are interpolated over a few cycles that a busy computer left out, not over more.
_LONGEST_GAP_STEPS = 5.5


class RecordingError(ValueError):
    """A file that is not a usable recording; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Recording:
    """
    One run of the rig, evenly sampled.

    :param name: to show to people, the file's name
    :param dt_s: time between samples, s
    :param x: cart position, 0 = rail centre, m, (n,)
    :param theta: pole angle, 0 = upright, unwrapped, rad, (n,)
    :param x_dot: zero-phase cart velocity, m/s, (n,)
    :param theta_dot: zero-phase angular velocity, rad/s, (n,)
    :param u: voltage applied from one sample to the next, V, (n − 1,)
    """

    name: str
    dt_s: float
    x: Array
    theta: Array
    x_dot: Array
    theta_dot: Array
    u: Array

    def with_angle_zero(self, zero_rad: float) -> "Recording":
        """The same recording, had the encoder read ``zero_rad`` less."""
        return replace(self, theta=self.theta - zero_rad)


class Layout(NamedTuple):
    """A way of naming things in a file: ``needs`` recognises it, ``read`` makes a recording of it."""

    needs: frozenset[str]
    read: Callable[[str, Mapping[str, Any]], Recording]


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """
    :param path: of the file
    :return: its content, checked
    """
    name = Path(path).name
    arrays = _read_arrays(Path(path))
    for layout in LAYOUTS:
        if layout.needs <= arrays.keys():
            try:
                return layout.read(name, arrays)
            except (TypeError, ValueError) as error:
                raise RecordingError(f"{path}: {error}") from error
    lacking = " or ".join(", ".join(sorted(layout.needs - arrays.keys())) for layout in LAYOUTS)
    raise RecordingError(
        f"{path}: not a recording, it lacks the array {lacking}; it holds {', '.join(sorted(arrays)) or 'none'}"
    )


def read_stretches(path: str | os.PathLike[str]) -> list[Recording]:
    """
    :param path: of a sealed flight log
    :return: every stretch of it within one episode, the longest first; the angle's zero is put right, as the longest tells it
    """
    try:
        found = _read_stretches(Path(path).name, _read_arrays(Path(path)))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path}: {error}") from error
    zero = angle_zero(found[0])
    return [one.with_angle_zero(zero) for one in found]


def angle_zero(recording: Recording) -> float:
    """
    What the pole's encoder reads when the pole is truly upright.

    An encoder counts from wherever the pole was when it was set to zero, so a recording has its own zero, easily 0.01 rad from
    the true one. Gravity knows the vertical: this fits the pole's equation of motion,

        θ̈ = a (g sin(θ − δ) + cos(θ − δ) ẍ) − b θ̇ − c sgn θ̇

    to the measured accelerations, to first order in δ and so linear in a, aδ, b and c. No simulator and no parameter set
    enters: a wrong parameter set cannot hide behind a convenient zero.

    :param recording: in which the pole should swing
    :return: δ, rad; 0 where the pole moves too little to tell
    """
    span = _odd_span(recording.dt_s)
    x_accel = _derivative(recording.x, span, recording.dt_s, 2)
    theta_accel = _derivative(recording.theta, span, recording.dt_s, 2)
    sine, cosine, speed = np.sin(recording.theta), np.cos(recording.theta), recording.theta_dot
    columns = np.stack(
        [
            _GRAVITY * sine + cosine * x_accel,
            -_GRAVITY * cosine + sine * x_accel,
            -speed,
            -np.sign(speed),
        ],
        axis=-1,
    )
    used = np.abs(speed) > _MOVING_RAD_S
    # One-sided polynomials at the ends are poor derivatives.
    used[:span] = used[-span:] = False
    if used.sum() * recording.dt_s < 1.0:
        return 0.0
    columns, target = columns[used], theta_accel[used]
    solution, _, rank, _ = np.linalg.lstsq(columns, target, rcond=1e-6)
    if rank < columns.shape[1] or solution[0] <= 0:
        return 0.0
    zero = float(solution[1] / solution[0])
    # Neighbours are correlated, but an angle's error enters its second derivative with both signs and cancels over a span:
    # samples taken as independent do not understate the uncertainty.
    variance = np.mean((target - columns @ solution) ** 2)
    uncertainty = np.sqrt(variance * np.linalg.inv(columns.T @ columns)[1, 1]) / solution[0]
    return zero if abs(zero) < _LARGEST_ZERO_RAD and uncertainty < _ZERO_UNCERTAINTY_RAD else 0.0


def _read_arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RecordingError(f"{path}: there is no such file")
    try:
        # Opened here, as NumPy leaves a broken file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise RecordingError(f"{path}: a single array, not an npz file of named ones")
            return {name: content[name] for name in content.files}
    except RecordingError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise RecordingError(f"{path}: not a readable npz file") from error


def _read_bench(name: str, arrays: Mapping[str, Any]) -> Recording:
    """Arrays ``x``, ``theta`` (0 = upright), ``u``, ``dt`` or ``t``; zero-phase velocities ``*_dot_sg`` if there are any."""
    x = _signal(arrays, "x")
    n = len(x)
    if n < _SHORTEST:
        raise ValueError(f"too short, {n} samples; at least {_SHORTEST} are needed")
    theta = np.unwrap(_signal(arrays, "theta", n))
    # What was applied at the last sample no longer shows, so many programs write one voltage less than states.
    u = _signal(arrays, "u")
    if len(u) not in (n - 1, n):
        raise ValueError(f"u has {len(u)} samples for {n} of x; {n - 1} or {n} are expected")
    dt_s = _sampling_time(arrays, n)
    velocities = {
        key: _signal(arrays, f"{key}_sg", n) if f"{key}_sg" in arrays else _derivative(signal, _odd_span(dt_s), dt_s, 1)
        for key, signal in (("x_dot", x), ("theta_dot", theta))
    }
    return Recording(name=name, dt_s=dt_s, x=x, theta=theta, u=u[: n - 1], **velocities)


def _read_flight(name: str, arrays: Mapping[str, Any]) -> Recording:
    """The longest stretch of a sealed log."""
    return _read_stretches(name, arrays)[0]


def _read_stretches(name: str, arrays: Mapping[str, Any]) -> list[Recording]:
    """
    A sealed log of the rig's flight recorder: of the phases in which the pole was controlled, each stretch within one
    episode, the longest first. Its velocities are left alone: the rig's filter makes them late.
    """
    shapes = {key: np.shape(arrays[key]) for key in _FLIGHT_ARRAYS}
    if len(set(shapes.values())) > 1 or len(shapes["x"]) != 1:
        raise ValueError(f"rows of equal length are needed, not {shapes}")
    # Before the rail's ends are known a log may hold anything.
    run = {key: np.asarray(arrays[key])[np.isin(arrays["phase"], _FLIGHT_PHASES)] for key in _FLIGHT_ARRAYS}
    time_s = _signal(run, "time_s")
    steps = np.diff(time_s)
    if (steps < 0.0).any():
        raise ValueError("time_s runs backwards")
    # A loop that is faster than its rig reads a sample twice; the voltage of the second reading is the one that lasted.
    once = np.append(np.flatnonzero(steps > 0.0), len(time_s) - 1)
    if len(once) < _SHORTEST:
        phases = " and ".join(_FLIGHT_PHASES)
        raise ValueError(f"too short, {len(time_s)} samples of the phases {phases}; at least {_SHORTEST} are needed")
    steps = np.diff(time_s[once])
    # Rounded, so that recordings of one rig share a sampling time.
    dt_s = max(1e-5, round(float(np.median(steps)), 5))
    breaks = (np.diff(run["episode"][once]) != 0) | (steps > _LONGEST_GAP_STEPS * dt_s)
    stretches = sorted(np.split(once, np.flatnonzero(breaks) + 1), key=len, reverse=True)
    columns = {key: _signal(run, key) for key in ("x", "theta", "applied_volt")}

    def read(stretch: np.ndarray) -> Recording:
        x, theta, volt = (column[stretch] for column in columns.values())
        even = _evened(time_s[stretch], {"x": x, "theta": np.unwrap(theta), "u": volt}, dt_s)
        return _read_bench(name, {**even, "dt": dt_s})

    found = [read(stretches[0])]
    for stretch in stretches[1:]:
        # Too short, which only matters where all are.
        with contextlib.suppress(ValueError):
            found.append(read(stretch))
    return found


def _evened(time_s: Array, columns: Mapping[str, Array], dt_s: float) -> Mapping[str, Array]:
    """
    :param time_s: of the samples
    :param columns: positions ``x`` and ``theta`` at these times, and the voltage ``u`` that was applied from each to the next
    :param dt_s: step of an even grid
    :return: the columns on that grid
    """
    passed_s = time_s - time_s[0]
    if np.abs(passed_s - dt_s * np.arange(len(passed_s))).max() <= _UNEVENNESS * dt_s:
        return columns
    grid_s = dt_s * np.arange(int(passed_s[-1] / dt_s + 1e-6) + 1)
    # The mean voltage of each step, whenever in it the voltage changed: the motor gets the same impulse.
    impulse = np.concatenate([[0.0], np.cumsum(columns["u"][:-1] * np.diff(passed_s))])
    return {
        "x": np.interp(grid_s, passed_s, columns["x"]),
        "theta": np.interp(grid_s, passed_s, columns["theta"]),
        "u": np.diff(np.interp(grid_s, passed_s, impulse)) / dt_s,
    }


def _derivative(signal: Array, span: int, dt_s: float, order: int) -> Array:
    # Imported here: it takes longer than all else, and most who import this file read no recording.
    from scipy.signal import savgol_filter

    return savgol_filter(signal, span, 3, deriv=order, delta=dt_s)


def _signal(arrays: Mapping[str, Any], name: str, length: int | None = None) -> Array:
    values = np.asarray(arrays[name])
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be one row of numbers, not {values.dtype} of shape {values.shape}")
    if length is not None and len(values) != length:
        raise ValueError(f"{name} has {len(values)} samples and x has {length}")
    values = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name} is not finite at sample {bad[0]} ({len(bad)} such samples); cut them off")
    return values


def _sampling_time(arrays: Mapping[str, Any], length: int) -> float:
    if "dt" in arrays:
        dt_s = float(arrays["dt"])
    elif "t" in arrays:
        steps = np.diff(_signal(arrays, "t", length))
        dt_s = float(np.mean(steps))
        if np.abs(steps - dt_s).max() > _UNEVENNESS * abs(dt_s):
            raise ValueError("t is not evenly spaced; resample the recording")
    else:
        raise ValueError("neither dt nor t is there: the sampling time is unknown")
    if not 0.0 < dt_s <= 0.05:
        raise ValueError(f"sampling time {dt_s:g} s; more than 0 and at most 0.05 s is needed")
    return dt_s


def _odd_span(dt_s: float) -> int:
    return max(5, 2 * round(DERIVATIVE_SPAN_S / dt_s / 2) + 1)


# The first layout that a file satisfies reads it.
LAYOUTS: tuple[Layout, ...] = (
    Layout(needs=frozenset({"x", "theta", "u"}), read=_read_bench),
    Layout(needs=frozenset(_FLIGHT_ARRAYS), read=_read_flight),
)
