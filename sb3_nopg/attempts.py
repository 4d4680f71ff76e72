"""
Another attempt where a policy is predicted to come to a bad end.

Bandwidths are chosen by how well they predict one transition. For a dimension in which little happens in a step that says
little: wide ones average more samples and cost nothing. But every transition of the kernel estimate scatters the state by
about a bandwidth, and where that is many times the motion, the estimate does not see a policy drift. Predicted trajectories
(:mod:`.rollouts`) do. So the policy that training has found is followed along them, and where too many come to a bad
end or leave the data, training begins anew with a narrower bandwidth in the dimension by which they do. The attempt whose
trajectories earn most is kept.

Trajectories come from several models, each of one half of the episodes: what one model finds stable by a hair, another
does not.
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_nopg.bandwidth import Bandwidths
from sb3_nopg.choices import has_bad_ends
from sb3_nopg.datafiles.transform import episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.rollouts import Actor, Rollouts, TrajectoryModel

if TYPE_CHECKING:
    from sb3_nopg.nopg import NOPG

_logger = logging.getLogger(__name__)
_N_MODELS, _MOST_STARTS = 4, 32
# Slow drifts show after many times the horizon 1 / (1 − γ).
_HORIZONS, _MOST_STEPS = 10, 1000
# No other attempt where this share of the trajectories last.
_ENOUGH = 0.9
# A dimension by which this share of the others end is one to look at more closely: by so much.
_TELLING, _NARROWER = 0.25, 0.4


@dataclass(frozen=True)
class Attempt:
    """
    One training and what its policy is predicted to do.

    :param state_bandwidth_factor: that it was made with, (d_s,)
    :param score: undiscounted rewards along a predicted trajectory, the mean of all
    :param lasting: share of the trajectories that neither end nor leave the data
    :param seconds: what training and prediction cost; of the first attempt, prediction alone
    """

    state_bandwidth_factor: tuple[float, ...]
    score: float
    lasting: float
    seconds: float


@dataclass(frozen=True)
class Prospects:
    """
    Trajectories of one policy by every model.

    :param score: see :class:`Attempt`
    :param lasting: likewise
    :param ends_by: how many of the others end in each dimension, (d_s,)
    """

    score: float
    lasting: float
    ends_by: np.ndarray


class TrajectoryJudge:
    """
    :param dataset: single transitions
    :param starts: where trajectories begin, (m, d_s)
    :param n_steps: how long they are followed
    :raises InputError: where there are too few transitions
    """

    def __init__(self, dataset: TransitionDataset, starts: np.ndarray, n_steps: int):
        whole = TrajectoryModel(dataset)
        self.models = [TrajectoryModel(half, like=whole) for half in _halves(dataset.real)]
        self._starts = starts[np.unique(np.linspace(0, len(starts) - 1, _MOST_STARTS).astype(int))]
        self._n_steps = n_steps
        # After a trajectory has left what is known, the worst that was seen; nothing, where that is better than an end.
        self._unknown_reward = min(0.0, float(dataset.rewards.min()))

    def prospects(self, act: Actor) -> Prospects:
        """
        :param act: a policy
        """
        followed = [(model, model.follow(act, self._starts, self._n_steps)) for model in self.models]
        return Prospects(
            float(np.mean([rollouts.total_rewards(self._unknown_reward) for _, rollouts in followed])),
            float(np.mean([rollouts.lasting for _, rollouts in followed])),
            np.sum([_ends_by(model, rollouts) for model, rollouts in followed], axis=0),
        )


def judge_for(model: "NOPG") -> TrajectoryJudge:
    """
    :param model: with its data attached
    :raises InputError: where its data are too few
    """
    n_steps = min(round(_HORIZONS / (1.0 - model.gamma)), _MOST_STEPS)
    return TrajectoryJudge(model.training_data, model.start_states, n_steps)


def make_attempts(model: "NOPG", untrained: dict[str, Any], climb: Callable[[], None]) -> tuple[Attempt, ...]:
    """
    Judge what training has found, and train anew as long as it is predicted to fail and the settings allow. The model is left
    at the best attempt, also where one is interrupted.

    :param model: trained
    :param untrained: parameters of policy and optimiser that its training began with
    :param climb: makes as many updates as the first attempt had, from where the model is
    :return: every attempt, the one that was kept first; nothing where there was nothing to choose
    """
    if model.n_attempts == 1 or model.processes.several or not has_bad_ends(model.training_data, model.gamma):
        return ()
    began = time.perf_counter()
    try:
        judge = judge_for(model)
    except InputError as error:
        _logger.info("Nothing is predicted step by step: %s", error)
        return ()
    found = [_judged(model, judge, began)]
    try:
        while len(found) < model.n_attempts and found[-1][0].lasting < _ENOUGH:
            began, (last, ends_by, _) = time.perf_counter(), found[-1]
            factor = _narrowed(ends_by)
            _logger.info(
                "%.0f %% of the predicted trajectories last: another attempt with state bandwidths times %s.",
                100 * last.lasting,
                np.round(factor, 3).tolist(),
            )
            _load(model, untrained)
            model.narrow_bandwidths(factor)
            climb()
            found.append(_judged(model, judge, began))
    finally:
        # The first of the best; an attempt that was interrupted does not count.
        _, _, best = max(found, key=lambda outcome: outcome[0].score)
        _restore(model, best)
    return tuple(attempt for attempt, _, _ in sorted(found, key=lambda outcome: -outcome[0].score))


@dataclass(frozen=True)
class _Snapshot:
    """All of a model that another attempt changes."""

    parameters: dict[str, Any]
    bandwidths: Bandwidths
    factor: Any
    start_trials: tuple[Any, ...]


def _judged(model: "NOPG", judge: TrajectoryJudge, began: float) -> tuple[Attempt, np.ndarray, _Snapshot]:
    prospects = judge.prospects(lambda states: model.predict(states.astype(np.float32), deterministic=True)[0])
    assert model.bandwidths is not None
    factor = np.broadcast_to(np.asarray(model.state_bandwidth_factor, dtype=np.float64), model.bandwidths.state.shape)
    attempt = Attempt(tuple(factor.tolist()), prospects.score, prospects.lasting, time.perf_counter() - began)
    kept = _Snapshot(parameters_of(model), model.bandwidths, model.state_bandwidth_factor, model.start_trials)
    return attempt, prospects.ends_by, kept


def parameters_of(model: "NOPG") -> dict[str, Any]:
    """
    :param model: any
    :return: parameters of its policy and its optimiser, as they are now
    """
    return copy.deepcopy({"policy": model.policy.state_dict(), "optimizer": model.policy.optimizer.state_dict()})


def _load(model: "NOPG", parameters: dict[str, Any]) -> None:
    model.policy.load_state_dict(parameters["policy"])
    model.policy.optimizer.load_state_dict(parameters["optimizer"])


def _restore(model: "NOPG", snapshot: _Snapshot) -> None:
    _load(model, snapshot.parameters)
    if model.bandwidths is not snapshot.bandwidths:
        model.set_bandwidths(snapshot.bandwidths, snapshot.factor)
    model.start_trials = snapshot.start_trials


def _ends_by(model: TrajectoryModel, rollouts: Rollouts) -> np.ndarray:
    states = rollouts.last_states[~rollouts.lasting]
    return np.bincount(model.farthest_out(states), minlength=states.shape[1])


def _narrowed(ends_by: np.ndarray) -> np.ndarray:
    """Factor of each dimension's bandwidth."""
    return np.where(ends_by >= _TELLING * ends_by.sum(), _NARROWER, 1.0)


def _halves(real: TransitionDataset) -> list[TransitionDataset]:
    """Of the episodes, drawn at random; of the transitions where there are no episodes, or a single one."""
    labels, rng = episode_labels(real), np.random.default_rng(0)
    numbers = np.arange(len(real)) if labels is None else np.unique(labels, return_inverse=True)[1]
    if numbers.max() == 0:
        numbers = np.arange(len(real))
    n_groups = int(numbers.max()) + 1
    halves = []
    for _ in range(_N_MODELS):
        chosen = rng.permutation(n_groups)[: (n_groups + 1) // 2]
        halves.append(real.filter(np.isin(numbers, chosen)))
    return halves
