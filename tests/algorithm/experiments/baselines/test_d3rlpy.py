"""
The runner for d3rlpy with an interpreter that has a stand-in for d3rlpy; with the real one where ``NOPG_D3RLPY_ENVIRONMENT``
names a folder that ``make_environment`` made, or is to make.
"""

import dataclasses
import os
import pathlib
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch.overrides import TorchFunctionMode

from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.experiments import code_version as versions
from sb3_nopg.experiments.baselines.d3rlpy_runner import D3rlpyError, NumpyPolicy, make_environment, train, train_script
from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import interpreter, run, sees_a_gpu
from sb3_nopg.experiments.baselines.d3rlpy_runner.training import _next_actions, _read_layers
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_notes, d3rlpy_trials

ACTIONS = spaces.Box(np.array([-2.0], np.float32), np.array([4.0], np.float32))
NEEDS_A_GPU = pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")

# What of d3rlpy the script uses, made of torch alone: regression of the actor on the actions. It notes the batches it saw.
STAND_IN = """
import json, pathlib, sys, types
import numpy as np
import torch


class Algorithm:
    def __init__(self, name, settings):
        self.name, self.settings = name, settings

    def create_impl(self, shape, action_size):
        encoder = torch.nn.Sequential(torch.nn.Linear(shape[0], self.settings["units"][0]), torch.nn.ReLU())
        policy = torch.nn.Module()
        policy._encoder, policy._mu = encoder, torch.nn.Linear(self.settings["units"][0], action_size)
        policy._logstd = torch.nn.Linear(self.settings["units"][0], action_size)
        self.impl = types.SimpleNamespace(policy=policy)

    def act(self, observations):
        return torch.tanh(self.impl.policy._mu(self.impl.policy._encoder(torch.as_tensor(observations))))

    def update(self, batch):
        for array in (batch["observations"], batch["actions"], batch["rewards"], batch["terminals"], batch["intervals"]):
            assert array.dtype == np.float32 and array.ndim == 2
        self.seen = {name: float(np.abs(batch[name]).max()) for name in ("actions", "rewards", "terminals")}
        loss = (self.act(batch["observations"]) - torch.as_tensor(batch["actions"])).square().mean()
        # The first of torch's optimizers imports for seconds.
        actor = [*self.impl.policy._encoder.parameters(), *self.impl.policy._mu.parameters()]
        for parameter, slope in zip(actor, torch.autograd.grad(loss, actor)):
            parameter.data -= 0.3 * slope
        return {"loss": loss.item(), "threads": torch.get_num_threads()}

    def predict(self, observations):
        wrong = 0.5 if self.settings.get("alpha") == "wrong" else 0.0
        return self.act(observations).detach().numpy() + wrong


def config(name):
    def make(actor_encoder_factory, critic_encoder_factory, value_encoder_factory=None, **settings):
        assert (value_encoder_factory is not None) == (name == "iql")
        if settings.get("alpha") == "fail":
            raise ValueError("alpha is not a number")
        if settings.get("alpha") == "hang":
            import time; time.sleep(60)
        algorithm = Algorithm(name, {"units": actor_encoder_factory, **settings})
        return types.SimpleNamespace(create=lambda device: algorithm)
    return make


d3rlpy = types.ModuleType("d3rlpy")
d3rlpy.seed = torch.manual_seed
d3rlpy.algos = types.SimpleNamespace(
    IQLConfig=config("iql"), TD3PlusBCConfig=config("td3_bc"), CQLConfig=config("cql"), ReBRACConfig=config("rebrac")
)
d3rlpy.models = types.SimpleNamespace(VectorEncoderFactory=lambda hidden_units, use_layer_norm=False: hidden_units)
d3rlpy.dataset = types.ModuleType("d3rlpy.dataset")
d3rlpy.dataset.TransitionMiniBatch = dict
sys.modules["d3rlpy"], sys.modules["d3rlpy.dataset"] = d3rlpy, d3rlpy.dataset
sys.argv = sys.argv[1:]
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that looks like a virtual environment with d3rlpy."""
    folder = tmp_path / "environment"
    python = interpreter(folder)
    python.parent.mkdir(parents=True)
    (folder / "stand_in.py").write_text(STAND_IN)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder / "stand_in.py"}" "$@"\n')
    python.chmod(0o755)
    return folder


def data(n: int = 300) -> TransitionDataset:
    rng = np.random.default_rng(0)
    states = 50.0 + 3.0 * rng.normal(size=(n, 2))
    # Something to regress on, in the environment's units, and constant rewards.
    actions = 1.0 + 2.0 * np.tanh(states[:, :1] - 50.0)
    terminals = np.arange(n) % 7 == 0
    return TransitionDataset(states, actions, np.ones(n), states + 1.0, terminals, action_space=ACTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["iql", "td3_bc", "cql"])
