"""
Offline algorithms of d3rlpy, which pins an old gymnasium and therefore runs in a virtual environment of its own.

    make_environment("d3rlpy-env", progress=print)
    policy = train("d3rlpy-env", dataset, "iql", gamma=0.97, n_steps=20_000)
    policy.predict(observation)
"""

from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import D3rlpyError, make_environment
from sb3_nopg.experiments.baselines.d3rlpy_runner.training import ALGORITHMS, NumpyPolicy, train

__all__ = ["ALGORITHMS", "D3rlpyError", "NumpyPolicy", "make_environment", "train"]
