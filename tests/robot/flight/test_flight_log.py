"""Flight logs, read again: as transitions to learn from, and as recordings to fit a simulator to."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest

from nopg_envs import fidelity
from nopg_envs.cartpole.env import QuanserCartPoleBalanceEnv
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_envs.identification import fit
from nopg_envs.identification.recordings import RecordingError, read_recording
from nopg_robot.flight.log import FlightLogError, read_flight
from nopg_robot.flight.recorder import FlightRecorder, Sample
from sb3_nopg import TransitionDataset

SAMPLE_S = 0.002
N_CYCLES = 10
RIG = CartPoleParameters()
STILL = Sample(0.0, "run", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, 0)


def flight(path, samples, ends=(), header=None):
    with FlightRecorder(path, header or {}) as recorder:
        for sample in samples:
            recorder.record(sample)
        for end in ends:
            recorder.end_episode(*end)
    return read_flight(path)


def counted(count, episode=0, first=0, **changes):
    """Samples in which everything tells the cycle's number."""
    return [
        replace(
            STILL,
            time_s=100.0 + SAMPLE_S * (first + number),
            x=0.001 * number,
            theta=0.01 * number,
            x_dot=0.1 * number,
            theta_dot=-0.1 * number,
            asked_volt=99.0,
            applied_volt=0.1 * number,
            acted=number % N_CYCLES == 0,
            episode=episode,
            **changes,
        )
        for number in range(count)
    ]


def test_transitions_hold_what_was_applied_and_where_it_led(tmp_path):
    found = flight(tmp_path / "run.npz", counted(31)).transitions()
    begin, end = np.array([0, 10, 20]), np.array([10, 20, 30])
    np.testing.assert_allclose(found["actions"][:, 0], 0.1 * (begin + 4.5))
    for name, rows in (("observations", begin), ("next_observations", end)):
        expected = np.stack([0.001 * rows, np.sin(0.01 * rows), np.cos(0.01 * rows), 0.1 * rows, -0.1 * rows], axis=-1)
        np.testing.assert_allclose(found[name], expected, atol=1e-12)
    np.testing.assert_allclose(found["rewards"], np.cos(0.01 * end))
    assert found["terminals"].tolist() == [False, False, False]
    assert found["timeouts"].tolist() == [False, False, True]
    assert found["episode_ids"].tolist() == [0, 0, 0]
    dataset = TransitionDataset(**found)
    assert (len(dataset), dataset.observation_dim, dataset.action_dim) == (3, 5, 1)


@pytest.mark.parametrize(
    ("count", "terminal", "n_kept", "last_row"),
    [
        # Ends right when an action was due: three periods, the last sample belongs to the state reached.
        (31, True, 3, 30),
        (31, False, 3, 30),
        # A few cycles into a period: kept only where the task ended, up to the last state seen.
        (34, True, 4, 33),
        (34, False, 3, 30),
        # A period lacks the state that it led to by one cycle.
        (30, True, 3, 29),
        (30, False, 2, 20),
        # Nothing but an action.
        (1, True, 0, None),
    ],
)
def test_last_period_of_an_episode(tmp_path, count, terminal, n_kept, last_row):
    log = flight(tmp_path / "run.npz", counted(count), [(0, "angle" if terminal else "time_limit", terminal)])
    found = log.transitions()
    flags = [False] * (n_kept - 1) + [True] if n_kept else []
    assert found["terminals"].tolist() == (flags if terminal else [False] * n_kept)
    assert found["timeouts"].tolist() == ([False] * n_kept if terminal else flags)
    if n_kept:
        assert found["next_observations"][-1, 0] == pytest.approx(0.001 * last_row)
        begin = 10 * (n_kept - 1)
        assert found["actions"][-1, 0] == pytest.approx(0.1 * np.mean(np.arange(begin, last_row)))


def test_samples_after_the_last_action_do_not_stretch_its_period(tmp_path):
    samples = counted(31) + [replace(sample, acted=False) for sample in counted(60)[31:]]
    found = flight(tmp_path / "run.npz", samples, [(0, "rail", True)]).transitions()
    assert found["next_observations"][-1, 0] == pytest.approx(0.040)


