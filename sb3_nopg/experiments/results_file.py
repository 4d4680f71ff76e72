"""Results of trials, kept as they come: one line of JSON each, so that a run that was interrupted can go on."""

import hashlib
import json
import math
import os
import pathlib
from dataclasses import asdict, dataclass
from typing import Any

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.experiment import Result, Trial


@dataclass(frozen=True)
class Record:
    """
    :param key: of the trial, see :func:`trial_key`
    :param code: version of the code that ran it
    :param trial: its parameters
    :param result: what it gave
    :param seconds: what it took; None where it was not kept
    :param versions: of Python and packages that ran it, by their names; None where they were not kept
    """

    key: str
    code: str
    trial: Trial
    result: Result
    seconds: float | None
    versions: dict[str, str] | None = None


def trial_key(experiment: str, trial: Trial) -> str:
    """
    :param experiment: its name
    :param trial: parameters
    :return: the same for the same parameters, in whatever order
    """
    try:
        text = json.dumps([experiment, trial], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError("trials", f"{trial!r} is not what JSON can hold ({error})", "Use text, numbers and lists") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ResultsFile:
    """
    Lines are only ever added, each in one write, so that a process killed at any moment leaves whole lines, but for the last
    one perhaps; that one is skipped.

    :param path: of the file, made when the first result comes
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    def read(self) -> list[Record]:
        """All results, older first."""
        if not self.path.exists():
            return []
        records = []
        for line in self.path.read_bytes().split(b"\n"):
            record = _parse(line)
            if record is not None:
                records.append(record)
        return records

    def prepare(self) -> None:
        """
        Fail before the first trial, not after it, where results cannot be written.

        :raises OSError: where the file cannot be made or added to
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab"):
            pass

    def add(self, record: Record) -> None:
        """:param record: on the disk when this returns"""
        line = json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n"
        # Appended whole, whatever the file's end is by then: two programs may share it.
        with self.path.open("ab+", buffering=0) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    # Half a line of a run that was killed: let it end there.
                    line = b"\n" + line
            file.write(line)
            os.fsync(file.fileno())


def _parse(line: bytes) -> Record | None:
    try:
        fields: Any = json.loads(line)
        record = Record(**fields)
    except (ValueError, TypeError):
        # Blank, or cut off.
        return None
    return record if _is_whole(record) else None


def _is_whole(record: Record) -> bool:
    """Whether it can be what was written: files are joined and edited by hand."""
    return (
        isinstance(record.key, str)
        and isinstance(record.code, str)
        and isinstance(record.trial, dict)
        and isinstance(record.result, dict)
        and (record.seconds is None or (isinstance(record.seconds, int | float) and math.isfinite(record.seconds)))
        and isinstance(record.versions, dict | None)
    )
