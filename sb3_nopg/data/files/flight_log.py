"""Flight logs of the rig, recognised by their arrays."""

import logging
import pathlib
from importlib import import_module
from typing import Any

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.data.files.limits import check_size
from sb3_nopg.data.files.npz_file import DAMAGE, check_archive, names
from sb3_nopg.data.quantities import Quantities

_logger = logging.getLogger(__name__)
JOURNAL_SUFFIX = ".journal"
_SIGNS = ("header_json", "events_json", "applied_volt", "phase")


def is_flight_log(path: pathlib.Path) -> bool:
    """
    :param path: of any file
    """
    return path.suffix == JOURNAL_SUFFIX or set(_SIGNS) <= names(path)


def journal_of(path: pathlib.Path) -> pathlib.Path:
    """
    :param path: of a log
    :return: what is left of it when the computer went down before it was closed
    """
    return path.with_name(path.name + JOURNAL_SUFFIX)


def read(path: pathlib.Path) -> dict[str, Any]:
    """
    :param path: of a log or of its journal
    :return: arguments of `TransitionDataset`
    """
    # The one place that knows the rig software, and only by name: how samples become transitions is said once, there; both
    # packages come in one wheel, and whoever never reads a flight log never loads it.
    try:
        flight_log = import_module("nopg_robot.flight.log")
        told = import_module("nopg_robot.control.observation").METADATA
    except ImportError as error:
        raise InputError(
            str(path), f"reading a flight log needs nopg_robot ({one_line(error)})", "Install sb3-nopg with the rig software"
        ) from error
    try:
        if path.suffix == JOURNAL_SUFFIX:
            check_size(path, "the journal", path.stat().st_size)
        else:
            check_archive(path, tuple(names(path)))
        log = flight_log.read_flight(path)
        transitions: dict[str, Any] = log.transitions()
    except InputError:
        raise
    except (*DAMAGE, IndexError) as error:
        raise InputError(str(path), f"not a readable flight log ({one_line(error)})", "It may be truncated") from error
    if not log.complete:
        _logger.warning("%s: the recorder was not closed, so the last moments of the run may be missing.", path)
    dims = transitions["observations"].shape[1], transitions["actions"].shape[1]
    return {**transitions, "quantities": Quantities.told_by(told, *dims)}
