"""
Another attempt where a policy is predicted to come to a bad end.

Bandwidths are chosen by how well they predict one transition. For a dimension in which little happens in a step that says
little: wide ones average more samples and cost nothing. But every transition of the kernel estimate scatters the state by
about a bandwidth, and where that is many times the motion, the estimate does not see a policy drift. Predicted trajectories
(:mod:`.rollouts`, :mod:`.prospects`) do. So the policy that training has found is followed along them, and where too many
come to a bad end or leave the data, training begins anew with a narrower bandwidth in the dimension by which they do. The
attempt with the larger share of trajectories that last is kept.
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
from sb3_nopg.errors import InputError, SolverError
from sb3_nopg.prospects import TrajectoryJudge

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


def make_attempts(model: "NOPG", untrained: dict[str, Any], climb: Callable[[], None]) -> tuple[Attempt, ...]:
    """
    Judge what training has found, and train anew as long as it is predicted to fail and the settings allow. The model is left
    at the best attempt, also where one is interrupted.

    :param model: trained
    :param untrained: parameters of policy and optimiser that its training began with
    :param climb: makes as many updates as the first attempt had, from where the model is
    :return: every attempt, the one that was kept first; nothing where there was nothing to choose
    """
    # Bandwidths that somebody gave as numbers are meant to stay.
    if model.n_attempts == 1 or model.processes.several or not isinstance(model.state_bandwidth, str):
        return ()
    if not has_bad_ends(model.training_data.real, model.gamma):
        return ()
    began = time.perf_counter()
    try:
        judge = TrajectoryJudge.of(model)
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
    except (SolverError, InputError) as error:
        _logger.warning("Another attempt is given up: %s", error)
    finally:
        # The first of the best; an attempt that was interrupted does not count.
        _, _, best = max(found, key=_promise)
        _restore(model, best)
    return tuple(attempt for attempt, _, _ in sorted(found, key=_promise, reverse=True))


def _promise(outcome: tuple[Attempt, np.ndarray, "_Snapshot"]) -> tuple[float, float]:
    """What attempts are compared by: what takes its time to fail earns much on the way, and fails all the same."""
    return outcome[0].lasting, outcome[0].score


@dataclass(frozen=True)
class _Snapshot:
    """All of a model that another attempt changes."""

    parameters: dict[str, Any]
    bandwidths: Bandwidths
    factor: Any
    start_trials: tuple[Any, ...]
    progress: tuple[int, int]


def _judged(model: "NOPG", judge: TrajectoryJudge, began: float) -> tuple[Attempt, np.ndarray, _Snapshot]:
    prospects = judge.prospects(model.act)
    assert model.bandwidths is not None
    factor = np.broadcast_to(np.asarray(model.state_bandwidth_factor, dtype=np.float64), model.bandwidths.state.shape)
    attempt = Attempt(tuple(factor.tolist()), prospects.score, prospects.lasting, time.perf_counter() - began)
    kept = _Snapshot(parameters_of(model), model.bandwidths, model.state_bandwidth_factor, model.start_trials, model.progress)
    return attempt, prospects.ends_by, kept


def parameters_of(model: "NOPG") -> dict[str, Any]:
    """
    :param model: any
    :return: parameters of its policy and its optimiser, as they are now
    """
    return copy.deepcopy({"policy": model.policy.state_dict(), "optimizer": model.policy.optimizer.state_dict()})


def _load(model: "NOPG", parameters: dict[str, Any]) -> None:
    model.policy.load_state_dict(parameters["policy"])
    # The optimiser would go on with the very tensors that it is given.
    model.policy.optimizer.load_state_dict(copy.deepcopy(parameters["optimizer"]))


def _restore(model: "NOPG", snapshot: _Snapshot) -> None:
    _load(model, snapshot.parameters)
    if model.bandwidths is not snapshot.bandwidths:
        model.set_bandwidths(snapshot.bandwidths, snapshot.factor)
    model.start_trials = snapshot.start_trials
    model.progress = snapshot.progress


def _narrowed(ends_by: np.ndarray) -> np.ndarray:
    """Factor of each dimension's bandwidth."""
    return np.where(ends_by >= min(_TELLING * ends_by.sum(), ends_by.max()), _NARROWER, 1.0)
