"""
One rule for all files: a pickle can run any program when it is read, and is read only if the user says so.

It holds for data (``.pkl``, ``.npy``), for models (``.zip``), checkpoints, and what ``VecNormalize.save`` wrote.
"""

import os

from sb3_nopg.common.errors import InputError


class UntrustedError(InputError):
    """A file that may run a program, from nobody knows whom."""


def check_trusted(path: str | os.PathLike[str], what: str, trust: bool) -> None:
    """
    :param path: of a file that is about to be read, or its name
    :param what: in it could run a program
    :param trust: whether the user trusts who wrote it
    """
    if not trust:
        raise UntrustedError(
            str(path), f"{what} can run any program when it is read", "Pass trust=True (--trust) if you know who wrote it"
        )
