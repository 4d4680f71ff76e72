"""What ``"auto"`` stands for: settings that follow from the data."""

import numpy as np

from sb3_nopg.action_lag import find_action_lag
from sb3_nopg.dataset import TransitionDataset

#: pessimism where the data shows no bad end, and where it does
PESSIMISM, PESSIMISM_WITH_BAD_ENDS = 1e-3, 0.1


def choose_n_steps(dataset: TransitionDataset) -> int:
    """
    One step, unless the next state also depends on earlier actions. Then two more than it takes an action to show: in the
    first of them it begins to act, in the second its effect can be told from chance.

    :param dataset: single transitions
    """
    if dataset.n_synthetic:
        return 1
    lag = find_action_lag(dataset)
    return 1 if lag is None or lag.lag == 0 else lag.lag + 2


def choose_pessimism(dataset: TransitionDataset) -> float:
    """
    Where episodes have ended badly, unknown states may hide another such end, and it pays to stay where the data is. Where
    none ever has, or the end is the goal, pessimism would only keep a policy from going where it must.

    An end is bad where there is more to gain from going on: it has value zero, and steps earn rewards above that.

    :param dataset: single transitions
    """
    goes_on = ~dataset.terminals
    bad_ends = bool(dataset.terminals.any()) and bool(goes_on.any()) and float(np.mean(dataset.rewards[goes_on])) > 0.0
    return PESSIMISM_WITH_BAD_ENDS if bad_ends else PESSIMISM
