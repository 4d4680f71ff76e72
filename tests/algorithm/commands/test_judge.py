"""``nopg judge`` and ``nopg model``: what they say of data and policies, and what they refuse."""

import json
import pathlib
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from stable_baselines3 import TD3

from helpers.command_line import fine, nopg, refused
from helpers.point_with_friction import pushed_point
from helpers.systems import on_circle, pendulum, pendulum_reward, record
from sb3_nopg import NOPGD, InputError, judge
from sb3_nopg.commands import waiting as waiting_module
from sb3_nopg.commands.arguments import angles, limits
from sb3_nopg.commands.judge import names_of
from sb3_nopg.commands.models import find_policy
from sb3_nopg.training.offline_env import offline_vec_env


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Data, a trained model with its exported policy, and an untrained one of another algorithm."""
    place = tmp_path_factory.mktemp("judged")
    data = pushed_point()
    data.save(place / "point.npz")
    pushed_point(seed=1).save(place / "fresh.npz")
    model = NOPGD("LinearPolicy", None, dataset=data, gamma=0.9, seed=0, device="cpu", horizon=20).learn(8)
    model.save(place / "ours.zip")
    model.export(place / "ours.onnx")
    stand_in = offline_vec_env(model.observation_space, model.action_space, np.zeros(2), 1)
    other = TD3("MlpPolicy", stand_in, policy_kwargs={"net_arch": [4]}, buffer_size=10, device="cpu", seed=0)
    other.save(place / "td3.zip")
    return place


@pytest.mark.slow
def test_policies_of_several_kinds_are_ranked(folder, tmp_path):
    output = tmp_path / "judged.json"
    said = fine(
        *("judge", folder / "fresh.npz", folder / "td3.zip", folder / "ours.zip", folder / "ours.onnx"),
        *("--gamma", 0.9, "--steps", 40, "--trust", "-o", output),
    )
    found = json.loads(output.read_text())
    names = [one["name"] for one in found["ranking"]]
    assert names[-1] == "td3"
    assert sorted(name.rpartition("/")[2] for name in names) == ["ours.onnx", "ours.zip", "td3"]
    for one in found["ranking"]:
        assert one["low"] <= one["score"] <= one["high"]
        assert f"{one['score']:.4g}" in said
        assert 0.0 <= one["chatter"]["fast"] <= 1.0
        assert f"{100 * one['chatter']['fast']:.0f} %" in said
    # The same policy twice: nobody can tell them apart.
    assert found["told_apart"] is False
    assert "cannot be told apart" in said
    assert found["n_steps"] == 40


@pytest.mark.slow
def test_the_command_is_the_python_function(folder, tmp_path):
    paths = [folder / "td3.zip", folder / "ours.zip"]
    fine(
        *(
            "judge",
            folder / "fresh.npz",
            *paths,
            "--gamma",
            0.9,
            "--seed",
            3,
            "--level",
            0.8,
            "--limit",
            "0=-2:",
            "--trust",
            "-o",
        ),
        *(tmp_path / "a.json", "--initial-states", "0.5,0", "--initial-states", "-0.5,0", "--reward", "-abs(s2[0])"),
    )
    found = judge(
        pushed_point(seed=1),
        {path.stem: path for path in paths},
        gamma=0.9,
        seed=3,
        level=0.8,
        limits={0: (-2.0, None)},
        initial_states=[[0.5, 0.0], [-0.5, 0.0]],
        reward="-abs(s2[0])",
        trust=True,
    )
    written = json.loads((tmp_path / "a.json").read_text())
    assert [(one["name"], one["score"]) for one in written["ranking"]] == [(one.name, one.score) for one in found.ranking]


@pytest.mark.slow
def test_a_judge_says_that_a_policy_learned_from_its_data(folder):
    result = nopg("judge", folder / "point.npz", folder / "ours", "--gamma", 0.9, "--steps", 20)
    assert result.exit_code == 0, result.output
    assert "Note: ours: trained on these very data" in result.stderr
    assert "is predicted to earn" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["ours.zip", "--limit", "0"], "--limit"),
        (["ours.zip", "--limit", "x=1:2"], "'x' is no column"),
        (["ours.zip", "--limit", "0=5:6"], "no sample lies within"),
        (["ours.zip", "--angle", "0"], "--angle"),
        (["ours.zip", "--angle", "0,1"], "no cosine and sine"),
        (["ours.zip", "--reward", "nix"], "nix"),
        (["ours.zip", "--gamma", "1"], "--gamma"),
        (["ours.zip", "--level", "0"], "--level"),
        (["ours.zip", "--initial-states", "1"], "initial_states"),
        (["ours.zip", "-o", "a.txt"], ".json"),
        (["nix.zip"], "nix.zip"),
        (["point.npz"], "neither .zip nor .onnx"),
    ],
)
def test_what_it_cannot_use_is_one_line(folder, monkeypatch, more, message):
    monkeypatch.chdir(folder)
    assert message in refused("judge", "fresh.npz", *more)


def test_names_are_as_short_as_they_can_be():
    paths = [pathlib.Path(path) for path in ("a/one.zip", "b/one.zip", "b/one.onnx", "two.zip", "two.zip")]
    assert names_of(paths) == ["a/one.zip", "b/one.zip", "b/one.onnx", "two.zip", "two.zip (2)"]


def test_a_limit_may_have_one_end():
    assert limits("--limit", ["0=-0.35:0.35", "2=:1", "3=-1:"]) == {0: (-0.35, 0.35), 2: (None, 1.0), 3: (-1.0, None)}
    assert limits("--limit", None) is None


def test_angles_are_pairs_of_columns():
    assert angles("--angle", ["0,1", "cos_a, sin_a"]) == [(0, 1), ("cos_a", "sin_a")]
    assert angles("--angle", ["none"]) == []
    assert angles("--angle", None) is None


def test_somebody_who_watches_sees_that_it_works(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with waiting_module.waiting("following"):
        pass
    assert "following" in capsys.readouterr().err


@pytest.mark.slow
def test_model_tells_what_it_found_and_how_good_it_is(folder, tmp_path):
    picture = tmp_path / "predicted.png"
    said = fine("model", folder / "point.npz", "--names", "x,speed", "-o", picture)
    for text in ("x, speed", "∞", "none counts", "nothing changes", "10 steps", "50 steps", "not known"):
        assert text in said, text
    assert imread(picture).std() > 0.01


@pytest.mark.slow
def test_an_angle_that_was_found_can_be_taken_back(tmp_path):
    record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle).save(tmp_path / "turns.npz")
    assert "angle(s[0], s[1])" in fine("model", tmp_path / "turns.npz")
    assert "angle(" not in fine("model", tmp_path / "turns.npz", "--angle", "none")
    assert "no pair of columns" in refused("train", tmp_path / "turns.npz", "--angle", "0,9", "-o", tmp_path / "turns.zip")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--names", "x"], "--names"),
        (["-o", "a.txt"], ".png"),
        (["--limit", "7=0:1"], "limits"),
        (["--angle", "0,1"], "no cosine and sine"),
    ],
)
def test_what_model_cannot_use_is_one_line(folder, more, message):
    assert message in refused("model", folder / "point.npz", *more)


@pytest.mark.parametrize("place", [".", "/", "nowhere"])
def test_what_is_no_file_of_a_policy_is_told(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="POLICY: there is no file"):
        find_policy(pathlib.Path(place))
