"""The LQR experiments: true gradients against simulation, gradients' quality by hand, and both experiments from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from helpers.colours import n_colours
from nopg_envs.lqr import LQREnv
from sb3_nopg.common.errors import SolverError
from sb3_nopg.experiments import applicability, load_experiment, lqr_gradient
from sb3_nopg.experiments.baselines import OfflineDPG
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.lqr_cells import CASES, METHODS, SETTING, case_data, case_gradient, policy_kind
from sb3_nopg.experiments.lqr_methods import BY_DENSITY, PAPER_ESTIMATE, ascend, gradient_function, gradient_or_none, nopg
from sb3_nopg.experiments.lqr_methods import METHODS as GRADIENT_METHODS
from sb3_nopg.experiments.lqr_problem import SETTINGS, collect, finite_horizon_gradient, make_env, true_gradient
from sb3_nopg.experiments.lqr_statistics import DISTANCES, quality, quality_by_distance
from sb3_nopg.experiments.report import read_interval, read_markdown_tables


def simulated_return(env: LQREnv, gain: np.ndarray, horizon: int) -> float:
    """Step by step, as the environment has it."""
    state, _ = env.reset()
    total = 0.0
    for t in range(horizon):
        state, reward, *_ = env.step(gain @ state)
        total += env.gamma**t * reward
    return total


def is_drawn(path: Path) -> bool:
    """Whether a picture has many colours and is not mostly one of them."""
    pixels = imread(path)[..., :3].reshape(-1, 3)
    return n_colours(pixels) > 50 and float((pixels < 0.98).any(axis=1).mean()) > 0.02


# --- The truth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", [np.diag([0.7, -0.7]), np.diag([-4.0, -2.0]), np.array([[0.2, -0.3], [0.4, -1.0]])])
def test_finite_horizon_gradient_is_that_of_the_simulation(gain):
    env, horizon, step = make_env("paper"), 30, 1e-5
    expected = np.zeros((2, 2))
    for index in np.ndindex(2, 2):
        change = np.zeros((2, 2))
        change[index] = step
        up, down = (simulated_return(env, gain + sign * change, horizon) for sign in (1, -1))
        expected[index] = (up - down) / (2 * step)
    computed = finite_horizon_gradient(env, gain, horizon, np.zeros((2, 2)))
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-8 * np.abs(expected).max())


def test_a_long_horizon_is_the_infinite_one():
    env, gain, covariance = make_env("regulator"), np.diag([-4.0, -2.0]), 0.3 * np.eye(2)
    computed = finite_horizon_gradient(env, gain, 400, covariance)
    np.testing.assert_allclose(computed, env.true_gradient(gain, covariance), rtol=1e-10)


def test_truth_of_each_setting():
    # Thirty steps where the return of all of them is infinite; the environment's closed form, noise included, where it is not.
    assert np.isfinite(true_gradient("paper", "deterministic", (0.7, -0.7))).all()
    assert np.isnan(true_gradient("regulator", "deterministic", (0.7, -0.7))).all()
    env, gain = make_env("regulator"), np.diag([-4.0, -2.0])
    noisy = true_gradient("regulator", "stochastic", (-4.0, -2.0))
    np.testing.assert_allclose(noisy, np.diag(env.true_gradient(gain, SETTINGS["regulator"].input_std ** 2 * np.eye(2))))
    assert not np.allclose(noisy, true_gradient("regulator", "deterministic", (-4.0, -2.0)))


# --- Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["deterministic", "stochastic"])
def test_data_follow_the_system(setting, kind):
    env, data = make_env(setting), collect(setting, kind, 4, seed=1)
    assert len(data) == 4 * 30
    np.testing.assert_allclose(data.next_observations, data.observations @ env.A.T + data.actions @ env.B.T)
    # Nothing was clipped, or the closed forms would not hold.
    costs = np.einsum("ni,ij,nj->n", data.observations, env.Q, data.observations) + env.R[0, 0] * (data.actions**2).sum(axis=1)
    np.testing.assert_allclose(data.rewards, costs / 2)
    np.testing.assert_array_equal(data.actions, collect(setting, kind, 4, seed=1).actions)
    assert not np.array_equal(data.actions, collect(setting, kind, 4, seed=2).actions)


def test_deterministic_data_have_a_gain_for_each_trajectory():
    data = collect("regulator", "deterministic", 2, seed=0)
    gains = []
    for episode in range(2):
        rows = np.asarray(data.episode_ids) == episode
        solution, residual, *_ = np.linalg.lstsq(data.observations[rows], data.actions[rows], rcond=None)
        assert residual.max() < 1e-12
        gains.append(solution.T)
    assert np.abs(gains[0] - gains[1]).max() > 0.1


# --- Gradients -----------------------------------------------------------------------------------------------------------


def test_quality_by_hand():
    truth = np.array([3.0, 4.0])
    numbers = quality(np.array([[6.0, 8.0], [3.0, -4.0], [np.nan, 1.0]]), truth)
    # Mean (4.5, 2), five is the truth's length; variances 4.5 and 72; cosines 1 and -7/25.
    assert numbers["bias"] == pytest.approx(np.hypot(1.5, 2.0) / 5.0)
    assert numbers["spread"] == pytest.approx(np.sqrt(4.5 + 72.0) / 5.0)
    assert numbers["cosine"] == pytest.approx((1.0 - 7.0 / 25.0) / 2.0)
    assert numbers["signs"] == pytest.approx(0.75)
    # Student's t with one degree of freedom: 12.706.
    assert numbers["bias ±"] == pytest.approx(12.7062 * np.sqrt((4.5 + 72.0) / 2.0) / 5.0, rel=1e-5)
    assert numbers["cosine ±"] == pytest.approx(12.7062 * (1.0 + 7.0 / 25.0) / 2.0, rel=1e-5)


def test_quality_of_little():
    truth = np.array([1.0, 0.5])
    assert set(quality(np.full((2, 2), np.nan), truth).values()) == {None}
    one = quality(np.zeros((1, 2)), truth)
    assert (one["bias"], one["spread"], one["cosine"]) == (1.0, None, 0.0)
    assert (one["bias ±"], one["cosine ±"]) == (None, None)


def test_distances_are_from_the_behaviour():
    gains = SETTINGS["regulator"].behavior_gains("deterministic") + np.array([[0.0, 0.0], [0.6, 0.8], [3.0, 4.0]])
    truth = [true_gradient("regulator", "deterministic", gain) for gain in gains[:2]]
    field = [truth[0].tolist(), (2 * truth[1]).tolist(), None]
    trial = {"setting": "regulator", "method": "NOPG-D"}
    # Past the third gain the system is unstable and has no true gradient; nor has the method one to give.
    rows = quality_by_distance([(trial, {"gains": gains.tolist(), "field": field})], "regulator", "NOPG-D", "deterministic")
    assert [row["distance"] for row in rows] == pytest.approx([0.0, 1.0, 5.0])
    assert [row["bias"] for row in rows] == [pytest.approx(0.0), pytest.approx(1.0), None]
    assert [row["none"] for row in rows] == [0.0, 0.0, 1.0]
    assert len(rows) < len(DISTANCES)


@pytest.mark.slow
def test_the_true_gradient_leads_to_the_optimum():
    path = ascend(lambda gains: true_gradient("regulator", "deterministic", gains), np.array([-4.0, -2.0]), 0.2, 120)
    assert path[0] == [-4.0, -2.0]
    np.testing.assert_allclose(path[-1], np.diag(make_env("regulator").optimal_gain()), atol=0.1)


def test_a_path_ends_where_there_is_no_gradient():
    def gradient(gains: np.ndarray) -> np.ndarray:
        if gains[0] > 1.0:
            raise SolverError("no fixed point")
        return np.ones(2)

    path = ascend(gradient, np.zeros(2), 0.6, 50)
    assert len(path) == 3
    assert gradient_or_none(gradient, np.array([2.0, 0.0])) is None
    assert gradient_or_none(lambda _: np.array([np.inf, 0.0]), np.zeros(2)) is None


def test_only_cross_terms_know_the_sign_of_the_gain():
    """Beyond the optimum the true gradient turns around. That of the paper's critic does not."""
    data, beyond = case_data("unordered", 20, seed=0), np.array([-8.0, -5.0])
    truth = true_gradient(SETTING, "deterministic", beyond)
    assert (truth > 0).all()
    with_cross_terms = case_gradient("semi-gradient, cross terms", "unordered", data, 0)(beyond)
    without = case_gradient("semi-gradient", "unordered", data, 0)(beyond)
    assert quality(with_cross_terms[None], truth)["cosine"] == pytest.approx(1.0, abs=0.05)
    assert (without < 0).all()