def test_the_actor_comes_back(environment, algorithm, monkeypatch):
    # Two threads on a core that others have taken would wait for each other at full speed.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    said: list[str] = []
    before, n_threads = th.get_num_threads(), 2 if algorithm == "cql" else 1
    try:
        th.set_num_threads(n_threads)
        policy = train(environment, data(), algorithm, n_steps=400, hidden_units=(16,), progress=said.append, seed=3)
    finally:
        th.set_num_threads(before)
    assert any("step 400 of 400: loss" in line for line in said)
    # On as many as are used here.
    assert any(f"threads {n_threads}" in line for line in said)
    observations = data().observations
    actions, _ = policy.predict(observations)
    assert actions.dtype == np.float32
    assert np.abs(actions - data().actions).mean() < 0.3  # scaled there and back
    one, state = policy.predict(observations[0])
    np.testing.assert_allclose(one, actions[0], rtol=1e-6)
    assert state is None
    if algorithm == "iql":
        again = train(environment, data(), algorithm, n_steps=400, hidden_units=(16,), seed=3)
        np.testing.assert_array_equal(again.predict(observations)[0], actions)


@pytest.mark.slow
@pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(environment):
    with pytest.raises(D3rlpyError, match="sees no GPU"):
        train(environment, data(), "iql", n_steps=1, device="cuda")


@pytest.mark.slow
def test_it_is_asked_whether_it_sees_a_gpu(tmp_path):
    python = interpreter(tmp_path)
    python.parent.mkdir(parents=True)
    for does, sees in ((f'exec "{sys.executable}" "$@"', th.cuda.is_available()), ("exit 0", True), ("exit 1", False)):
        python.write_text(f"#!/bin/sh\n{does}\n")
        python.chmod(0o755)
        assert sees_a_gpu(tmp_path) == sees


@pytest.mark.slow
def test_failures_are_told(environment):
    with pytest.raises(D3rlpyError, match=r"(?s)Exit code 1.*alpha is not a number"):
        train(environment, data(), "iql", n_steps=1, alpha="fail")
    with pytest.raises(D3rlpyError, match="do not act as d3rlpy's policy does"):
        train(environment, data(), "iql", n_steps=1, alpha="wrong")
    with pytest.raises(D3rlpyError, match=r"Not done after 0\.5 s"):
        train(environment, data(), "iql", n_steps=1, alpha="hang", timeout_s=0.5)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"algorithm": "dqn"}, "algorithm"),
        ({"device": "tpu"}, "device"),
        ({"environment": "nowhere"}, "environment"),
        ({"algorithm": "rebrac"}, "dataset"),
    ],
)
def test_bad_input_is_named(environment, changes, field):
    arguments = {"environment": environment, "dataset": data(), "algorithm": "iql", **changes}
    with pytest.raises(InputError) as caught:
        train(**arguments)
    assert caught.value.field == field


def test_next_actions_are_those_that_follow_and_ends_have_none():
    n = 6
    states, actions = np.zeros((n, 2)), np.arange(float(n))[:, None]
    terminals = np.array([False, False, True, False, False, False])
    recorded = TransitionDataset(states, actions, np.ones(n), states, terminals, episode_ids=np.array([0, 0, 0, 1, 1, 1]))
    found = _next_actions(recorded, actions)
    np.testing.assert_array_equal(found["next_actions"][:, 0], [1.0, 2.0, 0.0, 4.0, 5.0, 0.0])
    # The last row was cut off: what would have been done next is not known.
    np.testing.assert_array_equal(found["rows"], [0, 1, 2, 3, 4])


@pytest.mark.slow
def test_a_program_ends_with_its_children(tmp_path):
    """A child that outlives its parent would hold the output open."""
    script = (
        f"import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print({os.getpid()}, flush=True); time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(D3rlpyError, match=f"(?s)Not done after 1 s.*{os.getpid()}"):
        run([sys.executable, "-c", script], timeout_s=1.0)
    assert time.monotonic() - start < 50


def test_what_cannot_be_started():
    with pytest.raises(D3rlpyError, match="Cannot start no-such-program"):
        run(["no-such-program"], timeout_s=5.0)


def test_an_environment_is_never_made_over_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="something other than a virtual environment"):
        make_environment(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(InputError, match="is a file"):
        make_environment(tmp_path / "thesis.tex")


def test_numpy_network_is_torchs():
    th.manual_seed(0)
    network = th.nn.Sequential(th.nn.Linear(3, 8), th.nn.ReLU(), th.nn.Linear(8, 5), th.nn.ReLU(), th.nn.Linear(5, 1)).double()
    layers = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in network if isinstance(layer, th.nn.Linear)
    ]
    mean, std = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0])
    observations = np.random.default_rng(0).normal(size=(20, 3))
    with th.no_grad():
        expected = 1.0 + 3.0 * th.tanh(network(th.from_numpy((observations - mean) / std))).numpy()
    np.testing.assert_allclose(NumpyPolicy(layers, mean, std, ACTIONS).predict(observations)[0], expected, rtol=1e-6)


