"""A report's numbers, read again: what an overview is made of, and what a run can go on from."""

import gzip
import json
import pathlib
import zlib
from typing import Any

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.results_file import Record, trial_key


def read_numbers(file: pathlib.Path, experiment: str) -> list[Record]:
    """
    :param file: a report's ``NAME.json``, or the same packed, ``NAME.json.gz``
    :param experiment: that it is of
    :return: its trials, in its order
    :raises InputError: if it is not whole
    """
    try:
        content: Any = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        return [_record_of(entry, experiment, content["conditions"]["versions"]) for entry in content["trials"]]
    except (ValueError, LookupError, TypeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        quick = " --quick" * file.name.startswith(f"{experiment}-quick")
        raise InputError(
            str(file),
            f"it is not a whole report ({type(error).__name__}: {error})",
            f"Move it elsewhere, and write it again with `nopg reproduce {experiment}{quick} --report-only`",
        ) from error


def _record_of(entry: dict[str, Any], experiment: str, versions: list[dict[str, Any]]) -> Record:
    trial, own = {**entry["trial"]}, versions[entry["versions"]]
    known = {name: version for name, version in own.items() if name != "trials"}
    return Record(
        trial_key(experiment, trial), str(entry["code"]), trial, {**entry["result"]}, entry["seconds"], known or None
    )
