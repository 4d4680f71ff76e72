"""Data that are kept from training, to check on."""

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.overlap import shared_rows

# Share of held-out transitions that may coincide with some of training by accident.
_MOST_SHARED = 0.01


def split_off(
    data: TransitionDataset, held_out: float | TransitionDataset | None
) -> tuple[TransitionDataset, TransitionDataset | None]:
    """
    :param data: all transitions
    :param held_out: share to keep from training, or data that already are
    :return: what to learn from, and what to check on
    """
    if held_out is None:
        return data, None
    if isinstance(held_out, TransitionDataset):
        _check_unseen(held_out, data)
        return data, held_out
    if data.episode_starts is not None and len(data.episode_starts) == 1:
        # Of one episode its end: neighbours in time of what is held out would give it away.
        n_training = min(max(2, round(len(data) * (1.0 - held_out))), len(data) - 2)
        before = np.arange(len(data)) < n_training
        return data.filter(before), data.filter(~before)
    training, checking = data.split((1.0 - held_out, held_out), by="transition" if data.episode_starts is None else "episode")
    return training, checking


def _check_unseen(held_out: TransitionDataset, data: TransitionDataset) -> None:
    n_shared = shared_rows(held_out, data)
    if n_shared > _MOST_SHARED * len(held_out):
        raise InputError(
            "held_out", f"{n_shared} of {len(held_out)} transitions are among those learned from", "Give others, or a share"
        )
