"""Replay buffers as SB3's ``save_replay_buffer`` writes them: pickles, which may run any program when they are read."""

import pathlib
import pickle
from typing import Any

from sb3_nopg.common.files import replacing
from sb3_nopg.data.buffer import FixedReplayBuffer, fields_of_replay_buffer, read_replay_buffer, spaces_of
from sb3_nopg.data.transitions import Transitions


def read(path: pathlib.Path) -> dict[str, Any]:
    """
    :param path: of a file that is trusted
    :return: arguments of `TransitionDataset`
    """
    return fields_of_replay_buffer(read_replay_buffer(path))


def write(dataset: Transitions, path: pathlib.Path) -> None:
    """
    A buffer for any SB3 off-policy algorithm. It carries the data set itself too, so that reading it here loses no precision.

    :param dataset: the data
    :param path: file to write
    """
    buffer = FixedReplayBuffer(dataset, *spaces_of(dataset), device="cpu")
    with replacing(path) as partial, open(partial, "wb") as file:
        pickle.dump(buffer, file)
