"""What the README shows runs."""

import re
import shlex
import shutil
import subprocess

import pytest

from helpers.repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def links_to_folders(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]


def test_every_link_leads_to_a_file():
    assert [link for link in links_to_folders(README) if not (REPOSITORY / link).exists()] == []


def test_what_can_be_uploaded_has_links_that_lead_somewhere():
    tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    has_links = bool(project.get("urls")) and not links_to_folders(README)
    assert has_links != ("Private :: Do Not Upload" in project["classifiers"])


def test_the_release_page_says_how_links_become_addresses(tmp_path):
    if shutil.which("sed") is None:
        pytest.skip("needs sed")
    release = (REPOSITORY / "docs" / "release.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^sed .*README.md$", release, flags=re.MULTILINE)
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    linked = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert links_to_folders(linked) == []
    assert len(re.findall(r"\]\(http", linked)) == len(re.findall(r"\]\(", README))


def test_the_readme_shows_code():
    assert len(BLOCKS) >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("few_updates", "without_pictures")
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_runs(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
