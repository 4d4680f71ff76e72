"""The report on a policy: what it says is what the model says, nothing in it is empty, and it needs no other file."""

import html
import json
import re
import shutil
from dataclasses import fields

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.image import imread

import nopg_envs
from helpers.command_line import fine, nopg, refused
from helpers.reports import line_data, pictures, quick_report, section
from sb3_nopg import NOPG, NOPGD, InputError, TransitionDataset
from sb3_nopg.report.summary import ReportSummary, summary_path

pytestmark = pytest.mark.slow

ENV = "nopg/Pendulum-v0"
SECTIONS = (
    "verdict", "returns", "limits", "distribution", "portraits", "support",
    "bandwidths", "bounds", "data", "learning", "notes",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained_line(tmp_path_factory):
    """A folder with a model and the file that it was trained from."""
    folder = tmp_path_factory.mktemp("line")
    line_data().save(folder / "line.npz")
    fine("train", folder / "line.npz", "--updates", 3, "--gamma", 0.9, "-o", folder / "m.zip")
    return folder


@pytest.fixture
def line(trained_line, tmp_path):
    """A model trained from a file beside it."""
    shutil.copytree(trained_line, tmp_path, dirs_exist_ok=True)
    record = tmp_path / "m.json"
    record.write_text(record.read_text().replace(str(trained_line), str(tmp_path)))
    return tmp_path / "m.zip"


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """A model whose state has three dimensions, its page and what the command said."""
    folder = tmp_path_factory.mktemp("pendulum")
    fine("train", "grid:6,6,2", "--env", ENV, "--updates", 3, "--gamma", 0.95, "-o", folder / "model.zip")
    said = fine(
        "report", folder / "model.zip", "-o", folder / "out" / "report.html", "--held-out", "grid:5,14,1",
        "--names", "cos,sin,speed", "--limit", "abs(speed) < 5", "--limit", "s[0] < 2",
    )  # fmt: skip
    return folder, (folder / "out" / "report.html").read_text(encoding="utf-8"), said


def test_every_section_is_there_and_says_something(pendulum):
    _, page, _ = pendulum
    assert re.findall(r'<section id="(\w+)">', page) == list(SECTIONS)
    for name in SECTIONS:
        words = re.sub(r"<[^>]*>", " ", section(page, name)).split()
        assert len(words) > 10, name
        assert "nan" not in words
    assert "not a measurement" in page
    for name, words in (
        ("returns", ("predicted return", "held-out data", "95 % interval", "effective sample size")),
        (
            "limits",
            ("abs(speed) &lt; 5", "s[0] &lt; 2", "No recorded step leaves it. 0 % of the predicted", "steps on average"),
        ),
        ("distribution", ("cos", "speed", "98 % of the time", "predicted trajectories", "Step by step")),
        ("portraits", ("A slice through the state", " = ")),
        ("support", ("less than one sample",)),
        ("bandwidths", ("next state", "standard deviations")),
        ("bounds", ("Theorem 3", "vacuous")),
        ("data", ("72", "70")),
        ("learning", ("NOPG-D", "3 updates", "Predicted return during training")),
        ("notes", ("no episodes",)),
    ):
        for word in words:
            assert word in section(page, name), (name, word)


def test_every_picture_shows_something(pendulum):
    _, page, _ = pendulum
    shown = {name: len(pictures(section(page, name))) for name in SECTIONS if pictures(section(page, name))}
    assert shown == {"returns": 1, "limits": 1, "distribution": 3, "portraits": 2, "support": 1, "learning": 1}
    for name in shown:
        for picture in pictures(section(page, name)):
            pixels = picture[..., :3].reshape(-1, 3)
            assert pixels.std() > 0.05
            # Coloured areas, and not only frames, marks and letters; of training there is no more than a line, and a pendulum
            # that swings up is in few places.
            colorful = np.ptp(pixels, axis=1) > 0.2
            assert colorful.mean() > {"learning": 0.001, "support": 0.005, "distribution": 0.005}.get(name, 0.01), (
                name,
                colorful.mean(),
            )


def test_the_page_needs_no_other_file_and_its_figures_lie_beside_it(pendulum):
    folder, page, _ = pendulum
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert not re.search(r"https?://|url\(|@import", page)
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["report.html", "report.json"]
    beside = (folder / "out" / "report.json").read_text(encoding="utf-8")
    (inside,) = re.findall(r'<script type="application/json" id="nopg-report">(.*?)</script>', page, flags=re.DOTALL)
    assert json.loads(inside) == json.loads(beside)


def test_the_command_says_what_the_page_says(pendulum):
    folder, page, said = pendulum
    summary = ReportSummary.from_json((folder / "out" / "report.json").read_text(encoding="utf-8"))
    assert f"verdict: {summary.verdict}" in said
    assert f"<b>{summary.verdict.upper()}</b>" in section(page, "verdict")
    assert summary.reasons
    for reason in summary.reasons:
        assert reason in said
        assert reason in html.unescape(section(page, "verdict"))
    assert re.search(r"predicted return: (-?[\d.]+)", said).group(1) in page
    assert "limit abs(speed) < 5: left with probability" in said


def test_the_figures_are_the_models_own(pendulum):
    folder, _, _ = pendulum
    summary = ReportSummary.from_json((folder / "out" / "report.json").read_text(encoding="utf-8"))
    model = NOPG.load(folder / "model.zip", env=gym.make(ENV), device="cpu")
    model.set_dataset(TransitionDataset(**nopg_envs.grid(gym.make(ENV), (6, 6, 2))))
    other = TransitionDataset(**nopg_envs.grid(gym.make(ENV), (5, 14, 1)))
    returns, support = summary.returns, summary.support
    assert returns.plain == pytest.approx(model.estimated_return(), rel=1e-6)
    assert returns.held_out == pytest.approx(model.estimated_return(other), rel=1e-6)
    assert returns.held_out_source == "given"
    assert returns.interval_low < returns.interval_high
    assert returns.behaviour is None
    assert support.effective_samples == pytest.approx(model.effective_sample_size(), rel=1e-5)
    assert support.effective_share == pytest.approx(model.effective_sample_share(), rel=1e-5)
    slow = lambda states: np.abs(states[:, 2]) < 5  # noqa: E731
    assert summary.limits[0].probability == pytest.approx(model.exit_probability(slow), rel=1e-5)
    assert summary.limits[0].held_out_probability == pytest.approx(model.exit_probability(slow, other), rel=1e-5)
    assert not summary.limits[1].ever_left
    assert [entry.width for entry in summary.bandwidths[:3]] == pytest.approx(model.bandwidths.state)
    assert (summary.data.transitions, summary.data.held_out) == (72, 70)
    assert summary.n_updates == 3
    # The same numbers as in the exported file.
    onnx = pytest.importorskip("onnx")
    exported = onnx.load(model.export(folder / "policy.onnx"))
    digest = {entry.key: entry.value for entry in exported.metadata_props}["digest"]
    assert json.loads(digest) == summary.policy_digest


def test_figures_survive_a_file_and_bad_ones_are_refused(pendulum):
    folder, _, _ = pendulum
    text = (folder / "out" / "report.json").read_text(encoding="utf-8")
    summary = ReportSummary.from_json(text)
    assert summary.to_json() == text.strip()
    assert ReportSummary.from_json(summary.to_json()) == summary
    content = json.loads(text)
    assert set(content) == {field.name for field in fields(ReportSummary)}
    for changes in (
        {"format_version": 1},
        {"verdict": 1},
        {"gamma": True},
        {"n_updates": 1.5},
        {"reasons": "none"},
        {"returns": {}},
        {"limits": [{}]},
        {"data": None},
        {"trajectories": {}},
    ):
        with pytest.raises(InputError, match="report"):
            ReportSummary.from_json(json.dumps({**content, **changes}))
    for bad in ("", "[]", "{}", "null"):
        with pytest.raises(InputError, match="report"):
            ReportSummary.from_json(bad)


@pytest.mark.usefixtures("without_pictures")
def test_report_of_a_line(line, tmp_path):
    fine("report", line, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(pictures(section(page, "portraits"))) == 1
    assert "no other dimensions" in page
    assert "No limits were given" in section(page, "limits")


def test_a_report_of_a_line_may_be_one_picture(line, tmp_path):
    (tmp_path / "m.progress.csv").unlink()
    fine("report", line, "-o", tmp_path / "report.png")
    assert imread(tmp_path / "report.png")[..., :3].std() > 0.05


@pytest.mark.usefixtures("without_pictures")
def test_a_report_does_not_overwrite_the_record_of_the_training(line, tmp_path):
    before = (tmp_path / "m.json").read_text()
    (tmp_path / "m.progress.csv").unlink()
    fine("report", line, "-o", tmp_path / "m.html")
    assert (tmp_path / "m.json").read_text() == before
    assert ReportSummary.from_json((tmp_path / "m.report.json").read_text(encoding="utf-8")).verdict == "care"
    # Without a log of the training there is no picture of it.
    assert "during training" not in (tmp_path / "m.html").read_text(encoding="utf-8")
    assert summary_path(tmp_path / "my_report.html").name == "my_report.json"


@pytest.mark.usefixtures("without_pictures")
def test_report_needs_the_data(line, tmp_path):
    (tmp_path / "line.npz").rename(tmp_path / "moved.npz")
    assert "line.npz" in refused("report", line, "-o", tmp_path / "r.html")
    fine("report", line, "--data", tmp_path / "moved.npz", "-o", tmp_path / "r.html")
    (tmp_path / "m.json").write_text("{}")
    assert "m.json" in refused("report", line, "-o", tmp_path / "r.html")
    (tmp_path / "m.json").unlink()
    assert "--data" in refused("report", line, "-o", tmp_path / "r.html")
    (tmp_path / "m.progress.csv").write_text("a,b\n1,2\n")
    assert "m.progress.csv" in refused("report", line, "--data", tmp_path / "moved.npz", "-o", tmp_path / "r.html")


def test_bad_arguments_are_one_line_and_leave_no_page(line, tmp_path):
    for options, word in (
        (("--limit", "abs(y)<1"), "'y' is not one of s, x"),
        (("--limit", "abs(x)"), "true or false"),
        (("--limit", "abs(x"), "not a formula"),
        (("--goal", "abs(y)<1"), "goal: 'abs(y)<1': 'y' is not one of s, x"),
        (("--names", "x,y"), "names"),
        (("--held-out", tmp_path / "line.npz"), "was trained on"),
        (("--held-out", tmp_path / "nix.npz"), "nix.npz"),
    ):
        names = () if "--names" in options else ("--names", "x")
        assert word in refused("report", line, "-o", tmp_path / "r.html", *names, *options)
        assert not (tmp_path / "r.html").exists()


@pytest.mark.usefixtures("without_pictures")
def test_other_data_than_the_models_own_is_announced(line, tmp_path):
    data = line_data()
    changed = TransitionDataset(
        data.observations,
        data.actions,
        data.rewards + 1.0,
        data.next_observations,
        data.terminals,
        episode_ids=data.episode_ids,
    )
    changed.save(tmp_path / "line.npz")
    result = nopg("report", line, "-o", tmp_path / "r.html")
    assert result.exit_code == 0
    assert "not the data that the model was trained on" in result.stderr
    assert "judged by: other data than the model learned from" in result.stdout
    summary = ReportSummary.from_json((tmp_path / "r.report.json").read_text(encoding="utf-8"))
    assert not summary.returns.learned_from
    assert any("not the data that the model learned from" in note for note in summary.notes)
    assert summary.returns.interval_of == "plain"
    assert not any("No data were held out" in reason for reason in summary.reasons)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "not the data that the model learned from" in section(page, "notes")
    assert "other data, not these" in section(page, "data")
    assert "other data than the model learned from" in section(page, "returns")


@pytest.mark.usefixtures("without_pictures")
def test_a_goal_is_asked_of_the_predicted_trajectories(line, tmp_path):
    said = fine("report", line, "--names", "x", "--goal", "x > 50", "-o", tmp_path / "r.html")
    assert "verdict: no" in said
    assert "trajectories hold x > 50 in the end" in said


@pytest.mark.usefixtures("without_pictures")
def test_the_models_own_data_are_not_called_others(line, tmp_path):
    fine("report", line, "--data", tmp_path / "line.npz", "-o", tmp_path / "r.html")
    summary = ReportSummary.from_json((tmp_path / "r.report.json").read_text(encoding="utf-8"))
    assert summary.returns.learned_from
    assert summary.trajectories is not None
    assert not any("other data" in reason for reason in summary.reasons)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "other data" not in page
    assert "these data" in section(page, "data")


def test_what_a_model_held_out_is_used():
    # On samples, as the interval is.
    model = NOPGD(
        "MlpPolicy", None, dataset=line_data(20), gamma=0.9, held_out=0.25, seed=0, device="cpu", transitions="samples"
    )
    model.learn(2)
    returns = quick_report(model).summary.returns
    assert returns.held_out == pytest.approx(model.held_out_return(), rel=1e-6)
    assert returns.held_out_source == "kept from training"
    assert returns.interval_source == "the held-out data"
    assert returns.interval_low <= returns.held_out <= returns.interval_high
    own = quick_report(model, held_out=line_data(5, seed=1)).summary
    assert own.returns.held_out_source == "given"
    assert (own.data.transitions, own.data.held_out) == (150, 50)
    # Discounted by hand: ten steps an episode, in order.
    episodes = model.training_data.rewards.reshape(-1, 10)
    assert own.returns.behaviour == pytest.approx((episodes * 0.9 ** np.arange(10)).sum(axis=1).mean())


def test_one_episode_is_told():
    alone = line_data(1)
    summary = quick_report(NOPGD("MlpPolicy", None, dataset=alone, gamma=0.9, device="cpu")).summary
    assert summary.returns.interval_low is None
    assert any("a single episode" in note for note in summary.notes)
    summary = quick_report(NOPGD("MlpPolicy", None, dataset=line_data(6), gamma=0.9, device="cpu")).summary
    assert summary.returns.interval_low < summary.returns.interval_high


def test_a_report_needs_data_attached(line):
    with pytest.raises(InputError, match="no data"):
        quick_report(NOPG.load(line))
    with pytest.raises(InputError, match="no data"):
        _ = NOPG.load(line).training_data


@pytest.mark.usefixtures("without_pictures")
def test_a_record_of_an_older_version_is_read_and_tells_nothing_of_the_data(line, tmp_path):
    record = json.loads((tmp_path / "m.json").read_text())
    del record["data_fingerprint"]
    (tmp_path / "m.json").write_text(json.dumps({**record, "data_digest": "0" * 64}))
    result = nopg("report", line, "-o", tmp_path / "r.html")
    assert result.exit_code == 0
    assert "of an older version" in result.stderr
    assert "not the data" not in result.stderr
    # Nobody knows better than the person who named the data.
    assert ReportSummary.from_json((tmp_path / "r.report.json").read_text(encoding="utf-8")).returns.learned_from
