"""Which of the parameters that training passes through to keep, and when to stop looking for better ones."""

import copy
from dataclasses import dataclass, field
from typing import Any

from sb3_nopg.policies.nopg_policy import NOPGPolicy

# Updates between two looks at the held-out data.
CHECK_INTERVAL = 10
# A return counts as better when it gains this share of its own size; less is noise of the solves.
_LEAST_GAIN = 1e-4


@dataclass
class BestSoFar:
    """
    The best return seen, and the parameters that had it.

    :param keep_parameters: whether to remember those parameters, or only how long ago they were
    :param score: of the best
    :param update: when it was seen; before that, where training began
    """

    keep_parameters: bool
    score: float | None = None
    update: int = 0
    _parameters: dict[str, Any] = field(default_factory=dict)

    def look(self, score: float, update: int, policy: NOPGPolicy) -> None:
        """
        :param score: return of the policy as it is now
        :param update: number of updates made so far
        :param policy: it
        """
        if self.score is not None and score <= self.score + _LEAST_GAIN * abs(self.score):
            return
        self.score, self.update = score, update
        if self.keep_parameters:
            self._parameters = parameters_of(policy)

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {"keep": self.keep_parameters, "score": self.score, "update": self.update, "parameters": self._parameters}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "BestSoFar":
        """
        :param state: from a checkpoint
        """
        return cls(state["keep"], state["score"], state["update"], state["parameters"])

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
