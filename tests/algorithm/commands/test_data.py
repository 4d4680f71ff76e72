"""``nopg data`` as a person types it: exit codes, one line for what is wrong, and no half-written files."""

import json
import os

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.bad_data_files import BAD_FILES, BAD_TRUSTED_FILES, write_bad
from helpers.data_files import record_flight, steps, trajectories, write_npy
from helpers.datasets import assert_same_bits, full_dataset, make_dataset
from sb3_nopg import TransitionDataset
from sb3_nopg.commands.data import app


def nopg_data(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def succeed(*arguments):
    result = nopg_data(*arguments)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments):
    """The one line that says why."""
    result = nopg_data(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


# --- wrong files


# All of them are in data/files/test_bad_files.py; here one of each format.
ONE_OF_EACH = {case.split("-")[0]: case for case in (*BAD_FILES, *BAD_TRUSTED_FILES)}


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_OF_EACH.values())
def test_a_wrong_file_is_one_line_and_exit_code_two(tmp_path, case):
    path, _ = write_bad(tmp_path, case)
    trust = ["--trust"] if case in BAD_TRUSTED_FILES else []
    before = sorted(os.listdir(tmp_path))
    assert str(path) in fail("validate", path, *trust)
    fail("convert", path, tmp_path / "out.npz", *trust)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("command", ["info", "validate", "plot", "convert", "merge"])
def test_missing_file_is_named_by_every_command(tmp_path, command):
    output = {"plot": ["-o", tmp_path / "p.png"], "convert": [tmp_path / "o.csv"], "merge": ["-o", tmp_path / "o.csv"]}
    assert "nowhere.npz" in fail(command, tmp_path / "nowhere.npz", *output.get(command, []))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["d.pkl", "d.npy"])
def test_pickles_need_trust(tmp_path, name):
    path = tmp_path / name
    full_dataset().save(path) if name == "d.pkl" else write_npy(path, [steps(4)])
    assert "--trust" in fail("validate", path)
    succeed("validate", path, "--trust")


def test_defects_of_ours_are_not_hidden(tmp_path, monkeypatch):
    path = full_dataset().save(tmp_path / "d.npz")

    def defect(dataset):
        raise ZeroDivisionError

    monkeypatch.setattr("sb3_nopg.commands.data.describe_data", defect)
    assert isinstance(nopg_data("info", path).exception, ZeroDivisionError)


# --- info, validate, plot


def test_validate_says_what_is_there(tmp_path):
    path = full_dataset().save(tmp_path / "d.h5")
    assert "12 transitions, 3 state and 2 action dims" in succeed("validate", path).stdout


def test_info_as_json_is_json_and_nothing_else(tmp_path):
    path = trajectories((4, 3)).save(tmp_path / "d.npz")
    told = json.loads(succeed("info", path, "--json").stdout)
    assert (told["transitions"], told["episodes"]["count"]) == (7, 2)


def test_info_of_numbers_out_of_range_is_still_json(tmp_path):
    path = make_dataset(rewards=np.full(12, 1.7e308)).save(tmp_path / "d.npz")
    told = json.loads(succeed("info", path, "--json").stdout, parse_constant=pytest.fail)
    assert told["rewards"]["mean"] is None


def test_info_shows_a_table_and_remarks(tmp_path):
    path = make_dataset(rewards=np.zeros(12)).save(tmp_path / "d.npz")
    shown = succeed("info", path).stdout
    for part in ("12 transitions", "state 2", "action 1", "duplicates", "not recorded", "All rewards are equal"):
        assert part in shown


def test_info_shows_episodes(tmp_path):
    shown = succeed("info", trajectories((4, 3, 6)).save(tmp_path / "d.npz")).stdout
    for part in ("return", "3 to 6, median 4", "gaps in time"):
        assert part in shown


def test_info_reads_flight_logs(tmp_path):
    path = record_flight(tmp_path / "run.npz")
    assert json.loads(succeed("info", path, "--json").stdout)["observation_dims"] == 5


@pytest.mark.slow
def test_plot_writes_the_picture(tmp_path):
    path = trajectories((4, 3)).save(tmp_path / "d.npz")
    assert "p.pdf" in succeed("plot", path, "-o", tmp_path / "p.pdf").stdout
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")
    assert ".png" in fail("plot", path, "-o", tmp_path / "p.txt")


# --- convert


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.npz", "out.h5", "out.csv", "out.parquet", "out.pkl", "out-v0"])
def test_convert_there_and_back_is_exact(tmp_path, name):
    dataset = full_dataset()
    source = dataset.save(tmp_path / "in.npz")
    output_format = ["--output-format", "minari"] if name == "out-v0" else []
    assert f"12 transitions to {tmp_path / name}" in succeed("convert", source, tmp_path / name, *output_format).stdout
    succeed("convert", tmp_path / name, tmp_path / "back.npz", "--trust")
    assert_same_bits(dataset, TransitionDataset.load(tmp_path / "back.npz"))


