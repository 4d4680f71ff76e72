"""
What a model's file holds, read without running anything.

SB3's file is a ZIP archive. ``data`` is JSON with a setting for each name: a plain value, or a pickle (``:serialized:``) that
runs what its writer wants. ``*.pth`` are tensors, which torch reads by an unpickler that makes nothing but tensors. Our own
models have the plain form of `plain_values` where SB3 would write a pickle, so that reading them runs nothing.
"""

import io
import json
import os
import pathlib
import pickle
import zipfile
from collections.abc import Callable, Collection, Iterable
from typing import Any

from stable_baselines3.common.save_util import open_path

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.trust import check_trusted
from sb3_nopg.data.files.limits import check_size
from sb3_nopg.policies.plain_values import NotPlainError, from_plain, to_plain

ModelSource = str | pathlib.Path | io.BufferedIOBase
PLAIN, PICKLED = ":plain:", ":serialized:"
_SETTINGS = "data"
#: what SB3 and torch raise where a file is no model, or is a damaged one
UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    ImportError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
# How torch's own format begins. Its older ones are read by code that has let programs through.
_ZIP_START = b"PK\x03\x04"


def settings_in(source: ModelSource) -> dict[str, Any] | None:
    """
    :param source: of a model's file, or the open file, which is left at its start
    :return: settings as they are in the file, pickles not read; None where there is no such file
    """
    content = _bytes_of(source)
    return None if content is None else _settings(content)


def read_model(
    source: ModelSource,
    *,
    trust: bool,
    records: Iterable[type] = (),
    only: Collection[str] | None = None,
    replaced: dict[str, Any] | None = None,
) -> tuple[io.BytesIO, dict[str, Any]]:
    """
    :param source: of a model's file, or the open file
    :param trust: whether to leave pickles in it to SB3, which reads them
    :param records: dataclasses that may be in it
    :param only: names of the settings that count; None for all
    :param replaced: settings that take the place of those in the file, which are not read
    :return: the file, and ``custom_objects`` for SB3's ``load``: with them it reads no pickle that is not trusted
    """
    content, name = _bytes_of(source), _name_of(source)
    if content is None:
        raise FileNotFoundError(f"There is no model {source}")
    settings, objects = _settings(content) or {}, dict(replaced or {})
    if "env" in settings:
        # SB3 never writes one, and would import whatever module its name asks for.
        raise InputError(name, "it names an environment to make", "Give what save() wrote")
    pickled = [key for key, value in settings.items() if key not in objects and isinstance(value, dict) and PICKLED in value]
    if pickled:
        check_trusted(name, f"a pickle in it ({', '.join(pickled[:3])}{', …' if len(pickled) > 3 else ''})", trust)
    if not trust:
        _check_tensors(content, name)
    for key, value in settings.items():
        if key in objects or not isinstance(value, dict) or PLAIN not in value or PICKLED in value:
            continue
        try:
            objects[key] = from_plain(value[PLAIN], records) if only is None or key in only else None
        except NotPlainError as error:
            raise InputError(name, f"its {key} cannot be read ({error})", "Save the model again") from error
    return io.BytesIO(content), objects


def write_model(target: ModelSource, values: dict[str, Any], save: Callable[[io.BytesIO], None]) -> None:
    """
    :param target: where to write the model, as for SB3's ``save``
    :param values: the model's attributes
    :param save: SB3's own ``save``; its pickles are replaced where there is a plain form
    """
    saved = io.BytesIO()
    save(saved)
    file = open_path(target, "w", verbose=0, suffix="zip")
    try:
        with zipfile.ZipFile(saved) as old, zipfile.ZipFile(file, "w") as new:
            for member in old.infolist():
                content = old.read(member)
                new.writestr(member, _without_pickles(content, values) if member.filename == _SETTINGS else content)
    finally:
        if isinstance(target, str | pathlib.Path):
            file.close()


def _without_pickles(content: bytes, values: dict[str, Any]) -> bytes:
    settings = json.loads(content)
    for name, item in settings.items():
        if not isinstance(item, dict) or PICKLED not in item:
            continue
        try:
            settings[name] = {":type:": item[":type:"], PLAIN: to_plain(values[name])}
        except NotPlainError:
            # Somebody's own class or function: whoever loads it must trust them.
            continue
    return json.dumps(settings, indent=4).encode()


def _bytes_of(source: ModelSource) -> bytes | None:
    if isinstance(source, str | os.PathLike):
        # SB3 adds the ending where there is none.
        found = next((file for file in (pathlib.Path(source), pathlib.Path(f"{source}.zip")) if file.is_file()), None)
        return None if found is None else found.read_bytes()
    content = source.read()
    source.seek(0)
    return content


def _name_of(source: ModelSource) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "this file"


def _settings(content: bytes) -> dict[str, Any] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_size("this file", "its settings", archive.getinfo(_SETTINGS).file_size)
            found = json.loads(archive.read(_SETTINGS))
    except InputError:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, RecursionError, NotImplementedError):
        return None
    return found if isinstance(found, dict) else None


def _check_tensors(content: bytes, name: str) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                check_size(name, member.filename, member.file_size)
                if member.filename.endswith(".pth") and archive.open(member).read(len(_ZIP_START)) != _ZIP_START:
                    check_trusted(name, f"an old format of torch in it ({member.filename})", trust=False)
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        # SB3 will say what is wrong with it.
        return
