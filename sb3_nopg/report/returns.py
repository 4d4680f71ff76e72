"""Returns that a report compares: by the data, by data that were held out, and by what was recorded."""

from collections.abc import Sequence

import numpy as np
import torch as th

from sb3_nopg.bellman.on_samples import solve_values
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels
from sb3_nopg.data.overlap import shared_rows
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.uncertainty import ReturnInterval
from sb3_nopg.report.bounds import value_range
from sb3_nopg.report.support import neutral_problem
from sb3_nopg.report.verdict import HELD_OUT, KERNELS, PLAIN, Returns

_LEVEL = 0.95
# Draws of the bootstrap; fewer where each takes long.
_N_RESAMPLES, _N_RESAMPLES_LARGE, _LARGE = 100, 40, 20_000
# Share of the held-out transitions that may also be among those learned from: chance repeats some, a copy most.
_SHARED = 0.01


def check_held_out(held_out: TransitionDataset, data: TransitionDataset) -> None:
    """
    :param held_out: data that someone gave to check a policy with
    :param data: that it learned from
    :raises InputError: where they would only confirm what the policy learned
    """
    shared = shared_rows(held_out, data)
    if shared > _SHARED * len(held_out):
        raise InputError(
            "held_out",
            f"{shared:,} of its {len(held_out):,} transitions are among those that the model was trained on",
            "Give data that it has not seen; dataset.split parts them before training",
        )


def find_returns(
    evaluation: PolicyEvaluation,
    held_out: TransitionDataset | None,
    source: str,
    *,
    learned_from: bool,
    held_out_chose: bool,
    halves: Sequence[DynamicsModel] = (),
) -> Returns:
    """
    :param evaluation: of the policy
    :param held_out: data to check with
    :param source: where those come from
    :param learned_from: whether the attached data are what the policy was optimised on
    :param held_out_chose: whether those also chose the parameters
    :param halves: models of one half of the episodes each, where the prediction comes from a model; none to ask the kernels
    """
    data, on_model = evaluation.data, evaluation.settings.on_model
    checking = evaluation if held_out is None else evaluation.on(held_out)
    if on_model and halves:
        interval: ReturnInterval | None = evaluation.on_model.return_interval(halves, _LEVEL)
        of, about = PLAIN, "models of halves of its episodes"
    else:
        of = KERNELS if on_model else PLAIN if held_out is None else HELD_OUT
        interval, about = _resampled(checking, _checked_by(held_out, learned_from=learned_from))
    value_spread, policy_spread = _spreads(evaluation)
    return Returns(
        plain=evaluation.estimated_return(),
        learned_from=learned_from,
        held_out=None if held_out is None else checking.estimated_return(),
        held_out_source="" if held_out is None else source,
        held_out_chose=held_out_chose,
        interval_low=None if interval is None else interval.low,
        interval_high=None if interval is None else interval.high,
        interval_level=_LEVEL,
        interval_source=about,
        behaviour=_behaviour_return(data, evaluation.gamma),
        value_range=value_range(data.rewards, data.terminals, evaluation.gamma),
        value_spread=value_spread,
        policy_spread=policy_spread,
        interval_of=of,
        interval_estimate=None if interval is None else interval.estimate,
    )


def _resampled(checking: PolicyEvaluation, about: str) -> tuple[ReturnInterval | None, str]:
    """By the samples' kernels, and the data that this is about, or why there is none."""
    n_resamples = _N_RESAMPLES if len(checking.data) <= _LARGE else _N_RESAMPLES_LARGE
    try:
        return checking.return_interval(_LEVEL, n_resamples), about
    except InputError as error:
        # One episode says nothing about how episodes differ; that is a finding, and no reason to have no report.
        if error.field != "dataset":
            raise
        return None, f"none: {str(error).partition(': ')[2].partition('. ')[0]}"


def _checked_by(held_out: TransitionDataset | None, *, learned_from: bool) -> str:
    if held_out is not None:
        return "the held-out data"
    return "the data that it learned from" if learned_from else "these data, which it did not learn from"


def _spreads(evaluation: PolicyEvaluation) -> tuple[float, float]:
    """How much values differ over the data, and returns between the policy and some that always do the same."""
    # Without pessimism, which depends on the reward's zero.
    problem, tolerance = neutral_problem(evaluation), evaluation.settings.samples.solver_tolerance
    low, high = (
        th.as_tensor(bound).to(problem.rewards)
        for bound in (evaluation.settings.action_space.low, evaluation.settings.action_space.high)
    )
    with th.no_grad():
        weights = problem.support.kernel_weights(problem.queries, evaluation.policy_actions())
        own, solve, _ = solve_values(problem, weights, tolerance=tolerance)
        returns = [own]
        for action in (low, high, 0.5 * (low + high)):
            weights = problem.support.kernel_weights(problem.queries, action.expand(len(problem.queries), 1, -1))
            returns.append(solve_values(problem, weights, tolerance=tolerance)[0])
    return float(solve.value.double().std(correction=0)), float(np.ptp(returns))


def _behaviour_return(data: TransitionDataset, gamma: float) -> float | None:
    """Mean over the recorded episodes, as far as they go."""
    labels = episode_labels(data)
    if labels is None:
        return None
    order = np.argsort(labels, kind="stable")
    _, first, episode = np.unique(labels[order], return_index=True, return_inverse=True)
    step = np.arange(len(data)) - first[episode]
    return float(np.bincount(episode, gamma**step * data.rewards[order]).mean())
