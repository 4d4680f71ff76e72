"""A policy as an ONNX file: the same actions as ``predict``, a description of itself, and clear refusals."""

import dataclasses
import json
import os
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import nopg_envs  # noqa: F401 (registers the cart-pole)
from helpers.models import make_nopg
from sb3_nopg import NOPG, ExportError, InputError, TransitionDataset, export
from sb3_nopg.paper import AS_IN_THE_PAPER

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

# Neither symmetric nor equal, so that no scale or offset can be forgotten or swapped.
ACTION_SPACE = spaces.Box(np.array([-1.0, -8.0], np.float32), np.array([3.0, 5.0], np.float32))
CENTER, SPREAD = np.array([3.0, 0.0, -2.0]), np.array([0.5, 2.0, 1.0])
ARCHITECTURE = {"net_arch": [16, 16]}


class SpacesEnv(gym.Env):
    """Random observations about CENTER; nothing to control."""

    def __init__(self, observation_space=None, action_space=ACTION_SPACE, metadata=None):
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = action_space
        self.metadata = {**self.metadata, **(metadata or {})}

    def _draw(self):
        if self.observation_space.shape == (3,):
            return (CENTER + SPREAD * self.np_random.standard_normal(3)).astype(np.float32)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action):
        return self._draw(), 0.0, False, False, {}


def observations(n=300, seed=1):
    return (CENTER + 2 * SPREAD * np.random.default_rng(seed).standard_normal((n, 3))).astype(np.float32)


def dataset(n=40):
    rng = np.random.default_rng(0)
    states = CENTER + SPREAD * rng.standard_normal((n, 3))
    actions = rng.uniform(ACTION_SPACE.low, ACTION_SPACE.high, (n, 2))
    return TransitionDataset(states, actions, rng.normal(size=n), states[::-1].copy(), np.zeros(n, bool), episode_ids=[0] * n)


def nopg(policy="MlpPolicy", variant="D", **policy_kwargs):
    return make_nopg(
        policy,
        SpacesEnv(),
        variant=variant,
        dataset=dataset(),
        seed=0,
        policy_kwargs=policy_kwargs,
        **AS_IN_THE_PAPER,
    )


def normalized(algorithm, **arguments):
    env = VecNormalize(DummyVecEnv([SpacesEnv]), clip_obs=1.5)
    return algorithm("MlpPolicy", env, seed=0, policy_kwargs=dict(ARCHITECTURE), **arguments)


def sb3(algorithm, **policy_kwargs):
    use_sde = {"use_sde": True} if policy_kwargs.pop("use_sde", False) else {}
    return algorithm("MlpPolicy", SpacesEnv(), seed=0, policy_kwargs={**ARCHITECTURE, **policy_kwargs}, **use_sde)


GAIN = [[0.4, 1.0, -2.0], [-0.3, 3.0, 0.5]]
MODELS = {
    "nopg deterministic": lambda: nopg(net_arch=[16, 16], activation_fn=th.nn.Tanh),
    "nopg gaussian": lambda: nopg(variant="S"),
    "nopg linear": lambda: nopg("LinearPolicy", initial_gain=GAIN),
    "nopg diagonal": lambda: nopg("LinearPolicy", diagonal=True, initial_gain=GAIN),
    "nopg gaussian linear": lambda: nopg("LinearPolicy", "S", initial_gain=GAIN),
    "td3": lambda: sb3(TD3),
    "ddpg": lambda: sb3(DDPG),
    "sac": lambda: sb3(SAC),
    "sac gsde": lambda: sb3(SAC, use_sde=True),
    "ppo": lambda: sb3(PPO),
    "ppo gsde squashed": lambda: sb3(PPO, use_sde=True, squash_output=True),
    "ppo gsde": lambda: sb3(PPO, use_sde=True, activation_fn=th.nn.ELU),
    "a2c": lambda: sb3(A2C),
    "ppo normalised": lambda: normalized(PPO, n_steps=32, batch_size=32).learn(64),
    "sac normalised": lambda: normalized(SAC, learning_starts=50, buffer_size=100).learn(60),
}


def run(path, raw):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["action"], {"observation": row[None].astype(np.float32)})[0] for row in raw])


def described(path):
    return {prop.key: json.loads(prop.value) for prop in onnx.load(path).metadata_props}


