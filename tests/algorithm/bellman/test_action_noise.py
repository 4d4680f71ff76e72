"""Draws for the integral over what a stochastic policy may do."""

import numpy as np
import pytest
import scipy
import torch as th

from helpers.long_runs import build, pushed_point
from sb3_nopg import AS_IN_THE_PAPER, SampleSettings
from sb3_nopg.bellman.action_noise import independent_normals, spread_normals

DRAWS = {"independent": independent_normals, "spread": spread_normals}


def drawn(kind, *shape, seed=0):
    return DRAWS[kind](shape, th.Generator().manual_seed(seed), th.float64)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_each_part_has_one_draw_at_every_state_and_in_every_dimension(n):
    parts = scipy.stats.norm.cdf(drawn("spread", 50, n, 3).numpy()) * n
    assert (np.sort(np.floor(parts), axis=1) == np.arange(n)[None, :, None]).all()


@pytest.mark.parametrize("kind", list(DRAWS))
def test_each_draw_is_standard_normal_whatever_its_place(kind):
    draws = drawn(kind, 4_000, 4, 2).numpy()
    for place in range(4):
        for dimension in range(2):
            assert scipy.stats.kstest(draws[:, place, dimension], "norm").pvalue > 1e-3


def test_dimensions_are_drawn_in_orders_of_their_own():
    draws = drawn("spread", 4_000, 8, 2).numpy()
    assert abs(np.corrcoef(draws[..., 0].ravel(), draws[..., 1].ravel())[0, 1]) < 0.02


def test_means_of_smooth_functions_are_more_exact_than_of_twice_as_many_independent_draws():
    points, shares = np.polynomial.hermite_e.hermegauss(40)
    # E[tanh(x₀ + ½)], and E[exp(x₀ / 2) cos(x₁)], where both dimensions matter at once.
    truth = th.tensor([shares @ np.tanh(points + 0.5) / shares.sum(), np.exp(1 / 8 - 1 / 2)])

    def errors(kind, n):
        draws = drawn(kind, 5_000, n, 2)
        means = th.stack([(draws[..., 0] + 0.5).tanh().mean(1), ((draws[..., 0] / 2).exp() * draws[..., 1].cos()).mean(1)])
        return (means - truth[:, None]).square().mean(1).sqrt()

    assert (errors("spread", 8) < errors("independent", 16)).all()


def test_none_is_infinitely_far_away(monkeypatch):
    for end in (0.0, 1.0 - 2.0**-53):
        monkeypatch.setattr(th, "rand", lambda shape, end=end, **_: th.full(shape, end, dtype=th.float64))
        assert drawn("spread", 2, 8, 1).isfinite().all()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_papers_draws_are_torchs(precision):
    settings = {**AS_IN_THE_PAPER["estimator_kwargs"], "state_bandwidth": 0.3, "action_bandwidth": 0.5, "precision": precision}
    model = build(pushed_point(), variant="S", **settings)
    generator = th.Generator().manual_seed(model.estimator.settings.seed)
    expected = th.randn(len(model.estimator.problem.queries), 15, 1, generator=generator, dtype=getattr(th, precision))
    assert th.equal(model.estimator.action_noise, expected)


def test_how_many_there_are():
    assert (SampleSettings().n_actions_at_queries, SampleSettings().n_actions_at_nodes) == (8, 15)
    paper = SampleSettings.of(AS_IN_THE_PAPER["estimator_kwargs"])
    assert (paper.n_actions_at_queries, paper.n_actions_at_nodes) == (15, 15)
    given = SampleSettings(n_action_samples=3)
    assert (given.n_actions_at_queries, given.n_actions_at_nodes) == (3, 3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("spread", "n"), [(True, 8), (False, 15)])
def test_an_estimator_has_them(spread, n, precision):
    noise = build(pushed_point(), variant="S", spread_actions=spread, precision=precision).estimator.action_noise
    assert noise.shape[1] == n
    assert noise.dtype == getattr(th, precision)
    parts = np.sort(np.floor(scipy.stats.norm.cdf(noise.double().numpy()) * n), axis=1)
    assert (parts == np.arange(n)[None, :, None]).all() == spread
