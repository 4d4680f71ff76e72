"""The same answers on a GPU. These tests need one: they run where torch sees CUDA, and are reported as skipped elsewhere."""

import dataclasses
import socket

import numpy as np
import pytest
import torch as th
import torch.distributed as dist

import sb3_nopg.bellman.preparation
from helpers.bellman_problems import TinyPolicy, engine_problem, evaluate, random_problem
from helpers.models import make_nopg
from helpers.oracles import OracleProblem
from sb3_nopg import AS_IN_THE_PAPER, NOPG, TransitionDataset
from sb3_nopg.bellman.gradient import derivative_on_samples
from sb3_nopg.bellman.problem import BellmanProblem, prepare_problem
from sb3_nopg.bellman.solvers import bicgstab, fused_bicgstab, solve
from sb3_nopg.bellman.solvers.bicgstab import PlainIteration, Vectors, iterate
from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.bellman.solvers.recording import RecordedIteration, Recordings
from sb3_nopg.bellman.transition import SharedTransitionMatrix, TransitionMatrix
from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.common.processes import Processes
from sb3_nopg.experiments.pendulum_trials import run_on_grid
from sb3_nopg.kernels.neighbors import _BlockedSearch, _KDTreeSearch, _search_for
from sb3_nopg.kernels.partition import halve_repeatedly, sum_members
from sb3_nopg.kernels.weights import action_covariance, log_action_kernel, responsibilities
from sb3_nopg.training.distributed import process_group

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
    np.testing.assert_allclose(
        derivative_on_samples(gpu, ours).cpu(), derivative_on_samples(cpu, expected), rtol=1e-6, atol=1e-10
    )


def data_of(n: int) -> TransitionDataset:
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(n, 2)), rng.uniform(-1, 1, (n, 1))
    return TransitionDataset(
        observations, actions, -(observations**2).sum(1), observations + 0.1 * actions, np.zeros(n, dtype=bool)
    )


@pytest.mark.parametrize("variant", ["D", "S"])
def test_learning_follows_the_cpus_path(variant):
    settings = {**AS_IN_THE_PAPER, "initial_states": [1.0, 1.0], "variant": variant, "seed": 0}
    models = [
        make_nopg("MlpPolicy", None, dataset=data_of(400), device=device, **settings).learn(20) for device in ("cpu", "cuda")
    ]
    probes = np.random.default_rng(1).normal(size=(50, 2))
    assert models[1].estimated_return() == pytest.approx(models[0].estimated_return(), rel=1e-4)
    np.testing.assert_allclose(*(model.predict(probes, deterministic=True)[0] for model in models), atol=1e-3)
    np.testing.assert_allclose(*(model.value(probes) for model in models), rtol=1e-3)


def test_rows_that_are_exchanged_by_nccl(monkeypatch):
    """One GPU has room for one process only, which here exchanges with itself whatever several would."""
    settings = {**AS_IN_THE_PAPER, "initial_states": [1.0, 1.0], "seed": 0, "device": "cuda", "solver_tolerance": 1e-10}
    alone = make_nopg("MlpPolicy", None, dataset=data_of(400), **settings).learn(20)
    expected = alone.estimated_return()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(Processes, "several", True)
    with process_group("cuda"):
        assert dist.get_backend() == "nccl"
        shared = make_nopg("MlpPolicy", None, dataset=data_of(400), distributed=True, **settings).learn(20)
        assert isinstance(shared.estimator.problem.transition, SharedTransitionMatrix)
        assert shared.estimated_return() == pytest.approx(expected, rel=1e-6)
    probes = np.random.default_rng(1).normal(size=(50, 2))
    np.testing.assert_allclose(*(model.predict(probes, deterministic=True)[0] for model in (alone, shared)), atol=1e-5)


def test_defaults_learn_as_much_as_on_the_cpu():
    """Value iteration chooses between actions that are worth nearly the same, so that paths part: returns must not."""
    models = [
        NOPG("MlpPolicy", None, dataset=data_of(400), initial_states=[1.0, 1.0], seed=0, device=device)
        for device in ("cpu", "cuda")
    ]
    before = models[0].estimated_return()
    after = [model.learn(20).estimated_return() for model in models]
    assert after[0] > before
    assert after[1] == pytest.approx(after[0], abs=0.02 * (after[0] - before))


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


