"""Files of models: which version wrote one, and whether this one can read it."""

import io
import json
import pathlib
import zipfile
from typing import Any

from sb3_nopg.common.errors import InputError

#: settings that a file of this version holds, and one of 0.1 does not
_SINCE_THIS_VERSION = "estimator_kwargs"


def check_version(path: str | pathlib.Path | io.BufferedIOBase) -> None:
    """
    :param path: of a model's file, or the open file, which is left at its start
    :raises InputError: where a version wrote it that had other settings. What cannot be read is left to SB3 to complain about
    """
    saved = _settings_in(path)
    if saved is not None and _SINCE_THIS_VERSION not in saved:
        name = "this file" if isinstance(path, io.IOBase) else str(path)
        raise InputError("path", f"sb3-nopg 0.1 wrote {name}", "Load it with that version, or train again")


def _settings_in(path: Any) -> dict[str, Any] | None:
    if isinstance(path, str | pathlib.Path):
        # SB3 adds the ending where there is none.
        path = next((file for file in (pathlib.Path(path), pathlib.Path(f"{path}.zip")) if file.is_file()), None)
        if path is None:
            return None
    try:
        with zipfile.ZipFile(path) as archive:
            found = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError):
        found = None
    if isinstance(path, io.IOBase):
        path.seek(0)
    return found if isinstance(found, dict) else None
