"""
Minari data sets, by id or by folder: episodes of T steps and T + 1 observations.

What Minari cannot say (episode numbers, rows that were not in order, spaces that nobody gave) goes into the folder's
metadata, so that our own data come back as they were; other programs do not look at it.
"""

import logging
import os
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.data.files.fields import SPACES, quantities_from
from sb3_nopg.data.files.files import optional_module, unreadable
from sb3_nopg.data.files.hdf5_links import own_datasets
from sb3_nopg.data.files.limits import check_declared, check_size
from sb3_nopg.data.transitions import Transitions

_logger = logging.getLogger(__name__)
PREFIX = "minari:"
_METADATA = "metadata.json"
_KEY = "sb3_nopg"
_VERSION = 1
_FLOATS = ("observations", "next_observations")
# Minari keeps a group of arrays for each episode: 14 kB on disk and 5 ms to read, however short the episode.
_SHORT_EPISODES, _MANY_EPISODES = 3, 100


def is_minari(path: str | os.PathLike[str]) -> bool:
    """
    :param path: or ``minari:ID``
    """
    return os.fspath(path).startswith(PREFIX) or _data_folder(pathlib.Path(path)) is not None


def _data_folder(folder: pathlib.Path) -> pathlib.Path | None:
    return next((place for place in (folder / "data", folder) if (place / _METADATA).is_file()), None)


def folder_of(path: str | os.PathLike[str]) -> pathlib.Path:
    """
    :param path: or ``minari:ID``
    :return: where the data set lies, or is to lie
    """
    text = os.fspath(path)
    if not text.startswith(PREFIX):
        return pathlib.Path(path)
    identifier = text.removeprefix(PREFIX)
    _check_id(path, identifier)
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (pathlib.Path.home() / ".minari" / "datasets" if root is None else pathlib.Path(root)) / identifier


def _check_id(path: str | os.PathLike[str], identifier: str) -> None:
    parse = optional_module("minari.dataset.minari_dataset", path).parse_dataset_id
    try:
        parse(identifier)
    # Minari parses a missing version as if it were a number.
    except (ValueError, TypeError) as error:
        raise InputError(
            str(path), f"{identifier!r} is not a Minari id", "Ids look like pendulum/random-v0: a name and a version"
        ) from error


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    :param path: folder of a data set, or ``minari:ID`` for one below ``MINARI_DATASETS_PATH``; nothing is downloaded
    :return: arguments of `TransitionDataset`
    """
    minari = optional_module("minari", path)
    folder = _data_folder(folder_of(path))
    if folder is None:
        raise FileNotFoundError(
            f"No Minari data set at {folder_of(path)}. Download it with `minari download`, or set MINARI_DATASETS_PATH."
        )
    try:
        _check_no_links(path, folder_of(path))
        _check_declared_sizes(path, folder)
        dataset = minari.MinariDataset(folder)
        for name in SPACES:
            _check_space(path, name, getattr(dataset, name))
        extra = dataset.storage.metadata.get(_KEY)
        values = _from_episodes(path, list(dataset.iterate_episodes()))
        values.update({name: getattr(dataset, name) for name in SPACES})
        return values if extra is None else _as_it_was(path, values, extra)
    except InputError:
        raise
    # Minari checks what it reads with assertions, and otherwise trusts it.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError, IndexError) as error:
        raise unreadable(path, "Minari data set", error) from error


def _check_declared_sizes(path: str | os.PathLike[str], folder: pathlib.Path) -> None:
    metadata = optional_module("minari.dataset.minari_storage", path).MinariStorage.read_raw_metadata(folder)
    if not isinstance(metadata, dict) or not {*SPACES, "total_steps", "total_episodes"} <= set(metadata):
        # Minari would make the environment to ask it for its spaces; data from elsewhere shall not start programs here.
        raise InputError(str(path), "its metadata name no spaces or no number of steps", "Create the data set with spaces")
    if metadata.get("data_format", "hdf5") != "hdf5":
        check_size(path, "the folder", sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
        return
    h5py = optional_module("h5py", path)
    total = 0
    with h5py.File(folder / "main_data.hdf5", "r") as file:
        for name, item in own_datasets(h5py, path, file):
            check_declared(path, name, item.shape or (), item.dtype.itemsize)
            total += item.size * item.dtype.itemsize
    check_size(path, "the data set", total)


def _check_no_links(path: str | os.PathLike[str], folder: pathlib.Path) -> None:
    """A folder from elsewhere could show other files of this computer as its data."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (pathlib.Path(place) / name).is_symlink():
                raise InputError(str(path), f"{name} in it is a link", "Give a folder that holds its own files")


