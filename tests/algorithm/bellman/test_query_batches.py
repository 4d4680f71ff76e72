"""Gradients estimated from a batch of the queries: right on average, the same for the same seed, resumed to the bit."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th

from helpers.bellman_problems import TinyPolicy, engine_problem, evaluate, random_problem
from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.query_batches import draw_queries
from sb3_nopg.common.errors import InputError


def pushed_points(n: int = 40) -> TransitionDataset:
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(n, 2)), rng.uniform(-1, 1, (n, 1))
    next_observations = observations + 0.2 * actions
    return TransitionDataset(observations, actions, -(observations**2).sum(1), next_observations, np.zeros(n, dtype=bool))


def build(**arguments: object) -> NOPG:
    settings = {"transitions": "samples", "seed": 0, "state_bandwidth": 0.5, "action_bandwidth": 0.5, **arguments}
    return make_nopg("MlpPolicy", None, dataset=pushed_points(), initial_states=[[1.0, 1.0], [-1.0, 0.0]], **settings)


def gradient_of(model: NOPG) -> th.Tensor:
    """What one update hands to the optimiser, the parameters left as they were."""
    model.policy.optimizer.step = lambda: None  # type: ignore[assignment]
    model._training.warm_start = WarmStart()
    if not hasattr(model, "_logger"):
        model._setup_learn(1)
    model._training.update(1, model._n_updates, 0.0, model.logger)
    return th.cat([parameter.grad.reshape(-1) for parameter in model.policy.parameters() if parameter.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("pessimism", [0.0, 0.1])
def test_the_mean_over_all_batches_is_the_gradient(stochastic, pessimism):
    oracle = random_problem(n=5, n_initial=2, n_terminals=1, n_next_state_samples=1)
    problem = engine_problem(oracle, pessimism=pessimism, local_linear=True)
    policy = TinyPolicy(2, 1, stochastic)
    noise = np.random.default_rng(0).normal(size=(7, 3, 1)) if stochastic else None
    actions = policy.sample(problem.queries.states, noise)
    with th.no_grad():
        solution = evaluate(problem, actions, tolerance=1e-12)
        whole = derivative_on_samples(problem, solution)
    expected = th.autograd.grad(actions, list(policy.parameters()), whole, retain_graph=True)
    totals = [th.zeros_like(part) for part in expected]
    batches = list(itertools.combinations(range(7), 3))
    for batch in batches:
        chosen = th.tensor(batch)
        with th.no_grad():
            derivative = derivative_on_samples(problem, solution, chosen) * 7 / 3
        batch_actions = policy.sample(problem.queries.states[chosen], None if noise is None else noise[chosen])
        for total, part in zip(totals, th.autograd.grad(batch_actions, list(policy.parameters()), derivative), strict=True):
            total += part / len(batches)
    for total, part in zip(totals, expected, strict=True):
        np.testing.assert_allclose(total, part, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_every_batch_is_as_likely_as_any_other():
    problem = engine_problem(random_problem(n=4, n_initial=1, n_terminals=0))
    counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for update in range(2000):
        batch = draw_queries(problem, 2, (7, update))
        assert batch.factor == 2.5
        counts[tuple(batch.chosen.tolist())] += 1
    # Ten batches, 200 times each; the standard deviation is 13.
    assert all(abs(count - 200) < 60 for count in counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["D", "S"])
def test_the_mean_over_many_updates_is_the_full_gradient(variant):
    full = gradient_of(build(variant=variant, n_action_samples=3))
    model = build(variant=variant, n_action_samples=3, query_batch_size=14)
    draws = []
    for update in range(80):
        model._n_updates = update
        draws.append(gradient_of(model))
    estimates = th.stack(draws)
    standard_error = estimates.std(dim=0) / np.sqrt(len(estimates))
    assert float(standard_error.norm()) < 0.2 * float(full.norm())
    # About a hundred and fifty parameters: four and a half standard errors are out of reach for all of them.
    assert bool(((estimates.mean(dim=0) - full).abs() <= 4.5 * standard_error + 1e-7).all())


def test_a_batch_of_all_is_the_full_gradient():
    np.testing.assert_allclose(gradient_of(build(query_batch_size=10_000)), gradient_of(build()), rtol=1e-5, atol=1e-8)


def test_processes_share_a_batch_as_they_share_the_queries():
    problem = engine_problem(random_problem(n=10, n_initial=3))
    whole = draw_queries(problem, 6, (0, 3)).chosen.tolist()
    shares = []
    for half in (slice(0, 5), slice(5, 13)):
        part = SimpleNamespace(n_queries=13, own_queries=lambda x, half=half: x[half], rewards=problem.rewards)
        shares += [number + half.start for number in draw_queries(part, 6, (0, 3)).chosen.tolist()]  # type: ignore[arg-type]
    assert shares == whole


@pytest.mark.slow
def test_the_same_seed_draws_the_same_batches_and_a_resumed_run_goes_on_with_them(tmp_path):
    whole = build(query_batch_size=8).learn(12)
    first = build(query_batch_size=8).learn(5)
    first.save_checkpoint(tmp_path / "run.ckpt")
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset=pushed_points())
    resumed.learn(7, reset_num_timesteps=False)
    other = build(query_batch_size=8, seed=1).learn(12)
    for mine, theirs, different in zip(*(model.policy.parameters() for model in (whole, resumed, other)), strict=True):
        assert th.equal(mine, theirs)
        assert not th.equal(mine, different)


@pytest.mark.slow
def test_learning_from_batches_improves_the_policy():
    model = build(query_batch_size=10)
    before = model.estimated_return()
    assert model.learn(60).estimated_return() > before + 0.1 * abs(before)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_sizes(size):
    with pytest.raises(InputError, match="query_batch_size"):
        build(query_batch_size=size)
