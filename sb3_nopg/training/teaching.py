"""Where candidates start from: what value iteration, a linear controller or the data would do, taught to the policy."""

import logging

import torch as th

from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy, NOPGPolicy
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.training.candidates import BEHAVIOUR, RICCATI, VALUE_ITERATION
from sb3_nopg.training.imitation import imitate

_logger = logging.getLogger(__name__)
# States that a linear controller is taught at.
_N_TAUGHT = 1500


def teach(policy: NOPGPolicy, recipe: str, estimator: ModelEstimator, seed: int) -> None:
    """
    :param policy: to teach
    :param recipe: of the candidate; ``own`` leaves the policy as it is
    :param estimator: to learn from
    :param seed: of the states that are taught
    """
    if recipe == VALUE_ITERATION:
        choice = estimator.greedy
        imitate(policy, estimator.equation.observations, choice.actions, choice.importance)
    elif recipe == RICCATI:
        _teach_linear_controller(policy, estimator, seed)
    elif recipe == BEHAVIOUR:
        recorded = estimator.dataset.observations, estimator.dataset.actions
        imitate(policy, *(th.tensor(part, dtype=th.float64, device=estimator.states.device) for part in recorded))


def _teach_linear_controller(policy: NOPGPolicy, estimator: ModelEstimator, seed: int) -> None:
    controller, dynamics = estimator.linear_controller, estimator.dynamics
    if controller is None:
        _logger.info("The Riccati equation has no solution: that candidate starts from nothing.")
        return
    generator = th.Generator().manual_seed(seed)
    chosen = th.randint(len(estimator.states), (_N_TAUGHT,), generator=generator).to(estimator.states.device)
    states = th.cat([estimator.states[chosen], estimator.starts[:_N_TAUGHT]])
    targets = th.from_numpy(controller(states.cpu().numpy())).to(states)
    if not isinstance(policy, DeterministicLinearPolicy):
        # A gain knows no range: it is taught as it is.
        targets = targets.clamp(*dynamics.action_range)
    imitate(policy, dynamics.coordinates.decode(states), targets)