def _check_space(path: str | os.PathLike[str], name: str, space: Any) -> None:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise InputError(
            str(path), f"{name} is {one_line(space)}", "Only Box spaces of vectors are supported; flatten or encode"
        )


def _from_episodes(path: str | os.PathLike[str], episodes: list[Any]) -> dict[str, Any]:
    episodes = [episode for episode in episodes if len(episode)]
    if not episodes:
        raise InputError(str(path), "no steps in it", "Record some")
    for episode in episodes:
        lengths = [len(episode.observations) - 1, len(episode.actions), len(episode.terminations), len(episode.truncations)]
        if set(lengths) != {len(episode)}:
            raise InputError(
                str(path),
                f"episode {episode.id} has {len(episode)} rewards, {lengths[1]} actions and {lengths[0] + 1} observations",
                "An episode of T steps has T + 1 observations",
            )
    return {
        "observations": np.concatenate([episode.observations[:-1] for episode in episodes]),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "next_observations": np.concatenate([episode.observations[1:] for episode in episodes]),
        "terminals": np.concatenate([episode.terminations for episode in episodes]),
        "timeouts": np.concatenate([episode.truncations for episode in episodes]),
        "episode_ids": np.concatenate([np.full(len(episode), episode.id, dtype=np.int64) for episode in episodes]),
    }


