"""Recordings as transitions, motion predicted against them, policies flown: on files that the simulator wrote."""

import dataclasses
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.recorded_swings import record_swings
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.identification.recordings import read_recording
from sb3_nopg import InputError
from sb3_nopg.commands.main import app
from sb3_nopg.experiments import load_experiment, real_recordings, real_recordings_trials
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.recordings import (
    VARIABLE,
    coverage_of,
    fingerprint,
    observations_of,
    read_told,
    recording_files,
    step_voltages,
    stride_of,
    transitions_of,
)
from sb3_nopg.experiments.report import read_interval, read_markdown_tables
from sb3_nopg.experiments.runner import reproduce

PARAMETERS = PARAMETER_SETS["identified"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return record_swings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture
def told(folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def test_a_step_of_the_controller_is_twenty_milliseconds_of_the_recording(folder):
    recording = read_recording(folder / "swing_1.npz")
    assert stride_of(recording) == 5
    seen, volts = observations_of(recording, PARAMETERS), step_voltages(recording)
    assert (len(seen), len(volts)) == (len(volts) + 1, len(recording.u) // 5)
    np.testing.assert_allclose(seen[:, 0], recording.x[: 5 * len(volts) + 1 : 5])
    np.testing.assert_allclose(
        np.arctan2(seen[:, 1], seen[:, 2]), np.angle(np.exp(1j * recording.theta[: 5 * len(volts) + 1 : 5]))
    )
    np.testing.assert_allclose(volts[3], recording.u[15:20].mean())
    # The rig's filter: 1/ω late. It shows what the true velocity was then.
    late = round(1.0 / PARAMETERS.velocity_cutoff_rad_s / recording.dt_s)
    then = recording.theta_dot[5 * np.arange(20, 150) - late]
    now = recording.theta_dot[5 * np.arange(20, 150)]
    filtered = seen[20:150, 4]
    assert np.sqrt(np.mean((filtered - then) ** 2)) < 0.5 * np.sqrt(np.mean((filtered - now) ** 2))


def test_recordings_are_episodes_that_were_cut_off(folder):
    recordings = [read_recording(file) for file in sorted(folder.glob("*.npz"))]
    data = transitions_of(recordings, PARAMETERS)
    assert len(data.episode_starts) == 4
    assert not data.terminals.any()
    assert data.timeouts.sum() == 4
    np.testing.assert_allclose(data.rewards, (data.next_observations[:, 2] + 1.0) / 2.0)
    within = np.flatnonzero(~data.timeouts)
    np.testing.assert_array_equal(data.next_observations[within], data.observations[within + 1])
    assert np.abs(data.actions).max() <= data.action_space.high[0] <= PARAMETERS.amplifier_limit_volt
    assert np.abs(data.actions).max() > data.action_space.high[0] - 0.11


def test_recordings_of_one_side_of_the_rail_tell_of_the_other(told, monkeypatch):
    given = {}

    def run_method(task, trial, dataset, behavior):
        given.update(task=task, data=dataset)
        return {}

    def on_one_side(expected):
        return {
            name: dataclasses.replace(recording, x=recording.x - recording.x.min() - 0.05)
            for name, recording in read_told(expected).items()
        }

    monkeypatch.setattr(real_recordings_trials, "run_method", run_method)
    monkeypatch.setattr(real_recordings_trials, "read_told", on_one_side)
    trial = {"recordings": fingerprint(recording_files()), "task": "balance", "method": "KBRL", "seed": 0, "rigs": 1}
    recorded = real_recordings_trials.run(trial)["recorded"]
    starts, learned_from = np.array(given["task"].initial_states), given["data"].observations
    # A model believes nothing outside of what it has seen: it was to balance where it could only be lost.
    assert starts[:, 0].min() < recorded["x_m"][0] == pytest.approx(-0.05)
    assert learned_from[:, 0].min() < starts[:, 0].min() < starts[:, 0].max() < learned_from[:, 0].max()
    half = len(learned_from) // 2
    assert recorded["samples"] == half
    np.testing.assert_array_equal(learned_from[half:], learned_from[:half] * [-1, -1, 1, -1, -1])
    np.testing.assert_array_equal(given["data"].actions[half:], -given["data"].actions[:half])


def test_what_recordings_tell_of_balancing_is_counted(folder):
    data = transitions_of([read_recording(file) for file in sorted(folder.glob("*.npz"))], PARAMETERS)
    upright = np.abs(np.arctan2(data.observations[:, 1], data.observations[:, 2])) < 0.2
    found = coverage_of(data)
    assert (found["samples"], found["upright_samples"]) == (len(data), upright.sum())
    assert found["upright_samples"] > 10
    assert found["upright_x_m"] == [data.observations[upright, 0].min(), data.observations[upright, 0].max()]
    # Steps of random height there; and then what somebody in control would have done.
    assert found["voltage_follows"] < 0.9
    obeyed = data.observations[:, [0, 1, 3, 4]] @ np.array([[8.0], [-50.0], [20.0], [-5.0]])
    obedient = dataclasses.replace(data, actions=obeyed, action_space=None)
    assert coverage_of(obedient)["voltage_follows"] == pytest.approx(1.0)
    hanging = data.filter(data.observations[:, 2] < 0.0)
    assert coverage_of(hanging)["upright_samples"] == 0
    assert coverage_of(hanging)["voltage_follows"] is None


def test_other_sampling_times_are_refused(folder):
    slow = dataclasses.replace(read_recording(folder / "swing_0.npz"), dt_s=0.013)
    with pytest.raises(InputError, match="no whole number makes 20 ms"):
        stride_of(slow)


def test_a_recording_that_is_too_short_is_refused(folder, tmp_path, monkeypatch):
    for file in folder.glob("*.npz"):
        columns = dict(np.load(file))
        if file.name == "swing_1.npz":
            columns = {name: column[:300] if np.ndim(column) else column for name, column in columns.items()}
        np.savez(tmp_path / file.name, **columns)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match=r"swing_1\.npz lasts 1\.2 s"):
        read_told(fingerprint(recording_files()))


def test_what_is_missing_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    experiment = load_experiment("real-recordings")
    assert "no recordings are given" in str(experiment.missing())
    asked = CliRunner().invoke(app, ["reproduce", "real-recordings", "-o", str(tmp_path)])
    assert asked.exit_code == 2
    assert "--data FOLDER" in asked.output
    for path, problem in ((tmp_path / "nowhere", "is no folder"), (tmp_path, "holds 0 .npz files")):
        monkeypatch.setenv(VARIABLE, str(path))
        assert problem in str(experiment.missing())


def test_other_recordings_are_other_trials(told, tmp_path, monkeypatch):
    files = recording_files()
    before = fingerprint(files)
    assert list(read_told(before)) == [file.name for file in files]
    trials = load_experiment("real-recordings").trials(True, 2)
    assert {trial["recordings"] for trial in trials} == {before}
    assert str(told) not in json.dumps(trials)
    record_swings(tmp_path / "others", n=3)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "others"))
    with pytest.raises(InputError, match="other recordings"):
        real_recordings_trials.run(trials[0])
    (tmp_path / "others" / "swing_0.npz").write_bytes(b"no recording")
    with pytest.raises(InputError, match="swing_0"):
        read_told(fingerprint(recording_files()))


