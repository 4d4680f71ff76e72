"""The same answers on a GPU. These tests need one: they run where torch sees CUDA, and are reported as skipped elsewhere."""

import dataclasses

import numpy as np
import pytest
import torch as th

from conftest import TinyPolicy, engine_problem, evaluate, random_problem
from oracles import OracleProblem
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman import BellmanProblem, prepare_problem, return_derivative
from sb3_nopg.neighbors import _BlockedSearch, _KDTreeSearch, _search_for
from sb3_nopg.solvers import solve
from sb3_nopg.transition import TransitionMatrix

pytestmark = pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")


def on_gpu(problem: BellmanProblem, oracle: OracleProblem) -> BellmanProblem:
    support = dataclasses.replace(
        problem.support,
        **{
            name: getattr(problem.support, name).cuda()
            for name in ("observations", "actions", "state_bandwidth", "action_bandwidth")
        },
    )
    return prepare_problem(
        support,
        problem.rewards.cuda(),
        th.as_tensor(oracle.next_states).cuda(),
        th.as_tensor(oracle.terminals).cuda(),
        th.as_tensor(oracle.initial_states).cuda(),
        problem.gamma,
        support.state_bandwidth,
    )


@pytest.mark.parametrize("n_neighbors", [None, 20, "auto"])
def test_engine_gives_the_cpus_answers(n_neighbors):
    oracle = random_problem(n=300, d_a=2)
    cpu = engine_problem(oracle, n_neighbors=n_neighbors)
    gpu = on_gpu(cpu, oracle)
    policy = TinyPolicy(2, 2, stochastic=False)
    with th.no_grad():
        actions = policy.sample(cpu.queries.states, None)
    expected, ours = evaluate(cpu, actions, tolerance=1e-12), evaluate(gpu, actions.cuda(), tolerance=1e-12)
    assert ours.q_values.is_cuda
    np.testing.assert_allclose(ours.q_values.cpu(), expected.q_values, rtol=1e-8)
    np.testing.assert_allclose(ours.visitation.cpu(), expected.visitation, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(return_derivative(gpu, ours).cpu(), return_derivative(cpu, expected), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("variant", ["D", "S"])
def test_learning_follows_the_cpus_path(variant):
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(400, 2)), rng.uniform(-1, 1, (400, 1))
    data = TransitionDataset(
        observations, actions, -(observations**2).sum(1), observations + 0.1 * actions, np.zeros(400, dtype=bool)
    )
    models = [
        NOPG("MlpPolicy", None, dataset=data, initial_states=[1.0, 1.0], variant=variant, seed=0, device=device).learn(20)
        for device in ("cpu", "cuda")
    ]
    probes = rng.normal(size=(50, 2))
    assert models[1].estimated_return() == pytest.approx(models[0].estimated_return(), rel=1e-4)
    np.testing.assert_allclose(*(model.predict(probes, deterministic=True)[0] for model in models), atol=1e-3)
    np.testing.assert_allclose(*(model.value(probes) for model in models), rtol=1e-3)


@pytest.mark.parametrize("count", [1, 64])
def test_large_searches_find_what_a_tree_finds(count):
    generator = th.Generator().manual_seed(0)
    queries, samples = (th.randn(size, 3, generator=generator, dtype=th.float64) for size in (9_000, 11_000))
    search = _search_for(queries.cuda(), samples.cuda())
    assert isinstance(search, _BlockedSearch)
    for ours, expected in zip(search(count), _KDTreeSearch(queries, samples)(count), strict=True):
        np.testing.assert_allclose(ours.cpu(), expected, rtol=1e-12)


def test_large_systems_are_solved_in_single_precision_first():
    n, k = 20_000, 64
    generator = th.Generator().manual_seed(0)
    indices = th.randint(0, n, (n, k), generator=generator).cuda()
    transition = TransitionMatrix(indices, n, th.float64, indices.device)
    transition.fill(th.softmax(th.randn(n, k, generator=generator, dtype=th.float64), dim=1).cuda())
    rhs = th.randn(n, generator=generator, dtype=th.float64).cuda()
    assert transition.in_single_precision
    solution = solve(
        lambda x: transition.bellman_operator(x, 0.99),
        rhs,
        lambda: transition.dense_bellman_operator(0.99),
        tolerance=1e-9,
        in_single_precision=True,
    )
    assert "float32" in solution.method
    residual = rhs - (solution.value - 0.99 * transition.to_dense() @ solution.value)
    assert float(residual.norm() / rhs.norm()) <= 1e-9
