"""
What NOPG is compared with: the paper's baselines, and what a user would pick today.

Each learns from a :class:`sb3_nopg.TransitionDataset` and has SB3's ``predict``. d3rlpy's algorithms are in
:mod:`sb3_nopg.experiments.baselines.d3rlpy_runner`, because they run in a virtual environment of their own.
"""

from sb3_nopg.experiments.baselines.behavior import (
    BehaviorPolicy,
    linear_gaussian_behavior,
    mixture_behavior,
    uniform_behavior,
)
from sb3_nopg.experiments.baselines.evaluation import BestEvaluation, Evaluation
from sb3_nopg.experiments.baselines.kernel_value_iteration import KernelValueIteration
from sb3_nopg.experiments.baselines.offline_dpg import OfflineDPG, QuadraticCritic
from sb3_nopg.experiments.baselines.paper import PAPER_SETTINGS
from sb3_nopg.experiments.baselines.pwis import PWIS, PWISEstimate
from sb3_nopg.experiments.baselines.trajectories import episode_returns
from sb3_nopg.training.fixed_data_ddpg import FixedDataDDPG, FixedDataTD3, offline_ddpg, online_ddpg

__all__ = [
    "PAPER_SETTINGS",
    "PWIS",
    "BehaviorPolicy",
    "BestEvaluation",
    "Evaluation",
    "FixedDataDDPG",
    "FixedDataTD3",
    "KernelValueIteration",
    "OfflineDPG",
    "PWISEstimate",
    "QuadraticCritic",
    "episode_returns",
    "linear_gaussian_behavior",
    "mixture_behavior",
    "offline_ddpg",
    "online_ddpg",
    "uniform_behavior",
]
