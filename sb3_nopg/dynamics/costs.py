"""
What a policy is trained to avoid beside what the reward says: changing its action all the time, and wandering off.

Where every step earns nearly the same, going on is all that the reward asks for, and a policy that drifts slowly towards an
edge earns as much as one that holds still. The one that holds still is the one that withstands what the model does not know.
"""

from dataclasses import dataclass

import torch as th

from sb3_nopg.dynamics.bounds import Bounds


@dataclass(frozen=True)
class Costs:
    """
    :param change: of an action that changes by its whole range in a step
    :param distance: share of a step's reward that is lost at the edge of the recorded range in all coordinates, growing with
        the square of the distance from the middle
    """

    change: float = 0.0
    distance: float = 0.0

    def of_steps(
        self, rewards: th.Tensor, applied: th.Tensor, span: th.Tensor, next_states: th.Tensor, bounds: Bounds
    ) -> th.Tensor:
        """
        :param rewards: (H, m)
        :param applied: actions, (H, m, d_a)
        :param span: of their range, (d_a,)
        :param next_states: after each step, (H, m, d)
        :param bounds: of what was recorded
        :return: (H, m)
        """
        costs = self.change * _changes(applied, span).square().sum(dim=-1)
        if self.distance:
            costs = costs + rewards.clamp_min(0.0) * self.share_lost(next_states, bounds)
        return costs

    def share_lost(self, next_states: th.Tensor, bounds: Bounds) -> th.Tensor:
        """
        :param next_states: after each step, (H, m, d)
        :param bounds: of what was recorded
        :return: of a step's reward that is one, by distance, (H, m)
        """
        return (self.distance * _distances(next_states, bounds)[0].square().mean(dim=-1)).clamp_max(1.0)

    def slopes(
        self,
        weight: th.Tensor,
        rewards: th.Tensor,
        applied: th.Tensor,
        span: th.Tensor,
        next_states: th.Tensor,
        bounds: Bounds,
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Of Σ weight · costs, the rewards where they are.

        :param weight: of each step, (H, m)
        :param rewards: (H, m)
        :return: with respect to actions and next states, (H, m, …) each
        """
        of_change = 2.0 * self.change * weight[..., None] * _changes(applied, span) / span
        # Each action is changed to, and changed from.
        of_actions = of_change.clone()
        of_actions[:-1] -= of_change[1:]
        of_states = th.zeros_like(next_states)
        if self.distance:
            distances, half = _distances(next_states, bounds)
            # Who has lost all has nothing more to lose.
            weight = weight * rewards.clamp_min(0.0) * (self.share_lost(next_states, bounds) < 1.0)
            of_states = 2.0 * self.distance * weight[..., None] * distances / (half * len(half))
        return of_actions, of_states


def _changes(applied: th.Tensor, span: th.Tensor) -> th.Tensor:
    """Of each action from the one before, as a share of its range, (H, m, d_a); the first changes nothing."""
    changes = th.zeros_like(applied)
    changes[1:] = (applied[1:] - applied[:-1]) / span
    return changes


def _distances(states: th.Tensor, bounds: Bounds) -> tuple[th.Tensor, th.Tensor]:
    """From the middle of the recorded range, 1 at its edges, (…, d), and what that is divided by, (d,)."""
    half = (bounds.high - bounds.low) / 2.0
    # An angle that goes around has no middle, and what never changes cannot be left.
    counts = ~bounds.coordinates.round & (half > 0.0)
    half = half.masked_fill(~counts, 1.0)
    return ((states - (bounds.low + bounds.high) / 2.0) / half).masked_fill(~counts, 0.0), half
