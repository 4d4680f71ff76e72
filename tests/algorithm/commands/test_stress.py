"""``nopg stress``: what it says of a policy, what it writes, and what it refuses; and what ``nopg report`` makes of it."""

import io
import json
import math
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from matplotlib.image import imread

import nopg_envs
from helpers.command_line import fine, nopg, refused
from helpers.models import make_nopg
from helpers.policy_files import BALANCE, write_policy
from helpers.reports import line_data
from nopg_envs.stress import stress_test
from nopg_robot.control.policy import OnnxPolicy
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.commands import flown_policies
from sb3_nopg.commands.models import TrainingRecord
from sb3_nopg.commands.stress import stress_of
from sb3_nopg.report.summary import ReportSummary

ENV = "nopg/QuanserCartPoleBalance-v0"
# Some rigs are too much for it.
WEAK = 0.45 * BALANCE
SHORT = ("--rigs", 40, "--seconds", 3)


def weak(observations: np.ndarray) -> np.ndarray:
    return observations @ WEAK.astype(np.float32)


def recorded(env: gym.Env) -> TransitionDataset:
    return TransitionDataset(**nopg_envs.rollouts(env, "uniform", n_transitions=60, start="operator", seed=0))


def cart_pole_model(env: gym.Env) -> NOPG:
    return make_nopg("LinearPolicy", env, dataset=recorded(env), gamma=0.9, seed=0, device="cpu", transitions="samples")


@pytest.mark.slow
def test_the_command_is_the_python_function_and_writes_what_it_says(tmp_path):
    policy = write_policy(tmp_path / "weak.onnx", WEAK)
    said = fine("stress", policy, *SHORT, "--seed", 3, "-o", tmp_path / "out" / "stress.json")
    found = json.loads((tmp_path / "out" / "stress.json").read_text(encoding="utf-8"))
    expected = stress_test(weak, n_rigs=40, seconds=3.0, seed=3)
    assert 0 < expected.held.sum() < 40
    assert [rig["fate"] for rig in found["rigs"]] == [outcome.fate for outcome in expected.outcomes]
    assert [rig["input_gain"] for rig in found["rigs"]] == expected.values["input_gain"].tolist()
    assert (found["n_held"], found["n_rigs"], found["seed"]) == (expected.held.sum(), 40, 3)
    assert (found["low"], found["high"]) == expected.interval
    assert [factor["name"] for factor in found["factors"]] == [factor.name for factor in expected.factors]
    assert found["what_hurts"] == [factor.name for factor in expected.factors if factor.clear]
    assert found["policy"]["file"] == "weak.onnx"
    assert f"{found['n_held']} of 40 held for 3 s" in said
    assert "What hurts: " in said
    assert "input_gain" in said
    assert imread(tmp_path / "out" / "stress.png")[..., :3].std() > 0.05


@pytest.mark.slow
def test_a_good_policy_holds_and_nothing_hurts(tmp_path):
    said = fine("stress", write_policy(tmp_path / "good.onnx"), *SHORT)
    assert "40 of 40 held for 3 s, 100 % (95 % interval 91.2 to 100 %)" in said
    assert "What hurts: none." in said
    # There is nothing to compare.
    assert "input_gain" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["good.onnx"]


@pytest.mark.slow
def test_voltage_and_rate_are_the_policys_own_unless_given(tmp_path):
    policy = write_policy(tmp_path / "p.onnx", action_low=(-7.0,), action_high=(6.0,), control_period_s=0.01)
    figures = []
    for more in ((), ("--voltage", 2.5)):
        fine("stress", policy, "--rigs", 5, "--seconds", 1, "-o", tmp_path / "s.json", *more)
        found = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
        figures.append((found["voltage_limit_volt"], found["control_hz"]))
    assert figures == [(7.0, 100.0), (2.5, 100.0)]


@pytest.mark.slow
def test_a_policy_may_take_the_angle_itself(tmp_path):
    # Not sin θ, cos θ, but θ and a zero.
    names = ("x_dot", "theta", "cos_theta", "x", "theta_dot")
    gain = [BALANCE[3], BALANCE[1], 0.0, BALANCE[0], BALANCE[4]]
    policy = write_policy(
        tmp_path / "p.onnx", gain, observation_names=names, observation_units=("m/s", "rad", "1", "m", "rad/s")
    )
    assert "20 of 20 held" in fine("stress", policy, "--rigs", 20, "--seconds", 3)
    unknown = write_policy(tmp_path / "q.onnx", observation_names=("x", "y", "cos_theta", "x_dot", "theta_dot"))
    assert "y" in refused("stress", unknown)


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", ["no onnx", "a batch that acts otherwise"])
def test_a_policy_that_takes_only_one_observation_is_asked_for_each(tmp_path, monkeypatch, obstacle):
    def other(path):
        if obstacle == "no onnx":
            raise ImportError("No module named 'onnx'")
        return lambda seen: np.zeros((len(seen), 1))

    policy = write_policy(tmp_path / "p.onnx")
    quick = nopg("stress", policy, "--rigs", 5, "--seconds", 1)
    monkeypatch.setattr(flown_policies, "_with_any_batch", other)
    slow = nopg("stress", policy, "--rigs", 5, "--seconds", 1)
    assert (quick.exit_code, slow.exit_code) == (0, 0)
    assert "one rig after the other" not in quick.stderr
    assert "one rig after the other" in slow.stderr
    assert slow.stdout == quick.stdout
    assert "5 of 5 held" in slow.stdout


