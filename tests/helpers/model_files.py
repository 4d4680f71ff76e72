"""Small models, and their files with something else in them."""

import json
import pathlib
import zipfile

from helpers.datasets import make_dataset
from sb3_nopg import NOPG
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy

# Quick: nothing is fitted or chosen.
QUICK = {"transitions": "samples", "estimator_kwargs": {"state_bandwidth": 1.0, "action_bandwidth": 1.0}}


class MyPolicy(DeterministicMlpPolicy):
    """Of the user's own: only a pickle tells which class it is."""


def small(algorithm=NOPG, policy="MlpPolicy", **settings):
    data = make_dataset(n=40)
    model = algorithm(policy, None, dataset=data, initial_states=data.observations[:3], seed=0, device="cpu", **settings)
    return model.learn(2)


def with_settings(path: pathlib.Path, target: pathlib.Path, **settings) -> pathlib.Path:
    """The same model with other settings in its file."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            if member.filename == "data":
                content = json.dumps({**json.loads(content), **settings}).encode()
            new.writestr(member, content)
    return target
