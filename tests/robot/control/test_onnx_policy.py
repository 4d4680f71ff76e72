"""A policy file on the rig's side: read, checked and run without torch."""

import hashlib
import json
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from nopg_robot.rig.errors import PolicyError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nopg_robot.control import policy as policy_module  # noqa: E402
from nopg_robot.control.policy import OnnxPolicy  # noqa: E402

WEIGHT = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 4.0]], dtype=np.float32)
DESCRIPTION = {
    "observation_names": ["x", "y", "z"],
    "observation_units": ["m", "m", "1"],
    "action_names": ["left", "right"],
    "action_units": ["V", "V"],
    "action_low": [-5.0, -6.0],
    "action_high": [5.0, 6.0],
    "control_period_s": 0.02,
    "data_low": [-1.0, -2.0, -3],
    "data_high": [1.0, 2.0, 3.5],
    "digest": "ab" * 32,
    "algorithm": "NOPG",
    "created_by": "sb3-nopg 0.1.0",
    "versions": {"torch": "2.13.0"},
    "format_version": 1,
}


def write(path, description=DESCRIPTION, input_shape=(1, 3), dtype=np.float32, extra_output=False):
    """A linear policy a = W o, made by hand; a description's value may also be a string that is no JSON."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = onnx.numpy_helper.from_array(WEIGHT.T.astype(dtype), "weight")
    outputs = ["action", "second"] if extra_output else ["action"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["observation", "weight"], [name]) for name in outputs],
        "policy",
        [onnx.helper.make_tensor_value_info("observation", kind, input_shape)],
        [onnx.helper.make_tensor_value_info(name, kind, (*input_shape[:-1], 2)) for name in outputs],
        [weight],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in description.items()})
    onnx.save(model, path)
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "policy.onnx")


def test_actions(path):
    policy = OnnxPolicy(str(path))
    policy.warm_up()
    observation = np.array([1.0, -2.0, 0.25])
    action = policy(observation)
    assert action.shape == (2,)
    np.testing.assert_allclose(action, WEIGHT @ observation, rtol=1e-6)
    np.testing.assert_array_equal(policy(observation.astype(np.float32)), action)
    np.testing.assert_array_equal(policy([1.0, -2.0, 0.25]), action)


def test_an_action_stays_what_it_was_when_the_next_is_asked_for(path):
    policy = OnnxPolicy(path)
    first = policy(np.ones(3))
    kept = first.copy()
    assert not np.array_equal(policy(np.zeros(3)), kept)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_passed_on(path, value):
    assert not np.isfinite(OnnxPolicy(path)(np.array([value, 0.0, 1.0]))).any()


@pytest.mark.parametrize(
    "observation", [np.zeros(2), np.zeros(4), np.zeros((1, 3)), np.float64(1.0), None, ["a", "b", "c"], [0.0, [1.0], 2.0]]
)
def test_observations_that_do_not_fit_are_refused(path, observation):
    policy = OnnxPolicy(path)
    with pytest.raises(PolicyError, match="observation"):
        policy(observation)


def test_metadata(path):
    metadata = OnnxPolicy(path).metadata
    assert metadata.observation_names == ("x", "y", "z")
    assert metadata.observation_units == ("m", "m", "1")
    assert metadata.action_names == ("left", "right")
    assert metadata.action_units == ("V", "V")
    assert (metadata.action_low, metadata.action_high) == ((-5.0, -6.0), (5.0, 6.0))
    assert metadata.control_period_s == 0.02
    assert (metadata.data_low, metadata.data_high) == ((-1.0, -2.0, -3.0), (1.0, 2.0, 3.5))
    assert (metadata.algorithm, metadata.created_by) == ("NOPG", "sb3-nopg 0.1.0")
    # Whatever the file says of itself.
    assert metadata.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(FrozenInstanceError):
        metadata.digest = ""


def test_unknown_is_none(tmp_path):
    unknown = {**DESCRIPTION, "control_period_s": None, "data_low": [], "data_high": []}
    metadata = OnnxPolicy(write(tmp_path / "policy.onnx", unknown)).metadata
    assert metadata.control_period_s is None
    assert metadata.data_low is None
    assert metadata.data_high is None


def assert_refused(path, *parts):
    with pytest.raises(PolicyError) as error:
        OnnxPolicy(path)
    for part in (str(path), *parts):
        assert part in str(error.value)


def test_missing_file_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere.onnx", "no such file")
    assert_refused(tmp_path, "no such file")


def test_damaged_files_are_refused(path):
    content = path.read_bytes()
    for damaged in (b"", b"no ONNX at all", content[: len(content) // 3]):
        path.write_bytes(damaged)
        assert_refused(path, "model.export()")


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_shape": ("batch", 3)},
        {"input_shape": (2, 3)},
        {"input_shape": (3,)},
        {"dtype": np.float64},
        {"extra_output": True},
    ],
)
def test_other_networks_are_refused(tmp_path, arguments):
    assert_refused(write(tmp_path / "policy.onnx", **arguments), "(1, d)", "model.export()")


@pytest.mark.parametrize("field", sorted(set(DESCRIPTION) - {"versions", "digest"}))
def test_incomplete_metadata_are_refused(tmp_path, field):
    rest = {name: value for name, value in DESCRIPTION.items() if name != field}
    assert_refused(write(tmp_path / "policy.onnx", rest), f"lacks {field}", "model.export()")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("observation_names", ["x", "y"]),
        ("observation_names", "xyz"),
        ("observation_units", ["m", "m", 1]),
        ("action_names", None),
        ("action_low", [-5.0]),
        ("action_low", [-5.0, "a"]),
        ("action_low", [-5.0, True]),
        ("action_low", [-5.0, 10**400]),
        ("action_low", [9.0, -6.0]),
        ("action_high", [5.0, float("nan")]),
        ("action_high", [5.0, float("inf")]),
        ("control_period_s", 0.0),
        ("control_period_s", -0.02),
        ("control_period_s", "20 ms"),
        ("data_low", []),
        ("data_low", [-1.0, -2.0]),
        ("data_high", [1.0, 2.0, -30.0]),
        ("algorithm", 5),
        ("format_version", 2),
    ],
)
def test_wrong_metadata_are_refused(tmp_path, field, value):
    message = "data_low" if field == "data_high" else field
    assert_refused(write(tmp_path / "policy.onnx", {**DESCRIPTION, field: value}), message)


def test_metadata_that_are_no_json_are_refused(path):
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {**{p.key: p.value for p in model.metadata_props}, "algorithm": "{"})
    onnx.save(model, path)
    assert_refused(path, "algorithm", "JSON")


def test_other_numbers_under_the_same_metadata_are_another_policy(path):
    before = OnnxPolicy(path).metadata
    model = onnx.load(path)
    for weights in model.graph.initializer:
        weights.CopyFrom(onnx.numpy_helper.from_array(2.0 * onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(model, path)
    after = OnnxPolicy(path).metadata
    assert after.digest != before.digest
    assert replace(after, digest=before.digest) == before


def test_a_file_whose_numbers_lie_in_another_one_is_refused(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    onnx.save_model(onnx.load(path), "elsewhere.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (path.parent / "weights.bin").exists()
    assert_refused(path.with_name("elsewhere.onnx"), "onnxruntime cannot load it")


def test_missing_package_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(PolicyError, match="pip install onnxruntime"):
        OnnxPolicy(path)


def endless(path):
    """The description of a policy, and a loop that nothing ends."""
    helper, kind = onnx.helper, onnx.TensorProto
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["goes_on"], ["still"]), helper.make_node("Add", ["before", "before"], ["after"])],
        "body",
        [value("number", kind.INT64, []), value("goes_on", kind.BOOL, []), value("before", kind.FLOAT, (1, 2))],
        [value("still", kind.BOOL, []), value("after", kind.FLOAT, (1, 2))],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["observation", "weight"], ["start"]),
            helper.make_node("Loop", ["times", "yes", "start"], ["action"], body=body),
        ],
        "policy",
        [value("observation", kind.FLOAT, (1, 3))],
        [value("action", kind.FLOAT, (1, 2))],
        [
            onnx.numpy_helper.from_array(WEIGHT.T, "weight"),
            onnx.numpy_helper.from_array(np.array(2**62), "times"),
            onnx.numpy_helper.from_array(np.array(True), "yes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {name: json.dumps(value) for name, value in DESCRIPTION.items()})
    onnx.save(model, path)
    return path


@pytest.mark.slow
def test_endless_network_is_refused_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "FIRST_CALL_S", 0.3)
    policy = OnnxPolicy(endless(tmp_path / "policy.onnx"))
    with pytest.raises(PolicyError, match=r"policy\.onnx: no action after 0\.3 s"):
        policy.warm_up()
    assert "first call of the policy" not in {thread.name for thread in threading.enumerate()}


def test_slow_network_is_refused(path, monkeypatch):
    policy = OnnxPolicy(path)
    times_s = iter([0.0, 0.5, 1.0, 2.1])
    monkeypatch.setattr(policy_module.time, "perf_counter", lambda: next(times_s))
    with pytest.raises(PolicyError, match=r"policy\.onnx: one action took 1\.1 s"):
        policy.warm_up()


def test_network_that_cannot_be_run_is_refused(path, monkeypatch):
    policy = OnnxPolicy(path)

    def fail(*arguments):
        raise RuntimeError("bad node")

    monkeypatch.setattr(policy, "_run", fail)
    with pytest.raises(PolicyError, match=r"policy\.onnx: .*bad node"):
        policy.warm_up()


def test_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "policy.onnx"
    with path.open("wb") as stream:
        # Takes no room on the disk.
        stream.truncate(65 * 2**20)
    assert_refused(path, "65 MiB", "64 MiB")


@pytest.mark.slow
def test_needs_neither_torch_nor_onnx_and_says_nothing(path):
    script = (
        "import sys\n"
        "for name in ('torch', 'stable_baselines3', 'sb3_nopg', 'onnx'): sys.modules[name] = None\n"
        "from nopg_robot.control.policy import OnnxPolicy\n"
        f"assert OnnxPolicy({str(path)!r})([1.0, 1.0, 1.0]).tolist() == [2.0, 4.5]\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
def test_reads_what_the_learner_writes(tmp_path):
    sb3_nopg = pytest.importorskip("sb3_nopg")
    rng = np.random.default_rng(0)
    states = rng.normal(size=(30, 4))
    data = sb3_nopg.TransitionDataset(
        states, rng.uniform(-3.0, 5.0, (30, 1)), states[:, 0], states + 0.1, np.zeros(30, bool), episode_ids=np.zeros(30, int)
    )
    model = sb3_nopg.NOPG("MlpPolicy", None, dataset=data, seed=0)
    policy = OnnxPolicy(model.export(tmp_path / "policy.onnx", control_period_s=0.002, action_units=["V"]))
    for state in states.astype(np.float32):
        np.testing.assert_allclose(policy(state), model.predict(state, deterministic=True)[0], rtol=0, atol=5e-5)
    metadata = policy.metadata
    assert metadata.control_period_s == 0.002
    assert metadata.action_units == ("V",)
    assert metadata.action_low == tuple(model.action_space.low.tolist())
    np.testing.assert_allclose(metadata.data_low, states.min(axis=0), rtol=1e-6)
