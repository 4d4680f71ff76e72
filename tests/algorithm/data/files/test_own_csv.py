"""A person's own table: names and units in its first line, gaps, jumps, semicolons, and what is said about each."""

import json

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from helpers.command_line import nopg
from helpers.data_files import record_flight
from helpers.datasets import assert_same_bits, full_dataset
from nopg_robot.control.observation import NAMES
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.commands.data import app
from sb3_nopg.data.quantities import Quantities

HEAD = "t [s],angle [rad],speed (rad/s),u_V"
NAMED = Quantities(("angle", "speed"), ("rad", "rad/s"), ("u",), ("V",), control_period_s=0.02)
ROWS = {"obs": ["angle", "speed"], "action": ["u"], "reward": "none"}


def swing(n=200, start=0.0):
    """Rows of a damped swing under a voltage: time, angle, speed, volt."""
    rng = np.random.default_rng(7)
    angle, speed, rows = start, 0.0, []
    for step in range(n):
        volt = rng.uniform(-6, 6)
        rows.append([0.02 * step, angle, speed, volt])
        speed += 0.02 * (8 * volt - 3 * speed - 10 * angle)
        angle += 0.02 * speed
    return np.array(rows)


def write(path, rows, head=HEAD, form="{:.6f}", between=","):
    lines = [between.join(form.format(number) for number in row) for row in rows]
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


def test_names_and_units_come_from_the_first_line(tmp_path):
    data = TransitionDataset.load(write(tmp_path / "run.csv", swing()), **ROWS)
    assert data.quantities == NAMED
    np.testing.assert_allclose(data.relabel("next_angle * u").rewards, data.next_observations[:, 0] * data.actions[:, 0])


def test_columns_may_be_asked_for_with_their_units(tmp_path):
    path = write(tmp_path / "run.csv", swing())
    data = TransitionDataset.load(path, obs=["speed (rad/s)", "angle"], action=["u_V"], reward="none")
    assert data.quantities.observation_labels == ["speed [rad/s]", "angle [rad]"]
    with pytest.raises(InputError, match="Did you mean 'angle'"):
        TransitionDataset.load(path, obs=["angel"], action=["u"], reward="none")


@pytest.mark.parametrize(("head", "factor", "period_s"), [("t [s]", 1, 0.02), ("time [ms]", 1000, 0.02), ("t", 1, None)])
def test_the_step_is_known_where_the_time_has_a_unit(tmp_path, head, factor, period_s):
    rows = swing()
    rows[:, 0] *= factor
    data = TransitionDataset.load(write(tmp_path / "run.csv", rows, HEAD.replace("t [s]", head)), time=head.split()[0], **ROWS)
    assert data.quantities.control_period_s == period_s
    assert data.named(action_names=["volt [V]"]).quantities.control_period_s == period_s
    assert data.with_units([2.0, 1.0], 1.0).filter(data.rewards == 0).quantities.control_period_s == period_s


def test_data_of_two_rates_are_not_merged(tmp_path):
    slow, other = swing(), swing()
    other[:, 0] /= 2
    first, second = (TransitionDataset.load(write(tmp_path / "run.csv", rows), **ROWS) for rows in (slow, other))
    with pytest.raises(InputError, match=r"a step takes 0\.01 s in one and 0\.02 s in another"):
        TransitionDataset.merge(first, second)
    assert TransitionDataset.merge(first, first).quantities.control_period_s == 0.02


def test_an_exported_policy_knows_the_step_of_its_data(tmp_path):
    onnx = pytest.importorskip("onnx")
    data = TransitionDataset.load(write(tmp_path / "run.csv", swing()), **ROWS)
    model = NOPG("MlpPolicy", None, dataset=data, gamma=0.9, device="cpu", transitions="samples")
    model.save(tmp_path / "motor.zip")
    # The file of a model keeps it, as it keeps the names.
    told = nopg("export", tmp_path / "motor.zip", tmp_path / "motor.onnx")
    assert "the control period is the step of the data, 0.02 s" in told.stderr
    written = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "motor.onnx").metadata_props}
    assert written["control_period_s"] == 0.02


