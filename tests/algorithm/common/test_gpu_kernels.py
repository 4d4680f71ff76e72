"""
The GPU's kernels on the CPU, by Triton's interpreter: slow, and the same arithmetic. ``nopg/test_cuda.py`` has them on a GPU.

The interpreter is chosen when Triton is first imported, so that this file runs them in a process of its own.
"""

import importlib.util

import pytest

from helpers.triton_interpreter import interpret

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton for this system")

WEIGHTS = """
for dtype in (th.float32, th.float64):
    for (m, n_actions, d_a, k), pessimism in (
        ((1, 1, 1, 1), 0.0), ((20, 1, 1, 64), 0.0), ((20, 1, 1, 64), 1e-3), ((13, 3, 2, 50), 1e-3), ((2, 2, 1, 1500), 0.0)
    ):
        shapes = (m, k), (d_a, m, k), (m, n_actions, d_a)
        kernel, neighbors, actions = (draw(*shape, dtype=dtype) for shape in shapes)
        kernel = -kernel.square()
        kernel[0] -= 100.0  # a query that is far from everything
        weights = fused.kernel_weights(kernel, neighbors, actions, pessimism)
        twin = responsibilities(kernel, log_action_kernel(actions, neighbors), pessimism)
        agree(weights, twin)
        indices, values = th.randint(0, 40, (m, k), generator=generator), 1e3 + draw(40, dtype=dtype)
        ours = fused.action_covariance(twin, indices, values, neighbors)
        agree(ours, action_covariance(twin, values[indices][:, None, :], neighbors))
n = 41
for k in (1, 50, 64, 1500):
    columns = th.randint(0, n, (n, k), generator=generator)
    values, x = draw(n, k, dtype=th.float32).abs() / k, draw(n, dtype=th.float32)
    agree(fused.bellman_rows(values, columns.int(), x, 0.99), x - 0.99 * (values * x[columns]).sum(dim=1))
print("all weights agree")
"""
ITERATIONS = """
from sb3_nopg.bellman.solvers import fused_bicgstab
from sb3_nopg.bellman.solvers.bicgstab import PlainIteration, Vectors
class FusedIteration:
    def __init__(self, operator, preconditioner):
        self.maps = operator, preconditioner
    def begin(self, value, residual):
        self._vectors = Vectors(value.clone(), *(residual.clone() for _ in range(3)))
        self.numbers = fused_bicgstab.Numbers(residual)
        self.numbers.told[-1] = residual @ residual
    is_dear_to_read = False
    def step(self, n_times=1):
        for _ in range(n_times):
            fused_bicgstab.iterate(*self.maps, self._vectors, self.numbers)
        return self.numbers.told.tolist()
    @property
    def value(self):
        return self._vectors.value
def agree_throughout(operator, preconditioner, value, residual, n_steps):
    plain, ours = (kind(operator, preconditioner) for kind in (PlainIteration, FusedIteration))
    for iteration in (plain, ours):
        iteration.begin(value, residual)
    for _ in range(n_steps):
        expected, told = plain.step(), ours.step()
        agree(th.tensor(told).to(value), th.tensor(expected).to(value))
        for name in ("value", "residual", "direction"):
            twin = getattr(plain._vectors, name)
            error, bound = (getattr(ours._vectors, name) - twin).norm(), 1e-3 if twin.dtype == th.float32 else 1e-10
            assert error <= bound * twin.norm(), (name, len(twin), error / twin.norm())
    return told
"""
# With few parts each program takes several blocks, as it does on a GPU with more than a million samples.
SIZES = """
def shifted(x):
    return x - 0.5 * x.roll(1) + 0.1 * x.roll(-3)
def scaled(x):
    return x / th.linspace(1.0, 1.5, len(x), dtype=x.dtype)
for dtype in (th.float32, th.float64):
    for fused_bicgstab._PARTS, n, preconditioner in (
        (512, 3, None), (512, 1000, None), (512, 1000, scaled), (512, 4097, None), (2, 8_200, scaled)
    ):
        agree_throughout(shifted, preconditioner, draw(n, dtype=dtype), draw(n, dtype=dtype), 2)
    agree_throughout(lambda x: 2.0 * x, None, draw(1, dtype=dtype), draw(1, dtype=dtype), 1)
"""
BREAKDOWNS = """
x, one, zero = draw(10), th.ones(10).double(), th.zeros(10).double()
def turned(y):
    return th.cat([y[5:], -y[:5]])  # at a right angle to y, of which rounding leaves nothing for ones
for operator, residual in ((lambda y: 2.0 * y, x), (th.zeros_like, x), (turned, one), (lambda y: 2.0 * y, zero)):
    told = agree_throughout(operator, None, zero, residual, 2)
    assert 0.0 in told and all(number == number for number in told), told
print("all iterations agree")
"""
CELLS = """
from sb3_nopg.kernels.partition import halve_repeatedly, sum_members
for dtype in (th.float32, th.float64):
    for n, n_levels in ((1, 0), (3, 1), (1000, 4), (4097, 3), (4097, 0)):
        partition = halve_repeatedly(draw(n, 2), n_levels)
        members, is_member = partition.table()
        x, by_cell, cell = draw(n, dtype=dtype), draw(2**n_levels, dtype=dtype), partition.labels
        agree(fused.sum_members(x, members.int(), is_member), sum_members(x, members, is_member))
        agree(fused.add_by_cell(x, by_cell, cell.int()), x + by_cell[cell])
"""
DENSE = """
for m, n in ((1, 1), (3, 5), (8, 512), (13, 700)):
    for dtype, kept in ((th.float32, th.bfloat16), (th.float32, th.float32), (th.float64, th.float64)):
        matrix, x = draw(m, n, dtype=dtype).to(kept), draw(n, dtype=dtype)
        agree(fused.multiply(matrix, x), matrix.to(dtype) @ x)
"""
WHOLE_SOLVE = """
from sb3_nopg.bellman.solvers import bicgstab
from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.bellman.transition import TransitionMatrix
n, k, gamma = 600, 8, 0.95
columns = (th.arange(n)[:, None] + th.randint(0, 12, (n, k), generator=generator)) % n
transition = TransitionMatrix(columns, n, th.float64, columns.device)
transition.fill(th.softmax(draw(n, k), dim=1))
rhs, coarse = draw(n), CoarseModel(th.arange(n).double()[:, None])
coarse.build(transition, gamma, rhs)
for product, precondition in (
    (transition.bellman_operator, coarse.precondition),
    (transition.bellman_operator_transposed, coarse.precondition_transposed),
):
    operator = lambda x: product(x, gamma)
    expected = bicgstab(operator, rhs, precondition, None, 1e-10, 200)
    ours = bicgstab(operator, rhs, precondition, None, 1e-10, 200, FusedIteration(operator, precondition))
    assert max(expected.residual, ours.residual) <= 1e-10
    assert abs(ours.n_iterations - expected.n_iterations) <= 2
    th.testing.assert_close(ours.value, expected.value, rtol=1e-6, atol=1e-7)
print("all solves agree")
"""


@pytest.mark.slow
def test_kernels_are_their_twins_and_a_whole_solve_takes_as_many_iterations():
    # One process, which imports everything once.
    ran = interpret(WEIGHTS + CELLS + DENSE + ITERATIONS + SIZES + BREAKDOWNS + WHOLE_SOLVE)
    for done in ("all weights agree", "all iterations agree", "all solves agree"):
        assert done in ran.stdout, ran.stderr