def test_episodes_are_kept_apart_and_other_phases_left_out(tmp_path):
    samples = [
        *counted(25, phase="home"),
        *counted(21, episode=1, first=100, phase="collect"),
        *counted(30, episode=1, first=121, phase="place"),
        *counted(41, episode=2, first=200, phase="collect"),
    ]
    log = flight(tmp_path / "run.npz", samples, [(1, "angle", True), (2, "time_limit", False)])
    found = log.transitions()
    assert found["episode_ids"].tolist() == [1, 1, 2, 2, 2, 2]
    assert found["terminals"].tolist() == [False, True, False, False, False, False]
    assert found["timeouts"].tolist() == [False, False, False, False, False, True]
    assert len(log.of_phase("home")) == 25
    assert set(log.of_phase("collect", "place").phase) == {"collect", "place"}
    TransitionDataset(**found)


def test_period_that_the_loop_was_held_up_in_is_left_out(tmp_path):
    samples = counted(61)
    late = [replace(sample, time_s=sample.time_s + (0.5 if number >= 25 else 0.0)) for number, sample in enumerate(samples)]
    found = flight(tmp_path / "run.npz", late).transitions()
    np.testing.assert_allclose(found["observations"][:, 0], [0.0, 0.01, 0.03, 0.04, 0.05], atol=1e-12)


def test_mean_of_the_largest_voltage_is_the_largest_voltage(tmp_path):
    samples = [replace(sample, applied_volt=4.9 if number < 20 else 5.0) for number, sample in enumerate(counted(401))]
    assert flight(tmp_path / "run.npz", samples).transitions()["actions"].max() == 5.0


def test_dry_run_is_no_training_data(tmp_path):
    dry = flight(tmp_path / "dry.npz", counted(31), header={"options": {"dry_run": True}})
    with pytest.raises(FlightLogError, match=r"dry\.npz: options\.dry_run is true"):
        dry.transitions()
    # It is a log as any other for those who look at it.
    assert len(dry.of_phase("run")) == 31
    for number, options in enumerate(({"dry_run": False}, {}, None)):
        found = flight(tmp_path / f"{number}.npz", counted(31), header={"options": options}).transitions()
        assert len(found["rewards"]) == 3


def test_log_without_a_run_has_no_transitions(tmp_path):
    for number, samples in enumerate(([], counted(30, phase="home"))):
        found = flight(tmp_path / f"{number}.npz", samples).transitions()
        assert {name: len(array) for name, array in found.items()} == dict.fromkeys(found, 0)
        assert found["observations"].shape == (0, 5)
        assert found["actions"].shape == (0, 1)


def test_transitions_are_those_of_the_environment(tmp_path):
    env = QuanserCartPoleBalanceEnv()
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    rows, samples, done = [], [], False
    while not done:
        action = rng.uniform(-5.0, 5.0, 1).astype(np.float32)
        after, reward, done, _, info = env.step(action)
        rows.append((observation, action, reward, after))
        x, sine, cosine, x_dot, theta_dot = map(float, observation)
        at_action = replace(
            STILL, x=x, theta=math.atan2(sine, cosine), x_dot=x_dot, theta_dot=theta_dot, applied_volt=float(action[0])
        )
        samples += [replace(at_action, acted=cycle == 0) for cycle in range(N_CYCLES)]
        observation = after
    x, sine, cosine, x_dot, theta_dot = map(float, observation)
    samples.append(replace(STILL, x=x, theta=math.atan2(sine, cosine), x_dot=x_dot, theta_dot=theta_dot, acted=False))
    timed = [replace(sample, time_s=SAMPLE_S * number) for number, sample in enumerate(samples)]
    found = flight(tmp_path / "run.npz", timed, [(0, info["termination"], True)]).transitions()
    for name, column in (("observations", 0), ("actions", 1), ("next_observations", 3)):
        np.testing.assert_allclose(found[name], [row[column] for row in rows], atol=1e-6)
    # The environment knows the angle better than its encoder does.
    np.testing.assert_allclose(found["rewards"], [row[2] for row in rows], atol=1e-3)
    assert found["terminals"].tolist() == [False] * (len(rows) - 1) + [True]


def test_arrays_cannot_be_changed(tmp_path):
    log = flight(tmp_path / "run.npz", counted(3))
    with pytest.raises(ValueError, match="read-only"):
        log.x[0] = 1.0


