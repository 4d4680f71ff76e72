"""Any policy, followed through a model of the system."""

from typing import Any

from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.model_settings import check_starts
from sb3_nopg.prediction.rollouts import Rollouts, roll_out


def follow(
    model: DynamicsModel, policy: Any, starts: Any, n_steps: int, noise_seed: int | None = None, *, trust: bool = False
) -> Rollouts:
    """
    Where a policy takes the system step by step, until the task ends or the trajectory leaves what was recorded.

    :param model: of the system
    :param policy: a function of observations (m, d_s), an SB3 model, or the path of a ``.zip`` or ``.onnx`` file
    :param starts: observations to start from, (m, d_s), or one, (d_s,)
    :param n_steps: to follow it at most
    :param noise_seed: of what is added to each step, drawn from what the model missed; None for the mean alone
    :param trust: whether to read pickles in a policy's file, which can run any program
    """
    from sb3_nopg.prediction.policy_files import checked_actor

    check_count("n_steps", n_steps)
    if not isinstance(model, DynamicsModel):
        raise InputError("model", f"{type(model).__name__} is no model of a system", "Give one that DynamicsModel.fit made")
    states = check_states("starts", starts, len(model.coordinates.fixed))
    check_starts("starts", states, model.bounds)
    actor = checked_actor(policy, states, model.features.n_actions, trust=trust)
    return roll_out(model.to("cpu"), [actor], states, int(n_steps), noise_seed)[0]
