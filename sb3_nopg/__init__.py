"""Nonparametric off-policy policy gradient for Stable-Baselines3: from a small, fixed data set to a controller."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_nopg.bellman.settings import SampleSettings
    from sb3_nopg.common.errors import ExportError, InputError, SolverError
    from sb3_nopg.data.buffer import FixedReplayBuffer
    from sb3_nopg.data.dataset import TransitionDataset
    from sb3_nopg.data.mirror_images import add_mirror_images
    from sb3_nopg.data.quantities import Quantities
    from sb3_nopg.dynamics.model import DynamicsModel
    from sb3_nopg.dynamics.quality import model_errors
    from sb3_nopg.nopg import NOPG, NOPGD, NOPGS
    from sb3_nopg.paper import AS_IN_THE_PAPER
    from sb3_nopg.policies.export import export
    from sb3_nopg.policies.nopg_policy import NOPGPolicy
    from sb3_nopg.prediction.bias_bounds import bias_bound_regression, bias_bound_value
    from sb3_nopg.prediction.following import follow
    from sb3_nopg.prediction.judge import judge
    from sb3_nopg.prediction.judgement import Judgement

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
    "Quantities",
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

_MODULES = {
    "AS_IN_THE_PAPER": "paper",
    "NOPG": "nopg",
    "NOPGD": "nopg",
    "NOPGS": "nopg",
    "DynamicsModel": "dynamics.model",
    "ExportError": "common.errors",
    "FixedReplayBuffer": "data.buffer",
    "InputError": "common.errors",
    "Judgement": "prediction.judgement",
    "NOPGPolicy": "policies.nopg_policy",
    "Quantities": "data.quantities",
    "SampleSettings": "bellman.settings",
    "SolverError": "common.errors",
    "TransitionDataset": "data.dataset",
    "add_mirror_images": "data.mirror_images",
    "bias_bound_regression": "prediction.bias_bounds",
    "bias_bound_value": "prediction.bias_bounds",
    "export": "policies.export",
    "follow": "prediction.following",
    "judge": "prediction.judge",
    "model_errors": "dynamics.quality",
}


# Packages that one can reach by their name, as if they had been imported.
_ROOMS = ("bellman", "common", "data", "dynamics", "kernels", "policies", "prediction", "report", "training")


def __getattr__(name: str) -> Any:
    """A name is imported when it is asked for: torch and Stable-Baselines3 take seconds, and ``nopg --help`` needs neither."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
