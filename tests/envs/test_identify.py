"""Fitting the simulator to recordings, tried on recordings of a simulated rig whose parameters are known."""

import numpy as np
import pytest

from helpers.simulated_recordings import OTHER_RIG, noisy_recordings, record
from nopg_envs import identify as command
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.identification import fit
from nopg_envs.identification.fit import DRIVE, Identification, identify
from nopg_envs.identification.prediction_errors import FITTED
from nopg_envs.identify import _print_table, _print_warnings, main

START = PARAMETER_SETS["identified"]
TOLERANCE = {
    "input_gain": 0.05,
    "cart_damping": 0.4,
    "cart_coulomb": 0.05,
    "pole_coupling": 0.004,
    "inverse_pole_length": 0.03,
    "pole_damping": 0.05,
    "pole_coulomb": 0.15,
    "voltage_offset": 0.02,
    "input_delay_s": 0.0015,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return noisy_recordings(tmp_path_factory.mktemp("rig"))


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_known_parameters_are_recovered_and_written(tmp_path, files, capsys, monkeypatch):
    out, picture = tmp_path / "rig.yaml", tmp_path / "rig.png"
    fits: list[Identification] = []

    def remembered(*arguments, **settings):
        fits.append(identify(*arguments, **settings))
        return fits[-1]

    monkeypatch.setattr(command, "identify", remembered)
    assert main([*map(str, files), "-o", str(out), "--plot", str(picture), "--starts", "1"]) == 0
    found = CartPoleParameters.load(out)
    for name, tolerance in TOLERANCE.items():
        assert getattr(found, name) == pytest.approx(getattr(OTHER_RIG, name), abs=tolerance), name
    shown = capsys.readouterr()
    # Three recordings of four seconds do not agree on the pole's dry friction.
    for name, about in FITTED.items():
        spread = "not identified" if name == "pole_coulomb" else "±"
        assert any(line.startswith(name) and spread in line and about.unit in line for line in shown.out.splitlines()), name
    assert found.pole_coulomb == START.pole_coulomb
    assert "do not include model error" in shown.out
    assert "validation" in shown.out
    assert "fitting" in shown.err
    assert shown.err.count("Warning") == 1
    assert "start values kept: pole_coulomb: it changes too much" in shown.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rig.png", "rig.yaml"]
    # Uncertainties cover the truth, and what was not fitted to is predicted better than before.
    (fitted,) = fits
    assert set(fitted.uncertainty) == set(FITTED) - {"pole_coulomb"}
    missed = {name: (getattr(found, name) - getattr(OTHER_RIG, name)) / spread for name, spread in fitted.uncertainty.items()}
    # Uncorrected angle zeros and a handful of blocks: generous, yet a spread too small by an order of magnitude fails.
    assert np.median(np.abs(list(missed.values()))) < 3.0, missed
    assert fitted.rmse["validation"]["fitted"][0] < 0.1 * fitted.rmse["validation"]["start"][0]


def _found(fitted: CartPoleParameters, x_rmse_m: float) -> Identification:
    errors = {"start": (x_rmse_m, 0.1), "fitted": (x_rmse_m, 0.1)}
    return Identification(START, fitted, dict.fromkeys(FITTED, 0.01), {}, {"train": errors, "validation": errors})


@pytest.mark.parametrize(("x_rmse_m", "warned"), [(0.009, False), (0.011, True)])
def test_a_fit_that_does_not_follow_the_cart_asks_about_signs_and_units(capsys, x_rmse_m, warned):
    _print_warnings(_found(START, x_rmse_m))
    assert ("check signs and units of x, theta and u" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("change", "marked"),
    [
        ({"pole_coulomb": 0.001}, True),
        ({"pole_coulomb": 0.003}, False),
        ({"input_delay_s": FITTED["input_delay_s"].high - 5e-5}, True),
        ({"voltage_offset": -0.999}, True),
        ({}, False),
    ],
)
def test_values_at_a_limit_are_marked(capsys, change, marked):
    _print_table(_found(START.replace(**change), 0.001))
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "at its limit" in line]
    assert lines == (list(change) if marked else [])


@pytest.mark.slow
def test_constant_voltage_warns_and_keeps_start_values(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.1)
    file = record(tmp_path / "run.npz", OTHER_RIG, np.full(800, 0.8), start=(-0.2, np.pi - 1.0, 0.0, 0.0))
    out = tmp_path / "rig.yaml"
    assert main([str(file), "-o", str(out), "--starts", "1"]) == 0
    warning = capsys.readouterr().err
    found = CartPoleParameters.load(out)
    assert "voltage is constant" in warning
    for name in DRIVE:
        assert name in warning
        assert getattr(found, name) == getattr(START, name)
    # The pole swings freely, so its length shows all the same.
    assert found.inverse_pole_length == pytest.approx(OTHER_RIG.inverse_pole_length, abs=0.1)


@pytest.mark.slow
def test_nothing_moves(tmp_path, capsys):
    file = record(tmp_path / "run.npz", OTHER_RIG.replace(voltage_offset=0.0), np.zeros(800), start=(0.0, np.pi, 0.0, 0.0))
    assert main([str(file), "-o", str(tmp_path / "rig.yaml")]) == 0
    assert CartPoleParameters.load(tmp_path / "rig.yaml") == START
    assert "Warning" in capsys.readouterr().err


def test_bad_input_ends_in_one_line_and_code_2(tmp_path, files, capsys):
    good, out = str(files[0]), str(tmp_path / "rig.yaml")
    arrays = dict(np.load(good))
    np.savez(tmp_path / "short.npz", **{k: v[:200] if v.ndim else v for k, v in arrays.items()})
    (tmp_path / "text.npz").write_text("text")
    for arguments in (
        [str(tmp_path / "short.npz"), "-o", out],
        [str(tmp_path / "text.npz"), "-o", out],
        [good, str(tmp_path / "missing.npz"), "-o", out],
        [good, "-o", str(tmp_path / "no" / "rig.yaml")],
        [good, "-o", out, "--start", "nonsense"],
        [good, "-o", out, "--seed", "-1"],
        [good, "-o", out, "--starts", "0"],
    ):
        assert main(arguments) == 2, arguments
        assert capsys.readouterr().err.count("\n") == 1, arguments
    assert not (tmp_path / "rig.yaml").exists()