@pytest.mark.slow
def test_what_was_identified_task_and_start_are_passed_on(tmp_path):
    policy = write_policy(tmp_path / "p.onnx", 0.0 * BALANCE)
    nopg_envs.CartPoleParameters(input_gain=0.5).save(tmp_path / "mine.yaml")
    said = fine(
        *("stress", policy, "--rigs", 6, "--seconds", 6, "--task", "swing_up", "--start", "paper"),
        *("--parameters", tmp_path / "mine.yaml", "-o", tmp_path / "s.json"),
    )
    assert "0 of 6 stood upright in the end, after 6 s" in said
    found = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert (found["task"], found["start"]) == ("swing_up", "paper")
    assert all(0.4 <= rig["input_gain"] <= 0.6 for rig in found["rigs"])
    assert "start_x" not in found["rigs"][0]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--task", "juggle"), "--task"),
        (("--start", "anywhere"), "--start"),
        (("--seconds", 0), "--seconds"),
        (("--task", "swing_up", "--seconds", 2), "--seconds"),
        (("--voltage", 100), "--voltage"),
        (("--parameters", "nix"), "--parameters"),
        (("--parameters", "nix.yaml"), "nix.yaml"),
        (("-o", "a.txt"), "--output"),
    ],
)
def test_what_it_cannot_use_is_one_line(tmp_path, monkeypatch, more, word):
    monkeypatch.chdir(tmp_path)
    assert word in refused("stress", write_policy(tmp_path / "p.onnx"), *more)


def test_what_is_no_policy_is_one_line(tmp_path):
    assert "nix.onnx" in refused("stress", tmp_path / "nix.onnx")
    (tmp_path / "bad.onnx").write_text("bad")
    assert "bad.onnx" in refused("stress", tmp_path / "bad.onnx")
    (tmp_path / "bad.zip").write_text("bad")
    assert "bad.zip" in refused("stress", tmp_path / "bad.zip")
    (tmp_path / "bad.txt").write_text("bad")
    assert "neither .zip nor .onnx" in refused("stress", tmp_path / "bad.txt")


@pytest.mark.slow
def test_a_model_is_flown_as_its_exported_policy_and_for_the_task_beside_it(tmp_path):
    env = gym.make("nopg/QuanserCartPoleSwingUp-v1", voltage_limit_volt=3.0)
    model = cart_pole_model(env)
    model.save(tmp_path / "m.zip")
    model.export(tmp_path / "m.onnx")
    results = {}
    for name in ("m", "m.onnx"):
        fine("stress", tmp_path / name, "--rigs", 6, "--seconds", 2, "-o", tmp_path / "s.json")
        results[name] = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
        assert results[name]["voltage_limit_volt"] == 3.0
        assert results[name]["task"] == "balance"
    assert results["m"]["rigs"] == results["m.onnx"]["rigs"]
    (tmp_path / "m.json").write_text(json.dumps({"data": "nix", "env": "nopg/QuanserCartPoleSwingUp-v1", "seed": 0}))
    assert "stood upright" in fine("stress", tmp_path / "m.zip", "--rigs", 3, "--seconds", 5)
    # Whoever names the task needs no record.
    (tmp_path / "m.json").write_text(json.dumps({"data": "nix", "env": "nix/Nix-v0", "seed": 0}))
    assert "nix/Nix-v0" in refused("stress", tmp_path / "m.zip", "--rigs", 3)
    assert "held for 1 s" in fine("stress", tmp_path / "m.zip", "--rigs", 3, "--seconds", 1, "--task", "balance")


@pytest.mark.slow
def test_a_record_tells_with_which_options_the_environment_was_made(tmp_path):
    """As `nopg improve` writes it, whose data no name stands for."""
    env, options = "nopg/QuanserCartPoleSwingUp-v1", {"control_hz": 100.0, "voltage_limit_volt": 3.0}
    cart_pole_model(gym.make(env, **options)).save(tmp_path / "m.zip")
    TrainingRecord(None, env, 0, None, options).save(tmp_path / "m.zip")
    said = fine("stress", tmp_path / "m.zip", "--rigs", 3, "--seconds", 5, "-o", tmp_path / "s.json")
    assert "nothing beside" not in said
    found = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert (found["task"], found["control_hz"], found["voltage_limit_volt"]) == ("swing_up", 100.0, 3.0)
    fine("export", tmp_path / "m.zip", tmp_path / "m.onnx")
    assert OnnxPolicy(tmp_path / "m.onnx").metadata.control_period_s == 0.01
    assert "Pass --data" in refused("report", tmp_path / "m.zip", "-o", tmp_path / "r.html")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stress", "export", "report"])
