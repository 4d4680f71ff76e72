"""Data sets in every format: what was saved comes back bit for bit, and what others wrote is read as they meant it."""

import json
import os
import pathlib
import pickle
import sys
import tempfile

import gymnasium as gym
import h5py
import minari
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from minari.data_collector import EpisodeBuffer
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer

from helpers.data_files import record_flight, steps, trajectories, write_npy
from helpers.datasets import assert_same_bits, datasets, full_dataset, make_dataset
from nopg_robot.flight.journal import COLUMNS, pack_header, pack_sample
from nopg_robot.flight.log import read_flight
from sb3_nopg import InputError, TransitionDataset

# A Minari folder is named like a Minari id.
NAMES = {"npz": "data.npz", "hdf5": "data.h5", "csv": "data.csv", "parquet": "data.parquet", "minari": "data-v0"}
PARAMETERS = [pytest.param(format, name, id=format) for format, name in NAMES.items()]


# --- round trips


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), PARAMETERS)
@settings(max_examples=15, deadline=None)
@given(dataset=datasets())
def test_every_data_set_survives_every_format(format, name, dataset):
    with tempfile.TemporaryDirectory() as folder:
        path = dataset.save(pathlib.Path(folder) / name, format)
        assert_same_bits(dataset, TransitionDataset.load(path))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [make_dataset, full_dataset], ids=["required-only", "every-field"])
@pytest.mark.parametrize(("format", "name"), [*PARAMETERS, pytest.param("replay_buffer", "data.pkl", id="pkl")])
def test_save_and_load_give_the_same_bits(tmp_path, format, name, make, dtype):
    dataset = make(dtype=dtype)
    assert_same_bits(dataset, TransitionDataset.load(dataset.save(tmp_path / name, format), trust=True))


@pytest.mark.parametrize(("format", "name"), PARAMETERS)
def test_interleaved_episodes_and_extreme_numbers_survive(tmp_path, format, name):
    extreme = np.array([-0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3, 2.0**53 + 2, -1e-300])
    dataset = make_dataset(
        n=8,
        observations=np.stack([extreme, extreme[::-1]], axis=1),
        next_observations=np.stack([np.roll(extreme, -1), extreme], axis=1),
        rewards=extreme,
        timeouts=np.arange(8) == 5,
        episode_ids=np.array([7, -3, 7, -3, 2**62, 7, -3, 2**62]),
    )
    assert_same_bits(dataset, TransitionDataset.load(dataset.save(tmp_path / name, format)))


@pytest.mark.parametrize("name", ["data.csv", "data.h5", "data.hdf5", "data.parquet", "data.pkl", "data.npz", "DATA.CSV"])
def test_suffix_tells_the_format_and_only_that_file_is_written(tmp_path, name):
    dataset = full_dataset()
    assert dataset.save(tmp_path / "new" / name) == tmp_path / "new" / name
    assert os.listdir(tmp_path / "new") == [name]
    with open(tmp_path / "new" / name, "rb") as file:
        start = file.read(4)
    starts = {".csv": b"# sb", ".h5": b"\x89HDF", ".hdf5": b"\x89HDF", ".parquet": b"PAR1", ".npz": b"PK\x03\x04"}
    assert start == starts.get(pathlib.Path(name).suffix.lower(), start)


def test_format_can_be_named_where_the_path_does_not_tell(tmp_path):
    dataset = full_dataset()
    path = dataset.save(tmp_path / "data.table", "csv")
    assert path == tmp_path / "data.table"
    assert_same_bits(dataset, TransitionDataset.load(path, "csv"))
    with pytest.raises(InputError, match="format: 'excel' is unknown"):
        TransitionDataset.load(path, "excel")


@pytest.mark.parametrize("name", ["data.npy", "data.journal"])
def test_formats_that_are_only_read_say_so(tmp_path, name):
    with pytest.raises(InputError, match="only read"):
        make_dataset().save(tmp_path / name)


@pytest.mark.parametrize("name", ["data.h5", "data.csv", "data.parquet", "data.pkl"])
def test_a_failed_write_keeps_the_older_file(tmp_path, monkeypatch, name):
    path = full_dataset(seed=0).save(tmp_path / name)
    before = path.read_bytes()

    def refuse(source, target):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        full_dataset(seed=1).save(path)
    assert os.listdir(tmp_path) == [name]
    assert path.read_bytes() == before


