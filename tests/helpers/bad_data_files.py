"""Data files that are wrong, each in its own way, and what is said of each."""

import io
import json
import os
import pathlib
import pickle
import zipfile

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
from gymnasium import spaces
from minari.dataset.minari_storage import MinariStorage

from helpers.data_files import record_flight, steps, trajectories, write_npy
from helpers.datasets import full_dataset, make_arrays

HUGE = 10**12


TABLE = "obs_0,action_0,next_obs_0,reward,terminal\n0,1,2,3,0\n1,1,2,3,0\n"


def npz(**changes):
    def write(path):
        arrays = {name: array for name, array in {**make_arrays(), **changes}.items() if array is not None}
        np.savez(path, **arrays)

    return write


def npz_with_lying_header(path):
    """A few bytes on disk that claim to be an array of terabytes."""
    npz(observations=None)(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE, 3)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("observations.npy", header.getvalue() + bytes(64))


def truncated(path):
    whole = full_dataset(n=40).save(path).read_bytes()
    path.write_bytes(whole[: int(0.6 * len(whole))])


def hdf5(change=None, **changes):
    def write(path):
        with h5py.File(path, "w") as file:
            for name, array in {**make_arrays(), **changes}.items():
                if array is not None:
                    file[name] = array
            if change is not None:
                change(file, path)

    return write


def hdf5_elsewhere(file, path):
    other = path.with_name("other.h5")
    with h5py.File(other, "w") as others:
        others["rewards"] = np.zeros(12)
    file["rewards"] = h5py.ExternalLink(str(other), "rewards")


def hdf5_soft_link_to_elsewhere(file, path):
    """A soft link within the file looks harmless; the group on its way lies in another one."""
    hdf5_elsewhere(file, path)
    del file["rewards"]
    file["group"] = h5py.ExternalLink(str(path.with_name("other.h5")), "/")
    file["rewards"] = h5py.SoftLink("/group/rewards")


def hdf5_raw_bytes_of_another_file(file, path):
    path.with_name("secret").write_bytes(bytes(96))
    file.create_dataset("rewards", (12,), "<f8", external=[(str(path.with_name("secret")), 0, 96)])


def text(content, encoding="utf-8"):
    return lambda path: path.write_bytes(content.encode(encoding))


def parquet(**columns):
    def write(path):
        defaults = {"obs_0": [0.0, 1, 2], "action_0": [0.0, 1, 0], "next_obs_0": [1.0, 2, 3], "reward": [0.0, 0, 0]}
        chosen = {name: column for name, column in {**defaults, **columns}.items() if column is not None}
        pyarrow.parquet.write_table(pyarrow.table(chosen), path)

    return write


def minari_folder(change=lambda metadata: None, **arrays):
    """A data set of one episode, of which the metadata or arrays are not right."""

    def write(path):
        trajectories(lengths=(4,)).save(path.with_name("whole-v0"), "minari")
        os.rename(path.with_name("whole-v0"), path)
        metadata = json.loads((path / "data" / "metadata.json").read_text())
        change(metadata)
        (path / "data" / "metadata.json").write_text(json.dumps(metadata))
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            for name, array in arrays.items():
                del file["episode_0"][name]
                file["episode_0"][name] = array

    return write


def minari_discrete(path):
    path.mkdir()
    storage = MinariStorage.new(path / "data", spaces.Discrete(3), spaces.Box(-1, 1, (1,)))
    storage.update_metadata({"dataset_id": "discrete-v0", "minari_version": "0.5.4"})
    with h5py.File(path / "data" / "main_data.hdf5", "w"):
        pass


