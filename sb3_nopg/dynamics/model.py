"""A model of the system, fitted to recorded transitions: what a step changes and earns, where it ends, how sure that is."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.action_lag import actions_follow_from_states, rows_with_a_past
from sb3_nopg.datafiles.transform import episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.bounds import Bounds, Limit
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.cross_validation import BANDWIDTHS, LeftOut, left_out_errors, unexplained, widest_good
from sb3_nopg.dynamics.description import described
from sb3_nopg.dynamics.interpolation import Interpolation
from sb3_nopg.dynamics.nodes import NodeMaps, choose_nodes
from sb3_nopg.dynamics.regression import AffineMaps, LocalAffineRegression, Samples
from sb3_nopg.dynamics.rewards import GivenReward, QuadraticReward, RewardFunction, RewardModel, given_reward, recorded_rewards
from sb3_nopg.errors import InputError

_logger = logging.getLogger(__name__)
#: nodes by number of coordinates
N_NODES = {1: 400, 2: 2500, 3: 5000}
N_NODES_OTHERWISE = 12_000
_MOST_EARLIER = 2
# As few earlier actions as leave no more than this factor unexplained of what is left with the best number.
_EARLIER_COUNT, _COUNT_IF_PREDICTABLE = 1.2, 1.5
# Products of actions enter where they leave at most this share of what is unexplained without them.
_PRODUCTS_COUNT = 0.7
# What is explained to this share is not worth a closer look.
_EXPLAINED = 1e-3
# Transitions per coefficient of one affine model, at least.
_LEAST_ROWS = 2
# Fewer have nothing between them.
_LEAST_NODES = 2
# First steps of episodes that are looked at, and how much worse than others they may be predicted as if from rest.
_MOST_FIRST, _AS_GOOD_AT_REST = 500, 1.5


@dataclass(frozen=True)
class Choices:
    """
    What was chosen on left-out episodes.

    :param bandwidth: of the changes' kernel, in standard deviations; infinite for one affine model
    :param n_earlier_actions: that count beside the last one
    :param products: whether products of actions count too
    :param reward_bandwidth: of the reward's kernel; None where the reward needs no nodes
    :param unexplained: share of the changes' variance that is left where the model has not seen them
    :param reward_unexplained: likewise of the reward
    """

    bandwidth: float
    n_earlier_actions: int
    products: bool
    reward_bandwidth: float | None
    unexplained: float
    reward_unexplained: float


@dataclass(frozen=True)
class Prepared:
    """Recorded transitions as regressions need them; rows as in the data."""

    dataset: TransitionDataset
    coordinates: Coordinates
    states: th.Tensor
    next_states: th.Tensor
    actions: th.Tensor
    earlier: th.Tensor
    n_past: np.ndarray
    rewards: th.Tensor
    terminals: th.Tensor
    labels: np.ndarray | None
    begins_at_rest: bool = False

    @classmethod
    def of(cls, dataset: TransitionDataset, coordinates: Coordinates, rewards: np.ndarray) -> "Prepared":
        tensors = [_tensor(array) for array in (dataset.observations, dataset.next_observations, dataset.actions)]
        states, next_states = (coordinates.encode(tensor) for tensor in tensors[:2])
        labels = episode_labels(dataset)
        earlier, n_past = _earlier_actions(dataset, labels)
        return cls(
            dataset,
            coordinates,
            states,
            next_states,
            tensors[2],
            _tensor(earlier),
            n_past,
            _tensor(rewards),
            th.from_numpy(np.array(dataset.terminals)),
            labels,
        )

    def samples(self, features: ActionFeatures, rows: th.Tensor) -> Samples:
        """For the changes."""
        changes = self.coordinates.difference(self.next_states, self.states)
        return self._samples(features, changes, rows)

    def reward_samples(self, features: ActionFeatures, rows: th.Tensor) -> Samples:
        """For the rewards."""
        return self._samples(features, self.rewards[:, None], rows)

    def _samples(self, features: ActionFeatures, targets: th.Tensor, rows: th.Tensor) -> Samples:
        n_earlier = features.n_actions * features.n_earlier
        inputs = features(self.actions, self.earlier[:, :n_earlier])
        return Samples(self.coordinates, self.states, inputs, targets).rows(rows)

    def rows(self, n_earlier: int) -> th.Tensor:
        """Numbers of the rows whose earlier actions are known, or known to have been none."""
        return th.from_numpy(np.flatnonzero((self.n_past >= n_earlier) | self.begins_at_rest))

    def at_rest(self, features: ActionFeatures) -> "Prepared":
        """
        The same with the first steps of episodes too, where these look as if nobody had acted before: a rig that is let go.

        :param features: with earlier actions
        """
        known = th.from_numpy(np.flatnonzero(self.n_past >= features.n_earlier))
        first = th.from_numpy(np.flatnonzero(self.n_past < features.n_earlier))
        if not len(first) or self.labels is None:
            return self
        samples, begun = self.samples(features, known), self.samples(features, first[:_MOST_FIRST])
        left_out = LeftOut.of(self.labels_of(known), len(samples))
        usual = left_out_errors(samples, left_out, (math.inf,))[0].abs().mean(dim=0)
        maps = LocalAffineRegression(samples).maps_at(begun.states)
        found = (begun.targets - maps.at_own_states(begun.inputs)).abs().mean(dim=0)
        return replace(self, begins_at_rest=bool((found <= _AS_GOOD_AT_REST * usual + 1e-12).all()))

    def labels_of(self, rows: th.Tensor) -> np.ndarray | None:
        return None if self.labels is None else self.labels[rows.numpy()]


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
    ):
        self.choices, self.coordinates, self.bounds, self.nodes = choices, coordinates, bounds, nodes
        self.reward, self.reward_range, self.noise, self.action_range = reward, reward_range, noise, action_range
        self._worst_rewards = worst_rewards
        self.features = ActionFeatures(len(action_range[0]), choices.n_earlier_actions, choices.products)

    @classmethod
    def fit(
        cls,
        dataset: TransitionDataset,
        *,
        angles: Sequence[tuple[int, int]] | None = None,
        limits: Mapping[int, Limit] | None = None,
        reward: str | RewardFunction | None = None,
        bandwidth: float | None = None,
        n_earlier_actions: int | None = None,
        n_nodes: int | None = None,
        initial_states: np.ndarray | None = None,
        like: "DynamicsModel | None" = None,
        seed: int = 0,
    ) -> "DynamicsModel":
        """
        :param dataset: recorded transitions
        :param angles: pairs of columns that are cosine and sine of an angle; None to find them, () for none
        :param limits: smallest and largest value of columns, beyond which the task counts as lost; None as an end for no end
        :param reward: an expression over s, a and s2, or a function of them, used exactly; None to learn it from the data
        :param bandwidth: in standard deviations, infinite for one affine model; None to choose it on left-out episodes
        :param n_earlier_actions: that count beside the last; None to choose
        :param n_nodes: states to compile the data at; None for a number that goes with the dimension
        :param initial_states: observations to have nodes at, (n₀, d_s)
        :param like: a model of the same system whose coordinates and choices to take over
        :param seed: of the nodes and of what is left out
        """
        _check_numbers(bandwidth, n_earlier_actions, n_nodes)
        rewards = np.array(dataset.rewards, dtype=np.float64)
        if reward is not None:
            rewards = recorded_rewards(reward, dataset.observations, dataset.actions, dataset.next_observations)
        if like is None:
            both = np.concatenate([dataset.observations, dataset.next_observations])
            coordinates = Coordinates.of(_tensor(both), angles)
            _check_enough(dataset, coordinates)
        else:
            coordinates = like.coordinates.to(th.device("cpu"))
        data = Prepared.of(dataset, coordinates, rewards)
        choices = choose(data, bandwidth, n_earlier_actions, reward is not None) if like is None else like.choices
        features = ActionFeatures(dataset.action_dim, choices.n_earlier_actions, choices.products)
        if choices.n_earlier_actions:
            data = data.at_rest(features)
        rows = data.rows(choices.n_earlier_actions)
        if len(rows) < _LEAST_ROWS * (1 + coordinates.dim + features.size):
            raise InputError(
                "dataset",
                f"{len(rows)} transitions know the {choices.n_earlier_actions} action(s) before them, too few for a model",
                "Give longer episodes, or more of them",
            )
        bounds = Bounds.of(coordinates, data.states, data.next_states, data.terminals, limits)
        if bounds.unexplained_ends > 0.1 and like is None:
            _logger.warning(
                "%.0f %% of the ends of the task lie among states that did not end it: the model does not know these ends. "
                "Name them with limits, or add what tells them to the observation.",
                100 * bounds.unexplained_ends,
            )
        samples = data.samples(features, rows)
        regression = LocalAffineRegression(samples, choices.bandwidth)
        given: RewardModel | None = None
        if reward is not None:
            given = given_reward(reward, coordinates, dataset.observations, dataset.actions)
        elif choices.reward_bandwidth is None:
            given = QuadraticReward.fit(data.reward_samples(features, rows), dataset.action_dim)
        regressions = [regression]
        if given is None:
            assert choices.reward_bandwidth is not None
            regressions.append(LocalAffineRegression(data.reward_samples(features, rows), choices.reward_bandwidth))
        action_range = _action_range(dataset)
        generator = th.Generator().manual_seed(seed)
        first = data.states[:0] if initial_states is None else coordinates.encode(_tensor(np.atleast_2d(initial_states)))
        n_nodes = N_NODES.get(coordinates.dim, N_NODES_OTHERWISE) if n_nodes is None else n_nodes
        nodes = _compile(data, first, regressions, bounds, features, action_range, n_nodes, generator)
        noise = like.noise.cpu() if like is not None else _noise(samples, choices.bandwidth, data.labels_of(rows))
        reward_range = (float(rewards.min()), float(rewards.max()))
        ends = np.asarray(dataset.terminals)
        worst = (
            float(rewards[ends].min()) if ends.any() else 0.0,
            float(rewards[~ends].min()),
        )
        return cls(choices, coordinates, bounds, nodes, given, reward_range, noise, action_range, worst)

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
        )

    def worst_value(self, gamma: float) -> float:
        """The least that a policy can get by what was seen: an end with the worst reward, or the worst reward for ever."""
        at_end, going_on = self._worst_rewards
        return min(0.0, at_end, going_on / (1.0 - gamma))

    @property
    def reward_is_bounded(self) -> bool:
        """Whether predicted rewards stay within the range of the data's; a user's formula need not."""
        return not isinstance(self.reward, GivenReward)

    @property
    def worst_reward(self) -> float:
        """The least that a step which goes on has earned, and never more than nothing."""
        return min(0.0, self._worst_rewards[1])

    @property
    def worst_end(self) -> float:
        """The least that an end of the task has earned, once, and never more than nothing."""
        return min(0.0, self._worst_rewards[0])

    def clip(self, actions: th.Tensor) -> th.Tensor:
        """What is applied of the actions that a policy asks for, (…, d_a)."""
        low, high = self.action_range
        return th.minimum(th.maximum(actions, low), high)

    def asked_for(self, applied: th.Tensor) -> th.Tensor:
        """Which of the applied actions were asked for as they are, and not cut off, (…, d_a)."""
        low, high = self.action_range
        return (applied > low) & (applied < high)

    def predict(
        self, observations: np.ndarray, actions: np.ndarray, earlier: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        One step ahead, the mean.

        :param observations: (m, d_s)
        :param actions: (m, d_a); what lies outside of their range counts as its end
        :param earlier: actions before these, the last one first, (m, d_a · n_earlier_actions) or more; None for none, as
            before a system moves
        :return: next observations, (m, d_s), and rewards, (m,)
        """
        device, d, n_earlier = self.noise.device, self.coordinates.dim, self.features.n_earlier
        states = self.coordinates.encode(_tensor(np.atleast_2d(observations)).to(device))
        applied = self.clip(_tensor(actions).reshape(len(states), -1).to(device))
        if earlier is None:
            past = self.clip(th.zeros_like(applied)).repeat(1, n_earlier)
        else:
            past = _tensor(earlier).reshape(len(states), -1).to(device)[:, : n_earlier * self.features.n_actions]
        change = self.nodes.evaluate(states, self.features(applied, past), self.nodes.interpolation.locate(states))
        moved = self.bounds.hold(states + change[:, :d])
        rewards = change[:, d].clamp(*self.reward_range) if self.reward is None else self.reward(states, applied, moved)
        return self.coordinates.decode(moved).cpu().numpy(), rewards.cpu().numpy()

    def describe(self, names: Sequence[str] | None = None) -> str:
        """
        What the data were found to be: coordinates, bandwidth, earlier actions, what is unexplained, where the task ends.

        :param names: of the observation's columns
        """
        return "\n".join(f"{what}: {found}" for what, found in described(self, names))


