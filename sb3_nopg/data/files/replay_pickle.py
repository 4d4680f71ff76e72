"""Replay buffers as SB3's ``save_replay_buffer`` writes them: pickles, which may run any program when they are read."""

import pathlib
import pickle
from typing import Any

from sb3_nopg.common.files import replacing
from sb3_nopg.data.buffer import dataset_from_replay_buffer, read_replay_buffer
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.files.fields import ARRAYS, SPACES


def read(path: pathlib.Path) -> dict[str, Any]:
    """
    :param path: of a file that is trusted
    :return: arguments of `TransitionDataset`
    """
    dataset = dataset_from_replay_buffer(read_replay_buffer(path))
    return {name: getattr(dataset, name) for name in (*ARRAYS, *SPACES)}


def write(dataset: TransitionDataset, path: pathlib.Path) -> None:
    """
    A buffer for any SB3 off-policy algorithm. It carries the data set itself too, so that reading it here loses no precision.

    :param dataset: the data
    :param path: file to write
    """
    buffer = dataset.to_replay_buffer(device="cpu")
    with replacing(path) as partial, open(partial, "wb") as file:
        pickle.dump(buffer, file)
