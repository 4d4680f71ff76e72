"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from nopg_envs.atomic_files import write_atomically


def test_a_file_takes_the_place_of_the_one_before_with_an_ending_that_stays(tmp_path: Path):
    target = tmp_path / "plot.png"
    target.write_text("old")
    seen = []

    def write(partial: Path) -> None:
        seen.append((partial.suffix, target.read_text()))
        partial.write_text("new")

    write_atomically(str(target), write)
    assert seen == [(".png", "old")]
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_whatever_fails_the_file_before_stays_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    target = tmp_path / "result.json"
    target.write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    def write(partial: Path) -> None:
        partial.write_text("half of a new one")
        if call == "write":
            fail()

    if call != "write":
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(target, write)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
