"""Training data from the simulated rig, in simulated time."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.rigs import balance, balancing_gain, metadata, quick_rig
from nopg_robot.commands.collect import app, behaviour_named, with_angle_limit
from nopg_robot.flight.log import read_flight
from nopg_robot.rig.errors import PolicyError
from nopg_robot.run.collection import CollectOptions, collect
from nopg_robot.run.deployment import check_policy
from nopg_robot.run.stop import StopRequest
from sb3_nopg import TransitionDataset


def gather(tmp_path, behaviour=None, rig=None, stop=None, metadata=None, **options):
    rig = rig or quick_rig()
    path = tmp_path / "collected.npz"
    episodes = []
    summary = collect(
        behaviour or behaviour_named("uniform", rig, seed=0),
        rig,
        path,
        CollectOptions(**options),
        metadata=metadata,
        stop=stop,
        on_episode=lambda number, transitions: episodes.append((number, transitions)),
    )
    return summary, read_flight(path), episodes


@pytest.mark.slow
def test_episodes_of_a_random_behaviour_become_a_data_set(tmp_path):
    summary, log, episodes = gather(tmp_path, episodes=3, spread_m=0.2, seed=1)
    assert summary.outcome == "finished"
    assert [number for number, _ in episodes] == [1, 2, 3]
    data = TransitionDataset(**log.transitions())
    assert len(data) == pytest.approx(episodes[-1][1], abs=3)
    # Uniform volts let the pole fall: every episode ends by itself.
    assert data.terminals.sum() == 3
    starts = data.observations[data.episode_starts]
    assert len(starts) == 3
    assert np.abs(starts[:, 1]).max() < 0.06
    assert np.abs(starts[:, 0]).max() <= 0.22
    assert np.ptp(starts[:, 0]) > 0.02
    assert np.abs(data.actions).max() <= 5.0
    # What was applied: the slew limit lets a jump of 10 V take three of the ten cycles.
    assert np.abs(data.actions).max() > 3.0


@pytest.mark.slow
def test_enough_transitions_end_it(tmp_path):
    summary, _, episodes = gather(tmp_path, episodes=100, transitions=20)
    assert summary.outcome == "finished"
    assert episodes[-1][1] >= 20
    assert episodes[-2][1] < 20 if len(episodes) > 1 else True


@pytest.mark.slow
def test_a_policy_that_balances_ends_by_its_time_limit(tmp_path):
    summary, log, _ = gather(tmp_path, behaviour=balance, episodes=2, seconds=1.0)
    data = TransitionDataset(**log.transitions())
    assert summary.outcome == "finished"
    assert len(data) == 100
    assert not data.terminals.any()
    assert data.timeouts.sum() == 2


@pytest.mark.slow
def test_what_was_recorded_stays_when_the_operator_stops(tmp_path):
    stop = StopRequest()
    calls = []

    def policy(observation):
        calls.append(1)
        if len(calls) == 80:
            stop.request("Enter key")
        return balance(observation)

    summary, log, _ = gather(tmp_path, behaviour=policy, episodes=5, seconds=1.0, stop=stop)
    assert summary.fault.reason.value == "operator"
    assert len(TransitionDataset(**log.transitions())) >= 78


@pytest.mark.slow
def test_a_lower_angle_limit(tmp_path):
    rig = with_angle_limit(quick_rig(), 0.1)
    _, log, _ = gather(tmp_path, rig=rig, episodes=2)
    collected = log.phase == "collect"
    assert 0.1 < np.abs(log.theta[collected]).max() < 0.13
    with pytest.raises(ValueError, match="angle_limit"):
        with_angle_limit(quick_rig(), 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("episodes", 0),
        ("transitions", 0),
        ("seconds", 0.0),
        ("seconds", 1e9),
        ("spread_m", 0.4),
        ("spread_m", -0.1),
        ("pole", "x"),
    ],
)
def test_bad_options_name_the_field(tmp_path, field, value):
    with pytest.raises(ValueError, match=field):
        gather(tmp_path, **{field: value})
    assert not list(tmp_path.iterdir())


SHUFFLED = ("theta_dot", "x_dot", "cos_theta", "sin_theta", "x")


def shuffled_balance(observation):
    """A policy that keeps the pole up, and observes in an order of its own."""
    return balance(observation[[4, 3, 2, 1, 0]])


@pytest.mark.slow
def test_a_policy_observes_what_its_file_says(tmp_path):
    units = ("rad/s", "m/s", "1", "1", "m")
    told = metadata(observation_names=SHUFFLED, observation_units=units)
    summary, log, _ = gather(tmp_path, behaviour=shuffled_balance, metadata=told, episodes=1, seconds=2.0)
    assert summary.outcome == "finished"
    # It did not fall.
    assert not log.transitions()["terminals"].any()
    assert log.header["policy"]["observation_names"] == list(SHUFFLED)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"control_period_s": 0.002}, "control_hz"), ({"action_units": ("N",)}, "voltage in N"), ({"action_names": ()}, "motor")],
)
def test_a_policy_that_does_not_fit_is_refused_before_anything_moves(tmp_path, change, message):
    with pytest.raises(PolicyError, match=message):
        gather(tmp_path, behaviour=balance, metadata=metadata(**change))
    assert not list(tmp_path.iterdir())


def write_policy(path, **changes):
    """An exported policy that keeps the pole up for small angles."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    gain = -balancing_gain()[[3, 2, 1, 0]]
    weight = np.array([*gain[:2], 0.0, *gain[2:]], dtype=np.float32).reshape(5, 1)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["observation", "weight"], ["action"])],
        "policy",
        [helper.make_tensor_value_info("observation", kind, (1, 5))],
        [helper.make_tensor_value_info("action", kind, (1, 1))],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    told = metadata(observation_names=SHUFFLED, observation_units=("",) * 5, data_low=(), data_high=(), **changes)
    description = {"format_version": 1, **told.__dict__}
    helper.set_model_props(model, {name: json.dumps(value) for name, value in description.items()})
    onnx.save(model, path)
    return str(path)