@pytest.mark.parametrize("with_triton", [False, True])
@pytest.mark.parametrize("with_preconditioner", [False, True])
@pytest.mark.parametrize("dtype", [th.float32, th.float64])
def test_a_recorded_iteration_takes_the_plain_ones_steps(monkeypatch, dtype, with_preconditioner, with_triton):
    if not with_triton:
        monkeypatch.setattr(fused, "usable", lambda *_: False)
    n = 2_000
    generator = th.Generator().manual_seed(0)
    matrix = th.eye(n) - 0.9 * th.softmax(3.0 * th.randn(n, n, generator=generator), dim=1)
    matrix, rhs = matrix.to("cuda", dtype), th.randn(n, generator=generator).to("cuda", dtype)
    diagonal = matrix.diagonal().clone()
    preconditioner = (lambda x: x / diagonal) if with_preconditioner else None
    operator = matrix.mv
    recorded = Recordings().iteration("rows", operator, preconditioner, (), rhs)
    assert isinstance(recorded, RecordedIteration)
    plain = PlainIteration(operator, preconditioner)
    # Twice, so that the second start has to overwrite what the first one left.
    for start in (rhs, 2.0 * rhs.flip(0)):
        for iteration in (plain, recorded):
            iteration.begin(th.zeros_like(start), start)
        for _ in range(4):
            np.testing.assert_allclose(recorded.step(), plain.step(), rtol=1e-3 if dtype == th.float32 else 1e-9)
        np.testing.assert_allclose(recorded.value.cpu(), plain.value.cpu(), rtol=1e-3, atol=1e-5)


def test_a_recording_lasts_as_long_as_its_preconditioner():
    rhs, recordings = th.ones(100, dtype=th.float64, device="cuda"), Recordings()
    first = recordings.iteration("rows", lambda x: 2.0 * x, None, (None,), rhs)
    assert recordings.iteration("rows", lambda x: 2.0 * x, None, (None,), rhs) is first
    scale = 0.5 * th.ones(100, dtype=th.float64, device="cuda")
    assert recordings.iteration("rows", lambda x: 2.0 * x, lambda x: scale * x, (scale,), rhs) is not first


def test_what_cannot_be_recorded_runs_step_by_step(caplog):
    rhs, recordings = th.ones(100, dtype=th.float64, device="cuda"), Recordings()
    # A number that is brought to the processor breaks a recording off.
    assert recordings.iteration("rows", lambda x: float(x[0]) * x, None, (), rhs) is None
    assert "could not be recorded" in caplog.text
    assert float(th.ones(3, device="cuda").sum()) == 3.0


def test_training_in_order_and_recorded_gives_the_cpus_answers(monkeypatch):
    """The whole path of large data: samples in order, float32 first, recorded iterations."""
    monkeypatch.setattr(sb3_nopg.bellman.preparation, "_WORTH_ORDERING", 0)
    data = data_of(20_000)
    settings = {"initial_states": [1.0, 1.0], "seed": 0, "n_neighbors": 64, "gamma": 0.97, "transitions": "samples"}
    models = [make_nopg("MlpPolicy", None, dataset=data, device=device, **settings).learn(5) for device in ("cpu", "cuda")]
    assert models[1].estimator.problem.transition.in_single_precision
    for name in ("q_values", "visitation"):
        ours, expected = (getattr(model, name) for model in models[::-1])
        assert np.linalg.norm(ours - expected) <= 1e-3 * np.linalg.norm(expected)
    expected, ours = (model.policy_gradient() for model in models)
    assert np.linalg.norm(ours - expected) <= 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("pessimism", [0.0, 1e-3])
