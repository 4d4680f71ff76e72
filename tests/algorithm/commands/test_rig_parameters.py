import pytest

from helpers.simulated_recordings import chirp, record
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.identification import fit
from sb3_nopg.commands.rig_parameters import identified

SHIPPED = PARAMETER_SETS["identified"]
OTHER = SHIPPED.replace(input_gain=1.0, cart_damping=8.0, inverse_pole_length=5.2)


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    (folder / "cut.npz").write_bytes(b"nothing")
    for number, amplitude in enumerate((4.0, 5.0)):
        record(folder / f"flight-{number}.npz", OTHER, chirp(3.0, amplitude))
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_flights_tell_whose_they_are(flights, monkeypatch):
    # Short windows take less time.
    monkeypatch.setattr(fit, "WINDOW_S", 0.15)
    found = identified(flights, SHIPPED, seed=0)
    assert found is not None
    for name, tolerance in {"input_gain": 0.05, "cart_damping": 0.4, "inverse_pole_length": 0.05}.items():
        assert getattr(found, name) == pytest.approx(getattr(OTHER, name), abs=tolerance), name


@pytest.mark.slow
def test_what_follows_no_better_is_not_taken(flights, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW_S", 0.15)
    monkeypatch.setattr(fit, "_solve", lambda problem, vector, **settings: 1.2 * vector)
    assert identified(flights, OTHER, seed=0) is None


def test_flights_that_say_nothing(flights):
    assert identified([], SHIPPED, seed=0) is None
    assert identified(flights[:1], SHIPPED, seed=0) is None
