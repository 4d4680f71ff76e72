"""Benchmarks run by hand only: a name that they import may be gone for months before somebody notices."""

import os
import subprocess
import sys

import pytest

from helpers.repository import REPOSITORY

BENCHMARKS = sorted(path.stem for path in (REPOSITORY / "benchmarks").glob("*.py"))


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    program = f"import importlib\nfor name in {BENCHMARKS}: importlib.import_module(name)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY / "benchmarks"), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, "it ran instead of being imported"
