"""Which exported files a report is about: by what is in them, not by what they say of themselves."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_nopg.common.files import replacing
from sb3_nopg.policies.export import acts_like, policy_digest

# As on the rig, which reads no larger ones.
_LARGEST_FILE_BYTES = 64 * 2**20
_IN_PAGE = re.compile(r'(<script type="application/json" id="nopg-report">)(.*?)(</script>)', flags=re.DOTALL)
# As Jinja2 writes JSON into a page.
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}


def bind_reports(model: BaseAlgorithm, folder: str | os.PathLike[str]) -> None:
    """
    Write into all reports on a policy that lie in a folder the SHA-256 of all exported files there that do what the policy
    does. The rig shows a verdict only with a file that its report names.

    :param model: whose policy it is
    :param folder: in which a report or a file has just been written
    """
    place = pathlib.Path(folder)
    digest = policy_digest(model)
    reports = [(path, figures) for path, figures in _reports(place) if figures.get("policy_digest") == digest]
    if not reports:
        return
    contents = [path.read_bytes() for path in sorted(place.glob("*.onnx")) if path.stat().st_size <= _LARGEST_FILE_BYTES]
    files = [hashlib.sha256(content).hexdigest() for content in contents if acts_like(model, content)]
    for path, figures in reports:
        known = figures.get("policy_files") or []
        if new := [file for file in files if file not in known]:
            _write(path, {**figures, "policy_files": [*known, *new]})


def _reports(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    for path in sorted((*folder.glob("*report.json"), *folder.glob("*.html"))):
        try:
            if path.stat().st_size > _LARGEST_FILE_BYTES:
                continue
            text = path.read_text(encoding="utf-8")
            match = _IN_PAGE.search(text) if path.suffix == ".html" else None
            figures = json.loads(match[2] if match else text)
        # Whatever else lies there is none of our business.
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(figures, dict):
            yield path, figures


def _write(path: pathlib.Path, figures: dict[str, Any]) -> None:
    text = json.dumps(figures, indent=2, ensure_ascii=False)
    if path.suffix == ".html":
        for sign, escaped in _ESCAPED.items():
            text = text.replace(sign, escaped)
        page = path.read_text(encoding="utf-8")
        text = _IN_PAGE.sub(lambda match: match[1] + text + match[3], page, count=1)
    else:
        text += "\n"
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
