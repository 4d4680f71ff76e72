"""
What a new user's first hour takes: a fresh clone, a fresh environment, the demo, the first imports and the README's example.

    python benchmarks/first_hour.py                          # this commit
    python benchmarks/first_hour.py --before 642418d         # and an earlier one beside it
    python benchmarks/first_hour.py --tests                  # and `make test`, which takes long

Everything happens in a temporary folder, from a clone of this repository: what is not committed does not count. Seconds are
wall time, so leave the computer alone. Where pip finds its packages near, installing takes less than over a network; packages
and megabytes do not depend on that.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import conditions

REPOSITORY = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "first_hour.json"
N_REPEATS = 5
ROWS = {
    "load": "load of the computer before",
    "install_s": "installing for the demo, s",
    "packages": "packages for the demo",
    "megabytes": "environment for the demo, MB",
    "demo_s": "`nopg demo`, s",
    "training_s": "of it training, s",
    "help_s": "`nopg --help`, s",
    "sb3_import_s": "`import stable_baselines3`, s",
    "import_s": "`import sb3_nopg`, s",
    "names_import_s": "`from sb3_nopg import NOPG`, s",
    "example_s": "the README's Python example, s",
    "test_install_s": "installing the rest for the tests, s",
    "test_packages": "packages for the tests",
    "test_megabytes": "environment for the tests, MB",
    "test_s": "`make test`, s",
}


class Clone:
    """
    :param folder: to clone into
    :param commit: to check out
    """

    def __init__(self, folder: Path, commit: str):
        self.folder, self.python = folder, folder / ".venv" / "bin" / "python"
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)
        # Nothing of the environment that this runs in may help.
        hidden = ("PYTHON", "VIRTUAL_ENV", "MAKE", "OMP_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}

    def run(self, *command: str) -> tuple[float, str]:
        """:return: seconds, and what it said"""
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return time.perf_counter() - start, done.stdout

    def size(self) -> tuple[int, int]:
        """:return: packages, less pip and setuptools that Python brings, and megabytes of the environment"""
        _, listed = self.run(str(self.python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
        packages = [entry["name"] for entry in json.loads(listed[listed.index("[") : listed.rindex("]") + 1])]
        # A link counts for nothing, and a file that has two names once.
        files = {
            file.stat().st_ino: file.stat().st_size for file in self.python.parents[1].rglob("*") if not file.is_symlink()
        }
        return len([name for name in packages if name not in ("pip", "setuptools")]), round(sum(files.values()) / 1e6)


def median_seconds(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(N_REPEATS))


def first_hour(commit: str, *, tests: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        clone, row = Clone(Path(folder) / "sb3-nopg", commit), {"commit": commit, "load": os.getloadavg()[0]}
        targets = (clone.folder / "Makefile").read_text()
        stamp = ".venv/demo" if ".venv/demo:" in targets else ".venv/installed"
        row["install_s"], _ = clone.run("make", stamp)
        row["packages"], row["megabytes"] = clone.size()
        row["demo_s"], said = clone.run("make", "demo")
        found = re.search(r"transitions took (\d+) s", said)
        row["training_s"] = float(found[1]) if found else None
        row["help_s"] = median_seconds(lambda: clone.run(str(clone.python.with_name("nopg")), "--help")[0])
        for name, statement in (
            ("sb3_import_s", "import stable_baselines3"),
            ("import_s", "import sb3_nopg"),
            ("names_import_s", "from sb3_nopg import NOPG"),
        ):
            row[name] = median_seconds(lambda statement=statement: clone.run(str(clone.python), "-c", statement)[0])
        example = re.findall(
            r"```python\n(.*?)```", (clone.folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
        )[0]
        row["example_s"], _ = clone.run(str(clone.python), "-c", example)
        if tests:
            row["test_install_s"], _ = clone.run("make", ".venv/installed")
            row["test_packages"], row["test_megabytes"] = clone.size()
            row["test_s"], _ = clone.run("make", "test")
        return row


def table(rows: list[dict[str, Any]]) -> str:
    heads = [f"`{row['commit'][:7]}`" for row in rows]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(rows)]
    for key, label in ROWS.items():
        if any(row.get(key) is not None for row in rows):
            lines.append(f"| {label} | " + " | ".join(_shown(row.get(key)) for row in rows) + " |")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) and value < 20 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="commit to measure first")
    parser.add_argument("--tests", action="store_true", help="also install what the tests need, and run them")
    arguments = parser.parse_args()
    if shutil.which("make") is None:
        sys.exit("This needs make.")
    start_conditions = conditions(("pip",))
    head = subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    commits = [*([arguments.before] if arguments.before else []), head.stdout.strip()]
    rows = []
    for commit in commits:
        rows.append(first_hour(commit, tests=arguments.tests))
        print(table(rows), flush=True)
    RESULT.write_text(json.dumps({"conditions": start_conditions, "rows": rows}, indent=2) + "\n")
    RESULT.with_suffix(".md").write_text(f"# The first hour\n\n{start_conditions['command']}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
