"""What must be set before anything else is imported."""

import os

# Before NumPy is imported, and for all programs that tests start: threads that wait for a core which another test has taken
# make tests that run side by side several times as slow.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch as th

th.set_num_threads(1)
# Helpers show values where they fail, as tests do.
pytest.register_assert_rewrite("helpers")
