"""Nonparametric off-policy policy gradient for Stable-Baselines3: from a small, fixed data set to a controller."""

from sb3_nopg.bellman.settings import SampleSettings
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.data.buffer import FixedReplayBuffer
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.mirror_images import add_mirror_images
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.quality import model_errors
from sb3_nopg.nopg import NOPG, NOPGD, NOPGS
from sb3_nopg.paper import AS_IN_THE_PAPER
from sb3_nopg.policies.export import ExportError, export
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.bias_bounds import bias_bound_regression, bias_bound_value
from sb3_nopg.prediction.following import follow
from sb3_nopg.prediction.judge import Judgement, judge

__version__ = "0.2.0"

__all__ = [
    "AS_IN_THE_PAPER",
    "NOPG",
    "NOPGD",
    "NOPGS",
    "DynamicsModel",
    "ExportError",
    "FixedReplayBuffer",
    "InputError",
    "Judgement",
    "NOPGPolicy",
    "SampleSettings",
    "SolverError",
    "TransitionDataset",
    "add_mirror_images",
    "bias_bound_regression",
    "bias_bound_value",
    "export",
    "follow",
    "judge",
    "model_errors",
]
