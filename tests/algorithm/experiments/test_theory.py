"""The experiment on the theorems: truths and limits against closed forms and quadrature, and all of it from end to end."""

import json
import math

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.integrate import quad

from helpers.colours import n_colours
from helpers.models import make_nopg
from sb3_nopg.experiments import load_experiment, theory_bounds
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_chains import (
    CLOSED_LOOP,
    GAMMA,
    chain_data,
    function_values,
    regression_limit,
    true_values,
    value_limit,
)
from sb3_nopg.experiments.report import read_markdown_tables

POINTS = np.array([-2.0, -0.3, 0.0, 1.1])


def test_true_values_have_their_closed_form():
    np.testing.assert_allclose(true_values("cone", 3.0, POINTS), -3.0 * np.abs(POINTS) / (1.0 - GAMMA * CLOSED_LOOP))


def test_true_values_solve_the_bellman_equation():
    values = true_values("cosine", 4.0, POINTS)
    expected = np.cos(4.0 * POINTS) + GAMMA * true_values("cosine", 4.0, CLOSED_LOOP * POINTS)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@pytest.mark.parametrize("function", ["cone", "cosine"])
def test_regression_limit_is_the_integral(function):
    decay, bandwidth, point = 1.5, 0.3, 0.2

    def weight(z: float) -> float:
        return math.exp(-0.5 * ((z - point) / bandwidth) ** 2 - decay * abs(z))

    numerator = quad(lambda z: weight(z) * float(function_values(function, 2.0, np.array(z))), -3, 3, points=[0.0, point])[0]
    expected = numerator / quad(weight, -3, 3, points=[0.0, point])[0]
    assert regression_limit(function, 2.0, decay, bandwidth, np.array([point]))[0] == pytest.approx(expected, rel=1e-4)


def test_bias_of_a_cone_is_the_mean_deviation():
    limit = regression_limit("cone", 2.0, 1e-9, 0.3, np.array([0.0]))
    assert limit[0] == pytest.approx(-2.0 * 0.3 * math.sqrt(2.0 / math.pi), rel=1e-4)


@pytest.mark.slow
def test_constant_reward_has_no_bias():
    values, slope = value_limit("cosine", 0.0, 0.5, 0.2, POINTS)
    np.testing.assert_allclose(values, 1.0 / (1.0 - GAMMA), rtol=1e-10)
    assert slope == pytest.approx(0.0, abs=1e-8)


@pytest.mark.slow
def test_value_limit_tends_to_the_truth():
    errors = [
        np.abs(value_limit("cosine", 2.0, 0.5, bandwidth, POINTS)[0] - true_values("cosine", 2.0, POINTS)).max()
        for bandwidth in (0.4, 0.2, 0.1)
    ]
    # The reward is smooth, so that a bandwidth of half the size makes about a quarter of the bias.
    assert 2.5 < errors[1] / errors[2] < 4.5
    assert errors[0] > errors[1]


def test_samples_follow_the_chain():
    data = chain_data("cone", 2.0, 0.5, 4000, seed=0)
    np.testing.assert_allclose(data.next_observations, 0.7 * data.observations + 0.5 * data.actions)
    np.testing.assert_allclose(data.rewards, -2.0 * np.abs(data.observations[:, 0]))
    # The mean distance from zero is that of the Laplace density with this decay.
    assert np.abs(data.observations).mean() == pytest.approx(2.0, rel=0.1)
    assert np.abs(data.actions).mean() == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow
def test_the_engine_estimates_the_limit_and_not_the_truth():
    """Many samples, one equation solved by quadrature and one by the library: two ways to the same biased number."""
    (trial,) = [
        trial
        for trial in theory_bounds.trials(True, 1)
        if (trial["theorem"], trial["function"], trial["lipschitz"], trial["bandwidth"]) == (3, "cone", 1.0, 0.4)
    ]
    result = theory_bounds.run({**trial, "n_samples": 1000})
    truth, limit, estimate = (np.array(result[name]) for name in ("truth", "limit", "estimate"))
    middle = np.abs(result["points"]) < 0.5
    bias = np.abs(limit - truth)[middle].min()
    assert np.abs(estimate - limit)[middle].max() < 0.2 * bias


@pytest.mark.slow
def test_the_estimate_is_the_one_that_the_theorem_is_about(monkeypatch):
    """Kernel weights as they are, whatever the library's defaults become."""
    built = []
    monkeypatch.setattr(theory_bounds, "NOPG", lambda *_, **settings: built.append(settings) or make_nopg(*_, **settings))
    (trial,) = [trial for trial in theory_bounds.trials(True, 1) if trial["theorem"] == 3][:1]
    theory_bounds.run({**trial, "n_samples": 50})
    estimator = built[0]["estimator_kwargs"]
    assert (built[0]["transitions"], estimator["weights"], estimator["pessimism"]) == ("samples", "local_constant", 0.0)
    assert estimator["state_bandwidth"] == estimator["next_state_bandwidth"] == [trial["bandwidth"]]


@pytest.mark.slow
def test_theory_from_end_to_end(tmp_path):
    experiment = load_experiment("theory")
    assert experiment is theory_bounds.EXPERIMENT
    trials = [{**trial, "n_samples": 100} for trial in experiment.trials(True, 1) if trial["bandwidth"] in (0.1, 0.4)]
    results = [(trial, json.loads(json.dumps(experiment.run(trial)))) for trial in trials]
    for _, result in results:
        assert result["bias"] == pytest.approx(np.abs(np.subtract(result["limit"], result["truth"])).max())
        assert 0 < result["bias"] <= result["bound"]
        assert result["printed_bound"] < result["bound"]
    text = experiment.summarize(results, tmp_path, Extent(quick=True))
    (table,) = read_markdown_tables(text)
    assert len(table) == len(trials)
    for row, (_, result) in zip(table, results, strict=True):
        assert float(row["bias"]) == pytest.approx(result["bias"], rel=0.01)
        assert float(row["bound"]) == pytest.approx(result["bound"], rel=0.01)
        assert row["within"] == "yes"
    # With a flat density the cone shows the factor that the print lost.
    (flat,) = [row for row in table if row["function"] == "cone" and row["L of log-density"] == row["bandwidth"] == "0.1"]
    assert flat["within the printed"] == "**no**"
    pixels = imread(tmp_path / "theory-quick.png")[..., :3].reshape(-1, 3)
    assert n_colours(pixels) > 50
    # Curves, and the red marks of the estimates.
    assert ((pixels[:, 0] > 0.75) & (pixels[:, 1] < 0.3) & (pixels[:, 2] < 0.3)).sum() > 100
