"""What ``"auto"`` stands for: settings that follow from the data."""

import logging

import numpy as np

from sb3_nopg.action_lag import find_action_lag
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.multi_step import Windows

_logger = logging.getLogger(__name__)
#: pessimism where the data shows no bad end, and where it does
PESSIMISM, PESSIMISM_WITH_BAD_ENDS = 1e-3, 0.1
# Transitions of several steps must not cost more of the data than this: what time limits cut short is lost.
_LEAST_KEPT = 0.5


def choose_n_steps(dataset: TransitionDataset, held_out: TransitionDataset | None = None) -> int:
    """
    One step, unless the next state also depends on earlier actions. Then two more than it takes an action to show: in the
    first of them it begins to act, in the second its effect can be told from chance.

    :param dataset: single transitions
    :param held_out: data that must go by the same steps
    """
    if dataset.n_synthetic:
        return 1
    lag = find_action_lag(dataset)
    if lag is None or lag.lag == 0:
        return 1
    n_steps = lag.lag + 2
    for data in (dataset, held_out):
        if data is not None and _share_kept(data, n_steps) < _LEAST_KEPT:
            _logger.warning("Actions act late in these data, but episodes are too short for transitions of %d steps.", n_steps)
            return 1
    _logger.info("An action takes %d step(s) to show: transitions span %d steps.", lag.lag, n_steps)
    return n_steps


def _share_kept(dataset: TransitionDataset, n_steps: int) -> float:
    try:
        return len(Windows(dataset, n_steps).firsts) / len(dataset)
    except InputError:
        return 0.0


def choose_pessimism(dataset: TransitionDataset, gamma: float) -> float:
    """
    Where episodes have ended badly, unknown states may hide another such end, and it pays to stay where the data is. Where
    none ever has, or the end is the goal, pessimism would only keep a policy from going where it must.

    :param dataset: single transitions
    :param gamma: discount
    """
    return PESSIMISM_WITH_BAD_ENDS if has_bad_ends(dataset, gamma) else PESSIMISM


def has_bad_ends(dataset: TransitionDataset, gamma: float) -> bool:
    """
    Whether the task has ended, and that was worse than going on would have been, as far as the mean reward tells.

    :param dataset: single transitions
    :param gamma: discount
    """
    ends, rewards = dataset.terminals, dataset.rewards.astype(np.float64)
    if not ends.any() or ends.all():
        return False
    return float(rewards[ends].mean()) < float(rewards[~ends].mean()) / (1.0 - gamma)
