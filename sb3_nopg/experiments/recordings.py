"""
A user's recordings of a cart-pole, as transitions of a controller that acts fifty times a second.

Nobody's recordings come with this package. Which folder holds them is told by ``nopg reproduce --data FOLDER``, or by the
environment variable ``NOPG_RECORDINGS`` where trials run on other machines.
"""

import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from nopg_envs.cartpole.options import TASKS, CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import filter_coefficients
from nopg_envs.identification.recordings import Recording, RecordingError, angle_zero, read_recording
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.mirror_images import add_mirror_images

VARIABLE = "NOPG_RECORDINGS"
CONTROL_HZ = 50.0
#: of which one is left out at a time
FEWEST = 2
_FIX = (
    "Give --data FOLDER with at least two recordings of your cart-pole (.npz with x, theta, u and dt, as "
    "`python -m nopg_envs.identify --help` describes them, or flight logs)"
)
#: what is predicted for a second needs a little more than that
SHORTEST_S = 1.5
# A step that differs from fifty a second by more is another step.
_UNEVENNESS = 0.02
# Of x, sin θ, cos θ, ẋ, θ̇ and of the voltage.
_MIRROR_SIGNS = ((-1, -1, 1, -1, -1), (-1,))


def missing_recordings() -> InputError | None:
    """:return: what is missing and what to do about it; None where there are recordings"""
    try:
        recording_files()
    except InputError as error:
        return error
    return None


def recording_files() -> list[pathlib.Path]:
    """
    :return: of the folder that was told, in the order of their names
    :raises InputError: where none was told, or it does not hold enough of them
    """
    told = os.environ.get(VARIABLE)
    if not told:
        raise InputError("--data", "no recordings are given", _FIX)
    folder = pathlib.Path(told)
    if not folder.is_dir():
        raise InputError("--data", f"{told} is no folder", _FIX)
    files = sorted(folder.glob("*.npz"))
    if len(files) < FEWEST:
        raise InputError("--data", f"{told} holds {len(files)} .npz files", _FIX)
    return files