def test_trials_are_of_each_recording_and_of_both_tasks(told):
    experiment = load_experiment("real-recordings")
    full, quick = experiment.trials(False, 3), experiment.trials(True, 2)
    assert {trial["left_out"] for trial in full if "left_out" in trial} == {f"swing_{n}.npz" for n in range(4)}
    assert {trial["task"] for trial in full if "task" in trial} == {"balance", "swing_up"}
    assert {trial["rigs"] for trial in full if "rigs" in trial} == {200}
    assert len(full) > 2 * len(quick)
    assert {trial["method"] for trial in experiment.d3rlpy_trials(False, 1)} == {"IQL", "TD3+BC", "ReBRAC"}


@pytest.mark.slow
def test_motion_of_a_left_out_recording_is_predicted(told):
    common = {"recordings": fingerprint(recording_files()), "left_out": "swing_2.npz", "seed": 0}
    found = {
        method: real_recordings_trials.run({**common, "method": method, "shown": True})
        for method in (
            real_recordings_trials.MODEL,
            real_recordings_trials.STILL,
            "identified simulator",
            "data sheet's simulator",
        )
    }
    model, still, exact, wrong = found.values()
    for window in ("0.1 s", "0.5 s"):
        assert model[window]["theta_rad"] < 0.3 * still[window]["theta_rad"]
        assert model[window]["x_m"] < 0.3 * still[window]["x_m"]
        # It is the simulator that recorded them.
        assert exact[window]["theta_rad"] < 0.02
        assert exact[window]["x_m"] < 0.2 * wrong[window]["x_m"]
    motion = model["motion"]
    recorded = np.array(motion["recorded"][0])
    assert np.shape(motion["predicted"][1]) == recorded.shape == np.shape(motion["times_s"])
    # What is shown is what is measured: nothing that changes is still.
    data = transitions_of([read_told(common["recordings"])["swing_2.npz"]], PARAMETERS)
    np.testing.assert_allclose(recorded.ravel(), data.next_observations[3 : 3 + recorded.size, 0], atol=1e-6)


