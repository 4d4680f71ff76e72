"""Parameters fitted to recordings of a simulated rig: the same ones again, and none that the recordings cannot tell."""

import numpy as np
import pytest

from helpers.simulated_recordings import OTHER_RIG, chirp, noisy_recordings, record
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.identification import fit
from nopg_envs.identification.fit import CART, POLE, identify
from nopg_envs.identification.prediction_errors import FITTED
from nopg_envs.identification.recordings import read_recording

START = PARAMETER_SETS["identified"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return noisy_recordings(tmp_path_factory.mktemp("rig"), 2)


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


@pytest.mark.slow
def test_cart_that_never_moves_keeps_its_start_values(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.1)
    # Volts that dry friction holds, on a cart with a pole too light to drag it.
    stuck = OTHER_RIG.replace(cart_coulomb=2.0, pole_coupling=0.0)
    file = record(tmp_path / "run.npz", stuck, chirp(4.0, amplitude=0.4), start=(0.0, np.pi - 2.0, 0.0, 0.0))
    found = identify([read_recording(file)], START, n_starts=1)
    assert set(CART) <= set(found.unidentified)
    assert all(getattr(found.fitted, name) == getattr(START, name) for name in CART)
    assert found.fitted.inverse_pole_length == pytest.approx(OTHER_RIG.inverse_pole_length, abs=0.05)


@pytest.mark.slow
def test_pole_that_never_swings_keeps_its_start_values(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.15)
    # The pole is held, or off: it does not act on the cart either.
    file = record(
        tmp_path / "run.npz", OTHER_RIG.replace(pole_coupling=0.0), chirp(4.0, 5.0, 5.0), start=(0.0, np.pi, 0.0, 0.0)
    )
    arrays = dict(np.load(file))
    arrays["theta"] = np.full_like(arrays["theta"], -np.pi)
    np.savez(file, **arrays)
    found = identify([read_recording(file)], START, n_starts=1)
    assert set(POLE) <= set(found.unidentified)
    assert all(getattr(found.fitted, name) == getattr(START, name) for name in POLE)
    assert found.fitted.input_gain == pytest.approx(OTHER_RIG.input_gain, abs=0.3)