@pytest.mark.slow
def test_convert_to_minari_by_id(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    dataset = trajectories((4, 3, 5, 2))
    source = dataset.save(tmp_path / "in.npz")
    succeed("convert", source, "minari:pole/all-v0")
    assert_same_bits(dataset, TransitionDataset.load("minari:pole/all-v0"))
    assert "there already" in fail("convert", source, "minari:pole/all-v0", "--overwrite")
    succeed("convert", source, "minari:pole/part-v2", "--split", "0.5,0.5")
    parts = [TransitionDataset.load(f"minari:pole/part-{number}-v2") for number in (1, 2)]
    assert sum(map(len, parts)) == len(dataset)


def test_convert_a_table_with_named_columns_and_a_new_reward(tmp_path):
    (tmp_path / "rig.csv").write_text("t,x,theta,u\n0,1,0.1,5\n1,2,0.2,6\n2,3,0.3,7\n9,4,0.4,8\n10,5,0.5,9\n")
    result = succeed(
        "convert", tmp_path / "rig.csv", tmp_path / "out.npz", "--obs", "x, theta", "--action", "u", "--time", "t",
        "--reward", "none", "--relabel", "cos(next_theta) - 0.1*u + x", "--observation-scale", "100,1", "--action-scale", "2",
    )  # fmt: skip
    assert "Note: " in result.stderr
    assert "1 gap(s)" in result.stderr
    dataset = TransitionDataset.load(tmp_path / "out.npz")
    np.testing.assert_array_equal(dataset.observations, [[100, 0.1], [200, 0.2], [400, 0.4]])
    np.testing.assert_array_equal(dataset.actions[:, 0], [10, 12, 16])
    np.testing.assert_allclose(dataset.rewards, np.cos([0.2, 0.3, 0.5]) - [0.5, 0.6, 0.8] + [1, 2, 4])


def test_convert_filters_and_subsamples(tmp_path):
    dataset = trajectories([4] * 10)
    source = dataset.save(tmp_path / "in.npz")
    succeed("convert", source, tmp_path / "a.npz", "--filter", "episode < 5", "--subsample", "8", "--seed", "3")
    assert_same_bits(dataset.filter("episode < 5").subsample(8, seed=3), TransitionDataset.load(tmp_path / "a.npz"))
    succeed("convert", source, tmp_path / "b.npz", "--subsample", "3", "--by", "episode")
    assert len(TransitionDataset.load(tmp_path / "b.npz").episode_starts) == 3


def test_convert_splits_into_numbered_files(tmp_path):
    dataset = trajectories([4] * 10)
    source = dataset.save(tmp_path / "in.npz")
    succeed("convert", source, tmp_path / "out.csv", "--split", "0.7,0.3", "--seed", "2")
    assert sorted(os.listdir(tmp_path)) == ["in.npz", "out-1.csv", "out-2.csv"]
    for number, part in enumerate(dataset.split((0.7, 0.3), seed=2), start=1):
        assert_same_bits(part, TransitionDataset.load(tmp_path / f"out-{number}.csv"))


def test_files_that_are_there_are_kept_unless_asked(tmp_path):
    source = full_dataset(seed=0).save(tmp_path / "in.npz")
    older = full_dataset(seed=1).save(tmp_path / "out.npz")
    before = older.read_bytes()
    # Without an ending, out.npz is meant.
    for output in (older, tmp_path / "out"):
        assert "there already" in fail("convert", source, output)
        assert older.read_bytes() == before
    succeed("convert", source, older, "--overwrite")
    assert_same_bits(full_dataset(seed=0), TransitionDataset.load(older))


@pytest.mark.slow
def test_failed_conversion_leaves_nothing(tmp_path, monkeypatch):
    source = trajectories([4] * 10).save(tmp_path / "in.npz")
    replace, calls = os.replace, []

    def fail_the_second_time(partial, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        replace(partial, target)

    monkeypatch.setattr(os, "replace", fail_the_second_time)
    result = nopg_data("convert", source, tmp_path / "out.parquet", "--split", "0.5,0.5")
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert len(calls) == 2
    assert os.listdir(tmp_path) == ["in.npz"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--relabel", "__import__('os')"], "expression"),
        (["--relabel", "log(-1)"], "rewards"),
        (["--filter", "s[0] > 99"], "no transition is left"),
        (["--split", "0.5,half"], "--split"),
        (["--split", "0.5,0.6"], "add up"),
        (["--subsample", "1000"], "from 1 to 7"),
        (["--subsample", "3", "--by", "day"], "by: 'day'"),
        (["--action-scale", "-1"], "action_scale"),
        (["--obs", "x"], "not an option of the format npz"),
        (["--format", "excel"], "'excel' is unknown"),
        (["--output-format", "flight_log"], "only read"),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(tmp_path, options, message):
    source = trajectories((4, 3)).save(tmp_path / "in.npz")
    assert message in fail("convert", source, tmp_path / "out.npz", *options)
    assert os.listdir(tmp_path) == ["in.npz"]


# --- merge


@pytest.mark.slow
def test_merge_puts_files_of_any_format_together(tmp_path):
    parts = [trajectories((4, 3), seed=0), trajectories((2, 5), seed=1)]
    paths = [parts[0].save(tmp_path / "a.csv"), parts[1].save(tmp_path / "b.h5")]
    succeed("merge", *paths, "-o", tmp_path / "out.parquet")
    assert_same_bits(TransitionDataset.merge(*parts), TransitionDataset.load(tmp_path / "out.parquet"))
    assert "there already" in fail("merge", *paths, "-o", tmp_path / "out.parquet")
    assert "observation_dim" in fail("merge", paths[0], full_dataset().save(tmp_path / "c.npz"), "-o", tmp_path / "d.npz")


# --- help


@pytest.mark.parametrize("command", ["info", "validate", "plot", "convert", "merge"])
def test_every_option_explains_itself(command):
    shown = succeed(command, "--help").stdout
    assert "--trust" in shown
    if command != "merge":
        for option in (
            "--obs",
            "--action",
            "--next-obs",
            "--reward",
            "--terminal",
            "--episode",
            "--time",
            "--gap",
            "--delimiter",
        ):
            assert option in shown
        assert "Columns of the state, separated by commas" in shown
