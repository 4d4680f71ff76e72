"""Bandwidth selection: against a slow reference, on data that break the textbook rule, and with input that makes no sense."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels import bandwidth_rules
from sb3_nopg.kernels.bandwidth import Bandwidths, select_bandwidth, select_bandwidths
from sb3_nopg.kernels.bandwidth_rules import MARGINAL_RULES

RULES = sorted(MARGINAL_RULES)


def reference_log_likelihood(values, folds, bandwidth):
    """Mean log-density of each sample under a Gaussian kernel density estimate from the other folds, by the definition."""
    total = 0.0
    for value, fold in zip(values, folds, strict=True):
        exponents = [-0.5 * ((value - other) / bandwidth) ** 2 for other, f in zip(values, folds, strict=True) if f != fold]
        largest = max(exponents)
        log_sum = largest + math.log(sum(math.exp(exponent - largest) for exponent in exponents))
        total += log_sum - math.log(len(exponents) * bandwidth * math.sqrt(2 * math.pi))
    return total / len(values)


def draw(distribution, n, rng):
    if distribution == "normal":
        return rng.normal(size=n)
    if distribution == "bimodal":
        return np.where(rng.random(n) < 0.5, rng.normal(-3, 0.5, n), rng.normal(3, 1.0, n))
    return rng.uniform(-1, 1, n)


def select(samples, rule="cross_validation", **kwargs):
    samples = np.asarray(samples)
    return select_bandwidth(samples if samples.ndim == 2 else samples[:, None], rule, name="state_bandwidth", **kwargs)


def pendulum_grid(n_levels):
    """States (cos θ, sin θ, θ̇) and torques of the paper's pendulum grid, sorted as loops make them."""
    angle, speed, torque = np.meshgrid(
        np.linspace(-np.pi, np.pi, n_levels), np.linspace(-8, 8, n_levels), [-2.0, 2.0], indexing="ij"
    )
    states = np.stack([np.cos(angle), np.sin(angle), speed], axis=-1).reshape(-1, 3)
    return states.astype(np.float32), torque.reshape(-1, 1)


# --- the likelihood and its maximum


@pytest.mark.parametrize("outlier", [0.0, 300.0])
def test_likelihood_equals_its_definition(outlier):
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(size=40), outlier)
    # The function works on a range of one, up to a constant: compare differences.
    extent = np.ptp(values)
    function = bandwidth_rules._held_out_log_likelihood((values - values.min())[None, :] / extent)
    ours = np.array([function(h / extent) for h in (0.01, 0.1, 0.5, 3.0, 50.0)])
    reference = np.array([reference_log_likelihood(values, range(41), h) for h in (0.01, 0.1, 0.5, 3.0, 50.0)])
    assert np.all(np.isfinite(ours))
    np.testing.assert_allclose(ours - ours[2], reference - reference[2], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["normal", "bimodal", "uniform"])
@pytest.mark.parametrize("n", [12, 80])
def test_cross_validation_finds_the_best_bandwidth(distribution, n):
    values = draw(distribution, n, np.random.default_rng(1))
    chosen = select(values)[0]
    candidates = values.std() * np.geomspace(0.01, 4, 60)
    # As many folds as samples: the rule's own criterion, so only the search can miss. Ten shuffled folds judge it no worse
    # than a few percent.
    for folds, tolerance in ((np.arange(n), 1e-3), (np.random.default_rng(0).permutation(n) % 10, 0.03)):
        best = max(reference_log_likelihood(values, folds, h) for h in candidates)
        assert reference_log_likelihood(values, folds, chosen) >= best - tolerance


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["normal", "bimodal", "uniform"])
def test_cross_validation_predicts_new_samples_nearly_as_well_as_possible(distribution):
    rng = np.random.default_rng(2)
    train, new = draw(distribution, 600, rng), draw(distribution, 1000, rng)

    def score(bandwidth):
        density = np.exp(-0.5 * ((new[:, None] - train[None, :]) / bandwidth) ** 2).mean(axis=1) / bandwidth
        return np.log(density + 1e-300).mean()

    best = max(score(h) for h in train.std() * np.geomspace(0.01, 2, 30))
    assert score(select(train)[0]) >= best - 0.03


