"""
The file that a flight recorder writes while the run goes on, readable up to its last whole record whatever ended the run.

    magic | format version, u16 | length, u32 | header, JSON | CRC32 of all that, u32
    kind, 1 byte | length, u32 | payload | CRC32 of all that, u32        … and so on, one after the other

Everything is little-endian. Kind ``S`` is a sample, one packed value for each of the header's ``columns``; kind ``J`` is a
JSON object whose ``type`` is ``intervention``, ``episode_end`` or ``summary``.
"""

import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"NOPGLOG\n"
FORMAT_VERSION = 1
JOURNAL_SUFFIX = ".journal"
PHASE_LENGTH = 16

_FILE_HEAD = struct.Struct("<8sHI")
_RECORD_HEAD = struct.Struct("<cI")
_CRC = struct.Struct("<I")


class Column(NamedTuple):
    """
    :param name: of the quantity, with its unit where it has one
    :param dtype: as NumPy writes it
    :param unit: empty for none; ``rig`` for whatever the rig's sensors count in
    """

    name: str
    dtype: str
    unit: str


COLUMNS = (
    Column("time_s", "<f8", "s"),
    Column("phase", f"S{PHASE_LENGTH}", ""),
    Column("raw_cart", "<f8", "rig"),
    Column("raw_pole", "<f8", "rig"),
    Column("x", "<f8", "m"),
    Column("theta", "<f8", "rad"),
    Column("x_dot", "<f8", "m/s"),
    Column("theta_dot", "<f8", "rad/s"),
    Column("asked_volt", "<f8", "V"),
    Column("applied_volt", "<f8", "V"),
    Column("late_s", "<f8", "s"),
    Column("busy_s", "<f8", "s"),
    Column("acted", "|b1", ""),
    Column("episode", "<i4", ""),
)
_PACKED = {"<f8": "d", f"S{PHASE_LENGTH}": f"{PHASE_LENGTH}s", "|b1": "?", "<i4": "i"}
_SAMPLE = struct.Struct("<cI" + "".join(_PACKED[column.dtype] for column in COLUMNS))
_SAMPLE_LENGTH = _SAMPLE.size - _RECORD_HEAD.size


class JournalError(ValueError):
    """A file that is no journal, or has no whole header; the message says what is wrong with it."""


@dataclass(frozen=True)
class Journal:
    """
    :param header: as it was written
    :param samples: structured array, one field for each column
    :param events: JSON objects in the order of writing
    :param unread_bytes: at the end of the file, from the first record that is not whole
    """

    header: dict[str, Any]
    samples: np.ndarray
    events: tuple[dict[str, Any], ...]
    unread_bytes: int


def journal_path(path: str | os.PathLike[str]) -> Path:
    """
    :param path: of a sealed log
    :return: where its journal lies while the run goes on
    """
    return Path(os.fspath(path) + JOURNAL_SUFFIX)


def pack_header(header: dict[str, Any]) -> bytes:
    """
    :param header: everything about the run that is known at its beginning
    :return: first bytes of the file
    """
    payload = json.dumps(header, default=_plain).encode()
    content = _FILE_HEAD.pack(MAGIC, FORMAT_VERSION, len(payload)) + payload
    return content + _CRC.pack(zlib.crc32(content))


def pack_event(event: dict[str, Any]) -> bytes:
    """
    :param event: with its ``type``
    """
    payload = json.dumps(event, default=_plain).encode()
    content = _RECORD_HEAD.pack(b"J", len(payload)) + payload
    return content + _CRC.pack(zlib.crc32(content))


def pack_sample(values: Sequence[Any]) -> bytes:
    """
    :param values: one for each of `COLUMNS`, the phase as bytes
    """
    content = _SAMPLE.pack(b"S", _SAMPLE_LENGTH, *values)
    return content + _CRC.pack(zlib.crc32(content))


def read_journal(path: str | os.PathLike[str]) -> Journal:
    """
    :param path: of the journal
    :return: everything up to the first record that is not whole
    """
    content = Path(path).read_bytes()
    header, position = _read_header(content)
    dtype = np.dtype([(column["name"], column["dtype"]) for column in header["columns"]])
    samples: list[bytes] = []
    events: list[dict[str, Any]] = []
    while (record := _read_record(content, position)) is not None:
        kind, payload, end = record
        if kind == b"S" and len(payload) == dtype.itemsize:
            samples.append(payload)
        elif kind == b"J":
            events.append(json.loads(payload))
        else:
            break
        position = end
    return Journal(header, np.frombuffer(b"".join(samples), dtype=dtype), tuple(events), len(content) - position)


def _read_header(content: bytes) -> tuple[dict[str, Any], int]:
    if content[: len(MAGIC)] != MAGIC[: len(content)]:
        raise JournalError("not the journal of a flight recorder")
    torn = JournalError("it ends within its header: the run had not begun")
    if len(content) < _FILE_HEAD.size:
        raise torn
    _, version, length = _FILE_HEAD.unpack_from(content)
    if version != FORMAT_VERSION:
        raise JournalError(
            f"format version {version}, and this program reads version {FORMAT_VERSION}; use the one that wrote it"
        )
    end = _FILE_HEAD.size + length
    if len(content) < end + _CRC.size:
        raise torn
    if _CRC.unpack_from(content, end)[0] != zlib.crc32(content[:end]):
        raise JournalError("its header is damaged")
    return json.loads(content[_FILE_HEAD.size : end]), end + _CRC.size


def _read_record(content: bytes, position: int) -> tuple[bytes, bytes, int] | None:
    """Kind, payload and where the next record begins; None if no whole record is there."""
    begin = position + _RECORD_HEAD.size
    if begin > len(content):
        return None
    kind, length = _RECORD_HEAD.unpack_from(content, position)
    end = begin + length
    if end + _CRC.size > len(content) or _CRC.unpack_from(content, end)[0] != zlib.crc32(content[position:end]):
        return None
    return kind, content[begin:end], end + _CRC.size


def _plain(value: Any) -> Any:
    """What JSON does not know; a log is not lost over the type of a number in its summary."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)
