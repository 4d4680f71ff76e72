"""The same answers on a GPU. These tests need one: they run where torch sees CUDA, and are reported as skipped elsewhere."""

import dataclasses

import numpy as np
import pytest
import torch as th

from conftest import TinyPolicy, engine_problem, evaluate, random_problem
from oracles import OracleProblem
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.bellman import BellmanProblem, prepare_problem, return_derivative

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