def test_the_methods_are_what_they_are_called():
    data, gains = collect("regulator", "deterministic", 10, seed=0), np.array([-8.0, -5.0])
    policy = {"diagonal": True, "initial_gain": np.diag(gains).tolist()}
    for method, cross_terms in (("DPG", False), ("DPG, cross terms", True)):
        model = OfflineDPG("LinearPolicy", data, gamma=0.9, cross_terms=cross_terms, policy_kwargs=policy)
        model.fit_critic()
        np.testing.assert_allclose(gradient_function(method, "regulator", data, 0)(gains), model.semi_gradient())


# --- From end to end -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lqr_gradient_from_end_to_end(tmp_path):
    experiment = load_experiment("lqr-gradient")
    assert experiment is lqr_gradient.EXPERIMENT
    trials = experiment.trials(True, 1)
    assert len({json.dumps(trial) for trial in trials}) == len(trials) == len(SETTINGS) * len(GRADIENT_METHODS)
    small = [{**trial, "n_trajectories": 4, "gains": trial["gains"][5:12:6], "n_updates": 1} for trial in trials]
    results = [(trial, json.loads(json.dumps(experiment.run(trial)))) for trial in small]
    for trial, result in results:
        start = SETTINGS[trial["setting"]].behavior_gains(GRADIENT_METHODS[trial["method"]].kind)
        assert result["path"][0] == start.tolist()
        assert len(result["field"]) == 2
        if trial["setting"] == "regulator":
            assert result["regret_before"] > 0
    text = experiment.summarize(results, tmp_path, Extent(quick=True))
    table, paths = read_markdown_tables(text)
    assert {row["method"] for row in table} == {row["method"] for row in paths} == set(GRADIENT_METHODS)
    first = quality_by_distance(results, "regulator", "NOPG-D", "deterministic")[0]
    (row,) = [row for row in table if (row["setting"], row["method"]) == ("regulator", "NOPG-D")][:1]
    for name in ("bias", "cosine"):
        assert float(row[name]) == pytest.approx(first[name], rel=0.01)
    assert is_drawn(tmp_path / "lqr-gradient-quick.png")
    assert is_drawn(tmp_path / "lqr-gradient-quick-quality.png")


