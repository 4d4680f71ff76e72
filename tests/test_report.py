"""The report on a policy: what it says is what the model says, and it needs no other file."""

import re

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from typer.testing import CliRunner

import nopg_envs
from sb3_nopg import NOPG, NOPGD, InputError, TransitionDataset
from sb3_nopg.cli.main import app
from sb3_nopg.report import SupportSummary, make_report
from sb3_nopg.report_page import _draw_map, write_report

ENV = "nopg/Pendulum-v0"


def nopg(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fine(*arguments: object) -> str:
    result = nopg(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = nopg(*arguments)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture
def line(tmp_path):
    """A model of a point that is pushed along a line, trained from a file beside it."""
    rng = np.random.default_rng(0)
    position, force = rng.uniform(-1, 1, (60, 1)), rng.uniform(-1, 1, (60, 1))
    data = TransitionDataset(
        observations=position,
        actions=force,
        rewards=-(position[:, 0] ** 2),
        next_observations=position + 0.1 * force,
        terminals=np.zeros(60, dtype=bool),
        episode_ids=np.repeat(np.arange(6), 10),
    )
    data.save(tmp_path / "line.npz")
    fine("train", tmp_path / "line.npz", "--updates", 2, "-o", tmp_path / "m.zip")
    return tmp_path / "m.zip"


def test_report_is_one_page_with_its_pictures_inside(tmp_path_factory, tmp_path):
    model = tmp_path_factory.mktemp("model") / "model.zip"
    fine("train", "grid:6,6,2", "--env", ENV, "--updates", 3, "-o", model)
    text = fine("report", model, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(src|href)="(?!data:)', page)
    predicted = re.search(r"predicted return: (-?[\d.]+)", text).group(1)
    assert predicted in page
    for word in ("bandwidths of the states", "samples behind the prediction", "during training", "not a measurement"):
        assert word in page
    fine("report", model, "-o", tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.png"]


def test_report_of_a_line(line, tmp_path):
    fine("report", line, "-o", tmp_path / "report.html")
    (tmp_path / "m.progress.csv").unlink()
    fine("report", line, "-o", tmp_path / "report.png")


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


def test_other_data_than_the_models_own_is_announced(line, tmp_path):
    data = TransitionDataset.load(tmp_path / "line.npz")
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


def grid_model(gamma: float = 0.9) -> NOPG:
    env = gym.make(ENV)
    data = TransitionDataset(**nopg_envs.grid(env, (8, 8, 2)))
    return NOPGD("MlpPolicy", env, gamma=gamma, dataset=data, seed=0, device="cpu", initial_states=[-1.0, 0.0, 0.0])


def test_the_report_shows_the_models_own_estimates():
    model = grid_model()
    report = make_report(model)
    assert report.estimated_return == pytest.approx(model.estimated_return())
    # All of the time is somewhere, but for what smoothing moves over the edges.
    assert 0.8 < np.nansum(report.visitation.values) <= 1.0 + 1e-9
    values = model.value(model.dataset.observations)
    assert values.min() <= np.nanmin(report.value.values)
    assert np.nanmax(report.value.values) <= values.max()
    # Two dimensions that spread most in units of their bandwidth.
    spread = model.dataset.observations.std(axis=0) / model.bandwidths.state
    assert report.value.names == [f"s[{i}]" for i in sorted(np.argsort(-spread)[:2])]
    assert report.curve is None


def test_the_pictures_have_the_right_way_up(tmp_path):
    """A policy that is predicted to stay where it starts: high in the first dimension, low in the second."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (400, 2))
    data = TransitionDataset(
        states, rng.uniform(-1, 1, (400, 1)), states[:, 0] - states[:, 1], states, np.zeros(400, dtype=bool)
    )
    model = NOPGD(
        "MlpPolicy", None, dataset=data, gamma=0.9, initial_states=[[0.8, -0.8]], state_bandwidth=0.1, action_bandwidth=1.0
    )
    report = make_report(model)
    horizontal, vertical = np.unravel_index(np.nanargmax(report.visitation.values), report.visitation.values.shape)
    n = len(report.visitation.values)
    assert horizontal > 0.7 * n
    assert vertical < 0.3 * n
    horizontal, vertical = np.unravel_index(np.nanargmax(report.value.values), report.value.values.shape)
    assert horizontal > 0.7 * n
    assert vertical < 0.3 * n
    axes = Figure().subplots()
    _draw_map(axes, report.visitation, Normalize(), "share of time")
    picture = axes.images[0]
    row, column = np.unravel_index(np.nanargmax(picture.get_array().filled(np.nan)), report.visitation.values.shape)
    left, right, bottom, top = picture.get_extent()
    assert left + (column + 0.5) / n * (right - left) == pytest.approx(0.8, abs=0.25)
    assert bottom + (row + 0.5) / n * (top - bottom) == pytest.approx(-0.8, abs=0.25)
    assert picture.origin == "lower"
    with pytest.raises(InputError, match=r"\.html"):
        write_report(report, tmp_path / "report.txt")


def test_support_is_weighted_by_where_the_policy_goes():
    summary = SupportSummary(samples=np.array([5.0, 0.1, 2.0]), weights=np.array([0.2, 0.3, 0.5]))
    assert summary.quantile(0.1) == 0.1
    assert summary.quantile(0.5) == 2.0
    assert summary.quantile(0.9) == 5.0
    assert summary.quantile(1.0) == 5.0
    assert summary.thin_share == pytest.approx(0.3)
    assert "30 %" in summary.text()


def test_a_report_needs_data_attached(line):
    with pytest.raises(InputError, match="no data"):
        make_report(NOPG.load(line))
