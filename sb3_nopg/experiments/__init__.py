"""Experiments of the paper, run in parallel, resumed after an interruption, with the paper's numbers beside ours."""

import importlib

from sb3_nopg.common.errors import InputError
from sb3_nopg.experiments.experiment import Experiment, Result, Trial

__all__ = ["EXPERIMENTS", "Experiment", "Result", "Trial", "load_experiment"]

_HERE = "sb3_nopg.experiments"
# In the order of the paper, and what it does not have beside its kin. A module is imported when its experiment is asked for,
# and calls it EXPERIMENT.
EXPERIMENTS = {
    "lqr-gradient": f"{_HERE}.lqr_gradient",
    "pendulum-grid": f"{_HERE}.pendulum_grid",
    "pendulum-random": f"{_HERE}.pendulum_random",
    "cartpole-random": f"{_HERE}.cartpole_random",
    "cartpole-swing-up": f"{_HERE}.cartpole_swing_up",
    "portraits": f"{_HERE}.portraits",
    "mountain-car": f"{_HERE}.mountain_car",
    "applicability": f"{_HERE}.applicability",
    "theory": f"{_HERE}.theory_bounds",
    "real-recordings": f"{_HERE}.real_recordings",
}


def load_experiment(name: str) -> Experiment:
    """
    :param name: a key of :data:`EXPERIMENTS`
    :return: the experiment, its module imported now
    """
    if name not in EXPERIMENTS:
        raise InputError("NAME", f"{name!r} is no experiment", f"Give one of {', '.join(EXPERIMENTS)}")
    experiment: Experiment = importlib.import_module(EXPERIMENTS[name]).EXPERIMENT
    return experiment
