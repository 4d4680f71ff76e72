"""Which of the parameters that training passes through to keep, and when to stop looking for better ones."""

import copy
from dataclasses import dataclass, field
from typing import Any

from sb3_nopg.policies.nopg_policy import NOPGPolicy

# Updates between two looks at the score.
_INTERVAL = 10
# A return counts as better when it gains this share of its own size; less is noise of the solves.
_LEAST_GAIN = 1e-4


@dataclass
class Watch:
    """
    The best score seen, and the parameters that had it.

    :param keep_parameters: whether to remember those parameters, or only how long ago they were
    :param patience: stop after so many updates without a better score; None to go on
    :param score: of the best
    :param update: when it was seen; before that, where training began
    """

    keep_parameters: bool
    patience: int | None
    score: float | None = None
    update: int = 0
    _parameters: dict[str, Any] = field(default_factory=dict)

    def is_time(self, update: int) -> bool:
        """
        :param update: number of updates made so far
        """
        return update % (_INTERVAL if self.patience is None else min(_INTERVAL, self.patience)) == 0

    def look(self, score: float, update: int, policy: NOPGPolicy) -> bool:
        """
        :param score: of the policy as it is now
        :param update: number of updates made so far
        :param policy: it
        :return: whether patience has run out
        """
        if self.score is None or score > self.score + _LEAST_GAIN * abs(self.score):
            self.score, self.update = score, update
            if self.keep_parameters:
                self._parameters = parameters_of(policy)
        return self.patience is not None and update - self.update >= self.patience

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            "keep_parameters": self.keep_parameters,
            "patience": self.patience,
            "score": self.score,
            "update": self.update,
            "_parameters": self._parameters,
        }

    def restore(self, policy: NOPGPolicy) -> None:
        """
        Put the best parameters back, if they were kept.

        :param policy: as it is now
        """
        if self._parameters:
            load_parameters(policy, self._parameters)


def parameters_of(policy: NOPGPolicy) -> dict[str, Any]:
    """
    :param policy: any
    :return: its parameters and its optimiser's, as they are now
    """
    return copy.deepcopy({"policy": policy.state_dict(), "optimizer": policy.optimizer.state_dict()})


def load_parameters(policy: NOPGPolicy, parameters: dict[str, Any]) -> None:
    """
    :param policy: to change
    :param parameters: of :func:`parameters_of`
    """
    policy.load_state_dict(parameters["policy"])
    # The optimiser would go on with the very tensors that it is given.
    policy.optimizer.load_state_dict(copy.deepcopy(parameters["optimizer"]))