def _lacking(arrays):
    arrays.pop("busy_s")
    return arrays


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(b"text"), "not a readable npz file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "not a readable npz file"),
        (lambda path: np.savez(path, **_lacking(dict(np.load(path)))), "lacks busy_s"),
        (lambda path: np.savez(path, **dict(np.load(path)) | {"events_json": np.array("{")}), "not a readable npz file"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "not a readable npz file"),
    ],
)
def test_bad_files_are_named(tmp_path, spoil, message):
    path = tmp_path / "run.npz"
    flight(path, counted(3))
    spoil(path)
    with pytest.raises(FlightLogError, match=message) as error:
        read_flight(path)
    assert str(path) in str(error.value)


def test_missing_journal_is_named(tmp_path):
    with pytest.raises(FlightLogError, match="no such file"):
        read_flight(tmp_path / "run.npz.journal")


def simulated_flight(path, parameters, seconds, seed, jitter_s=0.0, swing=1.0):
    """
    A swinging pole on a cart with all rig effects, driven by held voltages at 50 Hz and sampled at 500 Hz, each sample as late
    as a busy computer makes it; homed before, and stopped for another episode after.
    """
    options = CartPoleOptions(task="swing_up", parameters=parameters, control_hz=500.0, theta_limit_rad=math.inf)
    simulator = CartPoleSimulator(options, options.begin(np.random.default_rng(seed))[0], (-0.05, math.pi - swing, 0.0, 0.0))
    rng = np.random.default_rng(seed)
    late_s = np.minimum(jitter_s * rng.exponential(size=round(seconds / SAMPLE_S)), 0.9 * SAMPLE_S)
    with FlightRecorder(path, {}) as recorder:
        for sample in counted(300, phase="home"):
            recorder.record(sample)
        for number, late in enumerate(late_s):
            if number % N_CYCLES == 0:
                slow = 3.0 * math.sin(2 * math.pi * (1.0 + 0.2 * seed) * number * SAMPLE_S)
                volt = slow - 8.0 * simulator.measured[0] + rng.uniform(-1.5, 1.5)
            x, theta, x_dot, theta_dot = simulator.measured
            # A late cycle reads where the cart is by then.
            theta = (theta + late * theta_dot + math.pi) % (2 * math.pi) - math.pi
            recorder.record(
                replace(
                    STILL,
                    time_s=1e4 + number * SAMPLE_S + late,
                    x=x + late * x_dot,
                    theta=theta,
                    x_dot=x_dot,
                    theta_dot=theta_dot,
                    asked_volt=2.0 * volt,
                    applied_volt=volt,
                    acted=number % N_CYCLES == 0,
                    episode=1,
                )
            )
            simulator.hold(volt)
        for sample in counted(200, episode=2, first=10_000_000):
            recorder.record(sample)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("jitter_s", [0.0, 3e-4])
def test_fidelity_reads_the_longest_episode(tmp_path, jitter_s):
    path = simulated_flight(tmp_path / "run.npz", RIG, 4.0, seed=1, jitter_s=jitter_s)
    recording = read_recording(path)
    assert recording.dt_s == SAMPLE_S
    assert len(recording.x) == pytest.approx(2000, abs=2)
    assert fidelity.main([str(path), "--json", str(tmp_path / "out.json")]) == 0
    for row in json.loads((tmp_path / "out.json").read_text())[:2]:
        assert row["x_rmse_m"] < 5e-4, row
        assert row["theta_rmse_rad"] < 5e-3, row


@pytest.mark.slow
def test_cycles_left_out_are_filled_and_long_gaps_end_the_recording(tmp_path):
    path = simulated_flight(tmp_path / "run.npz", RIG, 4.0, seed=1)
    arrays = dict(np.load(path))
    names = [name for name in arrays if arrays[name].ndim]
    keep = np.ones(len(arrays["x"]), dtype=bool)
    # Three cycles missing here and there, and a hundred after 3 s of the run.
    for first in range(400, 1700, 97):
        keep[first : first + 3] = False
    keep[1800:1900] = False
    np.savez(tmp_path / "gaps.npz", **{name: arrays[name][keep] if name in names else arrays[name] for name in arrays})
    whole, recording = read_recording(path), read_recording(tmp_path / "gaps.npz")
    assert len(recording.x) == 1500
    # Linear over 8 ms.
    np.testing.assert_allclose(recording.x, whole.x[:1500], atol=1e-3)
    np.testing.assert_allclose(recording.theta, whole.theta[:1500], atol=2e-3)
    assert fidelity.score(recording, RIG, 0.1).x_rmse_m < 1e-3


