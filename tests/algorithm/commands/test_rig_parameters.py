import numpy as np
import pytest

from helpers.simulated_recordings import DT_S, chirp, record
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.identification import fit
from sb3_nopg.commands.rig_parameters import NotToldError, identified

SHIPPED = PARAMETER_SETS["identified"]
OTHER = SHIPPED.replace(input_gain=1.0, cart_damping=8.0, inverse_pole_length=5.2)


def fly(path, amplitude, lengths_s=(1.0, 0.9, 0.2, 0.8)):
    """A flight of another cart, in several episodes, as the recorder writes it."""
    arrays = np.load(record(path, OTHER, chirp(sum(lengths_s), amplitude)))
    n_rows = len(arrays["u"])
    ends = np.round(np.cumsum(lengths_s) / DT_S)
    np.savez(
        path,
        time_s=100.0 + DT_S * np.arange(n_rows),
        x=arrays["x"][:n_rows],
        theta=arrays["theta"][:n_rows],
        applied_volt=arrays["u"],
        phase=np.full(n_rows, "collect"),
        episode=np.searchsorted(ends, np.arange(n_rows), side="right"),
    )


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    (folder / "cut.npz").write_bytes(b"nothing")
    for number, amplitude in enumerate((4.0, 5.0)):
        fly(folder / f"flight-{number}.npz", amplitude)
    fly(folder / "short.npz", 3.0, lengths_s=(0.2, 0.1))
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_flights_of_short_episodes_tell_whose_they_are(flights):
    found = identified(flights, SHIPPED, seed=0)
    for name, tolerance in {"input_gain": 0.05, "cart_damping": 0.4, "inverse_pole_length": 0.05}.items():
        assert getattr(found, name) == pytest.approx(getattr(OTHER, name), abs=tolerance), name


@pytest.mark.slow
def test_what_follows_no_better_is_not_taken(flights, monkeypatch):
    monkeypatch.setattr(fit, "_solve", lambda problem, vector, **settings: 1.2 * vector)
    with pytest.raises(NotToldError, match="as well as any"):
        identified(flights, OTHER, seed=0)


def test_flights_that_say_nothing(flights):
    for logs in ([], flights[:1], flights[-1:]):
        with pytest.raises(NotToldError, match="long enough"):
            identified(logs, SHIPPED, seed=0)
