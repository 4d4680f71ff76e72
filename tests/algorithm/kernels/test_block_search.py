"""The search by blocks, on the CPU: the code that a GPU runs, against all distances."""

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nopg.kernels import block_search, neighbors
from sb3_nopg.kernels.block_search import BlockSearch
from sb3_nopg.kernels.partition import halve_repeatedly, sum_members


def uniform(rng, size):
    return rng.uniform(size=(size, 3))


def clustered(rng, size):
    return 10.0 * rng.integers(0, 4, (size, 1)) + 1e-3 * rng.normal(size=(size, 3))


def copies(rng, size):
    return rng.integers(0, 3, (size, 3)).astype(float)


def one_point(rng, size):
    return np.full((size, 3), 0.25)


def far_from_zero(rng, size):
    return 1e6 + rng.normal(size=(size, 3))


def on_a_line(rng, size):
    return rng.normal(size=(size, 1)) * np.array([1.0, 0.0, -2.0])


LAYOUTS = [uniform, clustered, copies, one_point, far_from_zero, on_a_line]


def search_all(queries: th.Tensor, samples: th.Tensor, count: int) -> tuple[th.Tensor, th.Tensor]:
    squared = queries.new_empty(len(queries), count)
    indices = th.empty(squared.shape, dtype=th.int64)
    for rows, near, numbers in BlockSearch(queries, samples).nearest(count):
        squared[rows], indices[rows] = near, numbers
    return squared, indices


def check(queries: th.Tensor, samples: th.Tensor, count: int) -> None:
    squared, indices = search_all(queries, samples, count)
    expected = (queries[:, None] - samples).square().sum(-1).sort(dim=1).values[:, :count]
    tolerance = 1e-5 if queries.dtype == th.float32 else 1e-12
    np.testing.assert_allclose(squared, expected, rtol=tolerance)
    # The numbers belong to those distances, and none is there twice.
    np.testing.assert_allclose((queries[:, None] - samples[indices]).square().sum(-1), squared, rtol=tolerance)
    ordered = indices.sort(dim=1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 20, 333])
@pytest.mark.parametrize("dtype", [th.float64, th.float32])
def test_finds_the_nearest_whatever_the_data(layout, count, dtype, monkeypatch):
    monkeypatch.setattr(block_search, "_BLOCK_SIZE", 16)
    # So few pairs at a time that lists are improved in several pieces.
    monkeypatch.setattr(block_search, "_PAIRS", {"cpu": 2**13})
    rng = np.random.default_rng(0)
    queries, samples = (th.as_tensor(layout(rng, size)).to(dtype) for size in (150, 333))
    check(queries, samples, count)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    m=st.integers(1, 90),
    n=st.integers(1, 200),
    d=st.integers(1, 6),
    layout=st.sampled_from(["apart", "together"]),
    block_size=st.sampled_from([1, 7, 64]),
)
def test_sizes_of_any_kind(seed, m, n, d, layout, block_size):
    rng = np.random.default_rng(seed)
    queries = th.as_tensor(rng.normal(size=(m, d)) + (5.0 if layout == "apart" else 0.0))
    samples = th.as_tensor(rng.normal(size=(n, d)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_search, "_BLOCK_SIZE", block_size)
        check(queries, samples, int(rng.integers(1, n + 1)))


@pytest.mark.parametrize("count", [1, 40])
def test_gives_what_a_tree_gives(count):
    rng = np.random.default_rng(1)
    queries, samples = (th.as_tensor(rng.normal(size=(size, 4))) for size in (500, 2000))
    ours, tree = (search(queries, samples)(count) for search in (neighbors._BlockedSearch, neighbors._KDTreeSearch))
    np.testing.assert_array_equal(ours[1], tree[1])
    np.testing.assert_allclose(ours[0], tree[0], rtol=1e-12)
    np.testing.assert_allclose(ours[2], tree[2], rtol=1e-12)


def test_far_blocks_are_never_looked_at(monkeypatch):
    rng = np.random.default_rng(2)
    points = th.as_tensor(rng.uniform(size=(4000, 2)))
    n_pairs, compare = [], BlockSearch._distances

    def counted(self, queries, blocks):
        distances = compare(self, queries, blocks)
        n_pairs.append(distances.numel())
        return distances

    monkeypatch.setattr(BlockSearch, "_distances", counted)
    monkeypatch.setattr(block_search, "_LARGEST_GROUP", 4)
    search_all(points, points, 16)
    assert sum(n_pairs) < 0.25 * 4000**2


def test_cells_hold_all_points_once_and_their_sums():
    points = th.as_tensor(np.random.default_rng(3).normal(size=(101, 2)))
    partition = halve_repeatedly(points, 3)
    members, is_member = partition.table()
    np.testing.assert_array_equal(members[is_member].sort().values, np.arange(101))
    x = points[:, 0]
    expected = th.zeros(8, dtype=th.float64).index_add_(0, partition.labels, x)
    np.testing.assert_allclose(sum_members(x, members, is_member), expected, rtol=1e-12)