# --- HDF5 as D4RL has it


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def test_hdf5_holds_the_keys_of_d4rl(tmp_path):
    dataset = full_dataset()
    with h5py.File(dataset.save(tmp_path / "data.h5")) as file:
        for name in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"):
            np.testing.assert_array_equal(file[name][()], getattr(dataset, name))


def test_hdf5_without_next_observations_is_shifted_within_episodes(tmp_path, caplog):
    # Episodes: rows 0-2 by the clock, 3-4 to a true end, 5 by the clock at once, 6-8 unfinished.
    states = np.arange(9.0)[:, None]
    path = write_hdf5(
        tmp_path / "data.h5",
        observations=states,
        actions=10 * np.arange(9.0),
        rewards=np.arange(9.0)[:, None],
        terminals=np.arange(9) == 4,
        timeouts=np.isin(np.arange(9), [2, 5]).astype(np.uint8),
    )
    dataset = TransitionDataset.load(path)
    np.testing.assert_array_equal(dataset.observations[:, 0], [0, 1, 3, 4, 6, 7])
    # The state after a true end is not known and nobody asks for it.
    np.testing.assert_array_equal(dataset.next_observations[:, 0], [1, 2, 4, 4, 7, 8])
    np.testing.assert_array_equal(dataset.actions[:, 0], [0, 10, 30, 40, 60, 70])
    np.testing.assert_array_equal(dataset.rewards, [0, 1, 3, 4, 6, 7])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(dataset.timeouts, [0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(dataset.episode_starts, [0, 2, 4])
    assert "last 3 row(s) are dropped" in caplog.text


def test_shift_follows_episode_numbers_where_there_are_some(tmp_path):
    path = write_hdf5(
        tmp_path / "data.h5",
        observations=np.array([[0.0], [10.0], [1.0], [11.0], [2.0], [12.0]]),
        actions=np.ones((6, 1)),
        rewards=np.zeros(6),
        terminals=np.zeros(6, dtype=bool),
        episode_ids=np.array([4, 2, 4, 2, 4, 2]),
    )
    dataset = TransitionDataset.load(path)
    np.testing.assert_array_equal(dataset.observations[:, 0], [0, 10, 1, 11])
    np.testing.assert_array_equal(dataset.next_observations[:, 0], [1, 11, 2, 12])
    np.testing.assert_array_equal(dataset.episode_ids, [4, 2, 4, 2])
    np.testing.assert_array_equal(dataset.timeouts, [0, 0, 1, 1])


# --- tables


def write_csv(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_named_columns_and_episodes_by_name(tmp_path):
    path = write_csv(
        tmp_path / "rig.csv",
        "run,theta,x,u,r,end,comment\na,1,2,0.5,-1,0,ok\na,3,4,-0.5,-2,0,\na,5,6,0,-3,0,\nb,7,8,1,-4,0,\nb,9,10,1,-5,1,done\n",
    )
    dataset = TransitionDataset.load(path, obs=["x", "theta"], action=["u"], reward="r", terminal="end", episode="run")
    np.testing.assert_array_equal(dataset.observations, [[2, 1], [4, 3], [8, 7], [10, 9]])
    np.testing.assert_array_equal(dataset.next_observations, [[4, 3], [6, 5], [10, 9], [10, 9]])
    np.testing.assert_array_equal(dataset.actions[:, 0], [0.5, -0.5, 1, 1])
    np.testing.assert_array_equal(dataset.rewards, [-1, -2, -4, -5])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 0, 1])
    np.testing.assert_array_equal(dataset.episode_ids, [0, 0, 1, 1])


def test_csv_with_next_columns_keeps_every_row(tmp_path):
    path = write_csv(tmp_path / "rig.csv", "x,u,x2,reward,terminal\n1,0,5,0.5,False\n2,1,6,0.25,True\n")
    dataset = TransitionDataset.load(path, obs=["x"], action=["u"], next_obs=["x2"])
    np.testing.assert_array_equal(dataset.next_observations[:, 0], [5, 6])
    np.testing.assert_array_equal(dataset.terminals, [False, True])
    assert dataset.episode_ids is None


@pytest.mark.parametrize(("gap", "starts"), [(None, [0, 3, 6]), (5.0, [0, 6]), (100.0, [0])])
def test_gaps_in_time_begin_episodes(tmp_path, gap, starts, caplog):
    times = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 20.0, 21.0, 22.0]
    rows = "".join(f"{time},{number},1,0\n" for number, time in enumerate(times))
    path = write_csv(tmp_path / "rig.csv", "t,x,u,reward\n" + rows)
    options = {} if gap is None else {"gap": gap}
    dataset = TransitionDataset.load(path, obs=["x"], action=["u"], time="t", **options)
    np.testing.assert_array_equal(dataset.observations[dataset.episode_starts, 0], starts)
    assert f"{len(starts) - 1} gap(s) in 't'" in caplog.text