def choose(data: Prepared, bandwidth: float | None, n_earlier: int | None, reward_is_given: bool) -> Choices:
    """
    :param data: recorded transitions
    :param bandwidth: that a user wants
    :param n_earlier: that a user wants
    :param reward_is_given: whether there is nothing to choose about it
    """
    widths = BANDWIDTHS if bandwidth is None else (float(bandwidth),)
    n_actions = data.actions.shape[1]
    n_earlier, errors = _choose_earlier(data, widths, n_earlier)
    which = widest_good(errors, widths)
    best, products = float(errors[which]), False
    if best > _EXPLAINED:
        squared = _unexplained(data, ActionFeatures(n_actions, n_earlier, True), widths)
        if float(squared.min()) < _PRODUCTS_COUNT * float(errors.min()):
            products, which = True, widest_good(squared, widths)
            best = float(squared[which])
            _logger.info("The system is not affine in its actions: their products count too.")
    reward_bandwidth, reward_left = None, 0.0
    if not reward_is_given:
        reward_bandwidth, reward_left = _choose_reward(data, ActionFeatures(n_actions, n_earlier, products))
    return Choices(widths[which], n_earlier, products, reward_bandwidth, best, reward_left)


def _choose_earlier(data: Prepared, widths: tuple[float, ...], wanted: int | None) -> tuple[int, th.Tensor]:
    """How many earlier actions count, and what is unexplained with them at each width."""
    n_actions = data.actions.shape[1]
    numbers: Sequence[int] = range(_MOST_EARLIER + 1) if wanted is None else (wanted,)
    enough = [
        n
        for n in numbers
        if n == 0 or len(data.rows(n)) >= max(0.5 * len(data.states), 5 * (1 + data.states.shape[1] + (1 + n) * n_actions))
    ]
    if wanted is not None and not enough:
        raise InputError("n_earlier_actions", f"too few rows know {wanted} earlier actions", "Give longer episodes, or fewer")
    if wanted is None and data.labels is None:
        enough = [0]
    # All on the rows of the last, or they could not be compared.
    rows = data.rows(enough[-1]) if len(enough) > 1 else None
    errors = {n: _unexplained(data, ActionFeatures(n_actions, n), widths, rows) for n in enough}
    least = min(float(error.min()) for error in errors.values())
    # Where actions follow from states, earlier ones may stand for what the model cannot say of states.
    much = _EARLIER_COUNT if len(enough) == 1 or not actions_follow_from_states(data.dataset) else _COUNT_IF_PREDICTABLE
    chosen = next(n for n in enough if float(errors[n].min()) <= much * least + _EXPLAINED)
    return chosen, errors[chosen]