@pytest.mark.slow
def test_large_data_sets_are_judged_by_a_part_and_corrected_for_their_size():
    samples = np.random.default_rng(0).normal(size=(100_000, 2))
    few, many = select(samples[:1000]).mean(), select(samples).mean()
    assert many / few == pytest.approx(100 ** (-1 / 5), rel=0.3)


@pytest.mark.slow
def test_far_clusters_keep_their_own_scale():
    rng = np.random.default_rng(0)
    one_cluster = rng.normal(size=500)
    two_clusters = np.concatenate([one_cluster, 200 + rng.normal(size=500)])
    assert select(two_clusters)[0] == pytest.approx(select(one_cluster)[0], rel=0.5)


def test_silverman_formula():
    samples = np.random.default_rng(0).normal(size=(1000, 3)) * [1.0, 10.0, 0.1]
    quartiles = np.percentile(samples, [25, 75], axis=0)
    spread = np.minimum(samples.std(axis=0), (quartiles[1] - quartiles[0]) / 1.34)
    np.testing.assert_allclose(select(samples, "silverman"), spread * (4 / (5 * 1000)) ** (1 / 7))
    # Outliers widen the standard deviation only; samples mostly equal have no interquartile range.
    assert select(np.append(np.linspace(-1, 1, 99), 1e4), "silverman")[0] < 0.5
    assert select(np.append(np.zeros(9), 1.0), "silverman")[0] == pytest.approx(0.3 * (4 / 30) ** (1 / 5))


# --- invariances


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("distribution", ["normal", "bimodal", "uniform"])
def test_scale_shift_and_seed(rule, distribution):
    values = draw(distribution, 300, np.random.default_rng(3))
    bandwidth = select(values, rule)
    for scale in (1e-8, 2.5, 1e8):
        np.testing.assert_allclose(select(values * scale, rule), bandwidth * scale, rtol=1e-4)
    np.testing.assert_allclose(select(values + 100, rule), bandwidth, rtol=1e-4)
    np.testing.assert_allclose(select(-values, rule), bandwidth, rtol=1e-4)
    np.testing.assert_allclose(select(values.astype(np.float32), rule), bandwidth, rtol=1e-2)
    np.testing.assert_array_equal(select(values, rule), bandwidth)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [200, 900])
def test_order_and_seed_do_not_matter(rule, n):
    rng = np.random.default_rng(4)
    values = np.sort(draw("normal", n, rng))
    for seed in range(3):
        np.testing.assert_allclose(select(rng.permutation(values), rule, seed=seed), select(values, rule), rtol=1e-3)


@pytest.mark.slow
def test_order_and_seed_hardly_matter_where_a_part_is_judged():
    rng = np.random.default_rng(4)
    values = np.sort(draw("bimodal", 10_000, rng))
    bandwidths = [select(values)[0], select(values, seed=1)[0], select(rng.permutation(values))[0]]
    assert max(bandwidths) / min(bandwidths) < 1.3


def test_dimensions_do_not_influence_each_other_in_cross_validation():
    samples = np.random.default_rng(5).normal(size=(200, 3))
    alone = np.concatenate([select(samples[:, [j]]) for j in range(3)])
    np.testing.assert_allclose(select(samples), alone)


# --- grids, ties and other awkward data


@pytest.mark.slow
@pytest.mark.parametrize("n_levels", [10, 15, 20, 40])
def test_pendulum_grid_gets_half_the_spacing_of_its_levels(n_levels):
    states, torques = pendulum_grid(n_levels)
    bandwidths = select_bandwidths(states, torques, states)
    # On a grid the likelihood has no optimum: the floor decides.
    np.testing.assert_allclose(bandwidths.state[2], 16.0 / (n_levels - 1) / 2, rtol=1e-3)
    np.testing.assert_allclose(bandwidths.action, [2.0])
    # cos θ and sin θ have levels of uneven spacing, the widest about 2π / n_levels apart.
    assert (bandwidths.state[:2] > 0.25 * np.pi / n_levels).all()
    assert (bandwidths.state[:2] < np.pi / n_levels).all()