@pytest.mark.slow
def test_a_trial_depends_on_its_parameters_alone():
    (trial,) = [
        {**trial, "n_trajectories": 5, "gains": trial["gains"][:1], "n_updates": 1}
        for trial in lqr_gradient.trials(True, 1)
        if (trial["setting"], trial["method"]) == ("regulator", "NOPG-S")
    ]
    assert lqr_gradient.run(trial) == lqr_gradient.run(trial)


@pytest.mark.slow
def test_applicability_from_end_to_end(tmp_path):
    experiment = load_experiment("applicability")
    assert experiment is applicability.EXPERIMENT
    trials = [{**trial, "n_trajectories": 5} for trial in experiment.trials(True, 2)]
    assert len(trials) == 2 * len(METHODS) * len(CASES)
    results = [(trial, json.loads(json.dumps(experiment.run(trial)))) for trial in trials]
    refusals = {
        (trial["method"], trial["case"]): result["message"] for trial, result in results if result["outcome"] == "refuses"
    }
    # Each for its own reason, and nobody else at all.
    reasons = {"demonstrations": "behavior_log_density", "unordered": "trajectories", "deterministic policy": "density"}
    assert set(refusals) == {(method, case) for method in ("PWIS", "PWIS, self-normalised") for case in reasons}
    assert all(reasons[case] in message for (_, case), message in refusals.items())
    text = experiment.summarize(results, tmp_path, Extent())
    (table,) = read_markdown_tables(text)
    assert [row["method"] for row in table] == list(METHODS)
    by_method = {row["method"]: row for row in table}
    assert by_method["PWIS"]["unordered"] == "refuses"
    assert by_method["NOPG"]["unordered"].startswith("runs, cosine")
    # The critic's class holds the truth, and the data vary: the semi-gradient then errs in length, hardly in direction.
    cosine, half_width = read_interval(by_method["semi-gradient, cross terms"]["unordered"].removeprefix("runs, cosine"))
    assert cosine > 0.9
    assert half_width is not None
    assert all(read_interval(row["bias"])[0] >= 0 and float(row["spread"]) >= 0 for row in table)
    assert is_drawn(tmp_path / "applicability.png")


