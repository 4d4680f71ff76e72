"""A model of the system, fitted to recorded transitions: what a step changes and earns, where it ends, how sure that is."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch as th

from sb3_nopg.common.checks import check_rows, check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number
from sb3_nopg.common.progress import phase
from sb3_nopg.data.dataset import TransitionDataset, check_dataset
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.bounds import EVERYWHERE, Bounds, Limit
from sb3_nopg.dynamics.choices import N_PARTS, Choices, choose
from sb3_nopg.dynamics.compiling import N_STEPS, compile_nodes, usual_number_of_nodes
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.description import described
from sb3_nopg.dynamics.fitting import action_range_of, noise_of, regressions_of, span_of_starts, usual_past_of
from sb3_nopg.dynamics.friction import DryFriction
from sb3_nopg.dynamics.model_settings import LEAST_ROWS, check_enough, check_numbers, column_names
from sb3_nopg.dynamics.nodes import NodeMaps
from sb3_nopg.dynamics.past import UsualPast
from sb3_nopg.dynamics.prepared import Inputs, Prepared, float_tensor
from sb3_nopg.dynamics.rewards import GivenReward, QuadraticReward, RewardFunction, RewardModel, given_reward, rewards_of

_logger = logging.getLogger(__name__)
# One affine model that predicts what it has not seen is believed beyond the recorded range, by this share of the range that
# the task starts in: who starts at the edge of what was recorded has to go beyond it. One that leaves nothing unexplained is
# believed everywhere.
_AFFINE_ROOM = 0.3


class DynamicsModel:
    """
    A local affine model of a system. Make one with :meth:`fit`.

    All tensors are float64; states are in the model's coordinates, observations in the data's.
    """

    def __init__(
        self,
        choices: Choices,
        coordinates: Coordinates,
        bounds: Bounds,
        nodes: NodeMaps,
        reward: RewardModel | None,
        reward_range: tuple[float, float],
        noise: th.Tensor,
        action_range: tuple[th.Tensor, th.Tensor],
        worst_rewards: tuple[float, float],
        usual_past: UsualPast,
        actions_are_limited: bool = True,
    ):
        self.choices, self.coordinates, self.bounds, self.nodes = choices, coordinates, bounds, nodes
        self.reward, self.reward_range, self.noise, self.action_range = reward, reward_range, noise, action_range
        self._worst_rewards, self._usual_past, self._actions_are_limited = worst_rewards, usual_past, actions_are_limited
        self.features = ActionFeatures(len(action_range[0]), choices.products)

    @classmethod
    def fit(
        cls,
        dataset: TransitionDataset,
        *,
        angles: Sequence[tuple[int | str, int | str]] | None = None,
        limits: Mapping[int | str, Limit] | None = None,
        reward: str | RewardFunction | None = None,
        bandwidth: float | None = None,
        n_earlier_steps: int | None = None,
        n_nodes: int | None = None,
        initial_states: np.ndarray | None = None,
        noise_scale: float = 1.0,
        like: "DynamicsModel | None" = None,
        seed: int = 0,
    ) -> "DynamicsModel":
        """
        :param dataset: recorded transitions
        :param angles: pairs of columns that are cosine and sine of an angle, by number or name; None to find them, () for
            none
        :param limits: smallest and largest value of columns, by number or name, beyond which the task counts as lost; None as
            an end for no end
        :param reward: an expression over s, a, s2 and the names of columns, or a function of them, used exactly; None to learn
            it from the data
        :param bandwidth: in standard deviations, infinite for one affine model; None to choose it on left-out episodes
        :param n_earlier_steps: that count beside the last state and action; None to choose
        :param n_nodes: states to compile the data at; None for a number that goes with the dimension
        :param initial_states: observations to have nodes at, (n₀, d_s)
        :param noise_scale: what residual noise is multiplied by, where the system is known to do worse than the data say
        :param like: a model of the same system whose coordinates and choices to take over
        :param seed: of the nodes and of what is left out
        """
        check_dataset(dataset)
        check_numbers(bandwidth, n_earlier_steps, n_nodes)
        if initial_states is not None:
            initial_states = check_states("initial_states", initial_states, dataset.observation_dim)
        check_number("noise_scale", noise_scale, 0.0, np.inf, low_included=True)
        rewards = np.array(dataset.rewards, dtype=np.float64)
        if reward is not None:
            rewards = rewards_of(reward, dataset)
        if like is None:
            both = np.concatenate([dataset.observations, dataset.next_observations])
            coordinates = Coordinates.of(float_tensor(both), angles, column_names(dataset))
            check_enough(dataset, coordinates)
        else:
            coordinates = like.coordinates.to(th.device("cpu"))
        data = Prepared.of(dataset, coordinates, rewards)
        with phase("fit", N_PARTS) as advance:
            choices = (
                choose(data, bandwidth, n_earlier_steps, reward is not None, advance=advance) if like is None else like.choices
            )
            data = replace(data, stops=choices.stops)
            frictionless = Inputs(ActionFeatures(dataset.action_dim, choices.products), choices.n_earlier_steps)
            rows = data.rows(choices.n_earlier_steps)
            inputs = replace(frictionless, friction=DryFriction.fit(data.samples(frictionless, rows), choices.held))
            if len(rows) < LEAST_ROWS * (1 + coordinates.dim + inputs.size(coordinates.dim)):
                raise InputError(
                    "dataset",
                    f"only {len(rows)} transitions are of use, which is too few for a model: those that neither end the task "
                    f"nor run into a stop, with {choices.n_earlier_steps} earlier step(s) known",
                    "Give longer episodes, or more of them",
                )
            if like is not None:
                # Where the task ends is known, whichever part of the data a model is of.
                bounds = like.bounds.to(th.device("cpu"))
            else:
                bounds = _bounds_of(data, choices, limits, initial_states)
                coordinates, data = bounds.coordinates, replace(data, coordinates=bounds.coordinates)
            if bounds.unexplained_ends > 0.1 and like is None:
                _logger.warning(
                    "%.0f %% of the ends of the task lie among states that did not end it: the model does not know these "
                    "ends. Name them with limits, or add what tells them to the observation.",
                    100 * bounds.unexplained_ends,
                )
        given: RewardModel | None = None
        if reward is not None:
            given = given_reward(reward, coordinates, dataset.observations, dataset.actions, dataset.quantities)
        elif choices.reward.kernel is None:
            given = QuadraticReward.fit(data.reward_samples(inputs), dataset.action_dim, exact=choices.exact)
        regressions = without = regressions_of(data, inputs, choices, with_reward=given is None)
        if inputs.n_earlier or choices.held:
            without = regressions_of(data, replace(frictionless, n_earlier=0), choices, with_reward=given is None)
        action_range = action_range_of(dataset)
        generator = th.Generator().manual_seed(seed)
        first = data.states[:0] if initial_states is None else coordinates.encode(float_tensor(initial_states))
        n_nodes = usual_number_of_nodes(coordinates) if n_nodes is None else n_nodes
        with phase("nodes", N_STEPS) as advance:
            nodes = compile_nodes(
                data,
                first,
                regressions,
                without,
                bounds,
                inputs.features,
                action_range,
                n_nodes,
                generator,
                inputs.friction,
                advance=advance,
            )
        samples = regressions[0].samples
        usual_past = usual_past_of(data, frictionless, choices, regressions[0], action_range)
        noise = like.noise.cpu() if like is not None else noise_scale * noise_of(samples, choices, data.labels_of(rows))
        reward_range = (float(rewards.min()), float(rewards.max()))
        ends = np.asarray(dataset.terminals)
        worst = (
            float(rewards[ends].min()) if ends.any() else 0.0,
            float(rewards[~ends].min()),
        )
        limited = _are_limited(dataset, bounds, like)
        return cls(choices, coordinates, bounds, nodes, given, reward_range, noise, action_range, worst, usual_past, limited)

    def to(self, device: th.device | str) -> "DynamicsModel":
        """The same on a device."""
        device = th.device(device)
        return DynamicsModel(
            self.choices,
            self.coordinates.to(device),
            self.bounds.to(device),
            self.nodes.to(device),
            None if self.reward is None else self.reward.to(device),
            self.reward_range,
            self.noise.to(device),
            (self.action_range[0].to(device), self.action_range[1].to(device)),
            self._worst_rewards,
            self._usual_past,
            self._actions_are_limited,
        )

    def worst_value(self, gamma: float) -> float:
        """The least that a policy can get by what was seen: an end with the worst reward, or the worst reward for ever."""
        at_end, going_on = self._worst_rewards
        return min(0.0, at_end, going_on / (1.0 - gamma))

    @property
    def reward_is_bounded(self) -> bool:
        """Whether predicted rewards stay within the range of the data's; a user's formula need not, nor one that is exact."""
        return not (self.choices.exact or isinstance(self.reward, GivenReward))

    @property
    def worst_reward(self) -> float:
        """The least that a step which goes on has earned; at most 0."""
        return min(0.0, self._worst_rewards[1])

    @property
    def worst_end(self) -> float:
        """The least that an end of the task has earned, once; at most 0."""
        return min(0.0, self._worst_rewards[0])

    @property
    def applied_range(self) -> tuple[th.Tensor, th.Tensor]:
        """Beyond which actions are cut off: as known, or as seen. On a system that is exactly affine nothing is cut off."""
        low, high = self.action_range
        if self._actions_are_limited:
            return low, high
        return th.full_like(low, -math.inf), th.full_like(high, math.inf)

    def clip(self, actions: th.Tensor) -> th.Tensor:
        """What is applied of the actions that a policy asks for, (…, d_a)."""
        low, high = self.applied_range
        return th.minimum(th.maximum(actions, low), high)

    def asked_for(self, applied: th.Tensor) -> th.Tensor:
        """Which of the applied actions were asked for as they are, and not cut off, (…, d_a)."""
        low, high = self.applied_range
        return (applied > low) & (applied < high)

    def past_at_rest(self, states: th.Tensor) -> th.Tensor:
        """
        What the steps before are taken to have done where nobody knows.

        :param states: (m, d)
        :return: (m, n_earlier_steps · (d_a + d))
        """
        return self._usual_past(states.cpu()).to(states.device)

    def past_of(self, data: Prepared) -> th.Tensor:
        """
        :param data: recorded transitions, in this model's coordinates
        :return: what the steps before each did, as recorded or, where nothing was, as at rest, (n, q), on the processor
        """
        n_earlier = self.choices.n_earlier_steps
        known = th.from_numpy(data.n_past >= n_earlier)[:, None]
        return th.where(known, data.past(n_earlier), self.past_at_rest(data.states))

    def predict(
        self, observations: np.ndarray, actions: np.ndarray, earlier: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        One step ahead, the mean.

        :param observations: (m, d_s)
        :param actions: (m, d_a); what lies outside of :attr:`applied_range` counts as its end
        :param earlier: actions of the steps before and what these changed, in the model's coordinates, the last step first,
            (m, n_earlier_steps · (d_a + d)) or more; None for a system that nobody has acted on
        :return: next observations, (m, d_s), and rewards, (m,)
        """
        device, d, n = self.noise.device, self.coordinates.dim, len(np.atleast_2d(observations))
        seen = check_states("observations", observations, len(self.coordinates.fixed))
        states = self.coordinates.encode(float_tensor(seen).to(device))
        applied = self.clip(float_tensor(check_rows("actions", actions, n, self.features.n_actions)).to(device))
        past = self.past_at_rest(states)
        if earlier is not None:
            past = float_tensor(check_rows("earlier", earlier, n, past.shape[1], or_more=True)).to(device)[:, : past.shape[1]]
        inputs = th.cat([self.features(applied), past], dim=1)
        change = self.nodes.evaluate(states, inputs, self.nodes.locate(states))
        moved = self.bounds.hold(states + change[:, :d])
        rewards = change[:, d].clamp(*self.reward_range) if self.reward is None else self.reward(states, applied, moved)
        return self.coordinates.decode(moved).cpu().numpy(), rewards.cpu().numpy()

    def describe(self, names: Sequence[str] | None = None) -> str:
        """
        What the data were found to be: coordinates, bandwidth, earlier steps, what is unexplained, where the task ends.

        :param names: of the observation's columns
        """
        return "\n".join(f"{what}: {found}" for what, found in described(self, names))


