"""Wrong files: each is refused in one line that names the file or the array, whatever is wrong with it."""

import contextlib
import os
import pathlib
import pickle
import tempfile
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.bad_data_files import (
    BAD_FILES,
    BAD_TRUSTED_FILES,
    npz,
    write_bad,
)
from helpers.data_files import trajectories
from helpers.datasets import Bomb, full_dataset, make_dataset
from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.data.files import limits


@pytest.mark.slow
@pytest.mark.parametrize("case", [*BAD_FILES, *BAD_TRUSTED_FILES])
def test_a_wrong_file_is_refused_in_one_line(tmp_path, case):
    path, message = write_bad(tmp_path, case)
    with pytest.raises(InputError, match=message) as caught:
        TransitionDataset.load(path, trust=case in BAD_TRUSTED_FILES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["", ".", "..", pathlib.Path("."), "empty", "empty.d", pathlib.Path("empty")])
def test_a_name_that_is_no_file_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "here" / "empty").mkdir(parents=True)
    (tmp_path / "here" / "empty.d").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"is empty|is a folder, and no Minari data set"):
        TransitionDataset.load(name)


@pytest.mark.parametrize("format", [None, "npz", "csv"])
@pytest.mark.parametrize("name", ["", ".", ".."])
def test_nothing_is_written_to_a_name_that_is_no_file(tmp_path, monkeypatch, name, format):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="names no file"):
        make_dataset().save(name, format)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"is empty|names no file"):
        TransitionDataset.load(name, format or "npz")


@pytest.mark.parametrize("name", [".", "data"])
def test_folders_of_minari_need_no_ending(tmp_path, monkeypatch, name):
    dataset, folder = trajectories(lengths=(4,)), tmp_path / "pole.odd-v0"
    os.rename(dataset.save(tmp_path / "whole-v0", "minari"), folder)
    monkeypatch.chdir(folder)
    assert len(TransitionDataset.load(name)) == len(TransitionDataset.load(folder)) == len(dataset)


@pytest.mark.parametrize("name", ["d.txt", "d.xlsx", "d.npz.bak", "d.v2b"])
def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path, name):
    with pytest.raises(InputError, match=r"the ending \.\w+ is not known.*\.npz, \.h5, .*\.parquet"):
        make_dataset().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    npz()(tmp_path / "d.npz")
    (tmp_path / "d.npz").rename(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}: the ending"):
        TransitionDataset.load(tmp_path / name)
    assert len(TransitionDataset.load(tmp_path / name, "npz")) == 12


@pytest.mark.parametrize("name", ["d", "d.v2", "d_0.95", "d.2024-05-01"])
def test_a_number_is_no_ending(tmp_path, name):
    assert make_dataset().save(tmp_path / name) == tmp_path / f"{name}.npz"
    assert len(TransitionDataset.load(tmp_path / name)) == 12


@pytest.mark.parametrize("name", ["d.pkl", "d.npy"])
def test_nothing_is_unpickled_without_trust(tmp_path, name):
    path, bomb = tmp_path / name, Bomb(tmp_path / "exploded")
    if name == "d.pkl":
        path.write_bytes(pickle.dumps(bomb))
    else:
        np.save(path, np.array([bomb], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="can run any program"):
        TransitionDataset.load(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["d.npz", "d.h5", "d.csv", "d.parquet", "d-v0"])
def test_files_larger_than_memory_are_refused_before_they_are_read(tmp_path, monkeypatch, name):
    """Zeros compress well: these are bombs, if small ones."""
    n = 20_000
    zeros = np.zeros((n, 1))
    dataset = TransitionDataset(zeros, np.arange(n)[:, None] % 2, zeros[:, 0], zeros, np.arange(n) == n - 1)
    path = dataset.save(tmp_path / name, "minari" if name == "d-v0" else None)
    assert TransitionDataset.load(path).observation_dim == 1
    monkeypatch.setattr(limits, "size_limit", lambda: 100_000)
    with pytest.raises(InputError, match=r"would take .* of memory, and .* may be used here"):
        TransitionDataset.load(path)


def test_memory_limit_is_a_part_of_what_is_there():
    assert 2**24 < limits.size_limit() < 2**50


@contextlib.contextmanager
def as_anybody(folder):
    """Root may read everything: it gives up its rights for a moment, and lets anybody come as far as ``folder``."""
    if os.geteuid() != 0:
        yield
        return
    temporary = pathlib.Path(tempfile.gettempdir())
    for parent in (folder, *folder.parents):
        if temporary in parent.parents:
            parent.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such rights here")
@pytest.mark.parametrize("name", ["d.npz", "d.h5", "d.csv", "d.parquet"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_files_that_nobody_may_read_are_refused(tmp_path, name, what):
    path = make_dataset().save(tmp_path / "closed" / name)
    closed = path if what == "file" else path.parent
    closed.chmod(0)
    try:
        with as_anybody(tmp_path), pytest.raises(InputError, match=r"cannot be read .*Permission denied"):
            TransitionDataset.load(path)
    finally:
        closed.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d.h5", "d.parquet", "d.csv"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_raise_anything_else(tmp_path_factory, name, data):
    path = full_dataset(n=20).save(tmp_path_factory.mktemp("damaged") / name)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(InputError):
            TransitionDataset.load(path)


HEAD = "obs_0,action_0,reward,terminal,episode\n"
# Each a megabyte or two, and what is said of it.
LARGE_IN_MEMORY = {
    "one long name": (
        lambda: HEAD + "0,0,0,0," + "x" * 120_000 + "\n" + "0,1,2,0,a\n" * 20_000,
        "names an episode by 120,000",
    ),
    "one long row": (lambda: HEAD + "0,0,0,0,1" + ",9" * 600_000 + "\n", "a row is longer than 1,048,576 characters"),
    "a row of many lines": (lambda: HEAD + '"1\n",' * 300_000 + "\n", "a row is longer than 1,048,576 characters"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE_IN_MEMORY)
def test_a_small_text_takes_little_memory(tmp_path, case):
    content, message = LARGE_IN_MEMORY[case]
    (tmp_path / "d.csv").write_text(content())
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            TransitionDataset.load(tmp_path / "d.csv")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_a_table_that_grows_too_large_is_refused_on_the_way(tmp_path, monkeypatch):
    (tmp_path / "d.csv").write_text(HEAD + "0,0,0,0,1\n" * 3000)
    monkeypatch.setattr(limits, "free_memory", lambda: 2 * 100_000)
    with pytest.raises(InputError, match=r"the first 3,000 rows would take .* GiB may be used here"):
        TransitionDataset.load(tmp_path / "d.csv")


def test_names_of_episodes_are_kept_apart_and_numbers_as_they_are(tmp_path):
    rows = "".join(f"{i},0,0,0,{'up' if i < 6 else 'down'}\n" for i in range(12))
    (tmp_path / "d.csv").write_text(HEAD + rows)
    assert np.unique(TransitionDataset.load(tmp_path / "d.csv").episode_ids).tolist() == [0, 1]
    (tmp_path / "d.csv").write_text(HEAD + rows.replace("up", "7").replace("down", "3"))
    assert np.unique(TransitionDataset.load(tmp_path / "d.csv").episode_ids).tolist() == [3, 7]