def test_time_that_steps_back_begins_an_episode_too(tmp_path):
    path = write_csv(tmp_path / "rig.csv", "t,x,u,reward\n0,0,1,0\n1,1,1,0\n2,2,1,0\n0,3,1,0\n1,4,1,0\n2,5,1,0\n")
    dataset = TransitionDataset.load(path, obs=["x"], action=["u"], time="t")
    np.testing.assert_array_equal(dataset.observations[:, 0], [0, 1, 3, 4])


def test_table_without_rewards_is_read_when_asked_for(tmp_path):
    path = write_csv(tmp_path / "rig.csv", "x,u\n1,0\n2,1\n3,1\n")
    np.testing.assert_array_equal(TransitionDataset.load(path, obs=["x"], action=["u"], reward="none").rewards, [0, 0])


def test_csv_from_a_spreadsheet_with_semicolons_and_byte_order_mark(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_bytes(b"\xef\xbb\xbfx; u;reward\r\n1; 0;0,5\r\n2,25;1;0,5\r\n3;1;0,5\r\n")
    with pytest.raises(InputError, match="separated by ';'"):
        TransitionDataset.load(path, obs=["x"], action=["u"], delimiter=",")
    dataset = TransitionDataset.load(path, obs=["x"], action=["u"])
    np.testing.assert_array_equal(dataset.next_observations[:, 0], [2.25, 3])
    np.testing.assert_array_equal(dataset.rewards, [0.5, 0.5])


def test_parquet_of_others_is_read_by_column_names(tmp_path):
    columns = {"x": [1, 2, 3], "v": np.float32([0.1, 0.2, 0.3]), "u": [0.5, 0.25, 1.0], "reward": [1, 2, 3]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rig.parquet")
    dataset = TransitionDataset.load(tmp_path / "rig.parquet", obs=["x", "v"], action=["u"])
    np.testing.assert_array_equal(dataset.observations, np.array([[1, np.float32(0.1)], [2, np.float32(0.2)]]))
    np.testing.assert_array_equal(dataset.rewards, [1, 2])


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_tables_of_ours_can_be_read_by_anybody(tmp_path, name):
    dataset = full_dataset()
    path = dataset.save(tmp_path / name)
    if name.endswith("csv"):
        table = pyarrow.csv.read_csv(path, pyarrow.csv.ReadOptions(skip_rows=1))
    else:
        table = pyarrow.parquet.read_table(path)
    assert table.column_names == [
        "obs_0", "obs_1", "obs_2", "action_0", "action_1", "next_obs_0", "next_obs_1", "next_obs_2",
        "reward", "terminal", "timeout", "episode",
    ]  # fmt: skip
    np.testing.assert_allclose(table["next_obs_2"], dataset.next_observations[:, 2], rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs": ["x"]}, "no columns action_0"),
        ({"obs": ["speed"], "action": ["u"]}, "no column 'speed'"),
        ({"obs": ["thet"], "action": ["u"]}, "Did you mean 'theta'"),
        ({"obs": "x", "action": ["u"]}, "obs: 'x' is one text"),
        ({"obs": ["x", "x"], "action": ["u"]}, "twice"),
        ({"obs": ["x"], "action": ["u"], "next_obs": ["x", "theta"]}, "as many as obs"),
        ({"obs": ["x"], "action": ["u"], "gap": 0.1}, "gap"),
        ({"obs": ["x"], "action": ["u"], "colour": "red"}, "colour: not an option"),
        ({"obs": ["x"], "action": ["u"], "delimiter": "ab"}, "delimiter"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    path = write_csv(tmp_path / "rig.csv", "x,theta,u,reward\n1,1,0,0\n2,1,1,0\n3,1,1,0\n")
    with pytest.raises(InputError, match=message):
        TransitionDataset.load(path, **options)


def test_options_of_tables_are_refused_for_other_formats(tmp_path):
    path = make_dataset().save(tmp_path / "data.npz")
    with pytest.raises(InputError, match="obs: not an option of the format npz"):
        TransitionDataset.load(path, obs=["x"])


# --- Minari


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.mark.slow
def test_minari_reads_our_data_as_we_meant_it(minari_root):
    dataset = trajectories(lengths=(4, 3, 5))
    assert dataset.save("minari:pole/random-v3") == minari_root / "pole" / "random-v3"
    assert sorted(os.listdir(minari_root)) == ["pole"]
    assert list(minari.list_local_datasets()) == ["pole/random-v3"]
    found = minari.load_dataset("pole/random-v3")
    assert (found.total_episodes, found.total_steps) == (3, 12)
    assert (found.observation_space, found.action_space) == (dataset.observation_space, dataset.action_space)
    for number, episode in enumerate(found):
        rows = dataset.episode_ids == number
        assert len(episode.observations) == rows.sum() + 1
        np.testing.assert_array_equal(episode.observations[:-1], dataset.observations[rows])
        np.testing.assert_array_equal(episode.observations[1:], dataset.next_observations[rows])
        np.testing.assert_array_equal(episode.actions, dataset.actions[rows])
        np.testing.assert_array_equal(episode.rewards, dataset.rewards[rows])
        np.testing.assert_array_equal(episode.terminations, dataset.terminals[rows])
        np.testing.assert_array_equal(episode.truncations, dataset.timeouts[rows])
    assert_same_bits(dataset, TransitionDataset.load("minari:pole/random-v3"))
    assert_same_bits(dataset, TransitionDataset.load(minari_root / "pole" / "random-v3"))
    assert_same_bits(dataset, TransitionDataset.load(minari_root / "pole" / "random-v3" / "data"))


def test_record_that_stops_for_no_reason_is_truncated_for_others_and_unchanged_for_us(minari_root):
    whole = trajectories(lengths=(4, 4))
    rows = np.array([0, 1, 2, 3, 4, 6, 7])
    dataset = TransitionDataset(
        *(getattr(whole, name)[rows] for name in ("observations", "actions", "rewards", "next_observations", "terminals")),
        episode_ids=whole.episode_ids[rows],
    )
    dataset.save("minari:gap-v0")
    ends = [(episode.terminations[-1], episode.truncations[-1]) for episode in minari.load_dataset("gap-v0")]
    assert ends == [(True, False), (False, True), (False, True)]
    assert_same_bits(dataset, TransitionDataset.load("minari:gap-v0"))


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_we_read_minari_data_of_others(minari_root, data_format):
    first = EpisodeBuffer(
        observations=np.arange(8.0).reshape(4, 2),
        actions=np.float32([[0.5], [0.25], [-1]]),
        rewards=[1.0, 2.0, 3.0],
        terminations=[False, False, True],
        truncations=[False, False, False],
    )
    second = EpisodeBuffer(
        observations=np.arange(6.0).reshape(3, 2),
        actions=np.float32([[1], [0]]),
        rewards=[4.0, 5.0],
        terminations=[False, False],
        truncations=[False, True],
    )
    with pytest.warns(UserWarning, match="None"):
        minari.create_dataset_from_buffers(
            "others/pole-v1",
            [first, second],
            observation_space=spaces.Box(-9, 9, (2,), dtype=np.float64),
            action_space=spaces.Box(-1, 1, (1,)),
            data_format=data_format,
        )
    dataset = TransitionDataset.load("minari:others/pole-v1")
    np.testing.assert_array_equal(dataset.observations, [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]])
    np.testing.assert_array_equal(dataset.next_observations, [[2, 3], [4, 5], [6, 7], [2, 3], [4, 5]])
    np.testing.assert_array_equal(dataset.actions[:, 0], [0.5, 0.25, -1, 1, 0])
    np.testing.assert_array_equal(dataset.rewards, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(dataset.timeouts, [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(dataset.episode_ids, [0, 0, 0, 1, 1])
    assert dataset.actions.dtype == np.float32
    assert dataset.observation_space == spaces.Box(-9, 9, (2,), dtype=np.float64)
    assert dataset.action_space == spaces.Box(-1, 1, (1,))


def test_minari_data_are_never_overwritten_and_failures_leave_nothing(minari_root, monkeypatch):
    trajectories(seed=0).save("minari:pole-v0")
    with pytest.raises(InputError, match="there already"):
        trajectories(seed=1).save("minari:pole-v0")
    assert_same_bits(trajectories(seed=0), TransitionDataset.load("minari:pole-v0"))

    def refuse(source, target):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="No space"):
        trajectories().save("minari:pole-v1")
    assert os.listdir(minari_root) == ["pole-v0"]


def test_minus_zero_is_not_zero_to_minari(minari_root):
    dataset = make_dataset(
        n=3,
        observations=np.array([[1.0], [-0.0], [0.0]]),
        next_observations=np.array([[0.0], [0.0], [2.0]]),
        terminals=np.zeros(3, dtype=bool),
        episode_ids=np.zeros(3, dtype=int),
        actions=np.zeros((3, 1)),
        rewards=np.zeros(3),
    )
    dataset.save("minari:zero-v0")
    assert_same_bits(dataset, TransitionDataset.load("minari:zero-v0"))


@pytest.mark.slow
def test_minari_warns_of_one_step_samples(minari_root, caplog):
    make_dataset(n=150).save("minari:samples-v0")
    assert ".npz is not" in caplog.text


@pytest.mark.parametrize("identifier", ["no-version", "", "../../escape-v0", "a b-v0"])
def test_minari_ids_are_checked(minari_root, identifier):
    with pytest.raises(InputError, match="not a Minari id"):
        make_dataset().save(f"minari:{identifier}")
    with pytest.raises(InputError, match="not a Minari id"):
        TransitionDataset.load(f"minari:{identifier}")


def test_missing_minari_data_are_named(minari_root):
    with pytest.raises(FileNotFoundError, match="nowhere-v0"):
        TransitionDataset.load("minari:nowhere-v0")


# --- pickles, which must be trusted


def test_replay_buffer_of_sb3_needs_trust(tmp_path):
    model = SAC("MlpPolicy", gym.make("Pendulum-v1"), buffer_size=50, learning_starts=100, device="cpu", seed=0)
    model.learn(30)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    with pytest.raises(InputError, match=r"can run any program.*trust=True"):
        TransitionDataset.load(tmp_path / "buffer.pkl")
    loaded = TransitionDataset.load(tmp_path / "buffer.pkl", trust=True)
    assert_same_bits(TransitionDataset.from_replay_buffer(model.replay_buffer), loaded)


def test_sb3_reads_the_buffer_that_we_write(tmp_path):
    dataset = full_dataset()
    with open(dataset.save(tmp_path / "buffer.pkl"), "rb") as file:
        buffer = pickle.load(file)
    assert isinstance(buffer, ReplayBuffer)
    assert buffer.size() == len(dataset)
    np.testing.assert_allclose(buffer.observations[:, 0], dataset.observations, rtol=1e-6)


@pytest.mark.parametrize(
    "as_type", [lambda x: x, list, lambda x: [tuple(step) for step in x]], ids=["arrays", "rows", "tuples"]
)
def test_object_arrays_of_the_authors_need_trust(tmp_path, as_type):
    path = write_npy(tmp_path / "trajectories.npy", [as_type(steps(3)), as_type(steps(2, first=10.0))])
    with pytest.raises(InputError, match=r"can run any program.*trust=True"):
        TransitionDataset.load(path)
    dataset = TransitionDataset.load(path, trust=True)
    np.testing.assert_array_equal(dataset.observations[:, 0], [0, 1, 2, 10, 11])
    np.testing.assert_array_equal(dataset.next_observations[:, 1], [2, 3, 4, 12, 13])
    np.testing.assert_array_equal(dataset.actions[:, 0], [0, 0.5, 1, 0, 0.5])
    np.testing.assert_array_equal(dataset.rewards, [0, -1, -2, 0, -1])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(dataset.episode_ids, [0, 0, 0, 1, 1])


def test_trajectories_of_equal_length_make_one_large_array(tmp_path):
    np.save(tmp_path / "t.npy", np.array([steps(3), steps(3)]), allow_pickle=True)
    assert len(TransitionDataset.load(tmp_path / "t.npy", trust=True)) == 6


# --- flight logs


def test_flight_logs_are_recognised_by_their_arrays(tmp_path):
    path = record_flight(tmp_path / "run.npz")
    loaded = TransitionDataset.load(path)
    assert_same_bits(TransitionDataset(**read_flight(path).transitions(), quantities=loaded.quantities), loaded)
    assert_same_bits(TransitionDataset.load(path), TransitionDataset.load(path, "flight_log"))


def test_journal_is_read_where_the_log_was_never_closed(tmp_path, caplog):
    log = read_flight(record_flight(tmp_path / "run.npz"))
    content = pack_header({"columns": [column._asdict() for column in COLUMNS]})
    for values in zip(*(getattr(log, column.name).tolist() for column in COLUMNS), strict=True):
        content += pack_sample([value.encode() if isinstance(value, str) else value for value in values])
    (tmp_path / "lost.npz.journal").write_bytes(content + b"S half a sample")
    lost = TransitionDataset.load(tmp_path / "lost.npz")
    np.testing.assert_array_equal(lost.observations, log.transitions()["observations"])
    assert "was not closed" in caplog.text
    assert_same_bits(lost, TransitionDataset.load(tmp_path / "lost.npz.journal"))


def test_package_of_the_rig_may_be_missing(tmp_path, monkeypatch):
    path = record_flight(tmp_path / "run.npz")
    monkeypatch.setitem(sys.modules, "nopg_robot.flight.log", None)
    with pytest.raises(InputError, match="needs nopg_robot"):
        TransitionDataset.load(path)


@pytest.mark.parametrize(("name", "module"), [("d.h5", "h5py"), ("d.parquet", "pyarrow"), ("d-v0", "minari")])
def test_packages_of_formats_may_be_missing(tmp_path, monkeypatch, name, module):
    path = make_dataset().save(tmp_path / name, "minari" if module == "minari" else None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"needs {module} .*sb3-nopg\[data\]"):
        TransitionDataset.load(path)


def test_description_in_a_csv_is_json_on_one_line(tmp_path):
    first, second, *_ = full_dataset().save(tmp_path / "d.csv").read_text().splitlines()
    assert json.loads(first.removeprefix("# sb3-nopg "))["dtypes"]["rewards"] == "float64"
    assert second.startswith("obs_0,obs_1")


# --- files of older versions, which also said of each transition whether a model made it


def with_column(path, synthetic):
    """The file as an older version would have written it."""
    if path.suffix == ".npz":
        np.savez(path, **{**np.load(path), "synthetic": synthetic})
    elif path.suffix == ".h5":
        with h5py.File(path, "a") as file:
            file.create_dataset("synthetic", data=synthetic)
    elif path.suffix == ".csv":
        description, header, *rows = path.read_text().splitlines()
        added = [f"{row},{int(flag)}" for row, flag in zip(rows, synthetic, strict=True)]
        path.write_text("\n".join([description, f"{header},synthetic", *added]) + "\n")
    else:
        table = pyarrow.parquet.read_table(path)
        pyarrow.parquet.write_table(table.append_column("synthetic", pyarrow.array(synthetic)), path)


@pytest.mark.parametrize("name", ["data.npz", "data.h5", "data.csv", "data.parquet"])
def test_an_older_file_is_read_where_all_was_recorded(tmp_path, name):
    dataset = full_dataset()
    path = dataset.save(tmp_path / name)
    with_column(path, np.zeros(len(dataset), dtype=bool))
    assert_same_bits(dataset, TransitionDataset.load(path))
    path = dataset.save(tmp_path / f"made-{name}")
    with_column(path, np.arange(len(dataset)) < 3)
    with pytest.raises(InputError, match="a model made 3 of its transitions"):
        TransitionDataset.load(path)


def test_an_older_replay_buffer_is_read_where_all_was_recorded(tmp_path, monkeypatch):
    dataset, path = full_dataset(), tmp_path / "data.pkl"
    reduce = TransitionDataset.__reduce__
    for synthetic, made in ((None, False), (np.zeros(len(dataset), dtype=bool), False), (np.arange(len(dataset)) < 3, True)):
        with monkeypatch.context() as older:
            older.setattr(
                TransitionDataset, "__reduce__", lambda self, last=synthetic: (reduce(self)[0], (*reduce(self)[1], last))
            )
            dataset.save(path)
        if made:
            with pytest.raises(InputError, match="a model made 3 of its transitions"):
                TransitionDataset.load(path, trust=True)
        else:
            assert_same_bits(dataset, TransitionDataset.load(path, trust=True))