def _as_it_was(path: str | os.PathLike[str], values: dict[str, Any], extra: Any) -> dict[str, Any]:
    """Undo what `write` had to do to fit the data into episodes."""
    if extra["version"] > _VERSION:
        raise InputError(str(path), "written by a newer version of sb3-nopg", "Upgrade sb3-nopg to read it")
    numbers = values["episode_ids"]
    ends = np.flatnonzero(np.diff(numbers, append=numbers[-1] + 1))
    values["timeouts"][ends[np.array(extra["cut"], dtype=bool)]] = False
    values["episode_ids"] = None if extra["episode_ids"] is None else np.array(extra["episode_ids"], dtype=np.int64)[numbers]
    if not extra["timeouts"]:
        values["timeouts"] = None
    for name in _FLOATS:
        values[name] = values[name].astype(extra["dtypes"][name])
    for name in SPACES:
        if name not in extra["spaces"]:
            values[name] = None
    values["quantities"] = quantities_from(path, extra.get("quantities"))
    if extra["order"] is not None:
        rows = np.argsort(np.array(extra["order"]))
        values = {name: value[rows] if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return values


def write(dataset: Transitions, path: str | os.PathLike[str]) -> None:
    """
    :param dataset: the data
    :param path: folder to create, named like a Minari id (``name-v0``), or ``minari:ID``
    """
    storage_module = optional_module("minari.dataset.minari_storage", path)
    target = folder_of(path)
    text = os.fspath(path)
    identifier = text.removeprefix(PREFIX) if text.startswith(PREFIX) else target.name
    _check_id(path, identifier)
    if target.exists():
        raise InputError(str(path), "is there already", "Minari data sets are never overwritten; choose another version")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built out of sight and moved when whole. `create_dataset_from_buffers` can only write to its final place.
    partial = pathlib.Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent.absolute()))
    try:
        observation_space, action_space = _spaces(dataset)
        (partial / "new").mkdir()
        storage = storage_module.MinariStorage.new(
            partial / "new" / "data", observation_space=observation_space, action_space=action_space
        )
        buffers, extra = _to_episodes(path, dataset)
        storage.update_metadata(
            {
                "dataset_id": identifier,
                "minari_version": optional_module("minari", path).__version__,
                "description": "Transitions written by sb3-nopg",
                _KEY: extra,
            }
        )
        storage.update_episodes(buffers)
        os.rename(partial / "new", target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if text.startswith(PREFIX):
        _register_namespace(path, identifier.rpartition("/")[0])


def _register_namespace(path: str | os.PathLike[str], namespace: str) -> None:
    """Minari lists the folders above a data set only if each has a file that says so."""
    module = optional_module("minari.namespace", path)
    if namespace and namespace not in module.list_local_namespaces():
        module.create_namespace(namespace)


def _spaces(dataset: Transitions) -> tuple[spaces.Box, spaces.Box]:
    """Those given, or any state and the range of actions seen."""
    observation_space, action_space = dataset.observation_space, dataset.action_space
    if observation_space is None:
        dtype = dataset.observations.dtype.type
        observation_space = spaces.Box(-np.inf, np.inf, (dataset.observation_dim,), dtype=dtype)
    if action_space is None:
        actions = dataset.actions
        action_space = spaces.Box(actions.min(axis=0), actions.max(axis=0), dtype=actions.dtype.type)
    return observation_space, action_space


def _to_episodes(path: str | os.PathLike[str], dataset: Transitions) -> tuple[list[Any], dict[str, Any]]:
    """Episodes as Minari knows them: unbroken records, of which one of ours may be several."""
    buffer = optional_module("minari.data_collector", path).EpisodeBuffer
    ids = dataset.episode_ids
    # Together by episode, in the order in which they begin; most data sets are already.
    order = np.arange(len(dataset))
    if ids is not None:
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
    common = np.promote_types(dataset.observations.dtype, dataset.next_observations.dtype)
    states = dataset.observations[order].astype(common)
    next_states = dataset.next_observations[order].astype(common)
    timeouts = np.zeros(len(dataset), dtype=bool) if dataset.timeouts is None else dataset.timeouts[order]
    terminals = dataset.terminals[order]
    ends = terminals | timeouts
    # By their bits, because 0.0 and -0.0 are equal.
    ends[:-1] |= (states[1:].view(np.uint8) != next_states[:-1].view(np.uint8)).any(axis=1)
    ends[-1] = True
    if ids is not None:
        ends[:-1] |= ids[order][1:] != ids[order][:-1]
    # A record that stops for no reason of the task was truncated, whoever reads it.
    cut = ends & ~terminals & ~timeouts
    stops = np.flatnonzero(ends) + 1
    starts = np.concatenate([[0], stops[:-1]])
    if len(stops) > _MANY_EPISODES and len(dataset) < _SHORT_EPISODES * len(stops):
        _logger.warning(
            "%s: %d transitions in %d unbroken records; Minari is large and slow for short ones, .npz is not.",
            path,
            len(dataset),
            len(stops),
        )
    buffers = [
        buffer(
            observations=np.concatenate([states[start:stop], next_states[stop - 1 : stop]]),
            actions=dataset.actions[order[start:stop]],
            rewards=dataset.rewards[order[start:stop]],
            terminations=terminals[start:stop],
            truncations=(timeouts | cut)[start:stop],
        )
        for start, stop in zip(starts, stops, strict=True)
    ]
    extra = {
        "version": _VERSION,
        "episode_ids": None if ids is None else ids[order][starts].tolist(),
        "timeouts": dataset.timeouts is not None,
        "cut": cut[stops - 1].tolist(),
        "spaces": [name for name in SPACES if getattr(dataset, name) is not None],
        "dtypes": {name: str(getattr(dataset, name).dtype) for name in _FLOATS},
        "quantities": None if dataset.quantities is None else dataset.quantities.described(),
        "order": None if np.array_equal(order, np.arange(len(order))) else order.tolist(),
    }
    return buffers, extra
