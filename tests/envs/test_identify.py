"""Fitting the simulator to recordings, tried on recordings of a simulated rig whose parameters are known."""

import numpy as np
import pytest

from helpers.simulated_recordings import chirp, record
from nopg_envs import identify as command
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.identification import fit
from nopg_envs.identification.fit import CART, DRIVE, POLE, Identification, identify
from nopg_envs.identification.prediction_errors import FITTED
from nopg_envs.identification.recordings import read_recording
from nopg_envs.identify import _print_table, _print_warnings, main

# Another rig than the one the search starts from.
RIG = CartPoleParameters(
    input_gain=1.6,
    cart_damping=9.0,
    cart_coulomb=0.30,
    pole_coupling=0.025,
    inverse_pole_length=3.8,
    pole_damping=0.12,
    pole_coulomb=0.10,
    voltage_offset=-0.05,
    input_delay_s=0.010,
)
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
    """Four noisy recordings through encoders, each with its own pole start, amplitude and angle zero."""
    folder = tmp_path_factory.mktemp("rig")
    runs = [(4.5, 3.0, 0.4, 0.0), (3.5, 3.5, 1.2, -0.01), (5.0, 2.5, -2.2, 0.008), (4.0, 3.2, 2.0, 0.0)]
    return [
        record(
            folder / f"run{number}.npz",
            RIG,
            chirp(4.0, amplitude, fastest),
            start=(-0.05, np.pi + angle, 0.0, 0.0),
            noise_seed=number,
            angle_zero=zero,
        )
        for number, (amplitude, fastest, angle, zero) in enumerate(runs)
    ]


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
        assert getattr(found, name) == pytest.approx(getattr(RIG, name), abs=tolerance), name
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
    missed = {name: (getattr(found, name) - getattr(RIG, name)) / spread for name, spread in fitted.uncertainty.items()}
    # Uncorrected angle zeros and a handful of blocks: generous, yet a spread too small by an order of magnitude fails.
    assert np.median(np.abs(list(missed.values()))) < 3.0, missed
    assert fitted.rmse["validation"]["fitted"][0] < 0.1 * fitted.rmse["validation"]["start"][0]


@pytest.mark.slow
def test_same_seed_same_answer(files, monkeypatch):
    # Short windows make a poorer fit in less time.
    monkeypatch.setattr(fit, "WINDOW_S", 0.05)
    first, second = (identify([read_recording(files[0])], START, n_starts=2, seed=3) for _ in range(2))
    assert first == second
    assert first.fitted != START


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "told"), [(0.09, True), (0.13, False)])
def test_parameter_that_the_jackknife_leaves_open_keeps_its_start_value(files, monkeypatch, spread, told):
    monkeypatch.setattr(fit, "WINDOW_S", 0.05)
    spreads = {name: 0.0 for name in FITTED} | {"pole_coulomb": spread}
    monkeypatch.setattr(fit, "not_narrowed", lambda jacobian, n_windows: np.zeros(jacobian.shape[1], dtype=bool))
    monkeypatch.setattr(fit, "uncertainties", lambda problem, vector: np.array([spreads[name] for name in problem.names]))
    found = identify([read_recording(file) for file in files[:2]], START, n_starts=1)
    assert ("pole_coulomb" in found.uncertainty) == told
    assert list(found.unidentified) == ([] if told else ["pole_coulomb"])
    assert (found.fitted.pole_coulomb != START.pole_coulomb) == told


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
    file = record(tmp_path / "run.npz", RIG, np.full(800, 0.8), start=(-0.2, np.pi - 1.0, 0.0, 0.0))
    out = tmp_path / "rig.yaml"
    assert main([str(file), "-o", str(out), "--starts", "1"]) == 0
    warning = capsys.readouterr().err
    found = CartPoleParameters.load(out)
    assert "voltage is constant" in warning
    for name in DRIVE:
        assert name in warning
        assert getattr(found, name) == getattr(START, name)
    # The pole swings freely, so its length shows all the same.
    assert found.inverse_pole_length == pytest.approx(RIG.inverse_pole_length, abs=0.1)


@pytest.mark.slow
def test_cart_that_never_moves_keeps_its_start_values(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.1)
    # Volts that dry friction holds, on a cart with a pole too light to drag it.
    stuck = RIG.replace(cart_coulomb=2.0, pole_coupling=0.0)
    file = record(tmp_path / "run.npz", stuck, chirp(4.0, amplitude=0.4), start=(0.0, np.pi - 2.0, 0.0, 0.0))
    found = identify([read_recording(file)], START, n_starts=1)
    assert set(CART) <= set(found.unidentified)
    assert all(getattr(found.fitted, name) == getattr(START, name) for name in CART)
    assert found.fitted.inverse_pole_length == pytest.approx(RIG.inverse_pole_length, abs=0.05)


@pytest.mark.slow
def test_pole_that_never_swings_keeps_its_start_values(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.15)
    # The pole is held, or off: it does not act on the cart either.
    file = record(tmp_path / "run.npz", RIG.replace(pole_coupling=0.0), chirp(4.0, 5.0, 5.0), start=(0.0, np.pi, 0.0, 0.0))
    arrays = dict(np.load(file))
    arrays["theta"] = np.full_like(arrays["theta"], -np.pi)
    np.savez(file, **arrays)
    found = identify([read_recording(file)], START, n_starts=1)
    assert set(POLE) <= set(found.unidentified)
    assert all(getattr(found.fitted, name) == getattr(START, name) for name in POLE)
    assert found.fitted.input_gain == pytest.approx(RIG.input_gain, abs=0.3)


@pytest.mark.slow
def test_nothing_moves(tmp_path, capsys):
    file = record(tmp_path / "run.npz", RIG.replace(voltage_offset=0.0), np.zeros(800), start=(0.0, np.pi, 0.0, 0.0))
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
