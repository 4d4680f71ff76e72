"""
The NumPy object arrays that the paper's authors publish: trajectories, each a list of steps ``(s, a, r, s', done)``.

Such an array is a pickle, which may run any program when it is read.
"""

import pathlib
import pickle
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.files.files import unreadable
from sb3_nopg.data.files.npz_file import check_npy_header

_PARTS = ("state", "action", "reward", "next state", "done")


def read(path: pathlib.Path) -> dict[str, Any]:
    """
    :param path: of a file that is trusted
    :return: arguments of `TransitionDataset`
    """
    try:
        with open(path, "rb") as file:
            dtype = check_npy_header(path, "the array", file)
            if not dtype.hasobject:
                raise InputError(str(path), f"an array of {dtype}", "Give trajectories of (s, a, r, s', done), or an .npz")
            file.seek(0)
            trajectories = np.load(file, allow_pickle=True)
    except InputError:
        raise
    # What a damaged or foreign pickle raises depends on the byte it breaks at.
    except (OSError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError, pickle.PickleError) as error:
        raise unreadable(path, ".npy", error) from error
    return _transitions(path, trajectories)


def _transitions(path: pathlib.Path, trajectories: np.ndarray) -> dict[str, Any]:
    parts: list[list[np.ndarray]] = [[] for _ in _PARTS]
    episode_ids: list[int] = []
    if trajectories.ndim == 0:
        raise InputError(str(path), "a single object", "Give an array of trajectories")
    for episode, trajectory in enumerate(trajectories):
        for number, step in enumerate(_sequence(path, f"trajectory {episode}", trajectory)):
            where = f"trajectory {episode}, step {number}"
            if len(_sequence(path, where, step)) != len(_PARTS):
                raise InputError(str(path), f"{where} has {len(step)} parts", "A step is (s, a, r, s', done)")
            for index, part in enumerate(step):
                vector = _vector(path, f"{where}, {_PARTS[index]}", part)
                expected = parts[index][0].shape if parts[index] else vector.shape if index in (0, 1, 3) else (1,)
                if vector.shape != expected:
                    raise InputError(
                        str(path),
                        f"{where}: the {_PARTS[index]} has {len(vector)} number(s) where {expected[0]} are expected",
                        "All steps must describe the same system",
                    )
                parts[index].append(vector)
            episode_ids.append(episode)
    if not episode_ids:
        raise InputError(str(path), "no steps in it", "Give trajectories of (s, a, r, s', done)")
    states, actions, rewards, next_states, dones = (np.stack(part) for part in parts)
    return {
        "observations": states,
        "actions": actions,
        "rewards": rewards[:, 0],
        "next_observations": next_states,
        "terminals": dones[:, 0],
        "episode_ids": np.array(episode_ids, dtype=np.int64),
    }


def _sequence(path: pathlib.Path, where: str, value: Any) -> Any:
    if not isinstance(value, list | tuple) and np.shape(value) == ():
        raise InputError(str(path), f"{where} is a {type(value).__name__}", "Give trajectories of (s, a, r, s', done)")
    return value


def _vector(path: pathlib.Path, where: str, value: Any) -> np.ndarray:
    try:
        vector = np.asarray(value).reshape(-1)
    except ValueError as error:
        raise InputError(str(path), f"{where} is not a vector ({error})", "Give numbers") from error
    if vector.dtype.kind not in "biuf":
        raise InputError(str(path), f"{where} is no number but {value!r:.60}", "Give numbers")
    return vector
