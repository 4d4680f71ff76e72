"""What the tests of reports share: the command line, small models, and what is in a page."""

import base64
import io
import re

import numpy as np
from matplotlib.image import imread

from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.report.making import PolicyReport, make_report


def line_data(n_episodes: int = 6, seed: int = 0) -> TransitionDataset:
    """A point that is pushed along a line, ten steps an episode."""
    rng, n = np.random.default_rng(seed), 10 * n_episodes
    position, force = rng.uniform(-1, 1, (n, 1)), rng.uniform(-1, 1, (n, 1))
    return TransitionDataset(
        observations=position,
        actions=force,
        rewards=-(position[:, 0] ** 2),
        next_observations=position + 0.1 * force,
        terminals=np.zeros(n, dtype=bool),
        episode_ids=np.repeat(np.arange(n_episodes), 10),
    )


def plane_data(seed: int = 0, n: int = 400, **more) -> TransitionDataset:
    """States that stay where they are; the reward is high to the right and at the bottom."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-1, 1, (n, 2))
    rewards = states[:, 0] - states[:, 1]
    return TransitionDataset(states, rng.uniform(-1, 1, (n, 1)), rewards, states, np.zeros(n, dtype=bool), **more)


def plane_model(**settings) -> NOPG:
    """On samples: actions change nothing in a plane, and a model of the system would know."""
    given = {
        "transitions": "samples",
        "gamma": 0.9,
        "initial_states": [[0.8, -0.8]],
        "state_bandwidth": 0.1,
        "action_bandwidth": 1.0,
        "device": "cpu",
    }
    return make_nopg("MlpPolicy", None, **{"dataset": plane_data(), **given, **settings})


def quick_report(model: NOPG, **settings) -> PolicyReport:
    """For tests that are not about trajectories, which take some seconds."""
    return make_report(model, trajectories=False, **settings)


def pictures(page: str) -> list[np.ndarray]:
    """Pixels of every picture of a page, (height, width, 4)."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [imread(io.BytesIO(base64.b64decode(text)), format="png") for text in found]


def section(page: str, name: str) -> str:
    (text,) = re.findall(rf'<section id="{name}">(.*?)</section>', page, flags=re.DOTALL)
    return text