def applicability_results(gradients):
    """Of every method and case, one data set for each entry of a list of gradients at the three gains."""
    return [
        (
            {"method": method, "case": case, "seed": seed, "n_trajectories": 5},
            {"outcome": "runs", "message": "", "gradients": at_the_gains},
        )
        for method in METHODS
        for case in CASES
        for seed, at_the_gains in enumerate(gradients)
    ]


@pytest.mark.slow
def test_applicability_of_one_seed_has_no_spread(tmp_path):
    experiment = load_experiment("applicability")
    kept = ("semi-gradient", "PWIS")
    trials = [{**trial, "n_trajectories": 5} for trial in experiment.trials(True, 1) if trial["method"] in kept]
    results = [(trial, experiment.run(trial)) for trial in trials]
    (table,) = read_markdown_tables(experiment.summarize(results, tmp_path, Extent()))
    rows = {row["method"]: row for row in table}
    assert float(rows["semi-gradient"]["bias"]) > 0
    assert {row["spread"] for row in table} == {"–"}
    # Of methods without a single result there is nothing to tell.
    assert (rows["NOPG"]["unordered"], rows["NOPG"]["bias"], rows["NOPG"]["no gradient"]) == ("–", "–", "0 of 0")
    assert (tmp_path / "applicability.png").exists()


@pytest.mark.slow
def test_a_gradient_that_is_not_there_leaves_the_others(tmp_path):
    whole = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]]
    other = [[1.5, 2.0], [2.0, 1.5], [1.0, 1.5]]
    without_last = [[*field[:2], None] for field in (whole, other)]
    text = applicability.summarize(applicability_results(without_last), tmp_path, Extent())
    assert "nan" not in text
    for row in read_markdown_tables(text)[0]:
        assert read_interval(row["bias"])[0] > 0
        assert float(row["spread"]) > 0
        assert row["no gradient"] == f"{2 * len(CASES)} of {6 * len(CASES)}"
    # Where one data set of two has a gradient, its cosine counts.
    half = applicability_results([whole, [None, None, None]])
    assert applicability._cell(half, "NOPG", "unordered") == applicability._cell(
        applicability_results([whole]), "NOPG", "unordered"
    )
    nothing = applicability_results([[None, None, None]])
    assert applicability._cell(nothing, "NOPG", "unordered") == "runs, cosine –"
    assert is_drawn(tmp_path / "applicability.png")


def test_the_papers_estimate_is_the_papers():
    assert PAPER_ESTIMATE == {"weights": "local_constant", "pessimism": 0.0, "spread_actions": False}
    assert set(BY_DENSITY.values()) == {"cross_validation"}
    model = nopg("regulator", "deterministic", collect("regulator", "deterministic", 2, seed=0))
    samples = model.estimator.settings.samples
    assert (model.transitions, samples.weights, samples.pessimism) == ("samples", "local_constant", 0.0)


def test_kinds_of_policies():
    assert policy_kind("semi-gradient", "trajectories") == "deterministic"
    assert policy_kind("NOPG", "deterministic policy") == "deterministic"
    assert policy_kind("PWIS", "trajectories") == policy_kind("NOPG", "unordered") == "stochastic"
