"""What of an action enters the model: the action itself, and its squares and products where the system is not affine in it."""

from dataclasses import dataclass

import torch as th


@dataclass(frozen=True)
class ActionFeatures:
    """
    ψ(a, earlier actions): (a, earlier), or (a, earlier, a_i a_j).

    :param n_actions: d_a
    :param n_earlier: earlier actions that count
    :param quadratic: whether products of the action count too
    """

    n_actions: int
    n_earlier: int = 0
    quadratic: bool = False

    @property
    def size(self) -> int:
        """Number of features, p."""
        products = self.n_actions * (self.n_actions + 1) // 2 if self.quadratic else 0
        return self.n_actions * (1 + self.n_earlier) + products

    def __call__(self, actions: th.Tensor, earlier: th.Tensor) -> th.Tensor:
        """
        :param actions: (m, d_a)
        :param earlier: the last one first, (m, d_a · n_earlier)
        :return: (m, p)
        """
        parts = [actions, earlier]
        if self.quadratic:
            i, j = self._pairs(actions.device)
            parts.append(actions[:, i] * actions[:, j])
        return th.cat(parts, dim=1)

    def pull_back(self, actions: th.Tensor, gradient: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        :param actions: (m, d_a)
        :param gradient: ∂f/∂ψ, (m, p)
        :return: ∂f/∂a, (m, d_a), and ∂f/∂earlier, (m, d_a · n_earlier)
        """
        d, n_linear = self.n_actions, self.n_actions * (1 + self.n_earlier)
        of_actions = gradient[:, :d]
        if self.quadratic:
            i, j = self._pairs(actions.device)
            products = gradient[:, n_linear:]
            of_actions = of_actions.index_add(1, i, products * actions[:, j]).index_add(1, j, products * actions[:, i])
        return of_actions, gradient[:, d:n_linear]

    def _pairs(self, device: th.device) -> tuple[th.Tensor, th.Tensor]:
        i, j = th.triu_indices(self.n_actions, self.n_actions, device=device)
        return i, j
