"""Whether somebody was in control while data were recorded."""

import numpy as np
import scipy

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import units_of_each

# Episodes that are held against all others, and steps of these, evenly thinned where there are more.
_MOST_EPISODES_COMPARED, _MOST_OTHERS = 20, 50_000
# An action that varies less, as a share of its size, does not vary.
_ROUNDING = 1e-9


def share_under_control(dataset: TransitionDataset, points: np.ndarray, *, first_ones: bool = False) -> float:
    """
    How much of the recorded actions follows from the states, from 0 for random ones to 1: what is explained of them by what
    was done in other episodes at the states next to theirs. With one episode nothing is known of that.

    :param dataset: recorded transitions
    :param points: their states, as points whose distances tell which are next to which, (n, k)
    :param first_ones: compare the first episodes, and not some from everywhere, where there are many
    """
    units, actions = units_of_each(dataset), dataset.actions.reshape(len(dataset), -1).astype(np.float64)
    deviation = actions.std(axis=0)
    varies = deviation > _ROUNDING * np.abs(actions).max(axis=0, initial=0.0)
    if len(np.unique(units)) < 2 or not varies.any():
        return 0.0
    # Whatever their units, all count alike; what never changes does not.
    actions = actions[:, varies] / deviation[varies]
    missed = np.zeros(len(units))
    every = np.unique(units)
    n_some = min(len(every), _MOST_EPISODES_COMPARED)
    some = every[:n_some] if first_ones else every[np.linspace(0, len(every) - 1, n_some).astype(int)]
    for unit in some:
        own = units == unit
        others = np.flatnonzero(~own)
        others = others[:: (len(others) - 1) // _MOST_OTHERS + 1]
        nearest = others[scipy.spatial.cKDTree(points[others]).query(points[own])[1]]
        missed[own] = np.square(actions[own] - actions[nearest]).mean(axis=1)
    # Two actions that have nothing to do with one another differ by twice the variance, which is one.
    return float(max(0.0, 1.0 - missed[np.isin(units, some)].mean() / 2.0))
