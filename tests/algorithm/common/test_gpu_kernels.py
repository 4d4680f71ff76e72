"""
The GPU's kernels on the CPU, by Triton's interpreter: slow, and the same arithmetic. ``nopg/test_cuda.py`` has them on a GPU.

The interpreter is chosen when Triton is first imported, so that this file runs them in a process of its own.
"""

import importlib.util

import pytest

from helpers.triton_interpreter import interpret

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton for this system")


@pytest.mark.slow
def test_kernels_are_their_twins():
    ran = interpret("""
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
        ours = fused.action_derivative(twin, indices, values, neighbors)
        agree(ours, action_derivative(twin, values[indices][:, None, :], neighbors))
n = 41
for k in (1, 50, 64, 1500):
    columns = th.randint(0, n, (n, k), generator=generator)
    values, x = draw(n, k, dtype=th.float32).abs() / k, draw(n, dtype=th.float32)
    agree(fused.bellman_rows(values, columns.int(), x, 0.99), x - 0.99 * (values * x[columns]).sum(dim=1))
print("all agree")
""")
    assert "all agree" in ran.stdout, ran.stderr
