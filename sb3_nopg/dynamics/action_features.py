"""What of an action enters the model: the action itself, and its squares and products where the system is not affine in it."""

from dataclasses import dataclass

import torch as th


@dataclass(frozen=True)
class ActionFeatures:
    """
    ψ(a): the action, or the action and its products a_i a_j.

    :param n_actions: d_a
    :param quadratic: whether products count too
    """

    n_actions: int
    quadratic: bool = False

    @property
    def size(self) -> int:
        """Number of features."""
        return self.n_actions + (self.n_actions * (self.n_actions + 1) // 2 if self.quadratic else 0)

    def __call__(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: (m, d_a)
        :return: (m, size)
        """
        if not self.quadratic:
            return actions
        i, j = self._pairs(actions.device)
        return th.cat([actions, actions[:, i] * actions[:, j]], dim=1)

    def pull_back(self, actions: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        """
        :param actions: (m, d_a)
        :param gradient: ∂f/∂ψ, (m, size)
        :return: ∂f/∂a, (m, d_a)
        """
        of_actions = gradient[:, : self.n_actions]
        if self.quadratic:
            i, j = self._pairs(actions.device)
            products = gradient[:, self.n_actions :]
            of_actions = of_actions.index_add(1, i, products * actions[:, j]).index_add(1, j, products * actions[:, i])
        return of_actions

    def _pairs(self, device: th.device) -> tuple[th.Tensor, th.Tensor]:
        i, j = th.triu_indices(self.n_actions, self.n_actions, device=device)
        return i, j