def _unexplained(
    data: Prepared, features: ActionFeatures, widths: tuple[float, ...], rows: th.Tensor | None = None
) -> th.Tensor:
    rows = data.rows(features.n_earlier) if rows is None else rows
    samples = data.samples(features, rows)
    left_out = LeftOut.of(data.labels_of(rows), len(samples))
    return unexplained(left_out_errors(samples, left_out, widths), samples.targets)


def _choose_reward(data: Prepared, features: ActionFeatures) -> tuple[float | None, float]:
    """The reward's bandwidth, None for a quadratic function of all samples, and what is unexplained by it."""
    rows = data.rows(features.n_earlier)
    samples = data.reward_samples(features, rows)
    if float(samples.targets.max() - samples.targets.min()) < 1e-12:
        return None, 0.0
    left_out = LeftOut.of(data.labels_of(rows), len(samples))
    errors = unexplained(left_out_errors(samples, left_out), samples.targets)
    which = widest_good(errors)
    if not bool(data.coordinates.bent.any()):
        quadratic = _quadratic_unexplained(samples, left_out, features.n_actions)
        if quadratic <= 1.1 * float(errors[which]):
            return None, quadratic
    return BANDWIDTHS[which], float(errors[which])


def _quadratic_unexplained(samples: Samples, left_out: LeftOut, n_actions: int) -> float:
    errors = samples.targets.new_zeros(len(left_out.judged), 1)
    fold = left_out.fold[left_out.judged]
    for number in fold.unique():
        rows = left_out.judged[fold == number]
        model = QuadraticReward.fit(samples.rows(left_out.fold != number), n_actions)
        states, actions = samples.states[rows], samples.inputs[rows, :n_actions]
        errors[fold == number, 0] = samples.targets[rows, 0] - model(states, actions, states)
    return float(unexplained(errors, samples.targets))


