"""Memory that is free, on the machine and in a container."""

from types import SimpleNamespace

import pytest

from sb3_nopg.common import memory


@pytest.mark.parametrize(
    ("limit", "used", "read_before", "expected"),
    [("max", 5, 0, 8000), ("1000", 400, 0, 600), ("1000", 400, 300, 900), ("1000", 2000, 0, 0), ("9000", 400, 0, 8000)],
)
def test_a_container_may_have_less_than_the_machine(limit, used, read_before, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=8000))
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    assert memory.free_memory() == 8000
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon {used}\ninactive_file {read_before}\n")
    assert memory.free_memory() == expected
