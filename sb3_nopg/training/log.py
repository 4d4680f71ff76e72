"""What training tells: a line of the log for each update, and a word of warning where learning would be a matter of luck."""

import logging
import warnings
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger

from sb3_nopg.bellman.on_samples import BellmanSolution
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.rewards import RewardFunction
from sb3_nopg.dynamics.tempting_ends import tempting_ends
from sb3_nopg.kernels.neighbors import NeighborCount
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judgement import Judgement
from sb3_nopg.training.candidates import Candidate

_logger = logging.getLogger(__name__)
_STAGES = ("policy", "weights", "solve", "gradient", "step")
# Where the median estimate rests on fewer samples than this, or more than this share of a weight may be missing, say so.
_FEW_SAMPLES, _MUCH_MISSING = 1.5, 0.1


def record_update(
    logger: Logger, solution: BellmanSolution, parameters: Iterable[th.nn.Parameter], clock: list[float]
) -> None:
    """
    :param logger: SB3's
    :param solution: of the policy before the update
    :param parameters: with their gradients
    :param clock: times at which the stages of the update began and the last one ended, s
    """
    gradients = [parameter.grad.reshape(-1) for parameter in parameters if parameter.grad is not None]
    logger.record("train/estimated_return", solution.estimated_return)
    logger.record("train/gradient_norm", float(th.linalg.vector_norm(th.cat(gradients))))
    for name, solve in (("q", solution.q_solve), ("visitation", solution.visitation_solve)):
        logger.record(f"solver/{name}_residual", solve.residual)
        logger.record(f"solver/{name}_iterations", solve.n_iterations)
    for stage, (start, end) in zip(_STAGES, pairwise(clock), strict=True):
        logger.record(f"time/{stage}_seconds", end - start)


def record_candidates(logger: Logger, candidates: tuple[Candidate, ...], judgement: Judgement | None) -> None:
    """
    :param logger: SB3's
    :param candidates: the chosen one first
    :param judgement: of them
    """
    _logger.info("Candidates, the chosen one first: %s", "; ".join(str(candidate) for candidate in candidates))
    logger.record("candidates/chosen", candidates[0].recipe, exclude="tensorboard")
    logger.record("candidates/score", candidates[0].score)
    logger.record("candidates/lasting", candidates[0].lasting)
    if judgement is not None and judgement.margin is not None:
        logger.record("candidates/margin", judgement.margin)
        _logger.info(judgement.text())


def announce_too_many_neighbors(n_neighbors: NeighborCount, n_samples: int) -> None:
    """
    :param n_neighbors: asked for
    :param n_samples: there are
    """
    if isinstance(n_neighbors, int | np.integer) and n_neighbors > n_samples:
        # Of the caller of the model's method that attaches the data.
        warnings.warn(f"n_neighbors={n_neighbors} exceeds the {n_samples} samples: all are used", stacklevel=5)


def announce_what_misleads(dataset: TransitionDataset, gamma: float, reward: str | RewardFunction | None = None) -> None:
    """
    Warn where data and reward make an early end better than going on, or do not tell what actions do.

    :param dataset: recorded transitions
    :param gamma: discount
    :param reward: that a user wants instead of the data's
    """
    told = tempting_ends(dataset, gamma, reward)
    if told is not None:
        _logger.warning(told)
    for column in np.flatnonzero(np.ptp(dataset.actions, axis=0) == 0.0):
        _logger.warning(
            "All recorded actions are %g in column %d: these data do not tell what others do, and the policy may ask for any.",
            dataset.actions[0, column],
            column,
        )


def record_now_and_then(logger: Logger, evaluation: PolicyEvaluation, n_updates: int, seconds: float) -> None:
    """
    What is worth computing only now and then.

    :param logger: SB3's
    :param evaluation: of the policy
    :param n_updates: since the run began
    :param seconds: the same
    """
    estimator, policy = evaluation.estimator, evaluation.policy
    states = th.from_numpy(np.array(estimator.start_states)).to(estimator.settings.device)
    with th.no_grad():
        if estimator.settings.transitions == "samples":
            record_support(logger, estimator.problem, evaluation.policy_actions())
            states = estimator.problem.queries.states
        std = policy.action_distribution(states)[1]
    if std is not None:
        logger.record("train/policy_std", float(std.mean()))
    logger.record("time/updates_per_second", n_updates / seconds)
    logger.record("time/time_elapsed", int(seconds), exclude="tensorboard")


def record_support(logger: Logger, problem: BellmanProblem, actions: th.Tensor) -> None:
    """
    How much stands behind the estimates.

    :param logger: SB3's
    :param problem: the equation
    :param actions: the policy's at the queries, (m, a, d_a)
    """
    logger.record("train/truncation_error", _truncation_error(problem, actions))
    logger.record("train/effective_samples", _median_effective_samples(problem, actions))
    logger.record("train/n_neighbors", problem.queries.neighbors.n_neighbors)


def _median_effective_samples(problem: BellmanProblem, actions: th.Tensor) -> float:
    return float(problem.processes.concatenate(problem.support.effective_counts(problem.queries, actions)).median())


def _truncation_error(problem: BellmanProblem, actions: th.Tensor) -> float:
    return problem.processes.largest(problem.support.truncation_error(problem.queries, actions))


def announce_thin_support(problem: BellmanProblem, actions: th.Tensor) -> None:
    """
    Warn where the data, as the bandwidths see it, cannot tell one policy from another.

    :param problem: the equation
    :param actions: the policy's at the queries, (m, a, d_a)
    """
    effective = _median_effective_samples(problem, actions)
    if effective < _FEW_SAMPLES:
        _logger.warning(
            "Half of the estimates rest on %.1f samples or fewer: the bandwidths make the model a table of nearest samples, "
            "in which the policy's actions hardly matter. Raise state_bandwidth_factor or action_bandwidth_factor.",
            effective,
        )
    missing = _truncation_error(problem, actions)
    if missing > _MUCH_MISSING:
        _logger.warning(
            "Up to %.0f %% of a state's weights may lie outside its neighbour list, because no neighbour's action is near the "
            "policy's. Widen the action bandwidth or raise n_neighbors.",
            100 * missing,
        )
