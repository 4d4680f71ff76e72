"""Files that are there whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """
    The file is there whole or not at all, whatever interrupts the writing.

    :param path: of the result
    :param write: writes to the path it is given
    """
    target = Path(path)
    # The ending stays, as it chooses the format of a plot.
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        write(partial)
        # On the disk before it takes the name of the one before: a power cut must not leave neither.
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