def test_equal_values_that_differ_by_rounding_errors_are_equal():
    levels = np.repeat(np.linspace(-1, 1, 20), 20)
    noise = 1e-8 * np.random.default_rng(0).uniform(-1, 1, len(levels))
    np.testing.assert_allclose(select(levels + noise), 1.0 / 19, rtol=1e-3)


@pytest.mark.slow
def test_levels_finer_than_a_density_needs_do_not_narrow_it():
    levels = np.repeat(np.linspace(-1, 1, 1000), 2)
    np.testing.assert_array_less(0.99 * levels.std() / 50 * (500 / 2000) ** 0.2, select(levels))


@pytest.mark.slow
def test_rounding_does_not_hide_the_density_beneath():
    values = np.random.default_rng(6).normal(size=1000)
    np.testing.assert_allclose(select(np.round(values, 2)), select(values), rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 400, 900, 20_000])
@pytest.mark.parametrize("limit", [0.5, 0.8])
def test_clipped_actions_and_doubled_samples_keep_a_usable_bandwidth(n, limit):
    actions = np.random.default_rng(7).uniform(-1, 1, n)
    for awkward in (np.clip(actions, -limit, limit), np.concatenate([actions, actions])):
        assert select(awkward)[0] >= 0.99 * awkward.std() / 50 * min(500 / n, 1) ** 0.2


@pytest.mark.slow
def test_a_rare_value_that_the_random_part_misses():
    values = np.zeros(20_000)
    values[7] = 1.0
    assert 0 < select(values)[0] < 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 1.0), (0.1, 1.0), (-7.5, 7.5), (1e8, 1e8)], ids=["zero", "small", "negative", "large"]
)
def test_constant_dimension(rule, value, expected):
    samples = np.column_stack([np.full(50, value), np.random.default_rng(0).normal(size=50)])
    for dtype in (np.float32, np.float64):
        bandwidth = select(samples.astype(dtype), rule)
        assert bandwidth[0] == pytest.approx(expected)
        assert 0 < bandwidth[1] < 1


def test_a_dimension_that_varies_by_rounding_alone_is_constant():
    assert select(1.0 + np.finfo(float).eps * np.array([0.0, 1.0, -1.0, 2.0]))[0] == pytest.approx(1.0)


numbers = st.floats(-1e12, 1e12, allow_subnormal=False)
# Few different values make ties; free ones make everything else.
columns = st.one_of(st.lists(numbers, min_size=2, max_size=30), st.lists(st.sampled_from([-2.0, 0.0, 1e-9, 2.0]), min_size=2))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@settings(max_examples=60, deadline=None)
@given(values=columns, scale=st.sampled_from([1e-8, 1.0, 1e8]), seed=st.integers(0, 10))
def test_always_positive_and_finite(rule, dtype, values, scale, seed):
    values = np.array(values, dtype=dtype) * dtype(scale)
    bandwidth = select(values, rule, seed=seed)
    assert bandwidth.shape == (1,)
    assert bandwidth.dtype == np.float64
    assert np.isfinite(bandwidth[0])
    assert bandwidth[0] > 0
    # Never wider than the data, unless they are constant.
    assert bandwidth[0] <= max(1.1 * np.ptp(values.astype(np.float64)), np.abs(values).max(), 1.0)


# --- what the caller may pass