def enlarge_actions(model, factor):
    """Initial networks hardly move their output; this one reaches its limits."""
    layers = [module for module in model.policy.modules() if isinstance(module, th.nn.Linear)]
    with th.no_grad():
        for layer in layers:
            layer.weight.mul_(factor)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_file_gives_the_actions_of_predict(name, tmp_path):
    model = MODELS[name]()
    enlarge_actions(model, 2.0)
    raw = observations()
    normalization = model.get_vec_normalize_env()
    wanted, _ = model.predict(raw if normalization is None else normalization.normalize_obs(raw), deterministic=True)
    actions = run(export(model, tmp_path / "policy.onnx"), raw)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5 * (ACTION_SPACE.high - ACTION_SPACE.low).min())
    assert (actions >= ACTION_SPACE.low).all()
    assert (actions <= ACTION_SPACE.high).all()
    assert np.ptp(actions, axis=0).max() > 0


def test_actions_beyond_the_limits_are_clipped_on_both_sides(tmp_path):
    model = nopg("LinearPolicy", initial_gain=[[0.0, 10.0, 0.0], [0.0, -10.0, 0.0]])
    actions = run(model.export(tmp_path / "policy.onnx"), np.array([[0.0, 9.0, 0.0], [0.0, -9.0, 0.0]]))
    np.testing.assert_array_equal(actions, [[3.0, -8.0], [-1.0, 5.0]])


def test_network_in_float64_is_exported(tmp_path):
    model = nopg()
    model.policy.double()
    wanted, _ = model.predict(observations(), deterministic=True)
    np.testing.assert_allclose(run(model.export(tmp_path / "policy.onnx"), observations()), wanted, rtol=0, atol=4e-5)