class Still:
    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.zeros((*np.shape(observation)[:-1], 1)), state


@pytest.mark.slow
def test_flights_tell_who_holds():
    assert real_recordings_trials.share_of_rigs(Still(), "balance", 5.0, n_rigs=5) == 0.0
    assert real_recordings_trials.on_the_simulator(Still(), "balance", 5.0) == {"simulator": 0.0}
    assert real_recordings_trials.on_the_simulator(Still(), "swing_up", 5.0) == {"simulator": 0.0}


@pytest.mark.parametrize("quick", [False, True])
def test_results_know_which_trials_there_are(told, monkeypatch, quick):
    experiment = load_experiment("real-recordings")
    own, others = experiment.trials(quick, 2), experiment.d3rlpy_trials(quick, 2)
    other = {"recordings": "another", "method": "a", "left_out": "0.npz", "seed": 0}
    monkeypatch.delenv("NOPG_RECORDINGS")
    known = experiment.told_by_results([other, *own])
    assert known.trials(quick, 2) == own
    assert known.d3rlpy_trials(quick, 2) == others
    assert known.missing is None


@pytest.mark.slow
def test_it_runs_from_recordings_to_its_report(told, tmp_path, monkeypatch):
    monkeypatch.setattr(real_recordings_trials, "_FLIGHT_S", 6.0)
    experiment = load_experiment("real-recordings")

    def few(quick, n):
        chosen = [trial for trial in experiment.trials(quick, n) if trial.get("task") != "swing_up"]
        return [{**trial, **({"updates": 2} if "updates" in trial else {})} for trial in chosen]

    text = reproduce(dataclasses.replace(experiment, trials=few), tmp_path, n_seeds=1, quick=True)
    motion, each, flights, seeds = read_markdown_tables(text)
    results = json.loads((tmp_path / "real-recordings-quick.json").read_text())["trials"]
    assert {row["method"] for row in flights} == {"NOPG-D, defaults", "doing nothing", *real_recordings.first_tries.LEARNING}
    assert len(each) == 2 * len(motion)
    for row in flights:
        (own,) = (
            e["result"] for e in results if e["trial"].get("task") == "balance" and e["trial"]["method"] == row["method"]
        )
        assert read_interval(row["plausible rigs"])[0] == pytest.approx(own["return"], abs=0.005)
        assert own["recorded"]["samples"] > 700
        assert own["learning_seconds"] >= 0.0
    assert len(seeds) == len(flights)
    assert f"of upright in {own['recorded']['upright_samples']:,} of them" in text
    still = [e["result"]["0.5 s"] for e in results if e["trial"]["method"] == "nothing changes"]
    pooled = math.sqrt(sum(s["x_m"] ** 2 * s["n"] for s in still) / sum(s["n"] for s in still))
    (row,) = (row for row in motion if row["method"] == "nothing changes")
    assert float(row["x, 0.5 s [mm]"]) == pytest.approx(1e3 * pooled, abs=0.06)
    assert (tmp_path / "real-recordings-quick.png").stat().st_size > 10_000
    # A part of the results makes a report too.
    some = [(e["trial"], e["result"]) for e in results if "left_out" in e["trial"]]
    assert "model of NOPG" in experiment.summarize(some, tmp_path, Extent(True, 3, 9))