def _bounds_of(
    data: Prepared, choices: Choices, limits: Mapping[int | str, Limit] | None, initial_states: np.ndarray | None
) -> Bounds:
    """Of what was recorded, and of what one affine model is believed to know beside it."""
    bounds = Bounds.of(data.coordinates, data.states, data.next_states, data.terminals, limits, data.stops)
    extent = bounds.high - bounds.low
    if choices.explained:
        last = data.next_states[data.terminals]
        ends = ((last < bounds.low) | (last > bounds.high)).any(dim=0)
        known = data.coordinates.all_around(extent.masked_fill(ends, 0.0))
        for angle in (known.round & ~data.coordinates.round).nonzero()[:, 0].tolist():
            _logger.warning(
                "%s: nothing was recorded within %.0f° of the circle. One formula explains all the rest, and the model goes "
                "by it there too. If there is a stop, name it with limits.",
                known.names()[angle],
                360.0 - math.degrees(float(extent[angle])),
            )
        bounds = replace(bounds, coordinates=known)
    if choices.is_affine and not bool(data.coordinates.bent.any()):
        span = _AFFINE_ROOM * span_of_starts(data.dataset, data.coordinates, initial_states)
        bounds = replace(bounds, room=EVERYWHERE * extent if choices.exact else span)
    return bounds


def _are_limited(dataset: TransitionDataset, bounds: Bounds, like: DynamicsModel | None) -> bool:
    """Whether actions beyond those that were seen are cut off."""
    if like is not None:
        return like._actions_are_limited
    space = dataset.action_space
    return not bounds.known_everywhere or (space is not None and bool(np.isfinite([space.low, space.high]).all()))
