"""The data set: what it holds, that nobody can change it, and that a file gives back exactly what was saved or nothing."""

import copy
import dataclasses
import os
import pathlib
import pickle
import tempfile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.datasets import (
    ARRAYS,
    FIELDS,
    REQUIRED,
    Bomb,
    assert_same_bits,
    datasets,
    full_dataset,
    make_arrays,
    make_dataset,
)
from sb3_nopg import InputError, TransitionDataset

# --- construction


@pytest.mark.parametrize("name", REQUIRED)
def test_it_holds_the_values_it_was_given(name):
    arrays = make_arrays()
    np.testing.assert_array_equal(getattr(TransitionDataset(**arrays), name), arrays[name])


def test_sizes():
    dataset = TransitionDataset(**make_arrays(n=12, d_s=3, d_a=2))
    assert (len(dataset), dataset.observation_dim, dataset.action_dim) == (12, 3, 2)


def test_optional_fields_are_none_when_not_given():
    dataset = make_dataset()
    assert [getattr(dataset, name) for name in FIELDS if name not in REQUIRED] == [None] * 4


def test_two_transitions_are_enough():
    assert len(TransitionDataset([[0.0], [1.0]], [[0.0], [1.0]], [0.0, 1.0], [[1.0], [2.0]], [False, False])) == 2


def test_fields_can_be_given_by_position_in_the_documented_order():
    arrays = make_arrays()
    by_position = TransitionDataset(*(arrays[name] for name in REQUIRED), np.zeros(12, dtype=bool), np.arange(12))
    assert_same_bits(by_position, make_dataset(timeouts=np.zeros(12, dtype=bool), episode_ids=np.arange(12)))


def test_lists_of_python_numbers_are_accepted():
    arrays = make_arrays()
    from_lists = TransitionDataset(**{name: array.tolist() for name, array in arrays.items()})
    assert_same_bits(from_lists, TransitionDataset(**arrays))


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize(
    ("given_dtype", "held_dtype"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float64"),
        ("longdouble", "float64"),
        ("int8", "float64"),
        ("int64", "float64"),
        ("uint16", "float64"),
        (">f8", "float64"),
    ],
)
def test_float32_stays_and_every_other_number_becomes_float64(name, given_dtype, held_dtype):
    values = np.round(make_arrays()[name] * 4).clip(0, 100).astype(given_dtype)
    held = getattr(make_dataset(**{name: values}), name)
    assert held.dtype == np.dtype(held_dtype)
    np.testing.assert_array_equal(held, values.astype(np.float64))


def test_fields_of_different_precision_do_not_touch_each_other():
    dataset = make_dataset(observations=make_arrays(dtype=np.float32)["observations"])
    assert (dataset.observations.dtype, dataset.next_observations.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize("name", ["terminals", "timeouts"])
@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float32"])
def test_flags_of_any_numeric_dtype_become_booleans(name, dtype):
    flags = np.arange(12) % 4 == 1
    held = getattr(make_dataset(**{name: flags.astype(dtype)}), name)
    assert held.dtype == bool
    np.testing.assert_array_equal(held, flags)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64"])
def test_episode_ids_of_any_integer_dtype_become_int64(dtype):
    ids = (np.arange(12) // 3).astype(dtype)
    held = make_dataset(episode_ids=ids).episode_ids
    assert held.dtype == np.int64
    np.testing.assert_array_equal(held, ids)


def test_arrays_in_fortran_order_and_strided_views_are_read_correctly():
    arrays = make_arrays()
    strided = np.repeat(arrays["rewards"], 2)[::2]
    dataset = make_dataset(observations=np.asfortranarray(arrays["observations"]), rewards=strided)
    assert_same_bits(dataset, TransitionDataset(**arrays))


# --- nobody can change it


@pytest.mark.parametrize("name", ARRAYS)
def test_changing_the_callers_array_does_not_change_the_data_set(name):
    arrays = {**make_arrays(), "timeouts": np.zeros(12, dtype=bool), "episode_ids": np.arange(12)}
    dataset = TransitionDataset(**arrays)
    before = getattr(dataset, name).copy()
    arrays[name][:] = 1 - arrays[name]
    np.testing.assert_array_equal(getattr(dataset, name), before)


@pytest.mark.parametrize("name", ARRAYS)
def test_writing_into_the_data_set_raises(name):
    array = getattr(full_dataset(), name)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = array[1]


@pytest.mark.parametrize("name", FIELDS)
def test_replacing_a_field_raises(name):
    dataset = full_dataset()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(dataset, name, getattr(dataset, name))


def test_the_callers_array_stays_writable():
    arrays = make_arrays()
    TransitionDataset(**arrays)
    assert all(array.flags.writeable for array in arrays.values())


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda dataset: pickle.loads(pickle.dumps(dataset)),
        lambda dataset: pickle.loads(pickle.dumps(dataset, protocol=5)),
    ],
    ids=["copy", "deepcopy", "pickle", "pickle-5"],
)
def test_copies_are_equal_and_read_only_too(duplicate):
    dataset = full_dataset()
    twin = duplicate(dataset)
    assert_same_bits(dataset, twin)
    assert not any(getattr(twin, name).flags.writeable for name in ARRAYS)


