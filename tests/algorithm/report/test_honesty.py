"""What a report must not pass over: an estimator that sees nothing, data that check nothing, and starts without data."""

import html
import math
from dataclasses import replace

import numpy as np
import pytest

from helpers.models import make_nopg
from helpers.reports import line_data, quick_report, section
from sb3_nopg import NOPGD, InputError, TransitionDataset
from sb3_nopg.data.overlap import shared_rows
from sb3_nopg.prediction.uncertainty import effective_sample_size
from sb3_nopg.report.page import facts
from sb3_nopg.report.summary import ReportSummary

pytestmark = pytest.mark.slow


def line_model(data=None, **settings) -> NOPGD:
    """On samples, whose kernels most of these tests are about."""
    given = {"gamma": 0.9, "seed": 0, "device": "cpu", "initial_states": [[0.5]], "transitions": "samples"}
    return make_nopg("LinearPolicy", None, dataset=line_data(40) if data is None else data, **{**given, **settings})


def reason_with(summary: ReportSummary, word: str) -> list[str]:
    return [reason for reason in summary.reasons if word in reason]


@pytest.mark.usefixtures("without_pictures")
def test_starts_without_data_are_a_no_and_not_a_crash(tmp_path):
    model = line_model(initial_states=[[60.0]], pessimism=1.0).learn(1)
    # Next to nothing of the policy's time is known.
    assert 0.0 <= (1.0 - model.gamma) * model.visitation.sum() < 0.01
    summary = model.report(tmp_path / "report.html", held_out=line_data(20, seed=1))
    assert summary.verdict == "no"
    assert summary.support.lost_starts == 1.0
    assert reason_with(summary, "start states")
    assert "start states" in section((tmp_path / "report.html").read_text(encoding="utf-8"), "verdict")
    on_model = quick_report(line_model(initial_states=[[60.0]], transitions="model")).summary
    assert (on_model.verdict, on_model.support.lost_starts) == ("no", 1.0)
    half = quick_report(line_model(initial_states=[[0.0], [60.0]])).summary
    assert half.support.lost_starts == 0.5
    assert quick_report(line_model()).summary.support.lost_starts == 0.0


def test_nothing_is_visited_by_no_samples():
    assert effective_sample_size(np.zeros(5)) == 0.0
    # The square of this is no number any more.
    assert effective_sample_size(np.full(5, 1e-200)) == pytest.approx(5.0)


def test_a_policy_that_comes_to_rest_is_no_accident():
    """By the model it ends where it wants to be, next to one sample for ever; that is no reason against it."""
    model = line_model(transitions="model")
    model.policy.sample_actions = lambda states, noise: (-10.0 * states).clamp(-1.0, 1.0)[:, None, :]
    visitation = model.visitation
    assert effective_sample_size(visitation) < 5.0
    summary = quick_report(model, held_out=line_data(20, seed=1)).summary
    assert summary.support.effective_samples == pytest.approx(model.effective_sample_size())
    assert summary.support.effective_samples > 5.0
    assert not reason_with(summary, "were all used alike")


def test_figures_that_are_no_numbers_can_be_written():
    summary = quick_report(line_model()).summary
    odd = replace(summary, returns=replace(summary.returns, plain=math.nan))
    assert '"plain": null' in odd.to_json()
    assert math.isnan(ReportSummary.from_json(odd.to_json()).returns.plain)


def test_an_estimator_that_sees_nothing_is_told():
    sharp = quick_report(line_model().learn(1), held_out=line_data(40, seed=1)).summary
    for words in ("no difference between states", "no difference between actions", "does not depend on the policy"):
        assert not reason_with(sharp, words)
    blind = line_model(state_bandwidth_factor=100.0, action_bandwidth_factor=100.0).learn(1)
    summary = quick_report(blind, held_out=line_data(40, seed=1)).summary
    assert summary.verdict != "go"
    for words in ("no difference between states", "no difference between actions", "does not depend on the policy"):
        assert len(reason_with(summary, words)) == 1, words
    # To everything but the actions it is sharp, and still no policy differs from another. Their first-order correction sees
    # farther than their kernel.
    numb = quick_report(line_model(action_bandwidth_factor=1000.0).learn(1)).summary
    assert reason_with(numb, "does not depend on the policy")
    assert not reason_with(numb, "no difference between states")


def test_the_spread_of_returns_is_that_of_unlike_policies():
    model = line_model(pessimism=0.0)
    returns = quick_report(model).summary.returns
    expected = [model.estimated_return()]
    for force in (model.action_space.low, model.action_space.high, 0.5 * (model.action_space.low + model.action_space.high)):
        constant = line_model(pessimism=0.0)
        constant.policy.load_state_dict(model.policy.state_dict())
        constant.policy.sample_actions = lambda states, noise, force=force: states.new_tensor(force).expand(len(states), 1, -1)
        expected.append(constant.estimated_return())
    assert returns.policy_spread == pytest.approx(np.ptp(expected), rel=1e-4)
    assert returns.value_spread == pytest.approx(model.q_values.std(), rel=1e-5)


