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
        versions = content.get("conditions", {}).get("versions", [])
        return [_record_of(entry, experiment, versions) for entry in content["trials"]]
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        again = f"nopg reproduce {experiment}" + " --quick" * file.name.startswith(f"{experiment}-quick")
        remedy = "Take a whole copy, or move it elsewhere and run" if file.suffix == ".gz" else "Move it elsewhere, and run"
        raise InputError(
            str(file),
            f"it is not a whole report ({type(error).__name__}: {error})",
            f"{remedy} `{again}`: trials that {experiment}.jsonl knows are not run again",
        ) from error


def _record_of(entry: dict[str, Any], experiment: str, versions: list[dict[str, Any]]) -> Record:
    """Reports of early versions do not know the time, the code and the packages of each trial."""
    trial, number = {**entry["trial"]}, entry.get("versions")
    known = {} if number is None else {name: version for name, version in versions[number].items() if name != "trials"}
    seconds = entry.get("seconds")
    return Record(
        trial_key(experiment, trial),
        str(entry.get("code", "")),
        trial,
        {**entry["result"]},
        None if seconds is None else float(seconds),
        known or None,
    )
