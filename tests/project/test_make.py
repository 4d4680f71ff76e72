"""What ``make`` runs."""

import re

from helpers.repository import REPOSITORY


def test_real_time_tests_lie_where_make_looks_for_them():
    folder = re.search(r"^DEADLINES = (\S+)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    files = [
        path
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.real_time", path.read_text(encoding="utf-8"))
    ]
    assert len(files) > 5
    assert all(path.is_relative_to(REPOSITORY / folder) for path in files)
