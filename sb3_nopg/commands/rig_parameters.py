"""The parameters of a rig by its own flights, for simulated rigs that might be the real one."""

import pathlib
from collections.abc import Iterable

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.fit import identify
from nopg_envs.identification.recordings import Recording, RecordingError, angle_zero, read_recording


def identified(logs: Iterable[pathlib.Path], start: CartPoleParameters, seed: int) -> CartPoleParameters | None:
    """
    :param logs: flights; those that say too little are left out
    :param start: parameters to start from
    :param seed: of which flights are held out
    :return: what was found; None where it follows the flights that were held out no better than ``start``
    """
    recordings = [one for one in map(_recording, logs) if one is not None]
    if not recordings:
        return None
    try:
        # Flights of one rig are many: one search, from a cart of its kind, finds the valley.
        found = identify(recordings, start, n_starts=1, seed=seed)
    except ValueError:
        return None
    before, after = found.rmse["validation"]["start"], found.rmse["validation"]["fitted"]
    return found.fitted if all(new < old for old, new in zip(before, after, strict=True)) else None


def _recording(path: pathlib.Path) -> Recording | None:
    try:
        recording = read_recording(path)
        return recording.with_angle_zero(angle_zero(recording))
    except RecordingError:
        return None