def _noise(samples: Samples, bandwidth: float, labels: np.ndarray | None) -> th.Tensor:
    """What predictions miss where they have not seen the episode, (q, d)."""
    return left_out_errors(samples, LeftOut.of(labels, len(samples), seed=1), (bandwidth,))[0]


def _compile(
    data: Prepared,
    first: th.Tensor,
    regressions: list[LocalAffineRegression],
    bounds: Bounds,
    features: ActionFeatures,
    action_range: tuple[th.Tensor, th.Tensor],
    n_nodes: int,
    generator: th.Generator,
) -> NodeMaps:
    coordinates, scale = data.coordinates, regressions[0].scale
    straight = not bool(coordinates.bent.any())
    single = straight and all(math.isinf(regression.bandwidth) for regression in regressions)

    def compiled(states: th.Tensor) -> NodeMaps:
        maps = [regression.maps_at(states) for regression in regressions]
        together = AffineMaps(*(th.cat([getattr(m, name) for m in maps], dim=1) for name in AffineMaps.__dataclass_fields__))
        return NodeMaps(Interpolation.between(coordinates, states, scale), together, single)

    draft = compiled(data.states[th.randperm(len(data.states), generator=generator)[:1000]])

    def reach(states: th.Tensor, actions: th.Tensor) -> th.Tensor:
        # An action that has been held for a while.
        inputs = features(actions, actions.repeat(1, features.n_earlier))
        nearest = draft.interpolation.locate(states)
        return bounds.hold(states + draft.evaluate(states, inputs, nearest)[:, : coordinates.dim])

    nodes = choose_nodes(data.states, first, coordinates, scale, n_nodes, reach, bounds, action_range, generator)
    return compiled(nodes)


