"""Neighbour lists: the right samples, the right kernel, and an honest account of what was left out."""

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracles
from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels import block_search, neighbors
from sb3_nopg.kernels.neighbors import check_neighbor_count, find_neighbors


def random_points(seed: int, m: int = 40, n: int = 120, d: int = 3) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    rng = np.random.default_rng(seed)
    queries, samples, bandwidth = rng.normal(size=(m, d)), rng.normal(size=(n, d)), rng.uniform(0.2, 0.8, size=d)
    return th.as_tensor(queries), th.as_tensor(samples), th.as_tensor(bandwidth)


@pytest.fixture(params=["brute force", "k-d tree", "blocks"])
def search(request, monkeypatch):
    """All searches on the same small problems; large ones would choose theirs by themselves."""
    if request.param == "k-d tree":
        monkeypatch.setattr(neighbors, "_BRUTE_FORCE_PAIRS", 0)
    if request.param == "blocks":
        monkeypatch.setattr(neighbors, "_search_for", neighbors._BlockedSearch)
        monkeypatch.setattr(block_search, "_BLOCK_SIZE", 8)
    return request.param


def test_lists_hold_the_nearest_samples_and_their_kernel(search):
    queries, samples, bandwidth = random_points(0)
    lists = find_neighbors(queries, samples, bandwidth, n_neighbors=9)
    expected = oracles.nearest_rows(queries.numpy(), samples.numpy(), bandwidth.numpy(), 9)
    np.testing.assert_array_equal(lists.indices, expected)
    differences = (queries[:, None] - samples[lists.indices]) / bandwidth
    np.testing.assert_allclose(lists.log_state_kernel, -0.5 * differences.square().sum(-1), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 30, 119])
def test_stated_truncation_bounds_the_mass_left_out(search, k):
    queries, samples, bandwidth = random_points(1)
    lists = find_neighbors(queries, samples, bandwidth, n_neighbors=k)
    exact = oracles.truncated_mass(queries.numpy(), samples.numpy(), bandwidth.numpy(), k).max()
    assert lists.truncation_error >= exact * (1 - 1e-9)
    if search == "brute force":
        assert lists.truncation_error == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.1, 1e-3, 1e-6])
def test_auto_meets_its_tolerance_and_keeps_no_more_than_it_must(search, tolerance):
    queries, samples, bandwidth = random_points(2, n=300)
    lists = find_neighbors(queries, samples, bandwidth, "auto", tolerance)
    exact = oracles.truncated_mass(queries.numpy(), samples.numpy(), bandwidth.numpy(), lists.n_neighbors).max()
    assert exact <= lists.truncation_error * (1 + 1e-9) <= tolerance * (1 + 1e-6)
    if search == "brute force" and lists.n_neighbors > 1:
        one_less = oracles.truncated_mass(queries.numpy(), samples.numpy(), bandwidth.numpy(), lists.n_neighbors - 1)
        assert one_less.max() > tolerance


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 30.0), offset=st.floats(0.0, 1e5), n=st.integers(2, 60))
def test_auto_meets_its_tolerance_whatever_the_data(seed, scale, offset, n):
    queries, samples, bandwidth = random_points(seed, m=10, n=n, d=2)
    lists = find_neighbors(queries + offset, samples, bandwidth * scale, "auto", 1e-3)
    assert lists.truncation_error <= 1e-3 * (1 + 1e-6)
    assert th.isfinite(lists.log_state_kernel).all()


def test_all_neighbours_are_the_exact_form():
    queries, samples, bandwidth = random_points(3)
    lists = find_neighbors(queries, samples, bandwidth, n_neighbors=None)
    assert lists.indices is None
    assert lists.n_neighbors == len(samples)
    assert lists.truncation_error == 0.0
    values = th.arange(len(samples), dtype=th.float64)
    np.testing.assert_array_equal(lists.gather(values)[7], values)


def test_auto_stops_at_its_memory_limit_and_says_what_is_missing(search, monkeypatch):
    monkeypatch.setattr(neighbors, "_AUTO_PAIRS", 40 * 20)
    queries, samples, bandwidth = random_points(4)
    with pytest.warns(UserWarning, match="truncation_tolerance"):
        lists = find_neighbors(queries, samples, bandwidth * 5, "auto", 1e-6)
    assert lists.n_neighbors == 20
    assert lists.truncation_error > 1e-6


def test_many_copies_of_one_point(search):
    samples = th.zeros(300, 2, dtype=th.float64)
    lists = find_neighbors(samples[:5], samples, th.ones(2, dtype=th.float64), "auto", 1e-3)
    # All 300 weigh the same, so all but a thousandth of them must be kept.
    assert lists.n_neighbors == 300
    assert len(np.unique(lists.indices[0])) == 300


def test_more_neighbours_than_samples_are_all_samples(search):
    queries, samples, bandwidth = random_points(5, n=12)
    assert find_neighbors(queries, samples, bandwidth, n_neighbors=50).n_neighbors == 12


def test_large_and_high_dimensional_searches_choose_their_method():
    queries, samples, _ = random_points(6)
    assert isinstance(neighbors._search_for(queries, samples), neighbors._BruteForceSearch)
    many = th.zeros(10_000, 3, dtype=th.float64)
    assert isinstance(neighbors._search_for(many, many), neighbors._KDTreeSearch)
    wide = th.zeros(10_000, 20, dtype=th.float64)
    assert isinstance(neighbors._search_for(wide, wide), neighbors._BruteForceSearch)


@pytest.mark.parametrize("count", [0, -3, 1.5, "many", True])
def test_bad_counts(count):
    with pytest.raises(InputError, match="n_neighbors"):
        check_neighbor_count(count)
