"""All that follows from data and settings, and nothing of a policy: a model of the system, and where the task starts."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch as th

from sb3_nopg.bellman.bundle import Bundle, Friction
from sb3_nopg.bellman.on_nodes import NodeEquation
from sb3_nopg.bellman.riccati import LinearController, best_controller, riccati_controller
from sb3_nopg.bellman.value_iteration import GreedyChoice, iterate_values
from sb3_nopg.data.control import share_under_control
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.rewards import QuadraticReward, rewards_of
from sb3_nopg.dynamics.trajectories import draw_noise

# Steps followed where the horizon is as it comes: this many times 1 / (1 − γ), and no more than so many.
_HORIZONS, _MOST_STEPS = 3.0, 120
# To the end means until the discount has left this little.
_LEFT, _LONGEST = 0.01, 500
# Cost of an action that changes by its whole range in a step, as a share of the largest reward, and of a state at the edge of
# the recorded range in all coordinates, as a share of what the step earns.
_CHANGE_COST, _DISTANCE_COST = 0.1, 0.2
# What a policy in training has to overcome: so much of a small action has an effect, from trajectory to trajectory, and so
# large is a small one, as a share of half the range.
_EFFECTS, _SMALL_ACTION = (0.5, 1.2), 0.4
# Start states that nodes are put at.
_MOST_NODE_STARTS = 200


@dataclass(frozen=True)
class ModelEstimator:
    """
    :param dataset: recorded transitions
    :param dynamics: a model of them, on the device that is worked on
    :param initial_states: observations where the task starts, (n₀, d_s)
    :param gamma: discount
    """

    dataset: TransitionDataset
    dynamics: DynamicsModel
    initial_states: np.ndarray
    gamma: float

    @classmethod
    def fit(
        cls,
        dataset: TransitionDataset,
        initial_states: np.ndarray,
        gamma: float,
        device: th.device | str,
        like: DynamicsModel | None = None,
        **settings: Any,
    ) -> "ModelEstimator":
        """
        :param dataset: recorded transitions
        :param initial_states: observations where the task starts, (n₀, d_s)
        :param gamma: discount
        :param device: to work on
        :param like: a model whose choices to take over
        :param settings: of :meth:`sb3_nopg.dynamics.DynamicsModel.fit`
        """
        starts, reward = initial_states[:_MOST_NODE_STARTS], settings.get("reward")
        if reward is not None:
            earned = rewards_of(reward, dataset)
            dataset = replace(dataset, rewards=earned)
        dynamics = DynamicsModel.fit(dataset, initial_states=starts, like=like, **settings)
        return cls(dataset, dynamics.to(device), initial_states, gamma)

    @cached_property
    def starts(self) -> th.Tensor:
        """Start states in the model's coordinates, (n₀, d)."""
        return self._encoded(self.initial_states)

    @cached_property
    def states(self) -> th.Tensor:
        """Recorded states in the model's coordinates, (n, d)."""
        return self._encoded(self.dataset.observations)

    @cached_property
    def pasts(self) -> th.Tensor:
        """What the steps before the recorded states did, or what goes with a state before which nothing is known, (n, q)."""
        return self.dynamics.past_of(self._prepared).to(self.states.device)

    @cached_property
    def _prepared(self) -> Prepared:
        data = Prepared.of(self.dataset, self.dynamics.coordinates.to(th.device("cpu")), self.dataset.rewards)
        return replace(data, stops=self.dynamics.choices.stops)

    @cached_property
    def equation(self) -> NodeEquation:
        """The Bellman equation on the nodes."""
        return NodeEquation(self.dynamics, self.starts, self.gamma)

    @cached_property
    def greedy(self) -> GreedyChoice:
        """What value iteration on the nodes would do."""
        return iterate_values(self.equation)

    @cached_property
    def linear_controller(self) -> LinearController | None:
        """What least squares and a Riccati equation would do."""
        data, dynamics = self._prepared, self.dynamics
        whole, changes = data.free_steps, data.coordinates.difference(data.next_states, data.states).numpy()
        states, actions, changes = (part[whole] for part in (data.states.numpy(), data.actions.numpy(), changes))
        reward, choices = dynamics.reward, dynamics.choices
        if (
            isinstance(reward, QuadraticReward)
            and choices.exact
            and not choices.n_earlier_steps
            and not data.coordinates.angles
        ):
            best = best_controller(states, actions, changes, reward, self.gamma)
            if best is not None:
                return best
        low, high = dynamics.action_range
        half_range = ((high - low) / 2.0).cpu().numpy()
        return riccati_controller(dynamics.coordinates, states, actions, changes, data.rewards.numpy()[whole], half_range)

    @cached_property
    def _sample_tree(self) -> "scipy.spatial.cKDTree":
        scale = self.dynamics.nodes.interpolation.scale
        return scipy.spatial.cKDTree(self.dynamics.coordinates.embed(self.states, scale).cpu().numpy())

    def nearest_samples(self, states: th.Tensor) -> np.ndarray:
        """
        :param states: in the model's coordinates, (m, d)
        :return: number of the recorded state next to each, (m,)
        """
        scale = self.dynamics.nodes.interpolation.scale
        return np.asarray(self._sample_tree.query(self.dynamics.coordinates.embed(states, scale).cpu().numpy())[1])

    @cached_property
    def share_under_control(self) -> float:
        """How much of the recorded actions follows from the states, from 0 for random ones to 1."""
        # By the first ones it was decided whom to imitate, in all results.
        return share_under_control(self.dataset, self._sample_tree.data, first_ones=True)

    @property
    def reward_size(self) -> float:
        """The largest reward of the data, whatever its sign."""
        return max(*(abs(end) for end in self.dynamics.reward_range), 1e-12)

    @property
    def costs(self) -> Costs:
        """What steps cost a policy in training beside their reward."""
        # Where steps cost something, the reward itself says where to go.
        return Costs(_CHANGE_COST * self.reward_size, _DISTANCE_COST if self.dynamics.reward_range[0] >= 0.0 else 0.0)

    def n_steps(self, horizon: str | float) -> int:
        """
        :param horizon: steps, infinity, or ``"auto"``
        """
        if isinstance(horizon, str):
            return int(min(max(round(_HORIZONS / (1.0 - self.gamma)), 10), _MOST_STEPS))
        if horizon == float("inf"):
            return self.steps_to_the_end
        return int(horizon)

    @property
    def steps_to_the_end(self) -> int:
        """Until hardly anything counts any more."""
        return int(min(np.ceil(np.log(_LEFT) / np.log(self.gamma)) if self.gamma > 0 else 1, _LONGEST))

    def bundle(
        self,
        seed: tuple[int, int],
        n: int,
        n_steps: int,
        n_actions_drawn: int | None,
        share_elsewhere: float = 0.5,
        node_values: th.Tensor | None = None,
        costs_by: Costs | None = None,
    ) -> Bundle:
        """
        Trajectories from start states and from elsewhere, the same for the same seed on every device. Elsewhere are recorded
        states and, where there are many maps, nodes: data seldom show the states between those that a policy will need.

        :param seed: of the draws
        :param n: trajectories
        :param n_steps: H
        :param n_actions_drawn: d_a for a stochastic policy, None for a deterministic one
        :param share_elsewhere: of the trajectories, that do not start where the task does
        :param node_values: V at the nodes, (n_nodes,)
        :param costs_by: what steps cost beside their reward; None for nothing
        """
        generator = th.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        n_elsewhere, device = int(share_elsewhere * n), self.starts.device
        n_data = n_elsewhere if self.dynamics.nodes.single else n_elsewhere // 2
        recorded = th.randint(len(self.states), (n_data,), generator=generator).to(device)
        reached = th.randint(len(self.dynamics.nodes), (n_elsewhere - n_data,), generator=generator).to(device)
        started = th.randint(len(self.starts), (n - n_elsewhere,), generator=generator).to(device)
        noise = draw_noise(self.dynamics, n_steps, n, generator)
        drawn = None
        if n_actions_drawn is not None:
            drawn = th.randn(n_steps, n, n_actions_drawn, generator=generator, dtype=th.float64).to(device)
        starts = th.cat([self.states[recorded], self.dynamics.nodes.states[reached], self.starts[started]])
        earlier = th.cat([self.pasts[recorded], self.dynamics.past_at_rest(starts[n_data:])])
        least, most = _EFFECTS
        effect = least + (most - least) * th.rand(n, 1, generator=generator, dtype=th.float64)
        low, high = (end.cpu() for end in self.dynamics.action_range)
        friction = Friction(effect, (_SMALL_ACTION * (high - low) / 2.0).clamp_min(1e-12))
        return Bundle(starts, n_steps, self.gamma, noise, drawn, node_values, costs_by, earlier, friction)

    def _encoded(self, observations: np.ndarray) -> th.Tensor:
        tensor = th.from_numpy(np.array(observations, dtype=np.float64)).to(self.dynamics.noise.device)
        return self.dynamics.coordinates.encode(tensor)