@pytest.mark.parametrize(("m", "n_actions", "d_a", "k"), [(1, 1, 1, 1), (1000, 1, 1, 64), (333, 3, 2, 50), (70, 2, 1, 1500)])
def test_fused_weights_and_derivative_are_their_twins(dtype, pessimism, m, n_actions, d_a, k):
    generator = th.Generator().manual_seed(0)

    def draw(*shape: int) -> th.Tensor:
        return th.randn(*shape, generator=generator, dtype=th.float64).to("cuda", dtype)

    log_state_kernel, neighbor_actions, actions = -draw(m, k).square(), draw(d_a, m, k), draw(m, n_actions, d_a)
    # A query that is far from everything, but not so far that float32 rounds its logarithms to the third decimal.
    log_state_kernel[0] -= 1e4 if dtype == th.float64 else 1e3
    assert fused.usable(actions, k)
    weights = fused.kernel_weights(log_state_kernel, neighbor_actions, actions, pessimism)
    expected = responsibilities(log_state_kernel, log_action_kernel(actions, neighbor_actions), pessimism)
    precise = dtype == th.float64
    np.testing.assert_allclose(weights.cpu(), expected.cpu(), rtol=1e-11 if precise else 1e-3, atol=1e-14 if precise else 1e-6)

    indices, values = th.randint(0, 40, (m, k), generator=generator).cuda(), 1e3 + draw(40)
    ours = fused.action_covariance(expected, indices, values, neighbor_actions)
    twin = action_covariance(expected, values[indices][:, None, :], neighbor_actions)
    np.testing.assert_allclose(ours.cpu(), twin.cpu(), rtol=1e-9 if precise else 1e-2, atol=1e-11 if precise else 1e-3)


