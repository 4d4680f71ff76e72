"""One rule for models and data: a pickle is read only if the user trusts who wrote it, and our own models hold none."""

import base64
import io
import pathlib
import pickle
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from typer.testing import CliRunner

from helpers.datasets import Bomb, make_dataset
from helpers.model_files import QUICK, MyPolicy, small, with_settings
from sb3_nopg import NOPG, NOPGS, InputError, TransitionDataset
from sb3_nopg.commands.main import app
from sb3_nopg.common.trust import UntrustedError
from sb3_nopg.prediction.judge import judge
from sb3_nopg.prediction.policy_files import load_policy

RULE = r"can run any program when it is read. Pass trust=True \(--trust\) if you know who wrote it"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.zip"
    small(**QUICK).save(path)
    return path


def bomb(folder: pathlib.Path) -> dict[str, str]:
    """A setting that makes a file when it is read."""
    return {":type:": "dict", ":serialized:": base64.b64encode(pickle.dumps(Bomb(folder / "exploded"))).decode()}


def unpickled(*args, **options):
    raise AssertionError("a pickle was read")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        # With candidates and a judgement of them.
        (NOPG, {"horizon": 5}),
        (NOPG, {"policy": "LinearPolicy", **QUICK}),
        (NOPGS, {"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.ELU, "optimizer_class": th.optim.SGD}, **QUICK}),
        (NOPGS, {"transitions": "samples", "estimator_kwargs": {"state_bandwidth": np.array([0.5, 0.5, 0.5])}}),
    ],
)
def test_a_model_of_ours_holds_no_pickle_and_loads_without_trust(tmp_path, monkeypatch, algorithm, settings):
    model = small(algorithm, **settings)
    model.save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert b":serialized:" not in archive.read("data")
    monkeypatch.setattr("cloudpickle.loads", unpickled)
    loaded = algorithm.load(tmp_path / "model", device="cpu")
    states = make_dataset(n=20).observations
    assert np.array_equal(loaded.predict(states, deterministic=True)[0], model.predict(states, deterministic=True)[0])
    assert loaded.observation_space == model.observation_space
    assert loaded.action_space == model.action_space
    assert loaded.action_space.dtype == model.action_space.dtype
    assert loaded.candidates == model.candidates
    assert loaded.judgement == model.judgement
    assert loaded.lr_schedule(0.3) == model.lr_schedule(0.3)
    assert type(loaded.policy) is type(model.policy)
    assert type(loaded.policy.optimizer) is type(model.policy.optimizer)
    assert np.array_equal(loaded.initial_states, model.initial_states)


@pytest.mark.parametrize("name", ["policy_class", "learning_rate", "something_else"])
def test_a_model_with_a_pickle_runs_nothing_without_trust(tmp_path, saved, name):
    path = with_settings(saved, tmp_path / "evil.zip", **{name: bomb(tmp_path)})
    data = make_dataset(n=40)
    for reads in (
        lambda: NOPG.load(path, device="cpu"),
        lambda: NOPG.load(io.BytesIO(path.read_bytes()), device="cpu"),
        lambda: load_policy(path),
        lambda: judge(data, {"evil": path}, gamma=0.9, n_steps=3),
    ):
        with pytest.raises(UntrustedError, match=rf"a pickle in it \({name}\) {RULE}"):
            reads()
    for arguments in (
        ["evaluate", path, "--env", "nopg/Pendulum-v0"],
        ["report", path],
        ["export", path, tmp_path / "p.onnx"],
    ):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2
        assert "Pass trust=True (--trust)" in result.stderr
    assert not (tmp_path / "exploded").exists()


def test_with_trust_the_pickle_is_read(tmp_path, saved):
    path = with_settings(saved, tmp_path / "evil.zip", something_else=bomb(tmp_path))
    NOPG.load(path, device="cpu", trust=True)
    assert (tmp_path / "exploded").exists()


def test_what_is_replaced_is_not_read(tmp_path, saved):
    path = with_settings(saved, tmp_path / "evil.zip", seed=bomb(tmp_path))
    assert NOPG.load(path, device="cpu", custom_objects={"seed": 7}).seed == 7
    assert not (tmp_path / "exploded").exists()


def test_an_environment_in_the_file_is_not_made(tmp_path, saved):
    """``gym.make`` imports the module before a colon."""
    path = with_settings(saved, tmp_path / "evil.zip", env="this:Pendulum-v1")
    for trust in (False, True):
        with pytest.raises(InputError, match="it names an environment to make"):
            NOPG.load(path, device="cpu", trust=trust)


def test_tensors_in_an_old_format_of_torch_are_not_read(tmp_path, saved):
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "old.zip", "w") as new:
        for member in old.infolist():
            content = old.read(member)
            if member.filename == "policy.pth":
                content = pickle.dumps(Bomb(tmp_path / "exploded"))
            new.writestr(member, content)
    with pytest.raises(UntrustedError, match=rf"an old format of torch in it \(policy.pth\) {RULE}"):
        NOPG.load(tmp_path / "old.zip", device="cpu")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.slow
def test_a_class_of_ones_own_needs_trust_and_other_algorithms_do(tmp_path):
    small(policy=MyPolicy, **QUICK).save(tmp_path / "mine.zip")
    with pytest.raises(UntrustedError, match="policy_class"):
        NOPG.load(tmp_path / "mine.zip", device="cpu")
    assert type(NOPG.load(tmp_path / "mine.zip", device="cpu", trust=True).policy) is MyPolicy
    PPO("MlpPolicy", gym.make("Pendulum-v1"), n_steps=8, batch_size=8, device="cpu").save(tmp_path / "ppo.zip")
    arguments = ["evaluate", str(tmp_path / "ppo.zip"), "--env", "Pendulum-v1", "--algo", "ppo", "--episodes", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    assert CliRunner().invoke(app, [*arguments, "--trust"]).exit_code == 0


@pytest.mark.slow
def test_a_checkpoint_needs_no_trust_unless_it_holds_a_pickle(tmp_path):
    data = make_dataset(n=40)
    for name, policy in (("ours", "MlpPolicy"), ("mine", MyPolicy)):
        model = NOPG(policy, None, dataset=data, initial_states=data.observations[:3], device="cpu", **QUICK).learn(2)
        model.save_checkpoint(tmp_path / name)
    assert NOPG.resume(tmp_path / "ours", data, device="cpu").num_timesteps == 2
    with pytest.raises(UntrustedError, match="policy_class"):
        NOPG.resume(tmp_path / "mine", data, device="cpu")
    assert NOPG.resume(tmp_path / "mine", data, device="cpu", trust=True).num_timesteps == 2


def test_data_follow_the_same_rule(tmp_path):
    (tmp_path / "d.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(UntrustedError, match=RULE):
        TransitionDataset.load(tmp_path / "d.pkl")
    assert not (tmp_path / "exploded").exists()
