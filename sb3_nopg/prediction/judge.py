"""
Which of several policies is best, by the data alone: each is followed through models of the system, every one fitted to
another half of the episodes, from the same starts and with the same noise.

What one model finds stable by a hair, another does not: where the models disagree about two policies, the data cannot tell
them apart, and the judge says so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.common.progress import phase
from sb3_nopg.common.threads import threads_for
from sb3_nopg.data.dataset import TransitionDataset, check_dataset
from sb3_nopg.data.episode_labels import units_of_each
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.dynamics.bounds import Limit
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.model_settings import check_starts
from sb3_nopg.dynamics.rewards import RewardFunction
from sb3_nopg.dynamics.tempting_ends import tempting_ends
from sb3_nopg.prediction.chatter import chatter_of
from sb3_nopg.prediction.judgement import Judged, Judgement, Leaving
from sb3_nopg.prediction.rollouts import Actor, Rollouts, roll_out, together

N_MODELS, MOST_STARTS = 4, 32
#: nodes of a model that policies are only followed through
N_NODES = 3000
# Slow drifts show after many times the horizon 1 / (1 − γ).
_HORIZONS, _MOST_STEPS = 10, 1000
# A margin below this share of the scores is rounding.
_ROUNDING = 1e-6


class Judge:
    """
    Models that policies are followed through, and from where.

    :param models: of the same system
    :param starts: observations, (m, d_s)
    :param n_steps: that trajectories are followed
    :param seed: of the noise
    """

    def __init__(self, models: Sequence[DynamicsModel], starts: np.ndarray, n_steps: int, seed: int = 0):
        if len(starts) > MOST_STARTS:
            starts = starts[np.unique(np.linspace(0, len(starts) - 1, MOST_STARTS).astype(int))]
        elif len(starts) < MOST_STARTS // 4:
            # Noise makes trajectories from one start differ too.
            starts = np.tile(starts, (MOST_STARTS // 4 // len(starts) + 1, 1))
        self.models, self.starts, self.n_steps, self._seed = list(models), starts, n_steps, seed

    def follow(self, actors: Sequence[Actor]) -> list[list[Rollouts]]:
        """
        :param actors: policies
        :return: trajectories of each policy by each model
        """
        # Many steps, each a little work.
        with threads_for(len(self.starts) * len(actors)), phase("judge", len(self.models) * self.n_steps) as advance:
            by_model = []
            for number, model in enumerate(self.models):
                # What is over early leaves steps out.
                advance(number * self.n_steps)
                seed = self._seed + number
                by_model.append(roll_out(model, actors, self.starts, self.n_steps, seed, advance=advance))
        return [list(of_actor) for of_actor in zip(*by_model, strict=True)]

    def judge(self, actors: Mapping[str, Actor], level: float = 0.95, notes: tuple[str, ...] = ()) -> Judgement:
        """
        :param actors: policies by name
        :param level: of the intervals
        :param notes: to put into the judgement
        """
        return self.judgement(list(actors), self.follow(list(actors.values())), level, notes)

    def judgement(
        self, names: Sequence[str], followed: list[list[Rollouts]], level: float = 0.95, notes: tuple[str, ...] = ()
    ) -> Judgement:
        """
        :param names: of the policies
        :param followed: their trajectories, from :meth:`follow`
        :param level: of the intervals
        :param notes: to put into the judgement
        """
        quantile = float(ndtri(0.5 + level / 2.0))
        # The same for all models, however little of the worst one of them has seen.
        worst = min(model.worst_reward for model in self.models), min(model.worst_end for model in self.models)
        # Of each policy, by each model, from each start, the worst and the best following outside of the data: (p, k, m)
        earned = np.array([[rollouts.total_rewards(*worst) for rollouts in of_policy] for of_policy in followed])
        at_best = earned.copy()
        for number, of_policy in enumerate(followed):
            for which, rollouts in enumerate(of_policy):
                open_ = self._is_open(rollouts)
                at_best[number, which, open_] = self._at_best(rollouts)[open_]
        scores, highest = earned.mean(axis=(1, 2)), at_best.mean(axis=(1, 2))
        order, n_models = np.argsort(-scores, kind="stable"), earned.shape[1]
        low, high = (end.cpu().numpy() for end in self.models[0].action_range)
        ranking = []
        for number in order:
            all_of_it = together(followed[number])
            below, above = (quantile * _standard_error(returns[number]) for returns in (earned, at_best))
            ranking.append(
                Judged(
                    names[number],
                    float(scores[number]),
                    None if n_models == 1 else float(scores[number] - below),
                    None if n_models == 1 else float(highest[number] + above),
                    float(all_of_it.lasting.mean()),
                    chatter_of(all_of_it.actions, high - low),
                    self._leaving(all_of_it),
                )
            )
        margin, told_apart, flights, clear = None, None, None, False
        if len(order) > 1:
            first, second = (earned[number] for number in order[:2])
            margin, clear = float((first - second).mean()), _is_clear(first, second, quantile)
            flights = None if clear else _flights(first, second, quantile)
            if n_models > 1:
                told_apart = clear and _is_clear(first, at_best[order[1]], quantile)
        unexplained, n = self.models[0].choices.unexplained, n_models * earned.shape[2]
        return Judgement(tuple(ranking), self.n_steps, n, margin, told_apart, flights, unexplained, notes, clear)

    def _is_open(self, rollouts: Rollouts) -> np.ndarray:
        """Which trajectories have left the data but no limit, so that their outcome is unknown and not lost, (m,)."""
        return (rollouts.left_by >= 0) & self.models[0].bounds.within_limits(rollouts.last_states)

    def _at_best(self, rollouts: Rollouts) -> np.ndarray:
        """What trajectories earn where the best that was recorded follows, which may be an end of the task, (m,)."""
        best = max(model.reward_range[1] for model in self.models)
        after = (len(rollouts.rewards) - rollouts.n_steps) * best
        if any(model.bounds.has_ends for model in self.models):
            after = np.where(after == 0.0, 0.0, np.maximum(after, best))
        return rollouts.known_rewards + after

    def _leaving(self, rollouts: Rollouts) -> Leaving | None:
        left = self._is_open(rollouts)
        if not left.any():
            return None
        by = self.models[0].coordinates.column_name(int(np.bincount(rollouts.left_by[left]).argmax()))
        return Leaving(float(left.mean()), round(float(np.median(rollouts.n_steps[left]))), by)


def judge(
    data: TransitionDataset,
    policies: Mapping[str, Any],
    *,
    gamma: float = 0.99,
    initial_states: Any = None,
    n_steps: int | None = None,
    angles: Sequence[tuple[int | str, int | str]] | None = None,
    limits: Mapping[int | str, Limit] | None = None,
    reward: str | RewardFunction | None = None,
    level: float = 0.95,
    seed: int = 0,
    trust: bool = False,
) -> Judgement:
    """
    Rank policies from anywhere by what the data predict of them.

    :param data: recorded transitions, best such that no policy was trained on
    :param policies: by name: a function of observations (m, d_s), an SB3 model, or the path of a ``.zip`` or ``.onnx`` file
    :param gamma: discount, which tells how far to look ahead
    :param initial_states: where the task starts, (n₀, d_s); None for where the data's episodes start
    :param n_steps: to follow each policy; None for ten times 1 / (1 − gamma), a thousand at most
    :param angles: pairs of columns that are an angle; None to find them
    :param limits: of columns, beyond which the task counts as lost
    :param reward: a formula or function to use instead of the data's rewards
    :param level: of the intervals
    :param seed: of models and noise
    :param trust: whether to read pickles in files of policies, which can run any program
    :return: the ranking, best first
    """
    from sb3_nopg.prediction.policy_files import actor_of, data_learned_from

    check_dataset(data)
    if not isinstance(policies, Mapping) or not policies:
        raise InputError("policies", "none given by name", "Give at least one, like {'mine': policy}")
    _check_question(gamma, n_steps, level)
    actors = {str(name): actor_of(policy, data, name=str(name), trust=trust) for name, policy in policies.items()}
    if n_steps is None:
        n_steps = steps_ahead(gamma)
    starts = start_states(data, initial_states)
    given: dict[str, Any] = {"initial_states": starts[:MOST_STARTS], "n_nodes": N_NODES, "seed": seed}
    whole = DynamicsModel.fit(data, angles=angles, limits=limits, reward=reward, **given)
    if initial_states is not None:
        check_starts("initial_states", starts, whole.bounds)
    models, notes = half_models(data, whole, N_MODELS, limits=limits, reward=reward, seed=seed)
    n_lost = int((~whole.bounds.within_limits(starts)).sum())
    if n_lost:
        notes += (f"{n_lost} of the {len(starts)} starts in the data lie beyond the limits, and are lost before they begin.",)
    misleading = tempting_ends(data, gamma, reward)
    if misleading is not None:
        notes += (misleading,)
    known = dataset_fingerprint(data)
    own = [name for name, policy in zip(actors, policies.values(), strict=True) if data_learned_from(policy) == known]
    if own:
        notes += (f"{', '.join(own)}: trained on these very data, so that the score is on the high side.",)
    return Judge(models, starts, n_steps, seed).judge(actors, level, notes)


def _check_question(gamma: Any, n_steps: Any, level: Any) -> None:
    check_number("gamma", gamma, 0.0, 1.0, low_included=True)
    check_number("level", level, 0.0, 1.0)
    check_count("n_steps", n_steps, optional=True)


def half_models(
    data: TransitionDataset,
    whole: DynamicsModel,
    n_models: int,
    *,
    limits: Mapping[int | str, Limit] | None = None,
    reward: str | RewardFunction | None = None,
    seed: int = 0,
) -> tuple[list[DynamicsModel], tuple[str, ...]]:
    """
    Models of one half of the episodes each, two that share none after the other.

    :param data: recorded transitions
    :param whole: a model of all of them, whose choices are taken over
    :param n_models: how many
    :param limits: as for the whole
    :param reward: as for the whole
    :param seed: of the halves
    :return: the models, and what a reader should know of them
    """
    models: list[DynamicsModel] = []
    with phase("models of halves", n_models) as advance:
        for number in range(-(-n_models // 2)):
            for rows in halves(data, seed + number):
                if rows is None:
                    return [whole], ("There are too few episodes to make several models of them: one judges alone.",)
                part = data.filter(rows)
                models.append(DynamicsModel.fit(part, like=whole, limits=limits, reward=reward, n_nodes=N_NODES, seed=seed))
                advance()
    return models[:n_models], ()


def halves(data: TransitionDataset, seed: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """
    :param data: recorded transitions
    :param seed: of the choice
    :return: rows of one half of the episodes and of the other, (n,) each; None for both where there are too few
    """
    groups = units_of_each(data)
    n_groups = int(groups.max()) + 1
    least = 4 * (data.observation_dim + data.action_dim + 1)
    chosen = np.isin(groups, np.random.default_rng(seed).permutation(n_groups)[: n_groups // 2])
    if n_groups < 4 or min(int(chosen.sum()), int((~chosen).sum())) < least:
        return None, None
    return chosen, ~chosen


def steps_ahead(gamma: float) -> int:
    """
    :param gamma: discount
    :return: how far to follow a policy
    """
    return int(min(max(round(_HORIZONS / (1.0 - gamma)), 50), _MOST_STEPS))


def start_states(data: TransitionDataset, given: Any) -> np.ndarray:
    """
    :param data: recorded transitions
    :param given: states, or None
    :return: observations to start from, (m, d_s)
    """
    if given is not None:
        return check_states("initial_states", given, data.observation_dim)
    if data.episode_starts is None:
        raise InputError("initial_states", "neither given nor told by the data", "Pass initial_states=...")
    return np.array(data.observations[data.episode_starts], dtype=np.float64)


def _standard_error(earned: np.ndarray) -> float:
    """Of the mean over k models and m starts, both of them random, (k, m)."""
    k, m = earned.shape
    of_models = earned.mean(axis=1).var(ddof=1) / k if k > 1 else 0.0
    of_starts = earned.mean(axis=0).var(ddof=1) / m if m > 1 else 0.0
    return math.sqrt(of_models + of_starts)


def _is_clear(first: np.ndarray, second: np.ndarray, quantile: float) -> bool:
    """Whether the first earns more, by more than chance and rounding, (k, m) both."""
    difference = first - second
    least = max(quantile * _standard_error(difference), _ROUNDING * float(np.abs(first).mean()))
    return float(difference.mean()) > least


def _flights(first: np.ndarray, second: np.ndarray, quantile: float) -> int | None:
    """How many would decide a margin that is not clear; None where none would."""
    margin = float((first - second).mean())
    # Flights start anywhere: their returns differ as those of the predicted trajectories do.
    spread = math.sqrt(float(first.var() + second.var()))
    if margin <= 0.0 or not math.isfinite(spread):
        return None
    return max(1, math.ceil((quantile * spread / margin) ** 2))