def test_dataclasses_replace_gives_another_checked_data_set():
    dataset = make_dataset()
    assert_same_bits(dataclasses.replace(dataset, rewards=np.ones(12)), make_dataset(rewards=np.ones(12)))
    with pytest.raises(InputError, match="rewards"):
        dataclasses.replace(dataset, rewards=np.full(12, np.nan))


# --- what it says about itself


def test_repr_tells_sizes_ranges_episodes_and_ends():
    observations = np.linspace(-1.5, 2.5, 24).reshape(12, 2)
    text = repr(
        TransitionDataset(
            observations=observations,
            actions=np.linspace(-0.25, 0.75, 12)[:, None],
            rewards=np.linspace(-7, -3, 12),
            next_observations=observations,
            terminals=np.arange(12) == 3,
            timeouts=np.isin(np.arange(12), (7, 11)),
            episode_ids=np.arange(12) // 4,
        )
    )
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "12 transitions" in text
    assert "2 state" in text
    assert "1 action" in text
    assert "[-1.5, 2.326] [-1.326, 2.5]" in lines["observations"]
    assert "[-0.25, 0.75]" in lines["actions"]
    assert "[-7, -3]" in lines["rewards"]
    assert lines["episodes"].split() == ["episodes", "3"]
    assert "1" in lines["terminals"].split(",")[0]
    assert "timeouts 2" in lines["terminals"]


def test_repr_says_what_was_not_recorded():
    lines = {line.split()[0]: line for line in repr(make_dataset()).splitlines()}
    assert "not recorded" in lines["episodes"]
    assert "timeouts not recorded" in lines["terminals"]


def test_repr_does_not_grow_with_the_data():
    assert len(repr(make_dataset(n=5000))) < 500


# --- where episodes start