def test_numbers_arrays_and_factors():
    samples = np.random.default_rng(0).normal(size=(30, 3))
    np.testing.assert_array_equal(select(samples, 0.5), [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(select(samples, 2), [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(select(samples, [1, 2, 3], factor=np.array([2.0, 1.0, 0.5])), [2.0, 2.0, 1.5])
    np.testing.assert_array_equal(select(samples, factor=50), 50 * select(samples))
    # Integers are data too, and a single sample will do where nothing is chosen from it.
    assert np.all(select(np.arange(20).reshape(10, 2)) > 0)
    np.testing.assert_array_equal(select(np.zeros((1, 2)), 0.1), [0.1, 0.1])


def test_given_bandwidths_are_copied():
    given_bandwidth = np.array([0.1, 0.2])
    select(np.zeros((5, 2)), given_bandwidth)[0] = 9.0
    np.testing.assert_array_equal(given_bandwidth, [0.1, 0.2])


def test_three_kernels_each_from_their_own_samples():
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(100, 3)), rng.uniform(-5, 5, size=(100, 1))
    next_observations = 3 * observations
    rules = {"state": "silverman", "action": 1.5}
    factors = {"state_factor": 2, "next_state_factor": [1, 2, 3]}
    bandwidths = select_bandwidths(observations, actions, next_observations, **rules, **factors, seed=7)
    assert isinstance(bandwidths, Bandwidths)
    np.testing.assert_allclose(bandwidths.state, 2 * select(observations, "silverman"))
    np.testing.assert_allclose(bandwidths.action, [1.5])
    np.testing.assert_allclose(bandwidths.next_state, select(next_observations, seed=7) * [1, 2, 3])
    with pytest.raises(AttributeError):
        bandwidths.state = np.ones(3)


@pytest.mark.parametrize(
    "value", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0, 1.0], [1.0, 2.0], [[1.0, 2.0, 3.0]], [[1.0], [1.0, 2.0]], None, True, 1j]
)
@pytest.mark.parametrize("argument", ["bandwidth", "factor"])
def test_bad_numbers_are_refused_by_name(argument, value):
    bandwidth, factor, field = (value, 1.0, "x") if argument == "bandwidth" else (1.0, value, "x_factor")
    with pytest.raises(InputError, match=rf"^{field}: .*positive number or 3 of them") as caught:
        select_bandwidth(np.zeros((5, 3)), bandwidth, factor, name="x")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((1, 2)), "cannot choose from 1 samples"),
        (np.zeros((0, 2)), "cannot choose from 0 samples"),
        (np.array([[0.0], [np.nan]]), "NaN"),
        (np.array([[0.0], [np.inf]]), "NaN or numbers beyond"),
        (np.array([[0.0], [1e300]]), "rescale"),
        (np.zeros(5), r"shape \(5,\)"),
        (np.array([["a"], ["b"]]), "<U1"),
        (np.array([[True], [False]]), "bool"),
        (np.array([[None], [1.0]]), "object"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_bad_samples_are_refused(samples, message, rule):
    with pytest.raises(InputError, match=rf"^action_bandwidth: .*{message}"):
        select_bandwidth(samples, rule, name="action_bandwidth")


def test_unknown_rule_lists_the_known_ones():
    with pytest.raises(InputError, match=r"^action_bandwidth: there is no rule 'scott'.*'cross_validation', 'silverman'"):
        select_bandwidths(np.eye(3), np.eye(3), np.eye(3), action="scott")


@pytest.mark.parametrize("kernel", ["state", "action", "next_state"])
def test_errors_name_the_kernel(kernel):
    with pytest.raises(InputError, match=f"^{kernel}_bandwidth: "):
        select_bandwidths(np.eye(3), np.eye(3), np.eye(3), **{kernel: -1.0})
    with pytest.raises(InputError, match=f"^{kernel}_bandwidth_factor: "):
        select_bandwidths(np.eye(3), np.eye(3), np.eye(3), **{f"{kernel}_factor": np.nan})


def test_factor_that_overflows():
    with pytest.raises(InputError, match=r"^x_factor: turns \[1e\+300\] into \[inf\]"):
        select_bandwidth(np.zeros((5, 1)), 1e300, 1e300, name="x")


# --- speed


@pytest.mark.slow
def test_time_does_not_grow_with_the_data():
    samples = np.random.default_rng(0).normal(size=(200_000, 1))
    started = time.process_time()
    select(samples[:3200])
    assert time.process_time() - started < 2.0  # 0.3 s where nothing else runs
    started = time.process_time()
    select(samples)
    assert time.process_time() - started < 4.0