@pytest.mark.parametrize("k", [1, 50, 64, 1500])
def test_fused_product_is_its_twin(k):
    n = 3_001
    generator = th.Generator().manual_seed(0)
    columns = th.randint(0, n, (n, k), generator=generator)
    values, x = th.rand(n, k, generator=generator) / k, th.randn(n, generator=generator)
    expected = x - 0.99 * (values * x[columns]).sum(dim=1)
    ours = fused.bellman_rows(values.cuda(), columns.int().cuda(), x.cuda(), 0.99)
    np.testing.assert_allclose(ours.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize(("n", "n_levels"), [(1, 0), (3, 1), (4_097, 0), (10_000, 6), (100_003, 9)])
def test_fused_cells_are_their_twins(dtype, n, n_levels):
    generator = th.Generator("cuda").manual_seed(0)
    partition = halve_repeatedly(th.randn(n, 2, generator=generator, device="cuda"), n_levels)
    members, is_member = partition.table()
    x, by_cell = (th.randn(size, generator=generator, dtype=dtype, device="cuda") for size in (n, 2**n_levels))
    ours, twin = fused.sum_members(x, members.int(), is_member), sum_members(x, members, is_member)
    precise = dtype == th.float64
    np.testing.assert_allclose(ours.cpu(), twin.cpu(), rtol=1e-10 if precise else 1e-3, atol=1e-10 if precise else 1e-3)
    assert th.equal(fused.add_by_cell(x, by_cell, partition.labels.int()), x + by_cell[partition.labels])


def local_system(n: int, dtype: th.dtype) -> tuple[TransitionMatrix, CoarseModel, th.Tensor]:
    """A chain with drift on the GPU, its coarse model, and a right-hand side."""
    generator, k = th.Generator().manual_seed(0), min(16, n)
    columns = (th.arange(n)[:, None] + th.randint(-2, 40, (n, k), generator=generator)) % n
    transition = TransitionMatrix(columns.cuda(), n, dtype, th.device("cuda"))
    transition.fill(th.softmax(th.randn(n, k, generator=generator), dim=1).to("cuda", dtype))
    rhs = th.randn(n, generator=generator).to("cuda", dtype)
    coarse = CoarseModel(th.arange(n, dtype=dtype, device="cuda")[:, None])
    coarse.build(transition, 0.99, rhs)
    return transition, coarse, rhs


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("n", [3, 1_000, 50_001])
def test_the_fused_preconditioner_is_its_twin(monkeypatch, dtype, n):
    _, coarse, x = local_system(n, dtype)
    ours = coarse.precondition(x), coarse.precondition_transposed(x)
    monkeypatch.setattr(fused, "usable", lambda *_: False)
    twins = coarse.precondition(x), coarse.precondition_transposed(x)
    # In float32 the coarse matrix is kept with two or three digits only.
    for one, twin in zip(ours, twins, strict=True):
        assert float((one - twin).norm() / twin.norm()) <= (1e-12 if dtype == th.float64 else 1e-2)


def test_a_fused_product_with_a_rough_matrix_is_its_twin():
    generator = th.Generator("cuda").manual_seed(0)
    for m, n in ((1, 1), (13, 700), (4096, 4096)):
        matrix = th.randn(m, n, generator=generator, device="cuda").bfloat16()
        x = th.randn(n, generator=generator, device="cuda")
        twin = matrix.double() @ x.double()
        assert float((fused.multiply(matrix, x) - twin).norm() / twin.norm()) <= 1e-5


@pytest.mark.parametrize("with_preconditioner", [False, True])
@pytest.mark.parametrize("dtype", [th.float32, th.float64])
# More than a million entries: a program then takes more than one block of them.
@pytest.mark.parametrize(("n", "n_steps"), [(3, 2), (1_000, 5), (4_097, 5), (1_200_000, 5)])
def test_a_fused_iteration_is_its_twin(n, n_steps, dtype, with_preconditioner):
    transition, coarse, rhs = local_system(n, dtype)
    preconditioner = coarse.precondition if with_preconditioner else None

    def operator(x: th.Tensor) -> th.Tensor:
        return transition.bellman_operator(x, 0.99)

    def fused_step() -> tuple[th.Tensor, list[th.Tensor]]:
        # From where the twin is: rounding errors grow from one iteration to the next.
        vectors = Vectors(*(vector.clone() for vector in (plain.value, plain.residual, plain.shadow, plain.direction)))
        numbers = fused_bicgstab.Numbers(rhs)
        numbers.told[-1] = rho
        fused_bicgstab.iterate(operator, preconditioner, vectors, numbers)
        return numbers.told, [vectors.value, vectors.residual, vectors.direction]

    plain, rho = Vectors(th.zeros_like(rhs), *(rhs.clone() for _ in range(3))), th.dot(rhs, rhs)
    bound = 1e-9 if dtype == th.float64 else 1e-2
    for _ in range(n_steps):
        (numbers, ours), (same_numbers, same) = fused_step(), fused_step()
        rho, *expected = iterate(operator, preconditioner, plain, rho)
        for one, twin, again in zip(ours, (plain.value, plain.residual, plain.direction), same, strict=True):
            assert float((one - twin).norm()) <= bound * float(twin.norm())
            assert th.equal(one, again)
        np.testing.assert_allclose(numbers[:3].cpu(), th.stack(expected).cpu(), rtol=bound)
        assert abs(float(numbers[3]) - float(rho)) <= bound * float(rhs.norm()) * float(numbers[0])
        assert th.equal(numbers, same_numbers)


@pytest.mark.parametrize("n", [1, 1_000])
def test_a_fused_breakdown_gives_zeros(n):
    rhs = th.ones(n, device="cuda")
    for operator in (th.zeros_like, lambda x: 2.0 * x):
        recorded = Recordings().iteration("rows", operator, None, (), rhs)
        assert isinstance(recorded, RecordedIteration)
        recorded.begin(th.zeros_like(rhs), rhs)
        for _ in range(2):
            numbers = recorded.step()
            assert 0.0 in numbers
            assert all(np.isfinite(numbers))
    np.testing.assert_array_equal(recorded.value.cpu(), 0.5)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_whole_solve_by_fused_iterations(transposed):
    transition, coarse, rhs = local_system(50_001, th.float64)
    product = transition.bellman_operator_transposed if transposed else transition.bellman_operator
    preconditioner = coarse.precondition_transposed if transposed else coarse.precondition

    def operator(x: th.Tensor) -> th.Tensor:
        return product(x, 0.99)

    recorded = Recordings().iteration("system", operator, preconditioner, (), rhs)
    assert isinstance(recorded, RecordedIteration)
    assert recorded._fused is not None
    expected = bicgstab(operator, rhs, preconditioner, None, 1e-10, 500)
    ours = bicgstab(operator, rhs, preconditioner, None, 1e-10, 500, recorded)
    assert max(ours.residual, expected.residual) <= 1e-10
    assert abs(ours.n_iterations - expected.n_iterations) <= 0.2 * expected.n_iterations + 2
    assert float((ours.value - expected.value).norm() / expected.value.norm()) <= 1e-6


@pytest.mark.parametrize("method", ["NOPG-D, defaults", "NOPG-S, paper", "KBRL"])
def test_a_trial_of_an_experiment(method):
    trial = {"method": method, "levels": [5, 5, 2], "seed": 0, "updates": 2}
    cpu, gpu = (run_on_grid({**trial, "device": device})["estimated_return"] for device in ("cpu", "cuda"))
    assert gpu == pytest.approx(cpu, rel=1e-2)