def test_episode_starts_from_ids():
    assert make_dataset(episode_ids=np.arange(12) // 5).episode_starts.tolist() == [0, 5, 10]


def test_episode_starts_in_the_order_of_the_data_not_of_the_ids():
    assert make_dataset(episode_ids=[7] * 4 + [-3] * 4 + [2] * 4).episode_starts.tolist() == [0, 4, 8]


def test_episode_starts_of_interleaved_episodes_are_first_rows():
    # Two environments recorded in turn.
    assert make_dataset(episode_ids=[0, 1] * 4 + [2, 1] * 2).episode_starts.tolist() == [0, 1, 8]


def test_episode_starts_from_timeouts_and_terminals():
    terminals, timeouts = np.zeros(12, dtype=bool), np.zeros(12, dtype=bool)
    terminals[2], timeouts[6] = True, True
    assert make_dataset(terminals=terminals, timeouts=timeouts).episode_starts.tolist() == [0, 3, 7]


def test_an_episode_that_ends_with_the_data_starts_no_other():
    assert make_dataset(terminals=np.zeros(12), timeouts=np.arange(12) == 11).episode_starts.tolist() == [0]


def test_ids_win_over_timeouts():
    assert make_dataset(timeouts=np.arange(12) == 6, episode_ids=np.arange(12) // 6).episode_starts.tolist() == [0, 6]


def test_no_episodes_without_ids_and_timeouts():
    assert make_dataset().episode_starts is None


def test_no_episodes_where_nothing_ever_ended():
    assert make_dataset(terminals=np.zeros(12), timeouts=np.zeros(12)).episode_starts is None


# --- files: round trips


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [make_dataset, full_dataset], ids=["required-only", "every-field"])
@pytest.mark.parametrize("seed", [0, 1])
def test_save_and_load_give_the_same_bits(tmp_path, make, dtype, seed):
    dataset = make(dtype=dtype, seed=seed)
    assert_same_bits(dataset, TransitionDataset.load(dataset.save(tmp_path / "data")))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(datasets())
def test_every_data_set_survives_its_file(dataset):
    with tempfile.TemporaryDirectory() as folder:
        assert_same_bits(dataset, TransitionDataset.load(dataset.save(pathlib.Path(folder) / "data")))


def test_what_was_loaded_is_read_only_too(tmp_path):
    loaded = TransitionDataset.load(full_dataset().save(tmp_path / "data"))
    assert not any(getattr(loaded, name).flags.writeable for name in ARRAYS)


def test_files_hold_plain_arrays_under_our_names(tmp_path):
    dataset = full_dataset()
    with np.load(dataset.save(tmp_path / "data"), allow_pickle=False) as archive:
        assert set(ARRAYS) < set(archive.files)
        for name in ARRAYS:
            np.testing.assert_array_equal(archive[name], getattr(dataset, name))


def test_any_npz_with_our_names_is_read(tmp_path):
    arrays = make_arrays()
    np.savez(tmp_path / "by_hand.npz", **arrays, remarks=np.array("recorded on a Monday"))
    assert_same_bits(TransitionDataset(**arrays), TransitionDataset.load(tmp_path / "by_hand.npz"))


def test_data_in_a_file_is_checked_like_any_other(tmp_path):
    np.savez(tmp_path / "nan.npz", **{**make_arrays(), "rewards": np.full(12, np.nan)})
    with pytest.raises(InputError, match="rewards"):
        TransitionDataset.load(tmp_path / "nan.npz")


# --- files: names


@pytest.mark.parametrize(
    ("given_name", "written"),
    [("data", "data.npz"), ("data.npz", "data.npz"), ("data.v2", "data.v2.npz"), ("new/folder/data", "new/folder/data.npz")],
)
@pytest.mark.parametrize("as_type", [str, pathlib.Path])
def test_suffix_is_added_where_missing_by_save_and_by_load(tmp_path, given_name, written, as_type):
    dataset, path = make_dataset(), as_type(tmp_path / given_name)
    assert dataset.save(path) == tmp_path / written
    assert [file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()] == [pathlib.Path(written)]
    assert_same_bits(dataset, TransitionDataset.load(path))
    assert_same_bits(dataset, TransitionDataset.load(as_type(tmp_path / written)))


def test_a_folder_of_the_same_name_does_not_hide_the_file(tmp_path):
    dataset = make_dataset()
    (tmp_path / "run").mkdir()
    dataset.save(tmp_path / "run")
    assert_same_bits(dataset, TransitionDataset.load(tmp_path / "run"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TransitionDataset.load(tmp_path / "nowhere")


def test_save_replaces_an_older_file(tmp_path):
    make_dataset(seed=0).save(tmp_path / "data")
    make_dataset(seed=1).save(tmp_path / "data")
    assert_same_bits(make_dataset(seed=1), TransitionDataset.load(tmp_path / "data"))


# --- files: a failed write


def write_half_then_fail(error):
    def savez_compressed(file, **arrays):
        file.write(b"PK\x03\x04 half a file")
        raise error

    return savez_compressed


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["disk-full", "interrupted"])
def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, error):
    monkeypatch.setattr(np, "savez_compressed", write_half_then_fail(error))
    with pytest.raises(type(error)):
        make_dataset().save(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["disk-full", "interrupted"])
def test_a_failed_write_keeps_the_older_file(tmp_path, monkeypatch, error):
    path = make_dataset(seed=0).save(tmp_path / "data")
    before = path.read_bytes()
    monkeypatch.setattr(np, "savez_compressed", write_half_then_fail(error))
    with pytest.raises(type(error)):
        make_dataset(seed=1).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_failed_rename_keeps_the_older_file(tmp_path, monkeypatch):
    path = make_dataset(seed=0).save(tmp_path / "data")
    before = path.read_bytes()

    def refuse(source, target):
        raise PermissionError(target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        make_dataset(seed=1).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


# --- files: damaged, or not ours


@pytest.mark.parametrize("make", [make_dataset, full_dataset], ids=["required-only", "every-field"])
def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path, make):
    path = make().save(tmp_path / "data")
    content = path.read_bytes()
    for length in [0, 1, 3, 4, 30, *np.linspace(31, len(content) - 1, 20, dtype=int)]:
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"data\.npz"):
            TransitionDataset.load(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists open files as Linux does")
def test_a_file_that_was_refused_is_closed_again(tmp_path):
    """Otherwise Windows would not let anyone delete or replace it."""
    path = make_dataset().save(tmp_path / "data")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError) as caught:
        TransitionDataset.load(path)
    assert caught.value.field == str(path)
    open_files = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    assert str(path.resolve()) not in open_files


