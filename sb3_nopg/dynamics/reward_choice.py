"""What a reward is learned as: one quadratic function of all samples, or a local one."""

from dataclasses import dataclass

import torch as th

from sb3_nopg.dynamics.affine import Samples
from sb3_nopg.dynamics.cross_validation import (
    BANDWIDTHS,
    NEARLY_AS_GOOD,
    NOT_WORTH_A_LOOK,
    LeftOut,
    left_out_errors,
    unexplained,
    widest_good,
)
from sb3_nopg.dynamics.kernel_choice import choose_everywhere
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel
from sb3_nopg.dynamics.rewards import QuadraticReward

# A quadratic reward that leaves no more than this unexplained is better than a local one: it goes on beyond the data.
_QUADRATIC_ENOUGH = 0.1


@dataclass(frozen=True)
class RewardChoice:
    """
    :param kernel: of the reward's regression; None where the reward needs no nodes
    :param unexplained: share of the reward's variance that is left where the model has not seen it
    """

    kernel: Kernel | None
    unexplained: float


def choose_reward(data: Prepared, inputs: Inputs) -> RewardChoice:
    """A quadratic function of all samples, or a local one."""
    samples = data.reward_samples(inputs)
    if float(samples.targets.max() - samples.targets.min()) < 1e-12:
        return RewardChoice(None, 0.0)
    left_out = LeftOut.of(data.labels_of(data.reward_rows(inputs.n_earlier)), len(samples))

    def errors_without(everywhere: tuple[int, ...]) -> th.Tensor:
        return unexplained(left_out_errors(samples, left_out, form=Form(everywhere)), samples.targets)[:, 0]

    errors = errors_without(())
    quadratic = _quadratic_unexplained(samples, left_out, inputs.features.n_actions)
    # Where poles go around, what is best about a rough formula may lie where nobody was.
    enough = _QUADRATIC_ENOUGH if not bool(data.coordinates.bent.any()) else 0.0
    if quadratic <= max(NEARLY_AS_GOOD * float(errors[widest_good(errors)]), enough):
        return RewardChoice(None, quadratic)
    everywhere, errors = choose_everywhere(data.coordinates, BANDWIDTHS, errors, errors_without, NOT_WORTH_A_LOOK)
    which = widest_good(errors)
    return RewardChoice(Kernel(BANDWIDTHS[which], Form(everywhere)), float(errors[which]))


def _quadratic_unexplained(samples: Samples, left_out: LeftOut, n_actions: int) -> float:
    """Cut to the range of the rewards that were seen, or as it is: one that is exact goes on beyond them."""
    errors = samples.targets.new_zeros(2, len(left_out.judged), 1)
    fold = left_out.fold[left_out.judged]
    for number in fold.unique():
        rows = left_out.judged[fold == number]
        states, actions = samples.states[rows], samples.inputs[rows, :n_actions]
        for exact in (0, 1):
            model = QuadraticReward.fit(samples.rows(left_out.fold != number), n_actions, exact=bool(exact))
            errors[exact, fold == number, 0] = samples.targets[rows, 0] - model(states, actions, states)
    return float(unexplained(errors, samples.targets).min())