@pytest.mark.slow
def test_small_spread_about_a_large_mean_is_not_rounded_away(tmp_path):
    rng = np.random.default_rng(0)
    states = (1000.0 + 0.01 * rng.standard_normal((40, 3))).astype(np.float32)
    data = dataclasses.replace(dataset(), observations=states, next_observations=states)
    model = NOPG("MlpPolicy", SpacesEnv(), dataset=data, seed=0, transitions="samples")
    enlarge_actions(model, 3.0)
    wanted, _ = model.predict(states, deterministic=True)
    assert np.ptp(wanted, axis=0).min() > 1.0
    np.testing.assert_allclose(run(model.export(tmp_path / "policy.onnx"), states), wanted, rtol=0, atol=4e-5)
    env = VecNormalize(DummyVecEnv([SpacesEnv]))
    env.obs_rms.mean, env.obs_rms.var = states.mean(axis=0, dtype=np.float64), states.var(axis=0, dtype=np.float64)
    model = PPO("MlpPolicy", env, seed=0)
    enlarge_actions(model, 60.0)
    wanted, _ = model.predict(env.normalize_obs(states), deterministic=True)
    assert np.ptp(wanted, axis=0).min() > 1.0
    np.testing.assert_allclose(run(export(model, tmp_path / "policy.onnx"), states), wanted, rtol=0, atol=4e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nopg deterministic", "ppo normalised", "ppo", "td3"])
def test_nan_stays_nan(name, tmp_path):
    bad = observations(3)
    bad[:, 1] = np.nan
    assert np.isnan(run(export(MODELS[name](), tmp_path / "policy.onnx"), bad)).all()


def test_one_small_file_that_old_runtimes_read(tmp_path, capfd):
    path = nopg().export(tmp_path / "policy.onnx")
    assert os.listdir(tmp_path) == ["policy.onnx"]
    model = onnx.load(path)
    assert model.opset_import[0].version == 17
    shapes = [[d.dim_value for d in t.type.tensor_type.shape.dim] for t in (*model.graph.input, *model.graph.output)]
    assert shapes == [[1, 3], [1, 2]]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_export_repeats_itself_and_leaves_the_model_as_it_was(tmp_path):
    model = MODELS["sac gsde"]()
    before, random_state = model.predict(observations(), deterministic=True)[0], th.get_rng_state()
    first, second = (export(model, tmp_path / name).read_bytes() for name in ("first.onnx", "second.onnx"))
    assert first == second
    assert th.equal(th.get_rng_state(), random_state)
    np.testing.assert_array_equal(model.predict(observations(), deterministic=True)[0], before)
    assert not model.policy.training


@pytest.mark.slow
def test_digest_follows_the_parameters_and_nothing_else(tmp_path):
    model = nopg()
    digest = described(model.export(tmp_path / "policy.onnx"))["digest"]
    assert len(digest) == 64
    model.save(tmp_path / "model.zip")
    loaded = NOPG.load(tmp_path / "model.zip")
    assert described(loaded.export(tmp_path / "policy.onnx", action_names=["left", "right"]))["digest"] == digest
    with th.no_grad():
        model.policy.network[-1].bias[0] += 1e-3
    assert described(model.export(tmp_path / "policy.onnx"))["digest"] != digest


@pytest.mark.slow
def test_digest_covers_normalisation(tmp_path):
    model = MODELS["ppo normalised"]()
    digest = described(export(model, tmp_path / "policy.onnx"))["digest"]
    model.get_vec_normalize_env().obs_rms.mean[0] += 1.0
    assert described(export(model, tmp_path / "policy.onnx"))["digest"] != digest


def test_cart_pole_describes_itself(tmp_path):
    model = PPO("MlpPolicy", gym.make("nopg/QuanserCartPoleBalance-v0", control_hz=100, voltage_limit_volt=4.0))
    description = described(export(model, tmp_path / "policy.onnx"))
    assert description.pop("versions").keys() == {"python", "stable_baselines3", "torch", "onnx"}
    assert len(description.pop("digest")) == 64
    assert description.pop("created_by").startswith("sb3-nopg ")
    assert description == {
        "observation_names": ["x", "sin_theta", "cos_theta", "x_dot", "theta_dot"],
        "observation_units": ["m", "1", "1", "m/s", "rad/s"],
        "action_names": ["voltage"],
        "action_units": ["V"],
        "action_low": [-4.0],
        "action_high": [4.0],
        "control_period_s": 0.01,
        "data_low": [],
        "data_high": [],
        "algorithm": "PPO",
        "format_version": 1,
    }


@pytest.mark.slow
def test_unknown_is_said_to_be_unknown_and_can_be_told(tmp_path):
    # How often a picture is drawn says nothing of how often an action is wanted.
    model = PPO("MlpPolicy", SpacesEnv(metadata={"render_fps": 50}))
    description = described(export(model, tmp_path / "policy.onnx"))
    assert description["observation_names"] == ["observation_0", "observation_1", "observation_2"]
    assert description["action_names"] == ["action_0", "action_1"]
    assert description["observation_units"] == ["", "", ""]
    assert description["control_period_s"] is None
    told = {
        "control_period_s": 0.002,
        "observation_names": ["a", "b", "c"],
        "observation_units": ["m", "s", "1"],
        "action_names": ["u", "v"],
        "action_units": ["V", "A"],
    }
    description = described(export(model, tmp_path / "policy.onnx", **told))
    assert {name: description[name] for name in told} == told


def test_caller_knows_better_than_the_environment(tmp_path):
    model = PPO("MlpPolicy", SpacesEnv(metadata={"action_names": ["u", "v"], "control_period_s": 0.5}))
    description = described(export(model, tmp_path / "policy.onnx", control_period_s=0.25))
    assert description["action_names"] == ["u", "v"]
    assert description["control_period_s"] == 0.25


def test_range_of_the_training_data(tmp_path):
    model = nopg()
    description = described(model.export(tmp_path / "policy.onnx"))
    np.testing.assert_allclose(description["data_low"], model.dataset.observations.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(description["data_high"], model.dataset.observations.max(axis=0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [30, 70])
def test_range_of_a_replay_buffer_counts_what_was_stored(n_steps, tmp_path):
    """With VecNormalize, raw observations; with room left in the buffer, not its zeros."""
    model = normalized(TD3, learning_starts=100, buffer_size=50).learn(n_steps)
    description = described(export(model, tmp_path / "policy.onnx"))
    assert 0.5 < description["data_low"][0] < description["data_high"][0] < 5.5


@pytest.mark.parametrize(
    ("wrapper", "kind", "other"),
    [
        (lambda env: gym.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0)), "action", "observation"),
        (gym.wrappers.NormalizeObservation, "observation", "action"),
    ],
)
def test_names_that_a_wrapper_makes_untrue_are_left_out(wrapper, kind, other, tmp_path):
    names = {"observation_names": ["a", "b", "c"], "observation_units": ["m"] * 3, "action_names": ["u", "v"]}
    model = PPO("MlpPolicy", wrapper(SpacesEnv(metadata={**names, "action_units": ["V", "V"]})))
    with pytest.warns(UserWarning, match=f"wrapper changes the environment's {kind}s"):
        description = described(export(model, tmp_path / "policy.onnx"))
    assert description[f"{kind}_names"][0] == f"{kind}_0"
    assert set(description[f"{kind}_units"]) == {""}
    assert description[f"{other}_names"] == names[f"{other}_names"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"observation_names": ["a", "b"]}, "observation_names"),
        ({"observation_names": "abc"}, "observation_names"),
        ({"observation_names": ["a", "b", "a"]}, "observation_names"),
        ({"observation_units": ["m", "m", None]}, "observation_units"),
        ({"action_names": ["a"]}, "action_names"),
        ({"action_units": ["V", "V", "V"]}, "action_units"),
        ({"control_period_s": 0.0}, "control_period_s"),
        ({"control_period_s": float("nan")}, "control_period_s"),
        ({"control_period_s": "20 ms"}, "control_period_s"),
    ],
)
def test_wrong_descriptions_are_refused(arguments, field, tmp_path):
    with pytest.raises(InputError) as error:
        export(MODELS["td3"](), tmp_path / "policy.onnx", **arguments)
    assert error.value.field == field
    assert os.listdir(tmp_path) == []


IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
DICT = spaces.Dict({"position": spaces.Box(-1, 1, (2,))})


@pytest.mark.parametrize(
    ("policy", "env", "field"),
    [
        ("MlpPolicy", "CartPole-v1", "action_space"),
        ("CnnPolicy", SpacesEnv(IMAGE), "observation_space"),
        ("MultiInputPolicy", SpacesEnv(DICT), "observation_space"),
    ],
)
def test_unsuitable_models_are_refused(policy, env, field, tmp_path):
    with pytest.raises(InputError) as error:
        export(PPO(policy, env), tmp_path / "policy.onnx")
    assert error.value.field == field
    assert os.listdir(tmp_path) == []


def test_what_is_no_model_or_has_a_memory_is_refused(tmp_path, monkeypatch):
    model = MODELS["td3"]()
    with pytest.raises(InputError, match="TD3Policy is given"):
        export(model.policy, tmp_path / "policy.onnx")
    monkeypatch.setattr(model.policy, "_predict", lambda observation, lstm_states, episode_starts, deterministic: None)
    with pytest.raises(InputError, match="memory"):
        export(model, tmp_path / "policy.onnx")


def test_diverged_model_is_refused(tmp_path):
    model = MODELS["td3"]()
    with th.no_grad():
        model.actor.mu[0].weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        export(model, tmp_path / "policy.onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_difference_from_the_model_is_found(runtime, tmp_path, monkeypatch):
    if runtime == "reference":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = MODELS["nopg gaussian"]()
    model.export(tmp_path / "good.onnx")
    predict = model.predict
    monkeypatch.setattr(model, "predict", lambda *args, **kwargs: (predict(*args, **kwargs)[0] + 1e-3, None))
    with pytest.raises(ExportError, match=r"differ from the model's by 0\.00025"):
        model.export(tmp_path / "bad.onnx")
    assert os.listdir(tmp_path) == ["good.onnx"]
    assert model.export(tmp_path / "bad.onnx", tolerance=1e-3).exists()


def test_what_onnx_cannot_express_is_told(tmp_path):
    class Unusual(th.nn.Module):
        def forward(self, x):
            return th.special.bessel_j0(x)

    with pytest.raises(ExportError, match="torch cannot write DeterministicMlpPolicy as ONNX"):
        nopg(activation_fn=Unusual).export(tmp_path / "policy.onnx")
    assert os.listdir(tmp_path) == []


def test_bad_paths_are_refused(tmp_path):
    model = MODELS["td3"]()
    for path in (tmp_path, tmp_path / "nowhere" / "policy.onnx"):
        with pytest.raises(InputError) as error:
            export(model, path)
        assert error.value.field == "path"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_the_file_before_it(call, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = MODELS["nopg linear"]().export(tmp_path / "policy.onnx")
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(InputError, match="No space left"):
        export(MODELS["td3"](), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["policy.onnx"]


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="pip install onnx"):
        export(MODELS["td3"](), tmp_path / "policy.onnx")
