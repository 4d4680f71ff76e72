"""Who tells what the columns of a model are called: the environment, or else the data that it learned from."""

import warnings
from typing import Any

import gymnasium as gym

from sb3_nopg.data.quantities import Quantities


def quantities_of(env: Any, own: Quantities | None, n_observations: int, n_actions: int) -> Quantities | None:
    """
    :param env: of a model, a VecEnv; None for none
    :param own: names of the data's columns; None where they have none
    :param n_observations: columns of the state
    :param n_actions: columns of the action
    :return: the environment's names, as a rig knows them, or else the data's, for states and actions each; None where
        neither has any
    """
    return Quantities.told_by(told_by_environment(env), n_observations, n_actions, own) or own


def told_by_environment(env: Any, *, warns: bool = False) -> dict[str, Any]:
    """
    :param env: of a model, a VecEnv; None for none
    :param warns: whether to say what is left out
    :return: what its ``metadata`` says, less what its wrappers have made untrue
    """
    if env is None:
        return {}
    try:
        told = env.get_attr("metadata", 0)[0]
        wrapped = {
            "observation": env.env_is_wrapped(gym.ObservationWrapper, 0)[0],
            "action": env.env_is_wrapped(gym.ActionWrapper, 0)[0],
        }
    except (AttributeError, NotImplementedError):
        # Not made of Gymnasium's environments.
        return {}
    told = dict(told or {})
    for kind, is_wrapped in wrapped.items():
        if is_wrapped and kind == "observation":
            # A formula over columns that are others now.
            told.pop("goal", None)
        untrue = {name for name in (f"{kind}_names", f"{kind}_units") if is_wrapped and told.pop(name, None) is not None}
        if untrue and warns:
            warnings.warn(
                f"A wrapper changes the environment's {kind}s: its {kind}_names and {kind}_units are left out of the file. "
                f"Pass them to export() as they are after the wrapper.",
                stacklevel=4,
            )
    return told