def fingerprint(files: Sequence[pathlib.Path]) -> str:
    """
    :param files: recordings
    :return: another one for other recordings; where they lie does not count
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def read_told(expected: str) -> dict[str, Recording]:
    """
    :param expected: fingerprint of the recordings that a trial is of
    :return: the recordings by their names, the zero of each angle put right
    :raises InputError: where those that were told are others, or cannot be read
    """
    files = recording_files()
    if fingerprint(files) != expected:
        raise InputError("--data", "the folder holds other recordings than those of this trial", "Give the same folder")
    try:
        recordings = {file.name: read_recording(file) for file in files}
    except RecordingError as error:
        raise InputError("--data", str(error), _FIX) from error
    for name, recording in recordings.items():
        if len(recording.u) * recording.dt_s < SHORTEST_S:
            raise InputError(
                "--data",
                f"{name} lasts {len(recording.u) * recording.dt_s:.2g} s",
                f"Give recordings of {SHORTEST_S:g} s or more",
            )
    return {name: recording.with_angle_zero(angle_zero(recording)) for name, recording in recordings.items()}


def stride_of(recording: Recording) -> int:
    """
    :param recording: sampled faster than a controller acts
    :return: samples in a step of the controller
    """
    ratio = 1.0 / (CONTROL_HZ * recording.dt_s)
    if round(ratio) < 1 or abs(ratio - round(ratio)) > _UNEVENNESS * ratio:
        raise InputError(
            "--data",
            f"{recording.name} is sampled every {1e3 * recording.dt_s:g} ms, of which no whole number makes 20 ms",
            "Resample it, at 250 Hz for instance",
        )
    return round(ratio)


def largest_voltage(recordings: Sequence[Recording], parameters: CartPoleParameters) -> float:
    """
    :param recordings: all that there are
    :param parameters: of the cart
    :return: what a policy may ask for: as much as was recorded, and no more than the amplifier gives
    """
    recorded = max(float(np.abs(step_voltages(recording)).max()) for recording in recordings)
    return min(float(np.ceil(10.0 * recorded) / 10.0), parameters.amplifier_limit_volt)


def step_voltages(recording: Recording) -> np.ndarray:
    """Mean voltage of each step, by which the motor gets the same impulse, (n,)."""
    stride = stride_of(recording)
    n = len(recording.u) // stride
    return recording.u[: n * stride].reshape(n, stride).mean(axis=1)


def observations_of(recording: Recording, parameters: CartPoleParameters) -> np.ndarray:
    """
    What a controller on the rig would have seen at each of its steps: velocities by the rig's filter, which makes them late.

    :param recording: of the rig
    :param parameters: with the filter's cutoff
    :return: x, sin θ, cos θ, ẋ, θ̇, (n + 1, 5)
    """
    keep, gain = filter_coefficients(parameters.velocity_cutoff_rad_s, recording.dt_s)
    velocities = []
    for position, velocity in ((recording.x, recording.x_dot[0]), (recording.theta, recording.theta_dot[0])):
        filtered = [float(velocity)]
        for change in np.diff(position):
            filtered.append(keep * filtered[-1] + gain * float(change))
        velocities.append(np.array(filtered))
    seen = np.stack([recording.x, np.sin(recording.theta), np.cos(recording.theta), *velocities], axis=1)
    stride = stride_of(recording)
    return seen[: stride * len(step_voltages(recording)) + 1 : stride]


def transitions_of(
    recordings: Sequence[Recording], parameters: CartPoleParameters, volts: float | None = None
) -> TransitionDataset:
    """
    :param recordings: each of them an episode that was cut off
    :param parameters: of the cart
    :param volts: largest voltage; None for the largest of these
    :return: transitions of 20 ms, whose reward is that of the swing-up, (cos θ + 1) / 2 after the step
    """
    volts = largest_voltage(recordings, parameters) if volts is None else volts
    parts: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "next_observations", "episode_ids")}
    for number, recording in enumerate(recordings):
        seen, voltages = observations_of(recording, parameters), step_voltages(recording)
        parts["observations"].append(seen[:-1])
        parts["next_observations"].append(seen[1:])
        parts["actions"].append(np.clip(voltages, -volts, volts)[:, None])
        parts["episode_ids"].append(np.full(len(voltages), number))
    arrays: dict[str, Any] = {name: np.concatenate(part) for name, part in parts.items()}
    last = np.append(np.diff(arrays["episode_ids"]) != 0, True)
    return TransitionDataset(
        **arrays,
        rewards=(arrays["next_observations"][:, 2] + 1.0) / 2.0,
        terminals=np.zeros(len(last), dtype=bool),
        timeouts=last,
        observation_space=CartPoleOptions(task="swing_up", parameters=parameters).observation_space(),
        action_space=spaces.Box(-volts, volts, (1,), np.float32),
    )


def on_both_sides(dataset: TransitionDataset) -> TransitionDataset:
    """
    Recordings may keep to one side of the rail, and flights start on both. What lies outside of all that was recorded is
    unknown to a model; of a cart-pole it is known that left and right are alike, but for a small offset of the voltage.

    :param dataset: transitions of a cart-pole
    :return: the same with their mirror images
    """
    return add_mirror_images(dataset, *_MIRROR_SIGNS)


def coverage_of(dataset: TransitionDataset) -> dict[str, Any]:
    """
    What recordings can tell of balancing.

    :param dataset: of recordings, without mirror images
    :return: ``samples``; ``x_m``, the part of the rail that they are from; ``upright_samples``, those in which the pole has
        not fallen by the task's measure, ``upright_x_m``, where these are, and ``voltage_follows``, the share of their
        voltages' variance that a linear function of the state explains. Of too few the last two are None
    """
    seen, voltages = dataset.observations.astype(np.float64), dataset.actions[:, 0].astype(np.float64)
    upright = seen[:, 2] > np.cos(TASKS["balance"].theta_limit_rad)
    found: dict[str, Any] = {
        "samples": len(seen),
        "x_m": _ends(seen[:, 0]),
        "upright_samples": int(upright.sum()),
        "upright_x_m": None,
        "voltage_follows": None,
    }
    # The cosine hardly changes there.
    inputs = np.column_stack([seen[upright][:, [0, 1, 3, 4]], np.ones(upright.sum())])
    if len(inputs) <= inputs.shape[1] or not np.ptp(voltages[upright]):
        return found
    left = voltages[upright] - inputs @ np.linalg.lstsq(inputs, voltages[upright], rcond=None)[0]
    follows = float(1.0 - left.var() / voltages[upright].var())
    return {**found, "upright_x_m": _ends(seen[upright, 0]), "voltage_follows": follows}


def _ends(values: np.ndarray) -> list[float]:
    return [float(values.min()), float(values.max())]
