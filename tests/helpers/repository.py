"""Where things lie, and how programs that tests start find the helpers."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def environment(**changes: str) -> dict[str, str]:
    """
    Of a program that imports ``helpers`` as tests do.

    :param changes: variables that differ from ours
    """
    folders = [str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **changes}