@pytest.mark.parametrize("damage", ["a pickle", "half"])
def test_a_model_with_damaged_tensors_is_one_line(tmp_path, command, damage):
    path = tmp_path / "m.zip"
    cart_pole_model(gym.make(ENV)).save(path)
    tensors = io.BytesIO()
    # In torch's own format, whose unpickler makes nothing but tensors.
    th.save({"weight": print}, tensors)
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            damaged = tensors.getvalue() if damage == "a pickle" else content[: len(content) // 2]
            new.writestr(member, damaged if member.filename == "policy.pth" else content)
    more = {"export": (tmp_path / "m.onnx",), "report": ("-o", tmp_path / "m.html")}.get(command, ())
    assert "m.zip is no model" in refused(command, path, *more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("p.onnx", (), "the task is taken for balance, --task names another."),
        ("p.onnx", ("--task", "balance"), None),
        ("m.zip", (), "the task is taken for balance, --task names another; it is asked 50 times a second."),
        ("m.zip", ("--task", "balance"), "was trained for: it is asked 50 times a second."),
    ],
)
def test_what_nothing_tells_is_said_to_be_assumed(tmp_path, name, more, said):
    write_policy(tmp_path / "p.onnx")
    if name == "m.zip":
        cart_pole_model(gym.make(ENV)).save(tmp_path / "m.zip")
    result = nopg("stress", tmp_path / name, "--rigs", 2, "--seconds", 1, *more)
    assert result.exit_code == 0, result.output
    assert (said is None and "nothing beside" not in result.output) or said in result.output


@pytest.mark.slow
def test_a_model_of_another_system_is_refused(tmp_path):
    make_nopg("LinearPolicy", None, dataset=line_data(), gamma=0.9, device="cpu").save(tmp_path / "line.zip")
    assert "policies" in refused("stress", tmp_path / "line.zip")


@pytest.mark.slow
def test_only_a_cart_poles_model_is_stressed_and_with_its_environments_options():
    env = gym.make(ENV, voltage_limit_volt=4.0, parameters={"input_gain": 0.5}, theta_limit_rad=0.1)
    model = cart_pole_model(env)
    result = stress_of(model)
    assert (result.task, result.n_rigs, result.voltage_limit_volt) == ("balance", 200, 4.0)
    assert result.values["input_gain"].max() <= 0.6
    assert stress_of(model, "identified").values["input_gain"].min() > 0.9
    # The angle that ends the task is the environment's: the first to pass 0.1 does not reach 0.2 in the same step.
    wider = stress_test(
        lambda seen: model.predict(seen, deterministic=True)[0],
        parameters={"input_gain": 0.5},
        voltage_limit_volt=4.0,
    )
    assert sum(one.seconds for one in result.outcomes) < sum(one.seconds for one in wider.outcomes)
    other = make_nopg("LinearPolicy", None, dataset=line_data(), gamma=0.9, device="cpu")
    assert stress_of(other) is None
    seen_twice = gym.spaces.Box(2.0 * env.observation_space.low, 2.0 * env.observation_space.high)
    tilted = gym.wrappers.TransformObservation(env, lambda seen: 2.0 * seen, seen_twice)
    assert stress_of(cart_pole_model(tilted)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_a_cart_poles_report_shows_it(tmp_path):
    model, page = tmp_path / "model.zip", tmp_path / "report.html"
    fine("train", "rollouts:uniform:60:operator", "--env", ENV, "--updates", 1, "--gamma", 0.9, "-o", model)
    said = fine("report", model, "-o", page)
    summary = ReportSummary.from_json((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert summary.stress.n_rigs == 200
    assert f"simulated rigs that might be yours: {summary.stress.text()}" in said
    # One update does not make a policy that holds.
    assert summary.stress.share < 0.9
    assert summary.verdict != "go"
    assert any(summary.stress.share_text() in reason for reason in summary.reasons)
    nopg_envs.CartPoleParameters(input_gain=0.5).save(tmp_path / "mine.yaml")
    fine("report", model, "-o", page, "--parameters", tmp_path / "mine.yaml")
    mine = ReportSummary.from_json((tmp_path / "report.json").read_text(encoding="utf-8")).stress
    (gain,) = [factor for factor in mine.factors if factor.name == "input_gain"]
    assert math.isclose(gain.high, 0.6)


@pytest.mark.slow
def test_a_report_of_another_system_takes_no_parameters_of_a_cart_pole(tmp_path):
    line_data().save(tmp_path / "line.npz")
    fine("train", tmp_path / "line.npz", "--updates", 1, "--gamma", 0.9, "-o", tmp_path / "m.zip")
    assert "--parameters" in refused("report", tmp_path / "m.zip", "--parameters", "identified", "-o", tmp_path / "r.html")
