"""Comparing the simulator with recordings, tried on recordings of a simulated rig."""

import json

import numpy as np
import pytest

from helpers.simulated_recordings import DT_S, chirp, record
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.fidelity import WINDOWS_S, main, score
from nopg_envs.identification.prediction import errors, windows_of
from nopg_envs.identification.recordings import read_recording

RIG = CartPoleParameters()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return record(tmp_path_factory.mktemp("rig") / "chirp.npz", RIG, chirp(3.0))


@pytest.fixture(scope="module")
def exact_file(tmp_path_factory):
    return record(tmp_path_factory.mktemp("rig") / "exact.npz", RIG, chirp(3.0), quantised=False)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.0015, 0.004, 0.0105])
def test_own_parameters_follow_a_recording_without_quantisation_exactly(tmp_path, delay_s):
    parameters = RIG.replace(input_delay_s=delay_s)
    # That all of these delays are multiples of.
    fine_s = 0.0005
    path = record(tmp_path / "run.npz", parameters, chirp(2.0), quantised=False, fine_s=fine_s)
    recording = read_recording(path)
    # The delay is exact, whatever part of a sample it is: with the recording's own steps nothing but rounding is left.
    windows, _ = windows_of(recording, 0.5, every_s=0.1, rail_length_m=RIG.rail_length_m)
    assert np.abs(errors([parameters], windows, longest_step_s=fine_s)).max() < 1e-12
    # With those of the command a fraction of an encoder count is.
    found = score(recording, parameters, 0.5)
    assert found.x_rmse_m < RIG.cart_count_m / 2
    assert found.theta_rmse_rad < RIG.pole_count_rad / 20


def test_own_parameters_follow_an_encoder_to_its_counts(file):
    found = score(read_recording(file), RIG, 0.5)
    assert found.x_rmse_m < 3e-4
    assert found.theta_rmse_rad < 3e-3


@pytest.mark.parametrize(
    "change", [{"input_gain": 1.3}, {"cart_damping": 8.0}, {"input_delay_s": 0.02}, {"voltage_offset": -0.1}]
)
def test_wrong_cart_shows(exact_file, change):
    recording = read_recording(exact_file)
    assert score(recording, RIG.replace(**change), 0.5).x_rmse_m > 1e-3


@pytest.mark.slow
def test_error_grows_with_the_wrongness_and_the_window(file):
    recording = read_recording(file)
    wrong = [score(recording, RIG.replace(input_gain=gain), 0.5).x_rmse_m for gain in (1.189, 1.3, 1.5, 2.0)]
    assert wrong == sorted(wrong)
    longer = [score(recording, RIG.replace(inverse_pole_length=4.0), window).theta_rmse_rad for window in WINDOWS_S]
    assert longer == sorted(longer)


@pytest.mark.slow
def test_angles_are_compared_the_short_way_round(tmp_path):
    # The hanging pole crosses ±π all the time, and its true angle is a turn away from what is written.
    path = record(tmp_path / "run.npz", RIG, chirp(2.0), start=(0.0, 3 * np.pi - 0.4, 0.0, 0.0), quantised=False)
    assert score(read_recording(path), RIG, 0.5).theta_rmse_rad < 1e-4


@pytest.mark.slow
def test_windows_at_the_rail_ends_are_left_out(tmp_path):
    path = record(tmp_path / "run.npz", RIG, np.full(750, 1.5), start=(0.2, np.pi, 0.0, 0.0), quantised=False)
    found = score(read_recording(path), RIG, 0.5)
    assert found.n_left_out > 0
    assert found.n_windows > 0


@pytest.mark.slow
def test_zero_that_could_not_be_estimated_is_noted(tmp_path, file, capsys):
    still = record(tmp_path / "still.npz", RIG, np.zeros(500), start=(0.0, np.pi, 0.0, 0.0), angle_zero=0.01)
    assert main([str(file), str(still)]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note")]
    assert note.endswith("0 is used: still.npz")
    for arguments in ([str(file)], [str(still), "--raw-angle"]):
        assert main(arguments) == 0
        assert "Note" not in capsys.readouterr().out


@pytest.mark.slow
def test_command_writes_table_json_and_plot(tmp_path, file, capsys):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert main([str(file), str(file), "--json", str(out), "--plot", str(picture)]) == 0
    rows = json.loads(out.read_text())
    assert [row["window_s"] for row in rows] == [0.1, 0.5, 1.0] * 2
    for row in rows:
        assert set(row) == {"file", "window_s", "x_rmse_m", "theta_rmse_rad", "n_windows"}
        assert row["file"] == str(file)
        assert isinstance(row["n_windows"], int)
        assert 0 < row["x_rmse_m"] < 1e-3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "chirp.npz" in capsys.readouterr().out
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.json", "out.png"]


@pytest.mark.slow
def test_command_takes_parameters_by_name_and_from_a_file(tmp_path, file):
    RIG.save(tmp_path / "rig.yaml")
    errors = {}
    for given in ("identified", "datasheet", str(tmp_path / "rig.yaml")):
        assert main([str(file), "--parameters", given, "--json", str(tmp_path / "out.json")]) == 0
        errors[given] = json.loads((tmp_path / "out.json").read_text())[1]["x_rmse_m"]
    assert errors[str(tmp_path / "rig.yaml")] == errors["identified"]
    assert errors["datasheet"] > 0.01


def _without(name):
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}


def _with(name, change):
    return lambda arrays: {**arrays, name: change(arrays[name])}


def _nan(values):
    values = values.copy()
    values[7] = np.nan
    return values


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("theta"), "theta"),
        (_without("u"), "lacks the array u"),
        (_without("dt"), "sampling time"),
        (_with("x", _nan), "x is not finite at sample 7"),
        (_with("u", _nan), "u is not finite"),
        (_with("u", lambda u: u[:-5]), "u has"),
        (_with("theta", lambda theta: theta[:-1]), "theta has"),
        (_with("x", lambda x: x.reshape(1, -1)), "one row"),
        (_with("x", lambda x: x.astype(str)), "one row"),
        (_with("dt", lambda dt: -dt), "sampling time"),
        (lambda arrays: {**{k: v[:100] for k, v in arrays.items() if k != "dt"}, "dt": DT_S}, "too short"),
        (lambda arrays: {**{k: v[:3] for k, v in arrays.items() if k != "dt"}, "dt": DT_S}, "too short"),
    ],
)
def test_bad_recordings_end_in_one_line_and_code_2(tmp_path, file, capsys, spoil, message):
    bad = tmp_path / "bad.npz"
    np.savez(bad, **spoil(dict(np.load(file))))
    assert main([str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert "bad.npz" in error


@pytest.mark.parametrize("content", [b"", b"not a recording\n", b"PK\x03\x04 broken"])
def test_files_that_are_no_npz(tmp_path, capsys, content):
    (tmp_path / "bad.npz").write_bytes(content)
    assert main([str(tmp_path / "bad.npz")]) == 2
    assert "not a readable npz file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--parameters", "nonsense"],
        ["--plot", "no_such_folder/out.png"],
        ["--plot", "out.nonsense"],
        ["--json", "no_such_folder/out.json"],
    ],
)
def test_bad_arguments_end_in_one_line_and_code_2(file, capsys, arguments):
    assert main([str(file), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["input_gain: -1\n", "no_such_parameter: 1\n", "- 1\n", "{unclosed", "1: 2\n", "input_gain: fast\n"]
)
def test_bad_parameter_files(tmp_path, file, capsys, content):
    (tmp_path / "rig.yaml").write_text(content)
    assert main([str(file), "--parameters", str(tmp_path / "rig.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "rig.yaml" in error
