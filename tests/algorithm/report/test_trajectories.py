"""Trajectories in a report: what becomes of those of known policies, what the verdict makes of it, and what is drawn."""

import io
import json
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from stable_baselines3.common.vec_env import DummyVecEnv

import nopg_envs  # noqa: F401 - makes the environments known
from helpers.mass_on_a_rail import STARTS, brake, drive, followed, recorded
from helpers.models import make_nopg
from helpers.reports import line_data, pictures, section
from helpers.verdict_figures import FOLLOWED, RETURNS, SUPPORT
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.prediction.judge import N_MODELS, Judge, half_models, steps_ahead
from sb3_nopg.prediction.rollouts import Rollouts
from sb3_nopg.report import trajectories
from sb3_nopg.report import verdict as rules
from sb3_nopg.report.drawing import draw_trajectories, panels, picture
from sb3_nopg.report.limits import make_limits
from sb3_nopg.report.making import PolicyReport, make_goal, make_report
from sb3_nopg.report.page import facts, write_report
from sb3_nopg.report.summary import ReportSummary
from sb3_nopg.report.trajectories import (
    POOR_MODEL,
    TrajectoryPicture,
    find_trajectories,
    make_judge,
    succeeded,
)
from sb3_nopg.report.verdict import reach_verdict, trajectory_verdict

pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module", autouse=True)
def far_ahead(small_sizes):
    """Who creeps takes some time to come to the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb3_nopg.prediction.judge._MOST_STEPS", 200)
        yield


@pytest.fixture(scope="module")
def drifting(far_ahead) -> PolicyReport:
    return make_report(acting(creep, recorded(limit=2.0)), names=["x", "speed"])


def found_for(model, names, goal=None):
    judge = make_judge(model.evaluation)
    assert judge is not None
    return find_trajectories(judge, model.evaluation, names, goal)


def test_a_policy_that_stays_lasts():
    data = recorded(limit=2.0)
    figures, shown = found_for(acting(brake, data), ("x", "speed"))
    assert (figures.n_steps, figures.n_trajectories) == (100, 36)
    assert (figures.lasting, figures.ended, figures.left, figures.succeeding) == (1.0, 0.0, 0.0, 1.0)
    assert figures.wanted == "last"
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
    assert figures.succeeding == 0.0
    assert figures.ended + figures.left == pytest.approx(1.0)
    assert figures.ended == rollouts.ended.mean()
    assert figures.ends_by == "x"
    # The task ends beyond 2, and it is followed three hundredths of the range beyond that.
    truly_over = (followed(creep, 100)[:, :, 0] > 2.12).argmax(axis=0)
    assert figures.median_steps == np.median(rollouts.n_steps) == pytest.approx(np.median(truly_over), abs=6)
    # Beyond 1, each step costs.
    assert figures.score < 0.0
    assert drifting.summary.verdict == "no"
    assert any(figures.text() in reason for reason in drifting.summary.reasons)
    assert "none lasts" in figures.text()


def test_figures_are_those_of_the_judge():
    model = acting(lambda states: brake(states) + 1.5 * (states[:, :1] > 0.3), recorded(limit=1.0))
    figures, shown = found_for(model, ("x", "speed"))
    models, _ = half_models(model.training_data, model.dynamics, N_MODELS)
    judgement_of = Judge(models, STARTS, steps_ahead(0.9))
    (followed_by_all,) = judgement_of.follow([model.evaluation.act])
    (judged,) = judgement_of.judgement(["it"], [followed_by_all]).ranking
    assert (figures.score, figures.lasting) == (judged.score, judged.lasting)
    np.testing.assert_array_equal(shown.rollouts.states[:, :9], followed_by_all[0].states)
    np.testing.assert_array_equal(shown.rollouts.rewards[:, -9:], followed_by_all[-1].rewards)


def test_earlier_actions_are_told():
    figures, _ = found_for(acting(brake, recorded(delay=1), gamma=0.5), ("x", "speed"))
    assert figures.n_earlier_steps == 1
    assert "1 earlier" in figures.model_text()
    # Nothing ever ends in these data.
    assert not figures.ends_are_bad


def test_an_end_that_is_the_goal_is_no_failure():
    data = recorded(limit=1.0)
    # It ends above only; below, what was recorded does.
    data = replace(data, terminals=data.terminals & (data.next_observations[:, 0] > 0.0))
    good = replace(data, rewards=np.where(data.terminals, 100.0, 0.0))
    figures, _ = found_for(acting(part, good), ("x", "speed"))
    assert 0.1 < figures.ended < 0.9
    assert not figures.ends_are_bad
    assert figures.succeeding == figures.ended == pytest.approx(1.0 - figures.left)
    assert "goal" in figures.wanted
    assert "end the task" in figures.text()
    # The same trajectories, where an end is the worst that can happen.
    bad, _ = found_for(acting(part, data), ("x", "speed"))
    assert (bad.ended, bad.ends_are_bad) == (figures.ended, True)
    assert bad.succeeding == 0.0
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
    assert replace(FOLLOWED, **changes).text() == text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"succeeding": rules.SUCCESS_CARE}, "go"),
        ({"succeeding": rules.SUCCESS_CARE - 0.01}, "care"),
        ({"succeeding": rules.SUCCESS_NO}, "care"),
        ({"succeeding": rules.SUCCESS_NO - 0.01}, "no"),
        # Whatever leaves the records, if it does what is wanted.
        ({"succeeding": 1.0, "left": 0.3, "ended": 0.3}, "go"),
        ({"succeeding": 0.0, "model_error": POOR_MODEL}, "no"),
        ({"succeeding": 0.0, "model_error": POOR_MODEL + 0.01}, "care"),
        ({"succeeding": 0.0, "model_error": math.nan}, "care"),
        # A poor model that sees nothing bad is no objection of its own.
        ({"succeeding": 1.0, "model_error": 0.5}, "go"),
    ],
)
def test_verdict(changes, verdict):
    figures = replace(FOLLOWED, **changes)
    said, reasons = reach_verdict(RETURNS, SUPPORT, [], 100, trajectories=figures)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all(figures.text() in reason and figures.success_text() in reason for reason in reasons)
    assert all(("is poor" in reason) == figures.poor for reason in reasons)
    # By themselves poor ones never say go.
    assert trajectory_verdict(figures) == ("care" if figures.poor else verdict)


def test_who_only_goes_on_where_nobody_has_said_what_is_wanted_is_watched():
    said, reasons = reach_verdict(RETURNS, SUPPORT, [], 100, trajectories=replace(FOLLOWED, wanted_is_known=False))
    assert said == trajectory_verdict(replace(FOLLOWED, wanted_is_known=False)) == "care"
    assert "--goal" in reasons[0]
    never_ending = recorded()
    assert not found_for(acting(brake, never_ending), ("x", "speed"))[0].wanted_is_known
    (goal,) = make_limits(["x > 0.5"], ("x", "speed"), never_ending.observations, "goal")
    assert found_for(acting(brake, never_ending), ("x", "speed"), goal)[0].wanted_is_known
    with pytest.raises(InputError, match="goal"):
        make_limits(["x + 1"], ("x", "speed"), never_ending.observations, "goal")


def test_trajectories_that_can_be_relied_on_come_before_the_kernels():
    thin, blind = replace(SUPPORT, thin_share=0.9), replace(RETURNS, held_out=None, policy_spread=0.0)
    assert reach_verdict(blind, thin, [], 100)[0] == "no"
    assert reach_verdict(blind, thin, [], 100, trajectories=FOLLOWED) == ("go", ())
    assert reach_verdict(blind, thin, [], 100, trajectories=replace(FOLLOWED, model_error=0.5))[0] == "no"
    # Data that the user held out himself are heard all the same.
    assert reach_verdict(replace(RETURNS, held_out=-1e3), thin, [], 100, trajectories=FOLLOWED)[0] == "no"


def rollouts(*paths: tuple[list[float], bool]) -> Rollouts:
    """Of one coordinate: where each goes, and whether the task ends there. All may take ten steps."""
    states = np.full((11, len(paths), 1), np.nan)
    for number, (path, _) in enumerate(paths):
        states[: len(path), number, 0] = path
    n_steps = np.array([len(path) - 1 for path, _ in paths])
    ended = np.array([has_ended for _, has_ended in paths])
    left_by = np.where((n_steps < 10) & ~ended, 0, -1)
    return Rollouts(states, np.zeros((10, len(paths), 1)), np.zeros((10, len(paths))), n_steps, ended, left_by)


def test_a_goal_is_to_be_held_in_the_end_or_to_be_where_the_task_ends():
    (goal,) = make_limits(["x > 0.5"], ("x",), np.zeros((2, 1)))
    far = rollouts(
        ([0.0] * 9 + [1.0, 1.0], False),
        # Not for long enough, away again, and lost on the way.
        ([0.0] * 10 + [1.0], False),
        ([1.0] * 10 + [0.0], False),
        ([1.0] * 6, False),
        # An end there and one elsewhere.
        ([0.0, 0.4, 0.8], True),
        ([0.0, 0.2], True),
    )
    good, wanted = succeeded(far, True, goal)
    assert good.tolist() == [True, False, False, False, True, False]
    assert "x > 0.5" in wanted
    assert succeeded(far, True, None)[0].tolist() == [True, True, True, False, False, False]
    assert succeeded(far, False, None)[0].tolist() == [False, False, False, False, True, True]


def test_a_report_asks_for_the_goal_of_the_caller_or_of_the_environment():
    data = recorded(limit=2.0)
    model = acting(brake, data)
    near, far = (make_report(model, names=["x", "speed"], goal=goal).summary for goal in ("abs(speed) < 0.2", "x > 1.5"))
    assert near.trajectories.succeeding > 0.9
    assert (far.trajectories.succeeding, far.verdict) == (0.0, "no")
    for env_id, inside in (
        ("nopg/Pendulum-v0", [1.0, 0.0, 0.0]),
        ("nopg/QuanserCartPoleSwingUp-v1", [0.0, 0.0, 1.0, 0.0, 0.0]),
    ):
        env = DummyVecEnv([lambda env_id=env_id: gym.make(env_id)])
        states = np.array([inside, -np.array(inside)])
        goal = make_goal(None, env, ("a", "b", "c"), replace_states(states))
        assert goal(states).tolist() == [True, False]
    # Whoever turns the columns around has to say himself what he wants.
    turned = DummyVecEnv([lambda: Reversed(gym.make("nopg/Pendulum-v0"))])
    assert make_goal(None, turned, ("a", "b", "c"), replace_states(np.eye(3))) is None
    assert make_goal(None, None, ("a", "b", "c"), replace_states(np.eye(3))) is None


class Reversed(gym.ObservationWrapper):
    def observation(self, observation):
        return observation[::-1]


def replace_states(states: np.ndarray) -> TransitionDataset:
    n = len(states)
    return TransitionDataset(states, np.zeros((n, 1)), np.zeros(n), states, np.zeros(n, dtype=bool))


def test_intervals_of_few_trajectories_are_wide(drifting):
    # Wilson's, as tables have it: none of 36.
    few = drifting.summary.trajectories
    assert (few.succeeding_low, few.succeeding_high) == pytest.approx((0.0, 0.0964), abs=1e-4)
    around = np.vstack([STARTS, np.asarray(STARTS) + 0.01])
    more, _ = found_for(acting(creep, recorded(limit=2.0), initial_states=around), ("x", "speed"))
    assert more.n_trajectories > few.n_trajectories
    assert more.succeeding_high < few.succeeding_high
    assert FOLLOWED.success_text() == "95 % (87 % to 98 %) of 64 trajectories last"


def test_figures_survive_a_file(drifting):
    summary = drifting.summary
    assert ReportSummary.from_json(summary.to_json()) == summary
    without = replace(summary, trajectories=None)
    assert ReportSummary.from_json(without.to_json()) == without
    content = json.loads(summary.to_json())
    # Written before there were any.
    del content["trajectories"]
    assert ReportSummary.from_json(json.dumps(content)) == without
    for bad in (5, {}, "none", {**vars(FOLLOWED), "n_steps": 1.5}, {**vars(FOLLOWED), "ends_are_bad": 1}):
        with pytest.raises(InputError, match="report"):
            ReportSummary.from_json(json.dumps({**content, "trajectories": bad}))


@pytest.mark.usefixtures("without_pictures")
def test_the_page_shows_them(drifting, tmp_path):
    write_report(drifting, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert drifting.summary.trajectories.text() in section(page, "verdict")
    text = section(page, "distribution")
    for words in ("Step by step", drifting.summary.trajectories.text(), "variance unexplained"):
        assert words in text
    assert "0 % (0 % to 10 %) of 36 trajectories last; they earn" in section(page, "returns")
    assert len(pictures(text)) == 3


def test_they_are_in_the_picture_of_a_whole_report(drifting, tmp_path):
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


def test_of_many_dimensions_those_that_trajectories_end_by_are_drawn(monkeypatch):
    # Four dimensions are many where three are shown, and quicker than eight.
    monkeypatch.setattr(trajectories, "_MOST_SHOWN", 3)
    data = recorded(n_episodes=16)
    still = np.random.default_rng(0).normal(size=(len(data), 2))
    wide = TransitionDataset(
        observations=np.hstack([still, data.observations]),
        actions=data.actions,
        rewards=data.rewards,
        next_observations=np.hstack([still, data.next_observations]),
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    starts = np.hstack([np.zeros((3, 2)), STARTS])
    model = acting(drive, wide, initial_states=starts)
    figures, shown = found_for(model, tuple("abxv"))
    assert len(shown.shown) == 3
    assert "abxv".index(figures.ends_by) in shown.shown
    assert figures.ends_by in "xv"
    assert list(shown.shown) == sorted(shown.shown)


def test_an_interval_beside_a_return_is_of_that_return(drifting):
    """The kernels' interval held neither the model's prediction nor what came of it."""
    summary = drifting.summary
    returns = summary.returns
    assert returns.interval_of == "plain"
    assert returns.interval_estimate == returns.plain
    assert returns.interval_low < returns.plain < returns.interval_high
    shown = dict(facts(summary))["predicted return"]
    assert shown.startswith(f"{returns.plain:.5g}, discounted")
    assert f"95 % interval {returns.interval_low:.5g} to {returns.interval_high:.5g}, by models of halves" in shown
    assert not any("kernels" in note for note in summary.notes)


def test_another_estimates_interval_is_a_note(drifting):
    without = make_report(acting(creep, recorded(limit=2.0)), names=["x", "speed"], trajectories=False).summary
    returns = without.returns
    assert returns.plain == drifting.summary.returns.plain
    assert returns.interval_of == "kernels"
    assert returns.interval_low <= returns.interval_estimate <= returns.interval_high
    assert not any("interval" in text for _, text in facts(without))
    (note,) = (note for note in without.notes if "another estimate than the model" in note)
    assert f"{returns.interval_estimate:.5g}" in note


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
