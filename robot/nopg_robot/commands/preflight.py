"""The verdict of ``nopg report``, where a report lies beside the policy. It is read and shown; the supervisor decides."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERDICTS = ("go", "care", "no")
FORMAT_VERSION = 2
# A page with its pictures has about a megabyte.
LARGEST_FILE_BYTES = 64 * 2**20
_IN_PAGE = re.compile(r'<script type="application/json" id="nopg-report">(.*?)</script>', flags=re.DOTALL)


@dataclass(frozen=True)
class Preflight:
    """
    :param path: of the report
    :param problem: why it says nothing about this policy; None if it does
    :param verdict: ``"go"``, ``"care"`` or ``"no"``; ``""`` with a problem
    :param reasons: what speaks against the policy
    :param band: that it is predicted to stay in, as it stands in the file
    """

    path: Path
    problem: str | None
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    band: Any = None

    def lines(self) -> list[str]:
        """For an operator."""
        if self.problem is not None:
            return [f"{self.path.name} {self.problem}"]
        return [f"verdict of {self.path.name}: {self.verdict}", *(f"  {reason}" for reason in self.reasons)]

    @property
    def style(self) -> str:
        """Of the lines."""
        return {"go": "green", "no": "bold red"}.get(self.verdict, "yellow")


def reports_beside(policy: Path, digest: str) -> list[Preflight]:
    """
    :param policy: file of the policy
    :param digest: SHA-256 of that file
    :return: what the reports on this policy say; where there is none, what is wrong with those of the policy's own name or
        of no name
    """
    found = [_read(path, digest) for path in _candidates(policy)]
    fitting = [report for report in found if report.problem is None]
    if fitting:
        return fitting
    own = {f"report{ending}" for ending in (".json", ".html")} | {f"{policy.stem}.report.json", f"{policy.stem}.html"}
    return [report for report in found if report.path.name in own]


def _candidates(policy: Path) -> Iterator[Path]:
    """Files of figures, and pages whose figures have no file of their own."""
    folder = policy.absolute().parent
    figures = sorted(folder.glob("*report.json"))
    yield from figures
    there = {path.name for path in figures}
    for page in sorted(folder.glob("*.html")):
        if not there & {f"{page.stem}.json", f"{page.stem}.report.json"}:
            yield page


def _read(path: Path, digest: str) -> Preflight:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            return Preflight(path, "is too large to be a report")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            match = _IN_PAGE.search(text)
            if match is None:
                return Preflight(path, "is no report")
            text = match[1]
        return _judge(path, json.loads(text), digest)
    except (OSError, ValueError, RecursionError) as error:
        return Preflight(path, f"cannot be read ({type(error).__name__}): make the report again")


def _judge(path: Path, figures: Any, digest: str) -> Preflight:
    if not isinstance(figures, dict) or figures.get("format_version") != FORMAT_VERSION:
        return Preflight(path, "is not a report that this program understands: make it again")
    verdict, reasons = figures.get("verdict"), figures.get("reasons")
    if verdict not in VERDICTS or not isinstance(reasons, list):
        return Preflight(path, "has no verdict: make the report again")
    files = figures.get("policy_files")
    if not isinstance(files, list) or digest not in files:
        return Preflight(path, "belongs to another policy file: make the report again, beside this one")
    return Preflight(path, None, verdict, tuple(str(reason) for reason in reasons), figures.get("band"))
