"""The parameters of a rig by its own flights, for simulated rigs that might be the real one."""

import pathlib
from collections.abc import Iterable

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.fit import has_windows, identify
from nopg_envs.identification.recordings import Recording, RecordingError, read_stretches
from sb3_nopg.common.errors import one_line


class NotToldError(ValueError):
    """Flights that do not tell the parameters of their rig; the message says why."""


def identified(logs: Iterable[pathlib.Path], start: CartPoleParameters, seed: int) -> CartPoleParameters:
    """
    :param logs: flights; journals of those that were cut off and stretches that are too short are left out
    :param start: parameters to start from
    :param seed: of which stretches are held out
    :return: what was found
    :raises NotToldError: where there is too little, or nothing follows the stretches that were held out better than ``start``
    """
    recordings = [one for path in logs for one in _stretches(path) if has_windows(one, start)]
    if not recordings:
        raise NotToldError("no flight has lasted long enough")
    try:
        # Stretches of one rig are many: one search, from a cart of its kind, finds the valley.
        found = identify(recordings, start, n_starts=1, seed=seed)
    except ValueError as error:
        raise NotToldError(one_line(error)) from error
    before, after = found.rmse["validation"]["start"], found.rmse["validation"]["fitted"]
    if any(new >= old for old, new in zip(before, after, strict=True)):
        raise NotToldError("the parameters to start from follow the flights as well as any")
    return found.fitted


def _stretches(path: pathlib.Path) -> list[Recording]:
    try:
        return read_stretches(path)
    except RecordingError:
        return []
