"""A report names the exported files that it is about, by their SHA-256, whichever was written first."""

import hashlib
import json

import pytest

from helpers.command_line import fine
from helpers.datasets import make_dataset
from nopg_robot.commands.preflight import reports_beside
from nopg_robot.control.policy import OnnxPolicy
from sb3_nopg import NOPG
from sb3_nopg.report.policy_files import bind_reports
from sb3_nopg.report.summary import ReportSummary

onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_pictures")]


# Quick: nothing is fitted or chosen.
QUICK = {"transitions": "samples", "estimator_kwargs": {"state_bandwidth": 1.0, "action_bandwidth": 1.0}, "device": "cpu"}


def small(seed=0):
    data = make_dataset(n=40)
    return NOPG("MlpPolicy", None, dataset=data, initial_states=data.observations[:3], seed=seed, **QUICK).learn(1)


@pytest.fixture(scope="module")
def models():
    return small(0), small(1)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verdicts(path):
    return [report.verdict for report in reports_beside(path, OnnxPolicy(path).metadata.digest)]


@pytest.mark.parametrize("report_first", [True, False])
def test_a_rig_finds_the_report_on_its_file_and_on_no_other(tmp_path, models, report_first):
    model, other = models
    policy, page = tmp_path / "policy.onnx", tmp_path / "report.html"
    writes = [lambda: model.report(page, trajectories=False), lambda: model.export(policy)]
    for write in writes if report_first else reversed(writes):
        write()
    other.export(tmp_path / "other.onnx")
    summary = ReportSummary.from_json((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert summary.policy_files == (sha256(policy),)
    assert verdicts(policy) == [summary.verdict]
    assert verdicts(tmp_path / "other.onnx") == [""]
    # The page alone says the same.
    (tmp_path / "report.json").unlink()
    assert verdicts(policy) == [summary.verdict]
    # The same policy under other names is another file, and known too.
    again = model.export(tmp_path / "again.onnx", action_names=["left", "right"])
    assert sha256(again) != sha256(policy)
    assert verdicts(again) == verdicts(policy) == [summary.verdict]


def test_a_file_with_other_numbers_under_the_same_metadata_is_not_bound(tmp_path, models):
    path = models[0].export(tmp_path / "policy.onnx")
    content = onnx.load(path)
    weights = content.graph.initializer[-1]
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) + 0.5, weights.name))
    onnx.save(content, path)
    models[0].report(tmp_path / "report.png", trajectories=False)
    assert json.loads((tmp_path / "report.json").read_text())["policy_files"] == []
    assert verdicts(path) == [""]


def test_what_else_lies_there_is_left_alone(tmp_path, models):
    models[0].report(tmp_path / "report.html", trajectories=False)
    others = {"no.report.json": "{", "index.html": "<html></html>", "list.report.json": "[]", "broken.onnx": "no policy"}
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    bind_reports(models[0], tmp_path)
    assert {name: (tmp_path / name).read_text() for name in others} == others


def test_the_commands_bind_too(tmp_path):
    make_dataset(n=40).save(tmp_path / "data.npz")
    quick = ("--transitions", "samples", "--estimator", "state_bandwidth=1", "--estimator", "action_bandwidth=1")
    start = ("--updates", 1, "--gamma", 0.9, "--initial-states", "0,0,0")
    fine("train", tmp_path / "data.npz", *start, *quick, "-o", tmp_path / "m.zip")
    fine("report", tmp_path / "m.zip", "-o", tmp_path / "first.html")
    fine("export", tmp_path / "m.zip", tmp_path / "first.onnx")
    assert len(verdicts(tmp_path / "first.onnx")) == 1
    assert verdicts(tmp_path / "first.onnx") != [""]
