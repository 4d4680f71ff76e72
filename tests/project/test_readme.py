"""What the README shows runs."""

import re

import pytest

from helpers.repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_every_link_leads_to_a_file():
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_the_readme_shows_code():
    assert len(BLOCKS) >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("few_updates", "without_pictures")
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_runs(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