def test_parquet_too(tmp_path):
    columns = dict(zip(HEAD.split(","), swing().T, strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "run.parquet")
    assert TransitionDataset.load(tmp_path / "run.parquet", **ROWS).quantities == NAMED


@pytest.mark.parametrize("name", ["data.npz", "data.h5", "data.csv", "data.parquet", "data.pkl", "data-v0"])
def test_names_survive_every_format(tmp_path, name):
    data = full_dataset().named(["x [m]", "θ [rad]", "reward"], ["u [V]", "brake"])
    format = "minari" if name == "data-v0" else None
    assert_same_bits(data, TransitionDataset.load(data.save(tmp_path / name, format), trust=True))


def test_our_tables_have_the_names_in_their_heads(tmp_path):
    path = full_dataset().named(["x [m]", "θ [rad]", "v"], ["u [V]", "brake"]).save(tmp_path / "data.csv")
    head = path.read_text(encoding="utf-8").splitlines()[1].split(",")
    assert head[:6] == ["x [m]", "θ [rad]", "v", "u [V]", "brake", "next x [m]"]


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
@pytest.mark.parametrize("names", [["x [m]", "θ [1]", "v [m/s]"], ["x [m]", "θ [1]", "reward"]], ids=["heads", "numbers"])
def test_columns_of_our_tables_keep_their_names_when_chosen_again(tmp_path, name, names):
    data = full_dataset().named(names, ["u [V]", "brake"])
    path = data.save(tmp_path / name)
    heads = ["x [m]", "θ", "v [m/s]"] if names[2] != "reward" else ["obs_0", "obs_1", "obs_2"]
    next_heads = [f"next {head}" if names[2] != "reward" else f"next_{head}" for head in heads]
    for order in ([2, 1, 0], [1]):
        found = TransitionDataset.load(path, obs=[heads[i] for i in order], next_obs=[next_heads[i] for i in order])
        np.testing.assert_array_equal(found.observations, data.observations[:, order])
        assert found.quantities.observation_labels == [data.quantities.observation_labels[i] for i in order]
        assert found.quantities.observation_units == tuple(data.quantities.observation_units[i] for i in order)
        assert found.quantities.action_labels == ["u [V]", "brake"]
        np.testing.assert_array_equal(found.observation_space.high, data.observation_space.high[order])


def test_bounds_of_our_tables_go_with_their_columns(tmp_path):
    data = full_dataset()
    path = data.save(tmp_path / "data.csv")
    found = TransitionDataset.load(path, action=["action_1", "action_0"])
    np.testing.assert_array_equal(found.action_space.high, data.action_space.high[::-1])
    assert TransitionDataset.load(path, action=["action_1", "reward"]).action_space is None


def test_an_index_is_no_unit_whatever_columns_are_chosen(tmp_path):
    path = write(tmp_path / "run.csv", swing(), "t [s],joint_A,joint_B,u_V")
    found = TransitionDataset.load(path, obs=["joint_A"], action=["u"], reward="none")
    assert found.quantities == Quantities(("joint_A",), ("",), ("u",), ("V",), control_period_s=0.02)
    with pytest.raises(InputError, match="no column 'joint'"):
        TransitionDataset.load(path, obs=["joint"], action=["u"], reward="none")


def test_names_can_be_given_for_any_file(tmp_path):
    path = full_dataset().save(tmp_path / "data.npz")
    data = TransitionDataset.load(path, observation_names=["x [m]", "y", "z"], action_names=["u_V", "w"])
    assert data.quantities.observation_labels == ["x [m]", "y", "z"]
    with pytest.raises(InputError, match="observation_names: 1 name"):
        TransitionDataset.load(path, observation_names=["x"])


def test_flight_logs_have_the_names_of_the_rig(tmp_path):
    data = TransitionDataset.load(record_flight(tmp_path / "flight.npz"))
    assert data.quantities.observation_names == NAMES
    assert data.quantities.action_labels == ["voltage [V]"]


def test_damaged_names_are_refused(tmp_path):
    data = full_dataset().save(tmp_path / "data.npz")
    with np.load(data) as archive:
        np.savez(
            tmp_path / "bad.npz", **archive, observation_names=np.array(["x", "x", "y"]), action_names=np.array(["u", "v"])
        )
    with pytest.raises(InputError, match="names of columns"):
        TransitionDataset.load(tmp_path / "bad.npz")


# --- time


def test_dropped_rows_are_named(tmp_path, caplog):
    rows = np.delete(swing(), [50, 51, 120], axis=0)
    data = TransitionDataset.load(write(tmp_path / "run.csv", rows), **ROWS)
    assert data.episode_starts.tolist() == [0, 49, 116]
    assert "2 gap(s) in 't [s]' (2 longer), after row 49, 117;" in caplog.text


def test_a_row_too_many_is_a_gap_on_both_of_its_sides(tmp_path, caplog):
    rows = np.insert(swing(), 50, swing()[49] + [0.001, 0, 0, 0], axis=0)
    TransitionDataset.load(write(tmp_path / "run.csv", rows), **ROWS)
    assert "1 gap(s) in 't [s]' (1 shorter), after row 49;" in caplog.text


def test_time_without_a_step_is_refused(tmp_path):
    rows = swing()
    rows[:, 0] += np.random.default_rng(0).uniform(-0.03, 0.03, len(rows))
    path = write(tmp_path / "run.csv", rows)
    with pytest.raises(InputError, match=r"of 199 steps in 't \[s\]' are not about .* the first after row"):
        TransitionDataset.load(path, **ROWS)
    assert len(TransitionDataset.load(path, time="none", **ROWS)) == 199


def test_a_gap_is_of_the_time_that_was_found(tmp_path):
    path = write(tmp_path / "run.csv", np.delete(swing(), [50, 51, 120], axis=0))
    assert TransitionDataset.load(path, gap=0.05, **ROWS).episode_starts.tolist() == [0, 49]
    for wrong in ({"gap": 0.05, "time": "none"}, {"gap": 0.0}):
        with pytest.raises(InputError, match=r"^gap"):
            TransitionDataset.load(path, **wrong, **ROWS)


def test_dates_are_not_taken_for_times(tmp_path, caplog):
    rows, head = swing(40), HEAD.replace("t [s]", "timestamp")
    path = write(tmp_path / "run.csv", rows, head)
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    dated = [f"2024-01-01 12:00:{row:02d},{line.partition(',')[2]}" for row, line in enumerate(lines)]
    path.write_text("\n".join([head, *dated]) + "\n", encoding="utf-8")
    assert len(TransitionDataset.load(path, **ROWS)) == 39
    assert "column 'timestamp' holds no numbers, so it is not used as the time" in caplog.text
    for meant in ({"time": "timestamp"}, {"gap": 0.03}):
        with pytest.raises(InputError, match="column 'timestamp' holds '2024-01-01 12:00:00'"):
            TransitionDataset.load(path, **meant, **ROWS)
    # One of many that is no number is a mistake.
    path.write_text("\n".join([head, *lines[:-1], dated[-1]]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="column 'timestamp' holds '2024-01-01 12:00:39'"):
        TransitionDataset.load(path, **ROWS)


def test_dates_in_parquet_are_not_taken_for_times(tmp_path, caplog):
    columns = dict(zip(HEAD.split(","), swing(40).T, strict=True))
    columns = {"time": [f"2024-01-01 12:00:{row:02d}" for row in range(40)], **columns}
    del columns["t [s]"]
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "run.parquet")
    assert len(TransitionDataset.load(tmp_path / "run.parquet", **ROWS)) == 39
    assert "column 'time' holds no numbers" in caplog.text


# --- jumps


def test_a_jump_begins_an_episode(tmp_path, caplog):
    rows = np.concatenate([swing(), swing(start=2.0)])[:, 1:]
    path = write(tmp_path / "run.csv", rows, HEAD.partition(",")[2])
    data = TransitionDataset.load(path, **ROWS)
    assert data.episode_starts.tolist() == [0, 199]
    assert np.flatnonzero(data.timeouts).tolist() == [198, 397]
    assert "1 jump(s) in angle, after row 199:" in caplog.text
    assert len(TransitionDataset.load(path, keep_jumps=True, **ROWS)) == 399


def test_jumps_are_found_within_interleaved_episodes(tmp_path):
    parts = [np.concatenate([swing(100), swing(100, start=2.0)]), swing(200)]
    rows = [[run, *row[1:]] for pair in zip(*parts, strict=True) for run, row in enumerate(pair)]
    path = write(tmp_path / "run.csv", rows, "run,angle,speed,u")
    data = TransitionDataset.load(path, episode="run", **ROWS)
    # Of the first run, row 198 of the file is its hundredth; nothing follows it.
    assert data.episode_starts.tolist() == [0, 1, 199]


def test_many_jumps_are_refused(tmp_path):
    rows = np.concatenate([swing(8, start) for start in np.random.default_rng(0).uniform(-20, 20, 60)])
    path = write(tmp_path / "run.csv", rows[:, 1:], HEAD.partition(",")[2])
    with pytest.raises(InputError, match="steps are jumps, the first after row 7"):
        TransitionDataset.load(path, **ROWS)


def test_shuffled_rows_are_refused(tmp_path):
    rows = np.random.default_rng(0).permutation(swing())
    with pytest.raises(InputError, match="no row says anything about the next one"):
        TransitionDataset.load(write(tmp_path / "run.csv", rows[:, 1:], HEAD.partition(",")[2]), **ROWS)


def test_degrees_that_are_called_radians_are_told(tmp_path, caplog):
    rows = swing(600)
    rows[:, 1] = (np.degrees(np.cumsum(rows[:, 2]) * 0.1) + 180) % 360 - 180
    TransitionDataset.load(write(tmp_path / "run.csv", rows), **ROWS)
    assert "angle wraps around at 360" in caplog.text
    assert "its unit says rad" in caplog.text


def test_rows_that_do_not_carry_on_are_told(tmp_path, caplog):
    data = TransitionDataset.load(write(tmp_path / "run.csv", swing()), **ROWS)
    assert "do not begin where" not in caplog.text
    TransitionDataset.load(data.filter(np.arange(199) != 60).save(tmp_path / "less.npz"))
    assert "1 row(s) do not begin where the row before them in the episode ended, the first after row 59" in caplog.text


# --- text


def test_semicolons_and_decimal_commas(tmp_path):
    rows = swing(40)
    path = write(tmp_path / "run.csv", rows, HEAD.replace(",", ";"), between=";")
    path.write_text(path.read_text(encoding="utf-8").replace(".", ","), encoding="utf-8")
    data = TransitionDataset.load(path, **ROWS)
    np.testing.assert_allclose(data.observations, rows[:-1, 1:3], atol=1e-6)


def test_decimal_commas_between_commas_are_told(tmp_path):
    path = write(tmp_path / "run.csv", swing(40))
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([head, *(line.replace(".", ",") for line in lines)]), encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2 has 8 fields .* Write decimal points"):
        TransitionDataset.load(path, **ROWS)


def test_a_table_without_names_is_told(tmp_path):
    with pytest.raises(InputError, match=r"its first line, .*, holds numbers"):
        TransitionDataset.load(write(tmp_path / "run.csv", swing(40), "0.0,1.0,2.0,3.0"), **ROWS)


# --- commands


def info(path, *arguments):
    result = CliRunner().invoke(
        app, ["info", str(path), "--obs", "angle,speed", "--action", "u", "--reward", "none", *arguments]
    )
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.slow
def test_info_tells_names_units_and_what_was_done(tmp_path):
    rows = np.concatenate([swing(), swing(start=2.0)])[:, 1:]
    path = write(tmp_path / "run.csv", rows, HEAD.partition(",")[2])
    told = json.loads(info(path, "--json").stdout)
    assert (told["observation_names"], told["observation_units"]) == (["angle", "speed"], ["rad", "rad/s"])
    assert any("1 jump(s) in angle, after row 199" in text for text in told["reading"])
    kept = json.loads(info(path, "--json", "--keep-jumps").stdout)
    assert (kept["jumps"]["count"], kept["jumps"]["rows"], kept["jumps"]["columns"]) == (1, [199], ["angle"])
    shown = info(path, "--keep-jumps").stdout
    assert "rad/s" in shown
    assert "1 transition(s) jump in angle, the first in row 199" in shown
