"""The numbers behind the pictures of a report are the model's, the right way up."""

import numpy as np
import pytest
import torch as th
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from helpers.models import make_nopg
from helpers.reports import line_data, plane_model, quick_report, section
from sb3_nopg import NOPG, NOPGD, InputError, TransitionDataset
from sb3_nopg.report.bounds import value_range
from sb3_nopg.report.drawing import draw_map
from sb3_nopg.report.making import support_along_the_way
from sb3_nopg.report.page import write_report
from sb3_nopg.report.portraits import StateMap
from sb3_nopg.report.support import SupportSummary, predicted_visitation, visits_of

pytestmark = pytest.mark.slow


def test_the_pictures_have_the_right_way_up(tmp_path):
    """A policy that is predicted to stay where it starts: high in the first dimension, low in the second."""
    report = quick_report(plane_model(), limits=["s[0] < 0.5"])
    n = len(report.visitation.values)
    horizontal, vertical = np.unravel_index(np.nanargmax(report.visitation.values), report.visitation.values.shape)
    assert horizontal > 0.7 * n
    assert vertical < 0.3 * n
    (cut,) = report.slices
    horizontal, vertical = np.unravel_index(np.argmax(np.where(cut.near, cut.value.values, -np.inf)), cut.value.values.shape)
    assert horizontal > 0.7 * len(cut.value.values)
    assert vertical < 0.3 * len(cut.value.values)
    # The limit is one of the first dimension.
    ((formula, inside),) = cut.limits
    assert formula == "s[0] < 0.5"
    assert inside[0].all()
    assert not inside[-1].any()
    axes = Figure().subplots()
    draw_map(axes, report.visitation, Normalize(), "share of time")
    picture = axes.images[0]
    row, column = np.unravel_index(np.nanargmax(picture.get_array().filled(np.nan)), report.visitation.values.shape)
    left, right, bottom, top = picture.get_extent()
    assert left + (column + 0.5) / n * (right - left) == pytest.approx(0.8, abs=0.25)
    assert bottom + (row + 0.5) / n * (top - bottom) == pytest.approx(-0.8, abs=0.25)
    assert picture.origin == "lower"
    with pytest.raises(InputError, match=r"\.html"):
        write_report(report, tmp_path / "report.txt")


def test_a_slice_shows_what_the_model_says_there():
    model = plane_model()
    (cut,) = quick_report(model).slices
    n = len(cut.value.values)
    centers = [low + (np.arange(n) + 0.5) * (high - low) / n for low, high in cut.value.ranges]
    for i, j in ((3, 40), (30, 7)):
        state = np.array([centers[0][i], centers[1][j]])
        assert cut.value.values[i, j] == pytest.approx(model.value(state)[0], rel=1e-6)
        assert cut.actions[0].values[i, j] == pytest.approx(model.predict(state, deterministic=True)[0][0], rel=1e-4)
    assert cut.near.mean() > 0.8


def test_far_from_the_data_a_picture_is_pale():
    values, near = np.ones((4, 4)), np.zeros((4, 4), dtype=bool)
    near[3, 0] = True
    axes = Figure().subplots()
    draw_map(axes, StateMap(values, [(0.0, 1.0)] * 2, ["x", "y"]), Normalize(0, 2), "value", near)
    alpha = axes.images[0].get_alpha()
    # Rows of the image are its vertical axis.
    assert alpha[0, 3] == 1.0
    assert np.sort(alpha.reshape(-1))[-2] < 0.5