def test_motor_gets_the_same_impulse_on_an_even_grid(tmp_path):
    rng = np.random.default_rng(0)
    late_s = rng.uniform(0.0, 0.9 * SAMPLE_S, 200)
    samples = [
        replace(sample, time_s=sample.time_s + late, applied_volt=rng.uniform(-5.0, 5.0))
        for sample, late in zip(counted(200), late_s, strict=True)
    ]
    log = flight(tmp_path / "run.npz", samples)
    recording = read_recording(log.path)
    # The voltage that was there at a million moments.
    span_s = recording.dt_s * len(recording.u)
    moments_s = (np.arange(10**6) + 0.5) * span_s / 10**6
    voltage = log.applied_volt[np.searchsorted(log.time_s - log.time_s[0], moments_s, side="right") - 1]
    oracle = np.cumsum(voltage)[:: 10**6 // 1000] * span_s / 10**6
    at_s = moments_s[:: 10**6 // 1000]
    grid_s = recording.dt_s * np.arange(len(recording.u) + 1)
    impulse = np.append(0.0, np.cumsum(recording.u) * recording.dt_s)
    on_grid = np.interp(grid_s, at_s, oracle)
    np.testing.assert_allclose(impulse[1:-1], on_grid[1:-1], atol=5.0 * span_s / 1000)


@pytest.mark.slow
def test_identification_recovers_another_cart_from_flights(tmp_path, monkeypatch):
    # Short windows take less time.
    monkeypatch.setattr(fit, "WINDOW_S", 0.15)
    other = RIG.replace(input_gain=1.6, cart_damping=9.0, inverse_pole_length=3.8, input_delay_s=0.010)
    paths = [
        simulated_flight(tmp_path / f"{seed}.npz", other, 3.0, seed, jitter_s=1e-4, swing=1.0 + seed) for seed in range(2)
    ]
    found = fit.identify([read_recording(path) for path in paths], RIG, n_starts=1).fitted
    for name, tolerance in {
        "input_gain": 0.1,
        "cart_damping": 0.6,
        "inverse_pole_length": 0.05,
        "input_delay_s": 0.002,
    }.items():
        assert getattr(found, name) == pytest.approx(getattr(other, name), abs=tolerance), name


def test_samples_read_twice_count_once_and_other_phases_may_hold_anything(tmp_path):
    path = simulated_flight(tmp_path / "run.npz", RIG, 1.0, seed=1)
    arrays = dict(np.load(path))
    rows = np.sort(np.append(np.arange(len(arrays["x"])), np.arange(310, 700, 7)))
    twice = {name: array[rows] if array.ndim else array for name, array in arrays.items()}
    twice["x"] = np.where(twice["phase"] == "home", np.nan, twice["x"])
    np.savez(tmp_path / "twice.npz", **twice)
    once, again = read_recording(path), read_recording(tmp_path / "twice.npz")
    np.testing.assert_array_equal(again.x, once.x)
    np.testing.assert_array_equal(again.u, once.u)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: {"phase": np.full(len(arrays["x"]), "home")}, "too short, 0 samples of the phases run and collect"),
        (lambda arrays: {"time_s": arrays["time_s"][::-1]}, "time_s runs backwards"),
        (lambda arrays: {"episode": arrays["episode"][:-1]}, "rows of equal length"),
        (lambda arrays: {"applied_volt": np.full(len(arrays["x"]), np.nan)}, "applied_volt is not finite"),
    ],
)
def test_logs_that_are_no_recordings_are_refused(tmp_path, change, message):
    path = tmp_path / "run.npz"
    flight(path, counted(300))
    arrays = dict(np.load(path))
    np.savez(path, **arrays | change(arrays))
    with pytest.raises(RecordingError, match=message) as error:
        read_recording(path)
    assert os.fspath(path) in str(error.value)
