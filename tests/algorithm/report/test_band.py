"""Between which values predicted trajectories stay."""

import json

import numpy as np
import pytest

from helpers.models import make_nopg
from helpers.reports import line_data
from nopg_robot.console.prediction import drawn_band
from sb3_nopg.prediction.rollouts import Rollouts
from sb3_nopg.report.band import LEVEL, predicted_band
from sb3_nopg.report.making import make_report
from sb3_nopg.report.summary import ReportSummary


def rollouts(states, n_steps=None):
    """
    :param states: (T + 1, m, d_s)
    :param n_steps: until each is over; all go on by default
    """
    states = np.array(states, dtype=np.float64)
    n, m = states.shape[0] - 1, states.shape[1]
    n_steps = np.full(m, n) if n_steps is None else np.array(n_steps)
    actions = np.tile(np.linspace(-1, 1, m)[None, :, None], (n, 1, 1))
    for number, last in enumerate(n_steps):
        states[last + 1 :, number], actions[last:, number] = np.nan, np.nan
    over = n_steps < n
    return Rollouts(states, actions, np.zeros((n, m)), n_steps, over, np.full(m, -1))


def range_of(band, name):
    (found,) = [entry for entry in band.quantities if entry.name == name]
    return np.array(found.low), np.array(found.high)


def test_most_of_the_trajectories_lie_inside():
    values = np.random.default_rng(0).normal(size=(201, 400, 1))
    band = predicted_band(rollouts(values), ["x"], ["voltage"])
    low, high = range_of(band, "x")
    inside = (values[list(band.steps), :, 0] >= low[:, None]) & (values[list(band.steps), :, 0] <= high[:, None])
    np.testing.assert_allclose(inside.mean(axis=1), LEVEL, atol=0.01)
    assert band.steps[0] == 0
    assert band.steps[-1] == 199
    assert list(band.steps) == sorted(set(band.steps))
    assert len(band.steps) <= 60
    np.testing.assert_allclose(range_of(band, "voltage")[1], 0.9, atol=1e-6)


@pytest.mark.parametrize("middle", [0.0, 1.0, np.pi, -3.1])
def test_an_angle_from_its_sine_and_cosine_wherever_it_points(middle):
    angles = middle + np.random.default_rng(0).uniform(-0.2, 0.2, (11, 500))
    states = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    low, high = range_of(predicted_band(rollouts(states), ["sin_theta", "cos_theta"], ["u"]), "theta")
    turns = np.round((low - middle) / (2 * np.pi)) * 2 * np.pi
    np.testing.assert_allclose(low - turns, middle - 0.18, atol=0.02)
    np.testing.assert_allclose(high - turns, middle + 0.18, atol=0.02)


def test_those_that_are_over_count_no_more():
    states = np.zeros((101, 20, 1))
    states[:, :10] = 5.0
    band = predicted_band(rollouts(states, [50] * 10 + [100] * 10), ["x"], ["u"])
    low, high = range_of(band, "x")
    going = np.array(band.going)
    assert set(going) == {1.0, 0.5}
    assert high[going == 1.0].min() == 5.0
    assert high[going == 0.5].max() == low.max() == 0.0


def test_it_ends_where_hardly_one_is_left():
    band = predicted_band(rollouts(np.zeros((101, 50, 1)), [30] * 48 + [100] * 2), ["x"], ["u"])
    assert band.steps[-1] == 29
    assert predicted_band(rollouts(np.zeros((11, 50, 1)), [0] * 50), ["x"], ["u"]) is None


@pytest.mark.slow
def test_it_goes_with_the_report_to_the_rig():
    """From the figures' file to the console, which knows nothing of this package."""
    model = make_nopg("MlpPolicy", None, dataset=line_data(20), gamma=0.9, seed=0, device="cpu", transitions="model")
    summary = make_report(model, names=["x"]).summary
    assert ReportSummary.from_json(summary.to_json()) == summary
    drawn = drawn_band(json.loads(summary.to_json())["band"], 0.1)
    assert drawn["time_s"][0] == 0.0
    low, high = (np.array(ends) for ends in drawn["ranges"]["x"])
    assert (low < high).all()
    assert make_report(model, trajectories=False).summary.band is None