def _action_range(dataset: TransitionDataset) -> tuple[th.Tensor, th.Tensor]:
    """What an action can be: what its space says, or what was seen."""
    seen = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
    space = dataset.action_space
    if space is None:
        return _tensor(seen[0]), _tensor(seen[1])
    low, high = (np.where(np.isfinite(b), b, s) for b, s in zip((space.low, space.high), seen, strict=True))
    return _tensor(low), _tensor(high)


def _earlier_actions(dataset: TransitionDataset, labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Actions one and more steps before each, the last one first, (n, d_a · most), and how many of them are known, (n,)."""
    actions = np.asarray(dataset.actions, dtype=np.float64)
    n_past = np.zeros(len(actions), dtype=np.int64)
    parts = []
    for steps_ago in range(1, _MOST_EARLIER + 1):
        shifted = np.zeros_like(actions)
        if labels is not None:
            rows = rows_with_a_past(dataset, labels, steps_ago)
            n_past[rows] = steps_ago
            shifted[rows] = actions[rows - steps_ago]
        parts.append(shifted)
    return np.concatenate(parts, axis=1), n_past


def _tensor(array: Any) -> th.Tensor:
    return th.from_numpy(np.array(array, dtype=np.float64))


def check_model_settings(dataset: TransitionDataset, settings: Mapping[str, Any]) -> None:
    """
    :param dataset: recorded transitions
    :param settings: angles, limits, reward, … as for :meth:`DynamicsModel.fit`
    :raises InputError: where they do not go with the data
    """
    observations = _tensor(np.concatenate([dataset.observations, dataset.next_observations]))
    coordinates = Coordinates.of(observations, settings.get("angles"))
    states = coordinates.encode(_tensor(dataset.observations))
    nothing = th.zeros(len(states), dtype=th.bool)
    Bounds.of(coordinates, states, states, nothing, settings.get("limits"))
    if settings.get("reward") is not None:
        recorded_rewards(settings["reward"], dataset.observations, dataset.actions, dataset.next_observations)
    _check_numbers(*(settings.get(name) for name in ("bandwidth", "n_earlier_actions", "n_nodes")))
    _check_enough(dataset, coordinates)


def _check_numbers(bandwidth: Any, n_earlier_actions: Any, n_nodes: Any) -> None:
    given = {"bandwidth": bandwidth, "n_earlier_actions": n_earlier_actions, "n_nodes": n_nodes}
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
            raise InputError(name, f"{value!r} is out of range", "Give a larger number, or leave it out")
        if name != "bandwidth" and not (np.isfinite(value) and value == int(value)):
            raise InputError(name, f"{value!r} is no whole number", "Give one, or leave it out")
    if bandwidth == 0 or (n_nodes is not None and n_nodes < _LEAST_NODES):
        name = "bandwidth" if bandwidth == 0 else "n_nodes"
        raise InputError(name, f"{given[name]!r} is out of range", "Give a larger number, or leave it out")
    if n_earlier_actions is not None and n_earlier_actions > _MOST_EARLIER:
        problem = f"{n_earlier_actions} are more than the model can tell apart"
        raise InputError("n_earlier_actions", problem, f"Give {_MOST_EARLIER} at most")


def _check_enough(dataset: TransitionDataset, coordinates: Coordinates) -> None:
    if len(dataset) < _LEAST_ROWS * (1 + coordinates.dim + dataset.action_dim):
        raise InputError("dataset", f"{len(dataset)} transitions are too few for an affine model", "Record more")
