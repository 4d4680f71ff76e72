"""Under which conditions a figure was measured: what every result file records."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def conditions(packages: tuple[str, ...]) -> dict[str, Any]:
    """
    :param packages: whose versions matter
    :return: command, versions, processor count and load, free of anything that names the machine
    """
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "cpu_count": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
