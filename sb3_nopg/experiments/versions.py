"""With which versions a trial was run: trials of one report may come from several machines."""

import functools
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("sb3-nopg", "numpy", "scipy", "torch", "stable-baselines3", "gymnasium")


@functools.cache
def versions_here() -> dict[str, str]:
    """Of Python and of what the trials compute with."""
    return {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # Code that was not installed but found on the path.
        return "not installed"


def counted_versions(versions: Iterable[Mapping[str, str] | None]) -> list[dict[str, Any]]:
    """
    :param versions: of each trial, None where nobody knows
    :return: each that occurs, with the number of ``trials``, the most frequent first
    """
    counts = Counter(json.dumps(dict(known or {})) for known in versions)
    return [{"trials": n, **json.loads(known)} for known, n in counts.most_common()]


def version_numbers(versions: Iterable[Mapping[str, str] | None], counted: Sequence[Mapping[str, Any]]) -> list[int]:
    """
    :param versions: of each trial, None where nobody knows
    :param counted: of :func:`counted_versions`, of the same
    :return: which of those each trial has
    """
    known = [{name: value for name, value in entry.items() if name != "trials"} for entry in counted]
    return [known.index(dict(of_trial or {})) for of_trial in versions]


def versions_told(counted: Sequence[Mapping[str, Any]]) -> str:
    """
    :param counted: of :func:`counted_versions`
    :return: in words
    """
    told = []
    for entry in counted:
        names = ", ".join(f"{name} {value}" for name, value in entry.items() if name != "trials")
        told.append((names or "versions not known") + (f" ({_trials(entry['trials'])})" if len(counted) > 1 else ""))
    return "; ".join(told)


def _trials(n: int) -> str:
    return "1 trial" if n == 1 else f"{n} trials"
