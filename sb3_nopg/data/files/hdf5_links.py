"""Data that an HDF5 file does not hold itself: one from elsewhere could show any other file of this computer as its data."""

import os
from collections.abc import Iterator
from typing import Any

from sb3_nopg.common.errors import InputError


def check_own(h5py: Any, path: str | os.PathLike[str], group: Any, name: str) -> None:
    """
    :param h5py: the package
    :param path: of the file, for the message
    :param group: of the open file
    :param name: of an item in it
    :raises InputError: unless the item is the file's own, and so are its numbers
    """
    link = group.get(name, getlink=True)
    # A soft link within the file may pass through an external one on its way.
    if not isinstance(link, h5py.HardLink):
        raise InputError(str(path), f"{name} is a link, perhaps into another file", "Give a file that holds its own data")
    item = group[name]
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
        raise InputError(str(path), f"{name} lies in another file", "Give a file that holds its own data")


def own_datasets(h5py: Any, path: str | os.PathLike[str], file: Any) -> Iterator[tuple[str, Any]]:
    """
    :param h5py: the package
    :param path: of the file, for the message
    :param file: open
    :return: names and data sets of all groups, each checked to be the file's own
    """
    # Hard links may lead back to where they came from.
    seen, waiting = {file.id.__hash__()}, [file]
    while waiting:
        group = waiting.pop()
        for name in group:
            check_own(h5py, path, group, name)
            item = group[name]
            if isinstance(item, h5py.Dataset):
                yield item.name, item
            elif isinstance(item, h5py.Group) and item.id.__hash__() not in seen:
                seen.add(item.id.__hash__())
                waiting.append(item)