@pytest.mark.slow
def test_the_command_runs_an_exported_policy_as_its_file_says(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    arguments = ["--fast", "--plain", "--episodes", "1", "--seconds", "2", "--spread", "0"]
    good, slow = write_policy(tmp_path / "good.onnx"), write_policy(tmp_path / "slow.onnx", control_period_s=0.002)
    result = CliRunner().invoke(app, ["--behaviour", good, "--log", "good.npz", *arguments])
    assert result.exit_code == 0, result.output
    assert "note: The policy file does not say in which units these are: theta_dot, x_dot" in result.output
    found = read_flight("good.npz").transitions()
    assert (len(found["rewards"]), found["terminals"].sum()) == (100, 0)

    result = CliRunner().invoke(app, ["--behaviour", slow, "--log", "slow.npz", *arguments])
    assert result.exit_code == 2, result.output
    assert "control_hz" in result.output
    assert not (tmp_path / "slow.npz").exists()


def test_units_of_a_policy_are_compared_with_those_of_the_rig():
    for change, message in (
        ({"observation_units": ("mm", "1", "1", "m/s", "rad/s")}, "x in mm and the rig in m;"),
        ({"observation_units": ("m", "1", "1", "m/s", "deg/s")}, "theta_dot in deg/s and the rig in rad/s;"),
        ({"action_units": ("N",)}, "voltage in N and the rig in V;"),
    ):
        with pytest.raises(PolicyError, match=message):
            check_policy(metadata(**change), quick_rig())
    covered = {"data_low": (-1.0,) * 5, "data_high": (1.0,) * 5}
    assert check_policy(metadata(**covered), quick_rig()) == []
    unknown = metadata(observation_units=("m", "", "1", "m/s", "rad/s"), action_units=("",), **covered)
    (note,) = check_policy(unknown, quick_rig())
    assert note.endswith("units these are: sin_theta, voltage.")


def test_an_unknown_behaviour():
    with pytest.raises(ValueError, match="behaviour"):
        behaviour_named("random", quick_rig(), 0)
