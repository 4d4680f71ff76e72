"""What the README shows runs."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_shows_code():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_runs(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