def test_results_know_the_script_that_made_them(tmp_path, monkeypatch):
    experiment, script = "sb3_nopg.experiments.pendulum_random", train_script.__name__
    versions.code_version.cache_clear()
    before, files = versions.code_version(experiment), versions._files()
    other = tmp_path / "train_script.py"
    other.write_text(files[script].read_text() + "\nprint('something else')\n")
    monkeypatch.setattr(versions, "_files", lambda: files | {script: other})
    versions.code_version.cache_clear()
    assert versions.code_version(experiment) != before
    versions.code_version.cache_clear()


def test_numbers_are_made_where_they_are_wanted_instead_of_copied():
    class Calls(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen = []
    with Calls(), train_script._NumbersMadeOnGpu():
        number, several, named = th.tensor(0.5, dtype=th.float64), th.tensor([1.0, 2.0]), th.tensor(data=3.0)
    assert seen == [th.full, th.tensor, th.tensor]
    assert (number.shape, number.dtype) == ((), th.float64)
    assert (number.item(), several.tolist(), named.item()) == (0.5, [1.0, 2.0], 3.0)


def test_a_report_says_how_many_seeds_each_algorithm_has():
    trials = d3rlpy_trials([{"samples": 100}, {"samples": 200}], quick=True, n_seeds=2)
    told = r"IQL, TD3\+BC, ReBRAC: .* after 500 updates; 2 seeds"
    assert re.search(told + r"\.$", *d3rlpy_notes((trial, {}) for trial in trials))
    fewer = [trial for trial in trials if trial["method"] != "ReBRAC" or trial["seed"] == 0]
    assert re.search(told + r", ReBRAC 1\.$", *d3rlpy_notes((trial, {}) for trial in fewer))
    uneven = [trial for trial in trials if trial["method"] != "ReBRAC" or trial["seed"] == 0 or trial["samples"] == 100]
    assert re.search(told + r", ReBRAC 1 to 2\.$", *d3rlpy_notes((trial, {}) for trial in uneven))
    none_on_one = [trial for trial in trials if trial["method"] != "ReBRAC" or trial["samples"] == 100]
    assert re.search(told + r", ReBRAC 0 to 2\.$", *d3rlpy_notes((trial, {}) for trial in none_on_one))
    on_both_devices = [{**trial, **device} for trial in trials for device in ({}, {"device": "cuda"})]
    assert re.search(told + r"\.$", *d3rlpy_notes((trial, {}) for trial in on_both_devices))
    assert d3rlpy_notes([({"method": "KBRL"}, {})]) == []


def test_what_diverged_is_told(tmp_path):
    layers = {"weight_0": np.full((1, 2), np.nan), "bias_0": np.zeros(1)}
    says_nothing = SimpleNamespace(predict=lambda rows: np.full((len(rows), 1), np.nan))
    train_script._check(layers, says_nothing, np.zeros((3, 2)))
    with pytest.raises(RuntimeError, match="do not act as d3rlpy's policy does"):
        train_script._check({"weight_0": np.zeros((1, 2)), "bias_0": np.zeros(1)}, says_nothing, np.zeros((3, 2)))
    np.savez(tmp_path / "actor.npz", **layers)
    with pytest.raises(D3rlpyError, match="diverged"):
        _read_layers(tmp_path / "actor.npz")


@pytest.mark.skipif("NOPG_D3RLPY_ENVIRONMENT" not in os.environ, reason="needs d3rlpy, which is installed apart")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_A_GPU)])
@pytest.mark.parametrize("algorithm", ["iql", "td3_bc", "cql", "rebrac"])
def test_with_d3rlpy_itself(algorithm, device):
    actions = trained_for_little(algorithm, device=device)
    assert ((actions >= ACTIONS.low) & (actions <= ACTIONS.high)).all()


@pytest.mark.skipif("NOPG_D3RLPY_ENVIRONMENT" not in os.environ, reason="needs d3rlpy, which is installed apart")
@NEEDS_A_GPU
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("iql", {}),
        # Without noise nothing is drawn after the batches. The second leaves the actor alone in two of three updates.
        ("td3_bc", {"target_smoothing_sigma": 0.0}),
        ("td3_bc", {"target_smoothing_sigma": 0.0, "update_actor_interval": 3}),
        ("rebrac", {"target_smoothing_sigma": 0.0}),
    ],
)
def test_updates_that_are_played_back_are_those_of_a_processor(algorithm, changes):
    on_processor = trained_for_little(algorithm, **changes)
    np.testing.assert_allclose(trained_for_little(algorithm, device="cuda", **changes), on_processor, atol=3e-3)


def trained_for_little(algorithm, **settings):
    """Actions of the policy after twenty updates by the real d3rlpy."""
    folder = make_environment(os.environ["NOPG_D3RLPY_ENVIRONMENT"])
    recorded = dataclasses.replace(data(), episode_ids=np.repeat(np.arange(30), 10))
    policy = train(folder, recorded, algorithm, n_steps=20, hidden_units=(16,), batch_size=32, **settings)
    return policy.predict(recorded.observations)[0]
