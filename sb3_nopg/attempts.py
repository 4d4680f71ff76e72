"""
What training has found is followed step by step, before anything moves, and the policy that lasts is kept.

Bandwidths are chosen by how well they predict one transition. For a dimension in which little happens in a step that says
little: wide ones average more samples and cost nothing. But every transition of the kernel estimate scatters the state by
about a bandwidth, and where that is many times the motion, the estimate does not see a policy drift; a policy can get better
by it all the way, and drift more and more. Predicted trajectories (:mod:`.rollouts`, :mod:`.prospects`) do see it. So

- of the policies that training has passed, the one by which most trajectories last is kept, and
- where too many of that one's come to a bad end or leave the data, training begins anew with a narrower bandwidth in the
  dimension by which they do, and the better attempt is kept.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_nopg.bandwidth import Bandwidths
from sb3_nopg.choices import has_bad_ends
from sb3_nopg.errors import InputError, SolverError
from sb3_nopg.keeping import Waypoints, load_parameters, parameters_of
from sb3_nopg.prospects import Prospects, TrajectoryJudge
from sb3_nopg.rollouts import Actor
from sb3_nopg.starts import fresh_policy

if TYPE_CHECKING:
    from sb3_nopg.nopg import NOPG

_logger = logging.getLogger(__name__)
# No other attempt where this share of the trajectories last.
_ENOUGH = 0.9
# A dimension by which at least this share of the others end, or more than by any other, is one to look at more closely: with
# its bandwidth times this.
_TELLING, _NARROWER = 0.25, 0.4


@dataclass(frozen=True)
class Attempt:
    """
    One training and what the best policy that it passed is predicted to do.

    :param state_bandwidth_factor: that it was made with, (d_s,)
    :param score: undiscounted rewards along a predicted trajectory, the mean of all
    :param lasting: share of the trajectories that neither end nor leave the data
    :param n_updates: after which it was there
    :param seconds: what training and prediction cost; of the first attempt, prediction alone
    """

    state_bandwidth_factor: tuple[float, ...]
    score: float
    lasting: float
    n_updates: int
    seconds: float


def make_attempts(model: "NOPG", waypoints: Waypoints, climb: Callable[[], Waypoints]) -> tuple[Attempt, ...]:
    """
    Judge what training has found, and train anew as long as it is predicted to fail and the settings allow. The model is left
    at the best policy of the best attempt, also where one is interrupted.

    :param model: trained
    :param waypoints: what its training began with and passed
    :param climb: makes as many updates as the first attempt had, from where the model is
    :return: every attempt, the one that was kept first; nothing where there was nothing to choose
    """
    # Bandwidths that somebody gave as numbers are meant to stay.
    n_attempts = model.n_attempts if isinstance(model.state_bandwidth, str) else 1
    if (n_attempts == 1 and not waypoints.passed) or model.processes.several:
        return ()
    if not has_bad_ends(model.training_data.real, model.gamma):
        return ()
    began = time.perf_counter()
    try:
        judge = TrajectoryJudge.of(model)
    except InputError as error:
        _logger.info("Nothing is predicted step by step: %s", error)
        return ()
    found = [_judged(model, judge, waypoints, began)]
    try:
        while len(found) < n_attempts and found[-1][0].lasting < _ENOUGH:
            began, (last, ends_by, _) = time.perf_counter(), found[-1]
            factor = _narrowed(ends_by)
            _logger.info(
                "%.0f %% of the predicted trajectories last: another attempt with state bandwidths times %s.",
                100 * last.lasting,
                np.round(factor, 3).tolist(),
            )
            load_parameters(model.policy, waypoints.untrained)
            model.narrow_bandwidths(factor)
            found.append(_judged(model, judge, climb(), began))
    except (SolverError, InputError) as error:
        _logger.warning("Another attempt is given up: %s", error)
    finally:
        # The first of the best; an attempt that was interrupted does not count.
        _, _, best = max(found, key=lambda outcome: _promise(outcome[0]))
        _restore(model, best)
    return tuple(sorted((attempt for attempt, _, _ in found), key=_promise, reverse=True))


def _promise(what: Attempt | Prospects) -> tuple[float, float]:
    """
    What policies are compared by. What takes its time to fail earns much on the way, and fails all the same; of those that
    last well enough, the one that earns more.
    """
    return min(what.lasting, _ENOUGH), what.score


@dataclass(frozen=True)
class _Snapshot:
    """All of a model that another attempt changes."""

    parameters: dict[str, Any]
    bandwidths: Bandwidths
    factor: Any
    start_trials: tuple[Any, ...]
    progress: tuple[int, int]


def _judged(
    model: "NOPG", judge: TrajectoryJudge, waypoints: Waypoints, began: float
) -> tuple[Attempt, np.ndarray, _Snapshot]:
    """The best that a training has passed, the last one where several are."""
    policies = [(waypoints.ended_after, parameters_of(model.policy)), *_as_at_the_end(model, waypoints)]
    prospects = judge.prospects_of([_actor(model, parameters) for _, parameters in policies])
    chosen = max(range(len(policies)), key=lambda number: _promise(prospects[number]))
    (n_updates, parameters), what = policies[chosen], prospects[chosen]
    if len(policies) > 1:
        told = ", ".join(f"{n}: {100 * one.lasting:.0f} %" for (n, _), one in zip(policies, prospects, strict=True))
        _logger.info("Of the predicted trajectories last, by number of updates: %s", told)
    assert model.bandwidths is not None
    factor = np.broadcast_to(np.asarray(model.state_bandwidth_factor, dtype=np.float64), model.bandwidths.state.shape)
    attempt = Attempt(tuple(factor.tolist()), what.score, what.lasting, n_updates, time.perf_counter() - began)
    kept = _Snapshot(parameters, model.bandwidths, model.state_bandwidth_factor, model.start_trials, model.progress)
    return attempt, what.ends_by, kept


def _as_at_the_end(model: "NOPG", waypoints: Waypoints) -> Iterator[tuple[int, dict[str, Any]]]:
    """Latest first, with what is no parameter and was set on the way: σ's decay, and that the normalisation is settled."""
    last = model.policy.state_dict()
    settled = {name: last[name].clone() for name in ("std_scale", "normalization_fitted")}
    for n_updates, parameters in reversed(waypoints.passed):
        yield n_updates, {**parameters, "policy": {**parameters["policy"], **settled}}


def _actor(model: "NOPG", parameters: dict[str, Any]) -> Actor:
    """What a policy does. Step by step a processor is the quicker one, whatever the model is on."""
    policy = fresh_policy(model)
    policy.load_state_dict(parameters["policy"])
    return lambda states: policy.predict(states.astype(np.float32), deterministic=True)[0]


def _restore(model: "NOPG", snapshot: _Snapshot) -> None:
    load_parameters(model.policy, snapshot.parameters)
    if model.bandwidths is not snapshot.bandwidths:
        model.set_bandwidths(snapshot.bandwidths, snapshot.factor)
    model.start_trials = snapshot.start_trials
    model.progress = snapshot.progress


def _narrowed(ends_by: np.ndarray) -> np.ndarray:
    """Factor of each dimension's bandwidth."""
    return np.where(ends_by >= min(_TELLING * ends_by.sum(), ends_by.max()), _NARROWER, 1.0)