def test_the_yardstick_does_not_depend_on_the_rewards_zero():
    data = line_data(40)
    shifted = replace(data, rewards=data.rewards + 100.0)
    # With pessimism, which does depend on it.
    plain, moved = (quick_report(line_model(given, pessimism=1.0)).summary.returns for given in (data, shifted))
    assert moved.value_spread == pytest.approx(plain.value_spread, rel=1e-3)
    assert moved.size == pytest.approx(plain.size, rel=1e-3)
    assert moved.policy_spread == pytest.approx(plain.policy_spread, rel=1e-3)


def test_held_out_data_that_check_nothing_are_refused():
    data, fresh = line_data(40), line_data(20, seed=1)
    model = line_model(data)
    # Other rewards, another order and fewer digits are still the same steps.
    part = data.subsample(100)
    rounded = replace(part, rewards=part.rewards + 1.0, observations=part.observations.astype(np.float32))
    for copied in (data, part, rounded, TransitionDataset.merge(fresh, data.subsample(3))):
        with pytest.raises(InputError, match="was trained on") as caught:
            quick_report(model, held_out=copied)
        assert caught.value.field == "held_out"
    # One in a hundred may be chance.
    assert quick_report(model, held_out=TransitionDataset.merge(fresh, data.subsample(2))).summary.data.held_out == 202


def test_shared_rows():
    data, other = line_data(10), line_data(5, seed=1)
    assert shared_rows(data, other) == 0
    assert shared_rows(data, data) == 100
    assert shared_rows(data.subsample(7), data) == 7
    assert shared_rows(data, data.subsample(7)) == 7
    assert shared_rows(TransitionDataset.merge(data, data), data) == 200
    # The sign of zero is no difference; one changed action is.
    zero = replace(data, observations=np.zeros_like(data.observations))
    assert shared_rows(replace(zero, observations=-np.zeros_like(data.observations)), zero) == 100
    actions = data.actions.copy()
    actions[3] += 1e-3
    assert shared_rows(replace(data, actions=actions), data) == 99
    wider = replace(data, actions=np.hstack([data.actions, data.actions]))
    assert shared_rows(wider, data) == 0


@pytest.mark.usefixtures("without_pictures")
def test_held_out_data_that_also_chose_are_told(tmp_path):
    chosen = line_model(held_out=0.25, keep="best_heldout").learn(1)
    summary = chosen.report(tmp_path / "report.html")
    assert summary.returns.held_out_chose
    assert any("also chose" in note for note in summary.notes)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "also used to choose the parameters" in section(page, "returns")
    # The same data, given by hand.
    assert quick_report(chosen, held_out=chosen.held_out_data).summary.returns.held_out_chose
    assert not quick_report(chosen, held_out=line_data(20, seed=1)).summary.returns.held_out_chose
    plain = quick_report(line_model(held_out=0.25).learn(1)).summary
    assert not plain.returns.held_out_chose
    assert not any("also chose" in note for note in plain.notes)


@pytest.mark.usefixtures("without_pictures")
def test_the_page_tells_candidates_margin_and_where_figures_come_from(tmp_path):
    data = line_data(12)
    model = NOPGD("LinearPolicy", None, dataset=data, gamma=0.9, seed=0, device="cpu").learn(12)
    summary = model.report(tmp_path / "report.html", trajectories=False)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert summary.transitions == "model"
    assert [(one.recipe, one.trained_on, one.n_updates) for one in summary.candidates] == [
        (one.recipe, one.trained_on, one.n_updates) for one in model.candidates
    ]
    assert summary.margin == model.judgement.text()
    learning = html.unescape(section(page, "learning"))
    assert summary.margin in learning
    for one in summary.candidates:
        assert f"from {one.recipe.replace('_', ' ')}" in learning
    assert "coordinates: s[0]" in learning
    returns = html.unescape(section(page, "returns"))
    assert "from a model of the system" in returns
    assert "bounds: from the samples' kernels" in returns
    # The one that was kept has seen all of the data, what it grew from one half: that is what the other half can tell.
    assert [one.unseen_score for one in summary.candidates] == [one.unseen_score for one in model.candidates]
    kept = model.candidates[0]
    assert kept.trained_on == "all"
    assert kept.unseen_score is None
    best = max(one.unseen_score for one in model.candidates if one.recipe == kept.recipe and one.trained_on == "half")
    assert f"saw one half of them earns {best:.5g}" in dict(facts(summary))["on episodes not trained on"]
    assert f"{best:.5g}" in learning
    assert any("No data were held out" in note for note in summary.notes)
    checked = quick_report(model, held_out=line_data(20, seed=1)).summary
    assert not any("No data were held out" in note for note in checked.notes)
    assert ReportSummary.from_json(summary.to_json()) == summary
    # A model from a file still knows them.
    model.save(tmp_path / "m.zip")
    loaded = NOPGD.load(tmp_path / "m.zip")
    loaded.set_dataset(data)
    again = quick_report(loaded).summary
    assert (again.candidates, again.margin) == (summary.candidates, summary.margin)


@pytest.mark.usefixtures("without_pictures")
def test_the_page_of_a_model_on_samples_speaks_of_samples_only(tmp_path):
    model = NOPGD("LinearPolicy", None, dataset=line_data(), gamma=0.9, seed=0, device="cpu", transitions="samples").learn(2)
    summary = model.report(tmp_path / "report.html", trajectories=False)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (summary.transitions, summary.candidates, summary.system, summary.margin) == ("samples", (), (), "")
    assert "model of the system" not in section(page, "returns")
