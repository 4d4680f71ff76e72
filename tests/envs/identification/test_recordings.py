"""Recordings of a rig as they are read, and the zero of their angle."""

import numpy as np
import pytest

from helpers.simulated_recordings import DT_S, chirp, record
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.fidelity import score
from nopg_envs.identification.recordings import RecordingError, angle_zero, read_recording

RIG = CartPoleParameters()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return record(tmp_path_factory.mktemp("rig") / "chirp.npz", RIG, chirp(3.0))


@pytest.mark.slow
def test_angle_zero_is_found_and_its_correction_restores_the_fit(tmp_path):
    path = record(tmp_path / "run.npz", RIG, chirp(4.0), noise_seed=1, angle_zero=-0.012)
    recording = read_recording(path)
    zero = angle_zero(recording)
    assert zero == pytest.approx(-0.012, abs=0.002)
    before, after = score(recording, RIG, 0.5), score(recording.with_angle_zero(zero), RIG, 0.5)
    assert after.theta_rmse_rad < 0.6 * before.theta_rmse_rad


def test_angle_zero_of_a_pole_at_rest_is_left_alone(tmp_path):
    path = record(tmp_path / "run.npz", RIG, np.zeros(500), start=(0.0, np.pi, 0.0, 0.0), angle_zero=0.01)
    assert angle_zero(read_recording(path)) == 0.0


def test_velocities_are_computed_where_they_are_missing(tmp_path, file):
    exact_file = record(tmp_path / "exact.npz", RIG, chirp(3.0), quantised=False)
    computed, exact = read_recording(file), read_recording(exact_file)
    inner = slice(10, -10)
    np.testing.assert_allclose(computed.x_dot[inner], exact.x_dot[inner], atol=0.02)
    np.testing.assert_allclose(computed.theta_dot[inner], exact.theta_dot[inner], atol=0.15)


def test_times_serve_as_well_as_a_sampling_time(tmp_path, file):
    arrays = dict(np.load(file))
    arrays.pop("dt")
    np.savez(tmp_path / "timed.npz", t=np.arange(len(arrays["x"])) * DT_S, **arrays)
    assert read_recording(tmp_path / "timed.npz").dt_s == pytest.approx(DT_S)


def test_single_array_missing_file_and_pickle(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(50))
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object), theta=np.zeros(1), u=np.zeros(1))
    for name in ("one.npy", "pickle.npz", "missing.npz"):
        with pytest.raises(RecordingError, match=name):
            read_recording(tmp_path / name)
