"""Trajectories in a report: what becomes of those of known policies, what the verdict makes of it, and what is drawn."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from helpers.mass_on_a_rail import STARTS, brake, drive, followed, recorded
from helpers.models import make_nopg
from helpers.reports import line_data, pictures, section
from helpers.verdict_figures import RETURNS, SUPPORT
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.prediction.judge import N_MODELS, Judge, half_models, steps_ahead
from sb3_nopg.prediction.rollouts import Rollouts
from sb3_nopg.report import verdict as rules
from sb3_nopg.report.drawing import draw_trajectories, panels, picture
from sb3_nopg.report.making import PolicyReport, make_report
from sb3_nopg.report.page import write_report
from sb3_nopg.report.summary import ReportSummary
from sb3_nopg.report.trajectories import POOR_MODEL, TrajectoryFigures, TrajectoryPicture, find_trajectories
from sb3_nopg.report.verdict import reach_verdict

pytestmark = pytest.mark.slow

FIGURES = TrajectoryFigures(
    n_steps=1000,
    n_trajectories=64,
    lasting=0.95,
    ended=0.0,
    left=0.05,
    ends_are_bad=True,
    median_steps=240.0,
    ends_by="x",
    score=812.5,
    model_error=0.01,
    n_earlier_steps=0,
)


def at_speed(states: np.ndarray, speed: float | np.ndarray) -> np.ndarray:
    return np.clip(5.0 * (speed - states[:, 1:]) - 0.5 * np.sin(states[:, :1]), -2.0, 2.0)


def creep(states: np.ndarray) -> np.ndarray:
    """Holds a velocity, and so goes three hundredths a step."""
    return at_speed(states, 0.3)


def part(states: np.ndarray) -> np.ndarray:
    """Creeps upwards from above 0.2, and downwards from below."""
    return at_speed(states, np.where(states[:, :1] > 0.2, 0.3, -0.3))


def acting(act, data: TransitionDataset, **settings) -> NOPG:
    """A model whose policy is a known one."""
    given = {"gamma": 0.9, "initial_states": STARTS, "seed": 0, "device": "cpu", "model_kwargs": {"n_nodes": 400}}
    model = make_nopg("LinearPolicy", None, dataset=data, **{**given, **settings})
    model.policy.predict = lambda states, **_: (act(states.astype(np.float64)), None)
    return model


@pytest.fixture(scope="module")
def drifting() -> PolicyReport:
    return make_report(acting(creep, recorded(limit=2.0)), names=["x", "speed"])


def test_a_policy_that_stays_lasts():
    data = recorded(limit=2.0)
    figures, shown = find_trajectories(acting(brake, data).evaluation, ("x", "speed"))
    assert (figures.n_steps, figures.n_trajectories) == (100, 36)
    assert (figures.lasting, figures.ended, figures.left, figures.failing) == (1.0, 0.0, 0.0, 0.0)
    assert (figures.median_steps, figures.ends_by) == (None, None)
    assert figures.ends_are_bad
    assert figures.text() == "All 36 predicted trajectories last 100 steps."
    # It comes to rest in the middle, where the reward is one a step; the regression rounds off the top of the parabola.
    assert figures.score == pytest.approx(100, rel=0.1)
    assert figures.model_error < 0.01
    assert not figures.poor
    assert shown.rollouts.states.shape == (101, 36, 2)
    assert shown.shown == (0, 1)
    states = np.concatenate([data.observations, data.next_observations])
    np.testing.assert_array_equal((shown.low, shown.high), (states.min(axis=0), states.max(axis=0)))


def test_a_policy_that_drifts_is_followed_to_its_end(drifting):
    figures, rollouts = drifting.summary.trajectories, drifting.trajectories.rollouts
    assert figures.lasting == 0.0
    assert figures.failing == pytest.approx(1.0)
    assert figures.ended + figures.left == pytest.approx(1.0)
    assert figures.ended == rollouts.ended.mean()
    assert figures.ends_by == "x"
    # The task ends beyond 2, and it is followed three hundredths of the range beyond that.
    truly_over = (followed(creep, 100)[:, :, 0] > 2.12).argmax(axis=0)
    assert figures.median_steps == np.median(rollouts.n_steps) == pytest.approx(np.median(truly_over), abs=6)
    # Beyond 1, each step costs.
    assert figures.score < 0.0
    assert drifting.summary.verdict == "no"
    assert figures.text() in drifting.summary.reasons
    assert "none lasts" in figures.text()


def test_figures_are_those_of_the_judge():
    model = acting(lambda states: brake(states) + 1.5 * (states[:, :1] > 0.3), recorded(limit=1.0))
    figures, shown = find_trajectories(model.evaluation, ("x", "speed"))
    models, _ = half_models(model.training_data, model.dynamics, N_MODELS)
    judgement_of = Judge(models, STARTS, steps_ahead(0.9))
    (followed_by_all,) = judgement_of.follow([model.evaluation.act])
    (judged,) = judgement_of.judgement(["it"], [followed_by_all]).ranking
    assert (figures.score, figures.lasting) == (judged.score, judged.lasting)
    np.testing.assert_array_equal(shown.rollouts.states[:, :9], followed_by_all[0].states)
    np.testing.assert_array_equal(shown.rollouts.rewards[:, -9:], followed_by_all[-1].rewards)


def test_earlier_actions_are_told():
    figures, _ = find_trajectories(acting(brake, recorded(delay=1), gamma=0.5).evaluation, ("x", "speed"))
    assert figures.n_earlier_steps == 1
    assert "1 earlier" in figures.model_text()
    # Nothing ever ends in these data.
    assert not figures.ends_are_bad


def test_an_end_that_is_the_goal_is_no_failure():
    data = recorded(limit=1.0)
    # It ends above only; below, what was recorded does.
    data = replace(data, terminals=data.terminals & (data.next_observations[:, 0] > 0.0))
    good = replace(data, rewards=np.where(data.terminals, 100.0, 0.0))
    figures, _ = find_trajectories(acting(part, good).evaluation, ("x", "speed"))
    assert 0.1 < figures.ended < 0.9
    assert not figures.ends_are_bad
    assert figures.failing == figures.left == pytest.approx(1.0 - figures.ended)
    assert "end the task" in figures.text()
    # The same trajectories, where an end is the worst that can happen.
    bad, _ = find_trajectories(acting(part, data).evaluation, ("x", "speed"))
    assert (bad.ended, bad.ends_are_bad) == (figures.ended, True)
    assert bad.failing == pytest.approx(1.0)
    assert "come to a bad end" in bad.text()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"lasting": 0.11, "left": 0.89},
            "Of 64 predicted trajectories of 1,000 steps, 11 % last; the others leave the recorded range mostly by x after "
            "240 steps (median).",
        ),
        (
            {"lasting": 0.2, "left": 0.5, "ended": 0.3, "median_steps": 1.0},
            "Of 64 predicted trajectories of 1,000 steps, 20 % last, 30 % come to a bad end, 50 % leave the recorded range: "
            "those that do not last are over mostly by x after 1 step (median).",
        ),
        (
            {"lasting": 0.0, "left": 0.0, "ended": 1.0, "ends_are_bad": False},
            "Of 64 predicted trajectories of 1,000 steps, none lasts; all end the task after 240 steps (median).",
        ),
    ],
)
def test_the_text(changes, text):
    assert replace(FIGURES, **changes).text() == text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"left": rules.TRAJECTORY_CARE - 0.01}, "go"),
        ({"left": rules.TRAJECTORY_CARE}, "care"),
        ({"left": rules.TRAJECTORY_NO - 0.01}, "care"),
        ({"left": rules.TRAJECTORY_NO}, "no"),
        ({"left": 0.3, "ended": 0.3}, "no"),
        ({"left": 0.3, "ended": 0.3, "ends_are_bad": False}, "care"),
        ({"left": 0.0, "ended": 1.0, "ends_are_bad": False}, "go"),
        ({"left": 1.0, "model_error": POOR_MODEL}, "no"),
        ({"left": 1.0, "model_error": POOR_MODEL + 0.01}, "care"),
        ({"left": 1.0, "model_error": math.nan}, "care"),
        # A poor model that sees nothing bad is no objection of its own.
        ({"left": 0.0, "model_error": 0.5}, "go"),
    ],
)
def test_verdict(changes, verdict):
    figures = replace(FIGURES, **changes)
    said, reasons = reach_verdict(RETURNS, SUPPORT, [], 100, trajectories=figures)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all(reason.startswith(figures.text()) for reason in reasons)
    assert all(("is poor" in reason) == figures.poor for reason in reasons)


def test_figures_survive_a_file(drifting):
    summary = drifting.summary
    assert ReportSummary.from_json(summary.to_json()) == summary
    without = replace(summary, trajectories=None)
    assert ReportSummary.from_json(without.to_json()) == without
    content = json.loads(summary.to_json())
    # Written before there were any.
    del content["trajectories"]
    assert ReportSummary.from_json(json.dumps(content)) == without
    for bad in (5, {}, "none", {**vars(FIGURES), "n_steps": 1.5}, {**vars(FIGURES), "ends_are_bad": 1}):
        with pytest.raises(InputError, match="report"):
            ReportSummary.from_json(json.dumps({**content, "trajectories": bad}))


def test_the_page_shows_them(drifting, tmp_path):
    write_report(drifting, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert drifting.summary.trajectories.text() in section(page, "verdict")
    text = section(page, "distribution")
    for words in ("Step by step", drifting.summary.trajectories.text(), "variance unexplained"):
        assert words in text
    assert "0 % of 36 last 100 steps" in section(page, "returns")
    assert len(pictures(text)) == 3
    write_report(drifting, tmp_path / "report.png")
    assert imread(tmp_path / "report.png")[..., :3].std() > 0.05


def panel_pixels(report: PolicyReport) -> np.ndarray:
    (panel,) = [panel for panel in panels(report) if panel.title == "Step by step"]
    return imread(io.BytesIO(picture(panel)), format="png")[..., :3]


def test_the_picture_shows_trajectories_and_their_ends(drifting):
    drawn = panel_pixels(drifting)
    shown = drifting.trajectories
    nothing = replace(shown.rollouts, states=np.full_like(shown.rollouts.states, np.nan))
    empty = panel_pixels(replace(drifting, trajectories=replace(shown, rollouts=nothing)))
    assert (np.ptp(drawn, axis=2) > 0.2).mean() > 0.005 > (np.ptp(empty, axis=2) > 0.2).mean()
    assert (drawn != empty).any(axis=2).mean() > 0.005


def test_what_is_drawn_is_what_was_predicted():
    states = np.array([[[0.0, 5.0], [0.1, 5.0]], [[0.5, 5.0], [9.0, 5.0]], [[0.7, 5.0], [np.nan, np.nan]]])
    rollouts = Rollouts(
        states=states,
        actions=np.zeros((2, 2, 1)),
        rewards=np.zeros((2, 2)),
        n_steps=np.array([2, 1]),
        ended=np.array([True, False]),
        left_by=np.array([-1, 0]),
    )
    figure = Figure()
    # The second dimension never changes.
    shown = TrajectoryPicture(rollouts, np.array([0.0, 5.0]), np.array([1.0, 5.0]), (0, 1))
    draw_trajectories(figure, shown, ["x [m]", "y"])
    axes, other = figure.axes
    assert (axes.get_ylabel(), other.get_ylabel()) == ("x [m]", "y")
    assert axes.get_xlim() == (0, 2)
    first, second, left, ended = axes.lines
    np.testing.assert_allclose(first.get_ydata(), [0.0, 0.5, 0.7])
    # A leap is drawn at the edge of the picture, within it.
    low, high = axes.get_ylim()
    np.testing.assert_allclose(second.get_ydata()[:2], [0.1, 1.2])
    assert low < 0.0 < 1.2 < high
    assert (left.get_marker(), left.get_xdata().tolist(), left.get_ydata().tolist()) == ("x", [1], [1.2])
    assert (ended.get_marker(), ended.get_xdata().tolist(), ended.get_ydata().tolist()) == ("o", [2], [0.7])
    assert first.get_color() == second.get_color() != left.get_color()
    red, green, blue = to_rgb(first.get_color())
    assert red > green > blue
    (grey,) = axes.patches
    assert (grey.get_y(), grey.get_height()) == (0.0, 1.0)
    assert other.get_ylim()[0] < 5.0 < other.get_ylim()[1]


def test_of_many_dimensions_those_that_trajectories_end_by_are_drawn():
    data = recorded(n_episodes=16)
    still = np.random.default_rng(0).normal(size=(len(data), 6))
    wide = TransitionDataset(
        observations=np.hstack([still, data.observations]),
        actions=data.actions,
        rewards=data.rewards,
        next_observations=np.hstack([still, data.next_observations]),
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    starts = np.hstack([np.zeros((3, 6)), STARTS])
    model = acting(drive, wide, initial_states=starts)
    figures, shown = find_trajectories(model.evaluation, tuple("abcdefxv"))
    assert len(shown.shown) == 6
    assert "abcdefxv".index(figures.ends_by) in shown.shown
    assert figures.ends_by in "xv"
    assert list(shown.shown) == sorted(shown.shown)


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("why", ["too few", "not asked for"])
def test_a_report_is_made_without_them(why, tmp_path):
    data = line_data()
    if why == "too few":
        data = data.filter(np.arange(len(data)) < 5)
    settings = {"gamma": 0.9, "device": "cpu", "transitions": "samples"}
    model = make_nopg("LinearPolicy", None, dataset=data, **settings)
    summary = model.report(tmp_path / "report.html", trajectories=why != "not asked for")
    assert summary.trajectories is None
    assert not any("trajectories" in reason for reason in summary.reasons)
    text = section((tmp_path / "report.html").read_text(encoding="utf-8"), "distribution")
    assert "Nothing was predicted step by step." in text
    assert "<h3>Step by step</h3>" not in text
    assert ReportSummary.from_json(summary.to_json()) == summary