def minari_huge(path):
    minari_folder()(path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0"]["rewards"]
        file["episode_0"].create_dataset("rewards", (HUGE,), "<f8", chunks=(1024,))


def minari_linked(*, soft):
    """An episode's rewards of which only a link is in the file; a soft one passes through a group that lies elsewhere."""

    def write(path):
        minari_folder()(path)
        other = path.with_name("other.h5")
        with h5py.File(other, "w") as others:
            others["rewards"] = np.zeros(4)
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            del file["episode_0"]["rewards"]
            if soft:
                file["episode_0"]["outside"] = h5py.ExternalLink(str(other), "/")
            link = h5py.SoftLink("/episode_0/outside/rewards") if soft else h5py.ExternalLink(str(other), "rewards")
            file["episode_0"]["rewards"] = link

    return write


def minari_symlink(name):
    """A file or folder of the data set that is a link to one elsewhere."""

    def write(path):
        minari_folder()(path)
        os.rename(path / name, path.with_name("elsewhere"))
        os.symlink(path.with_name("elsewhere"), path / name)

    return write


def ragged_trajectories(path):
    write_npy(path, [steps(3, d_s=2), steps(3, d_s=4)])


def short_steps(path):
    write_npy(path, [[(np.zeros(2), np.zeros(1), 0.0)]])


def words_in_steps(path):
    write_npy(path, [[(np.zeros(2), np.zeros(1), "high", np.zeros(2), False)]])


def broken_flight(path):
    record_flight(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(path, **{**arrays, "events_json": np.array('[{"type": "episode_end", "colour": 3}]')})


# Name of the file, what writes it, what the message says.
BAD_FILES = {
    "npz-empty": ("d.npz", text(""), "not a readable"),
    "npz-truncated": ("d.npz", truncated, "truncated"),
    "npz-without-keys": ("d.npz", npz(rewards=None, actions=None), "without actions, rewards"),
    "npz-of-objects": ("d.npz", npz(rewards=np.array([None, "x"] * 6)), "not a readable"),
    "npz-with-nan": ("d.npz", npz(rewards=np.where(np.arange(12) == 7, np.nan, 0.0)), "rewards: 1 row.*row 7"),
    "npz-ragged": ("d.npz", npz(rewards=np.zeros(11)), "rewards: has 11 rows"),
    "npz-of-text": ("d.npz", npz(actions=np.array([["a"]] * 12)), "actions: dtype"),
    "npz-all-terminal": ("d.npz", npz(terminals=np.ones(12, dtype=bool)), "every transition is terminal"),
    "npz-flags-of-two": ("d.npz", npz(terminals=np.arange(12)), "terminals: holds something other"),
    "npz-terabytes": ("d.npz", npz_with_lying_header, "observations would take 2.*GiB of memory, and .* GiB may be used"),
    "npz-million-columns": ("d.npz", npz(observations=np.zeros((12, 10**6), dtype=np.float32)), "1,000,000 columns"),
    "npz-directory": ("d.npz", lambda path: path.mkdir(), "not a readable"),
    "hdf5-empty": ("d.h5", text(""), "not a readable HDF5"),
    "hdf5-text": ("d.hdf5", text(TABLE), "not a readable HDF5"),
    "hdf5-truncated": ("d.h5", truncated, "not a readable HDF5"),
    "hdf5-without-rewards": ("d.h5", hdf5(rewards=None), "without rewards"),
    "hdf5-terabytes": (
        "d.h5",
        hdf5(lambda file, _: file.create_dataset("rewards", (HUGE,), "<f8", chunks=(1024,)), rewards=None),
        "rewards would take",
    ),
    "hdf5-million-columns": (
        "d.h5",
        hdf5(lambda file, _: file.create_dataset("observations", (12, 10**6), "<f8", chunks=(1, 1024)), observations=None),
        "1,000,000 columns",
    ),
    "hdf5-group": ("d.h5", hdf5(lambda file, _: file.create_group("rewards"), rewards=None), "rewards is not an array"),
    "hdf5-of-text": ("d.h5", hdf5(rewards=["one"] * 12), "rewards is not an array of numbers"),
    "hdf5-other-file": ("d.h5", hdf5(hdf5_elsewhere, rewards=None), "rewards is a link, perhaps into another"),
    "hdf5-soft-link": ("d.h5", hdf5(hdf5_soft_link_to_elsewhere, rewards=None), "rewards is a link, perhaps into another"),
    "hdf5-raw-other-file": ("d.h5", hdf5(hdf5_raw_bytes_of_another_file, rewards=None), "rewards lies in another file"),
    "hdf5-nan": ("d.h5", hdf5(observations=np.full((12, 3), np.nan)), "observations: 12 row"),
    "hdf5-ragged": ("d.h5", hdf5(next_observations=None, rewards=np.zeros(5)), "rewards: has 5 rows"),
    "hdf5-directory": ("d.h5", lambda path: path.mkdir(), "not a readable HDF5"),
    "csv-empty": ("d.csv", text(""), "empty"),
    "csv-header-only": ("d.csv", text(TABLE.splitlines()[0] + "\n"), "0 transition"),
    "csv-one-row": ("d.csv", text("\n".join(TABLE.splitlines()[:2])), "1 transition"),
    "csv-word-among-numbers": ("d.csv", text(TABLE + "oops,1,2,3,0\n"), "'obs_0' holds 'oops'.* line 4"),
    "csv-empty-field": ("d.csv", text(TABLE + "1,,2,3,0\n"), "'action_0' has 1 row.*row 2"),
    "csv-nan": ("d.csv", text(TABLE + "nan,1,2,3,0\n"), "'obs_0' has 1 row"),
    "csv-long-row": ("d.csv", text(TABLE + "1,1,2,3,0,9\n"), "line 4 has 6 fields"),
    "csv-short-row": ("d.csv", text(TABLE + "1,1\n"), "line 4 has 2 fields"),
    "csv-latin-1": ("d.csv", text("größe," + TABLE, "latin-1"), "not UTF-8"),
    "csv-utf-16": ("d.csv", text(TABLE, "utf-16"), "not UTF-8"),
    "csv-bytes": ("d.csv", lambda path: path.write_bytes(bytes(range(128)) * 40), "d.csv"),
    "csv-million-columns": ("d.csv", text(",".join(f"c{i}" for i in range(10**6)) + "\n"), "longer than 1,048,576"),
    "csv-many-columns": ("d.csv", text("," * 20_000 + "a\n"), "20,001 columns"),
    "csv-same-name-twice": ("d.csv", text("obs_0," + TABLE), "more than one column"),
    "csv-other-columns": ("d.csv", text("x,y\n1,2\n"), "no columns obs_0"),
    "csv-no-reward": ("d.csv", text("obs_0,action_0\n1,2\n3,4\n5,6\n"), "no column reward"),
    "csv-damaged-description": ("d.csv", text("# sb3-nopg {'version\n" + TABLE), "description is damaged"),
    "csv-newer": ("d.csv", text('# sb3-nopg {"version": 99}\n' + TABLE), "[Uu]pgrade"),
    "csv-space-of-text": (
        "d.csv",
        text('# sb3-nopg {"version": 1, "action_space": {"dtype": "x", "low": 0, "high": []}}\n' + TABLE),
        "action_space",
    ),
    "csv-directory": ("d.csv", lambda path: path.mkdir(), "d.csv"),
    "parquet-empty": ("d.parquet", text(""), "not a readable Parquet"),
    "parquet-truncated": ("d.parquet", truncated, "not a readable Parquet"),
    "parquet-text": ("d.parquet", parquet(reward=["a", "b", "c"]), "'reward' holds 'a'"),
    "parquet-nothing-there": ("d.parquet", parquet(obs_0=[0.0, None, 1.0]), "'obs_0' has 1 row"),
    "parquet-lists": ("d.parquet", parquet(obs_0=[[0.0], [1.0], [2.0]]), "obs_0"),
    "parquet-other-columns": ("d.parquet", parquet(action_0=None), "no columns action_0"),
    "parquet-many-columns": ("d.parquet", parquet(**{f"c{i}": [0.0, 0, 0] for i in range(10_001)}), "10,005 columns"),
    "minari-nothing-there": ("d-v0", lambda path: path.mkdir(), "d-v0"),
    "minari-no-spaces": ("d-v0", minari_folder(lambda metadata: metadata.pop("action_space")), "name no spaces"),
    "minari-unknown-version": ("d-v0", minari_folder(lambda metadata: metadata.update(minari_version="99")), "not support"),
    "minari-ragged": ("d-v0", minari_folder(actions=np.zeros((7, 1))), "7 actions and 5 observations"),
    "minari-nan": ("d-v0", minari_folder(rewards=np.full(4, np.nan)), "rewards: 4 row"),
    "minari-discrete": ("d-v0", minari_discrete, "Discrete"),
    "minari-terabytes": ("d-v0", minari_huge, "would take"),
    "minari-external-link": ("d-v0", minari_linked(soft=False), "rewards is a link, perhaps into another"),
    "minari-soft-link": ("d-v0", minari_linked(soft=True), "is a link, perhaps into another"),
    "minari-linked-file": ("d-v0", minari_symlink("data/main_data.hdf5"), "main_data.hdf5 in it is a link"),
    "minari-linked-folder": ("d-v0", minari_symlink("data"), "data in it is a link"),
    "minari-newer": ("d-v0", minari_folder(lambda metadata: metadata["sb3_nopg"].update(version=99)), "[Uu]pgrade"),
    "flight-damaged": ("d.npz", broken_flight, "not a readable flight log"),
    "journal-of-text": ("d.npz.journal", text("no journal"), "not a readable flight log"),
}


BAD_TRUSTED_FILES = {
    "pkl-garbage": ("d.pkl", text("not a pickle"), "not a readable pickle"),
    "pkl-empty": ("d.pkl", text(""), "not a readable pickle"),
    "pkl-of-something-else": ("d.pkl", lambda path: path.write_bytes(pickle.dumps({"a": 1})), "holds a dict"),
    "npy-empty": ("d.npy", text(""), "not a readable .npy"),
    "npy-of-numbers": ("d.npy", lambda path: np.save(path, np.zeros((5, 3))), "an array of float64"),
    "npy-ragged": ("d.npy", ragged_trajectories, "trajectory 1, step 0: the state has 4 number.* 2 are expected"),
    "npy-short-steps": ("d.npy", short_steps, "has 3 parts"),
    "npy-words": ("d.npy", words_in_steps, "reward is no number but 'high'"),
    "npy-no-trajectories": ("d.npy", lambda path: write_npy(path, []), "no steps"),
    "npy-single-object": ("d.npy", lambda path: np.save(path, np.array({"a": 1})), "single object"),
    "npy-of-numbers-in-objects": ("d.npy", lambda path: write_npy(path, [1.0, 2.0]), "trajectory 0 is a float"),
}


def write_bad(folder, case):
    name, write, message = {**BAD_FILES, **BAD_TRUSTED_FILES}[case]
    path = pathlib.Path(folder) / name
    write(path)
    return path, message
