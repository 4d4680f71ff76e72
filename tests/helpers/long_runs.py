"""Runs that are interrupted or shared, for tests that run them in processes of their own."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.training.callbacks import NOPGCheckpointCallback


def pushed_point(n: int = 80, seed: int = 0) -> TransitionDataset:
    """A point in the plane that is pushed about, and ends now and then."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, (n, 1))
    terminals = np.arange(n) % 50 == 49
    return TransitionDataset(states, actions, -np.square(states).sum(1), states + 0.2 * actions, terminals)


def build(data: TransitionDataset, **arguments: Any) -> NOPG:
    """A small model that does not search for its bandwidths."""
    given = {
        "gamma": 0.99,
        "state_bandwidth": 0.25,
        "action_bandwidth": 0.5,
        "next_state_bandwidth": 0.1,
        "initial_states": [[0.5, 0.5], [-0.5, 0.2], [0.1, 0.9]],
        "policy_kwargs": {"net_arch": [16]},
        "seed": 3,
        "device": "cpu",
        "transitions": "samples",
        "weights": "local_constant",
        "pessimism": 0.0,
    }
    return make_nopg("MlpPolicy", None, dataset=data, **{**given, **arguments})


class KillAt(BaseCallback):
    """Ends the program at an update, without a chance to tidy up."""

    def __init__(self, update: int):
        super().__init__()
        self.update = update

    def _on_step(self) -> bool:
        if self.num_timesteps == self.update:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def learn_until_killed(path: Path, update: int, total: int) -> None:
    """
    :param path: of the checkpoint
    :param update: at which to be killed
    :param total: updates that were wanted
    """
    callbacks = [NOPGCheckpointCallback(path, interval=10), KillAt(update)]
    build(pushed_point(), variant="S", n_action_samples=4, resample_interval=7).learn(total, callback=callbacks)