def start_of_the_index(path):
    """Position in a zip file of the list of its members: what comes before is contents, guarded by checksums."""
    with zipfile.ZipFile(path) as archive:
        return archive.start_dir


@pytest.mark.slow
def test_damaged_contents_are_refused_or_harmless(tmp_path):
    dataset = full_dataset(n=40)
    path = dataset.save(tmp_path / "data")
    content = path.read_bytes()
    escaped = {}
    for position in np.linspace(0, start_of_the_index(path) - 1, 150, dtype=int):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            # Some bytes, like the dates of the members, mean nothing to us.
            assert_same_bits(dataset, TransitionDataset.load(path))
        except InputError:
            pass
        except Exception as error:
            escaped[int(position)] = repr(error)
    assert escaped == {}


def write_text(path):
    path.write_text("observations,actions,rewards\n0,0,0\n")


def write_npy(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros((5, 3)))


def write_pickle(path):
    path.write_bytes(pickle.dumps({**make_arrays(), "bomb": Bomb(path.parent / "exploded")}))


def write_object_array(path):
    with open(path, "wb") as file:
        np.savez(file, **{**make_arrays(), "rewards": np.array([Bomb(path.parent / "exploded")] * 12, dtype=object)})


def write_other_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "not an array")


def write_without_rewards(path):
    np.savez(path, **{name: array for name, array in make_arrays().items() if name != "rewards"})


def write_newer_version(path):
    np.savez(path, **make_arrays(), format_version=np.array(99))


def write_unknown_version(path):
    np.savez(path, **make_arrays(), format_version=np.array("two"))


def write_half_a_space(path):
    np.savez(path, **make_arrays(), action_space_low=np.full(2, -9.0))


def write_impossible_space(path):
    np.savez(path, **make_arrays(), action_space_low=np.full(2, 9.0), action_space_high=np.full(2, -9.0))


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda path: path.write_bytes(b""), "truncated"),
        (write_text, "another kind"),
        (write_npy, "another kind"),
        (write_pickle, "another kind"),
        (lambda path: path.mkdir(), "data"),
        (write_object_array, "data"),
        (write_other_zip, "observations"),
        (write_without_rewards, "without rewards"),
        (write_newer_version, "[Uu]pgrade"),
        (write_unknown_version, "data|format_version"),
        (write_half_a_space, "data|action_space"),
        (write_impossible_space, "data|action_space"),
    ],
    ids=[
        "empty",
        "text",
        "npy",
        "pickle",
        "directory",
        "object-array",
        "other-zip",
        "without-rewards",
        "newer-version",
        "unknown-version",
        "space-without-high",
        "space-with-low-above-high",
    ],
)
def test_files_that_are_not_ours_are_refused_and_never_unpickled(tmp_path, write, told):
    path = tmp_path / "data.npz"
    write(path)
    with pytest.raises(InputError, match=told):
        TransitionDataset.load(path)
    assert not (tmp_path / "exploded").exists()
