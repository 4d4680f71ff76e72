"""Older files may hold transitions that a model made."""

import os

import numpy as np

from sb3_nopg.common.errors import InputError


def check_recorded(path: str | os.PathLike[str], synthetic: np.ndarray | None) -> None:
    """
    :param path: the array was read from
    :param synthetic: whether a model made each transition, (n,); None where the file does not say
    :raises InputError: where one did
    """
    if synthetic is not None and np.any(synthetic):
        raise InputError(
            str(path),
            f"a model made {int(np.count_nonzero(synthetic))} of its transitions, nobody recorded them",
            "Give the data that they were made from",
        )
