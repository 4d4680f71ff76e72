"""Under which conditions a figure was measured, what every result file records; and how much memory that took."""

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


def peak_memory_bytes() -> int:
    """The most that this process ever had in memory, on Linux."""
    # Not getrusage's ru_maxrss, which a new process inherits from the one that started it.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