def test_the_most_important_dimensions_are_shown():
    """Of four dimensions, value and policy know of the last two; the first two are noise to them."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (300, 4))
    rewards = 3.0 * states[:, 2] - 2.0 * states[:, 3]
    data = TransitionDataset(states, rng.uniform(-1, 1, (300, 1)), rewards, states, np.zeros(300, dtype=bool))
    model = NOPG(
        "LinearPolicy",
        None,
        dataset=data,
        gamma=0.5,
        initial_states=states[:5],
        estimator_kwargs={"state_bandwidth": 0.5},
        device="cpu",
        policy_kwargs={},
        seed=0,
        transitions="samples",
    )
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.zero_()
    report = quick_report(model, names=["a", "b", "c", "d"])
    assert [cut.value.names for cut in report.slices] == [["c", "d"], ["a", "b"]]
    assert report.slices[0].through.startswith("a = ")
    assert "d" not in report.slices[0].through


def test_histograms_and_ranges_follow_the_policy():
    """It starts at 0.8 and stays there, while the data are all over the place."""
    report = quick_report(plane_model())
    first = report.histograms[0]
    centers = (first.edges[1:] + first.edges[:-1]) / 2
    assert first.data.sum() == pytest.approx(1.0)
    assert first.policy.sum() == pytest.approx(1.0)
    assert abs(first.data @ centers) < 0.1
    assert first.policy @ centers == pytest.approx(0.8, abs=0.1)
    span = report.summary.state_ranges[0]
    assert span.data_low < -0.9
    assert span.policy_low > -0.2
    assert span.policy_high < 1.0


def test_support_is_weighted_by_where_the_policy_goes():
    summary = SupportSummary(samples=np.array([5.0, 0.1, 2.0]), weights=np.array([0.2, 0.3, 0.5]))
    assert summary.quantile(0.1) == 0.1
    assert summary.quantile(0.5) == 2.0
    assert summary.quantile(0.9) == 5.0
    assert summary.quantile(1.0) == 5.0
    assert summary.thin_share == pytest.approx(0.3)
    assert "30 %" in summary.text()
    along = support_along_the_way(plane_model(held_out=0.5).evaluation)
    assert along.weights.sum() == pytest.approx(1.0)


def test_bounds_that_say_something_and_bounds_that_do_not():
    rng = np.random.default_rng(0)
    states, n = rng.uniform(-1, 1, (300, 1)), 300
    # With γ = 0 and wide, flat data, little is smoothed away.
    flat = TransitionDataset(states, rng.uniform(-1, 1, (n, 1)), states[:, 0], states, np.zeros(n, dtype=bool))
    settings = {"initial_states": [[0.0]], "state_bandwidth": 0.02, "action_bandwidth": 0.02, "device": "cpu"}
    settings["transitions"] = "samples"
    calm = quick_report(make_nopg("MlpPolicy", None, dataset=flat, gamma=0.0, **settings)).summary.bounds
    assert calm.lipschitz_reward == pytest.approx(0.02, rel=0.05)
    assert calm.reward_bound == pytest.approx(calm.value_bound)
    assert not calm.vacuous
    assert "no more than" in calm.text()
    wild = quick_report(make_nopg("MlpPolicy", None, dataset=flat, gamma=0.99, **settings)).summary.bounds
    assert wild.vacuous
    assert "vacuous" in wild.text()
    assert wild.value_range == pytest.approx(np.ptp(states) * 100, rel=1e-5)


def test_after_an_end_there_is_nothing():
    rewards = np.array([1.0, 1.0])
    assert value_range(rewards, np.array([False, False]), 0.9) == 0.0
    assert value_range(rewards, np.array([False, True]), 0.9) == pytest.approx(10.0)


def test_the_same_report_twice_is_the_same_page(tmp_path):
    pages = []
    for number in range(2):
        NOPGD("LinearPolicy", None, dataset=line_data(), gamma=0.9, seed=0, device="cpu").report(tmp_path / f"{number}.html")
        pages.append((tmp_path / f"{number}.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("pessimism", [0.0, 0.1])
def test_the_report_sees_where_the_policy_leaves_the_data(tmp_path, pessimism):
    """Every step leads away from the samples: what follows is a guess, and the verdict says so."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (200, 1))
    n = len(states)
    data = TransitionDataset(states, rng.uniform(-1, 1, (n, 1)), np.ones(n), states + 40.0, np.zeros(n, dtype=bool))
    settings = {"gamma": 0.9, "initial_states": [[0.0]], "state_bandwidth": 0.3, "action_bandwidth": 1.0, "device": "cpu"}
    model = make_nopg("MlpPolicy", None, dataset=data, transitions="samples", **{"pessimism": pessimism, **settings})
    # Trajectories through a model that knows these steps exactly would say more than the samples' kernels.
    summary = model.report(tmp_path / "report.html", trajectories=False)
    assert summary.verdict == "no"
    # All but the start, a tenth of the discounted time.
    assert summary.support.thin_share == pytest.approx(0.9, abs=0.01)
    assert all(worst.state[0] > 30 for worst in summary.support.worst_states)
    assert len(summary.support.worst_states) == 5
    assert "leaves the data" in summary.reasons[0]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "states without support" in section(page, "support")


def test_after_an_end_the_policy_is_nowhere():
    """Half of the steps from 0 end the task at 9, the others come back: nobody is ever at 9."""
    ends = np.arange(20) % 2 == 0
    next_states = np.where(ends, 9.0, 0.0)[:, None]
    data = TransitionDataset(np.zeros((20, 1)), np.linspace(-1, 1, 20)[:, None], np.ones(20), next_states, ends)
    model = NOPGD(
        "LinearPolicy",
        None,
        dataset=data,
        gamma=0.9,
        initial_states=[[0.0]],
        estimator_kwargs={"state_bandwidth": 1.0, "action_bandwidth": 10.0, "weights": "local_constant", "pessimism": 0.0},
        transitions="samples",
        device="cpu",
    )
    visits = visits_of(model.evaluation, predicted_visitation(model.evaluation))
    assert (visits.states == 0.0).all()
    assert visits.support.weights.sum() == pytest.approx(1.0)
    # Each of the n steps that go on is used γ^t / 2^t times; with the start, 1 / (1 − γ / 2) visits.
    assert visits.support.weights[-1] == pytest.approx(1.0 - 0.9 / 2, abs=0.02)
