"""Programs that run the GPU's kernels on the CPU."""

import os
import subprocess
import sys

COMMON = """
import torch as th
from sb3_nopg.common import gpu_kernels as fused
from sb3_nopg.kernels.weights import action_covariance, log_action_kernel, responsibilities
generator = th.Generator().manual_seed(0)
def draw(*shape, dtype=th.float64):
    return th.randn(*shape, generator=generator, dtype=th.float64).to(dtype)
def agree(ours, twin):
    precise = ours.dtype == th.float64
    th.testing.assert_close(ours, twin, rtol=1e-9 if precise else 1e-3, atol=1e-12 if precise else 1e-4)
"""


def interpret(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", COMMON + program], env=environment, capture_output=True, text=True, check=False
    )
