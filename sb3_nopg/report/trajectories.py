"""Where a policy is predicted to go step by step, for a report: what becomes of its trajectories, in figures and words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.prediction.chatter import Chatter, chatter_of
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judge import N_MODELS, Judge, half_models, steps_ahead
from sb3_nopg.prediction.rollouts import Actor, Rollouts, together
from sb3_nopg.report.limits import Limit

# Where more than this share of the changes' variance is left unexplained, trajectories are no more than a hint.
POOR_MODEL = 0.2
# Share of the steps, the last ones, that a goal is to be held for.
_HELD = 0.2
# Dimensions of the state that are drawn.
_MOST_SHOWN = 6


@dataclass(frozen=True)
class TrajectoryFigures:
    """
    What becomes of the predicted trajectories, see :mod:`sb3_nopg.prediction.judge`.

    :param n_steps: that they are followed at most
    :param n_trajectories: of all models
    :param lasting: share of them that go on to the last step
    :param ended: share with which the task ends
    :param left: share that leaves the recorded range
    :param ends_are_bad: whether an end of the task is worse than going on
    :param succeeding: share that does what is wanted, see :func:`succeeded`
    :param succeeding_low: lower end of an interval of 95 %, as if each were a flight of its own
    :param succeeding_high: upper end
    :param wanted: what that is, in words
    :param wanted_is_known: whether a goal or ends of the task tell it; otherwise going on is all that can be asked for
    :param median_steps: until those that do not last are over; None if all last
    :param ends_by: name of the dimension by which most of these are over; None if all last
    :param change: mean change of the action from step to step, as a share of its range
    :param fast: share of the actions' variance with a period of less than four steps
    :param score: rewards along a trajectory, undiscounted, the mean of all
    :param model_error: share of the changes' variance that the model leaves unexplained
    :param n_earlier_steps: that the model looks at beside state and action
    """

    n_steps: int
    n_trajectories: int
    lasting: float
    ended: float
    left: float
    ends_are_bad: bool
    succeeding: float
    succeeding_low: float
    succeeding_high: float
    wanted: str
    wanted_is_known: bool
    median_steps: float | None
    ends_by: str | None
    change: float
    fast: float
    score: float
    model_error: float
    n_earlier_steps: int

    def success_text(self) -> str:
        """How many do what is wanted."""
        low, high = _percent(self.succeeding_low), _percent(self.succeeding_high)
        return f"{_percent(self.succeeding)} ({low} to {high}) of {self.n_trajectories} trajectories {self.wanted}"

    def chatter_text(self) -> str:
        """How much the actuator moves."""
        return Chatter(self.change, self.fast).text()

    @property
    def poor(self) -> bool:
        """Whether the model explains too little to rely on; one whose error is no number explains nothing."""
        return not self.model_error <= POOR_MODEL

    def text(self) -> str:
        """What becomes of them."""
        if self.median_steps is None:
            return f"All {self.n_trajectories} predicted trajectories last {self.n_steps:,} steps."
        lasts = f"{_percent(self.lasting)} last" if self.lasting else "none lasts"
        fates = [
            (self.ended, "come to a bad end" if self.ends_are_bad else "end the task"),
            (self.left, "leave the recorded range"),
        ]
        shares = [(share, fate) for share, fate in fates if share]
        if len(shares) == 1:
            told = f"; {'the others' if self.lasting else 'all'} {shares[0][1]}"
        else:
            told = "".join(f", {_percent(share)} {fate}" for share, fate in shares) + ": those that do not last are over"
        # Where an end is no failure, the dimension that is nearest to the end of its range says nothing.
        place = f" mostly by {self.ends_by}" if self.left or self.ends_are_bad else ""
        return (
            f"Of {self.n_trajectories} predicted trajectories of {self.n_steps:,} steps, {lasts}{told}{place} after "
            f"{self.median_steps:,.0f} {'step' if self.median_steps == 1 else 'steps'} (median)."
        )

    def model_text(self) -> str:
        """What they rest on."""
        inputs = f"state, action and {self.n_earlier_steps} earlier step(s)" if self.n_earlier_steps else "state and action"
        doubt = " That is too much to rely on them." if self.poor else ""
        return (
            f"They are predicted from {inputs} by a regression that leaves {100 * self.model_error:.3g} % of the changes' "
            f"variance unexplained where it has not seen them; what it misses is added again as noise.{doubt}"
        )


@dataclass(frozen=True)
class TrajectoryPicture:
    """
    What is drawn of them.

    :param rollouts: of all models
    :param low: lower end of the recorded range, (d_s,)
    :param high: upper end, (d_s,)
    :param shown: dimensions that are drawn, in order
    """

    rollouts: Rollouts
    low: np.ndarray
    high: np.ndarray
    shown: tuple[int, ...]


def find_trajectories(
    judge: Judge, evaluation: PolicyEvaluation, names: tuple[str, ...], goal: Limit | None = None
) -> tuple[TrajectoryFigures, TrajectoryPicture]:
    """
    :param judge: with models and starts
    :param evaluation: of the policy
    :param names: of the state's dimensions
    :param goal: where the system is to be in the end; None where the task's ends tell what is wanted
    :return: figures and what is to be drawn
    """
    data = evaluation.data
    ((figures, rollouts),) = figures_of(judge, [evaluation.act], data, names, evaluation.gamma, goal)
    # Of many dimensions, those that trajectories end by, then the first ones.
    shown = np.sort(np.argsort(-_ends_by(rollouts, data.observation_dim, data), kind="stable")[:_MOST_SHOWN])
    states = np.concatenate([data.observations, data.next_observations])
    return figures, TrajectoryPicture(rollouts, states.min(axis=0), states.max(axis=0), tuple(int(i) for i in shown))


def make_judge(evaluation: PolicyEvaluation) -> Judge | None:
    """
    :param evaluation: of a policy
    :return: who judges it, and any other with the same data; None where the data are too few, or nothing moves
    """
    settings = evaluation.settings.model_kwargs
    given: dict[str, Any] = {name: settings.get(name) for name in ("limits", "reward")}
    try:
        models, _ = half_models(evaluation.data, evaluation.estimator.dynamics.to("cpu"), N_MODELS, **given)
    except InputError:
        return None
    return Judge(models, evaluation.estimator.start_states, steps_ahead(evaluation.gamma))


def figures_of(
    judge: Judge,
    actors: Sequence[Actor],
    data: TransitionDataset,
    names: Sequence[str],
    gamma: float,
    goal: Limit | None = None,
) -> list[tuple[TrajectoryFigures, Rollouts]]:
    """
    :param judge: with models and starts
    :param actors: policies
    :param data: that the models are of
    :param names: of the state's dimensions
    :param gamma: discount
    :param goal: as for :func:`find_trajectories`
    :return: of each policy
    """
    smallest, largest = (end.cpu().numpy() for end in judge.models[0].action_range)
    span, found, choices, ends_are_bad = largest - smallest, [], judge.models[0].choices, has_bad_ends(data, gamma)
    for parts in judge.follow(actors):
        (judged,) = judge.judgement(["policy"], [parts]).ranking
        rollouts = together(parts)
        good, wanted = succeeded(rollouts, ends_are_bad or not data.terminals.any(), goal)
        chatter = chatter_of(rollouts.actions, span)
        low, high = scipy.stats.binomtest(int(good.sum()), len(good)).proportion_ci(0.95, "wilson")
        over, ends_by = rollouts.n_steps[~rollouts.lasting], _ends_by(rollouts, data.observation_dim, data)
        figures = TrajectoryFigures(
            n_steps=judge.n_steps,
            n_trajectories=len(rollouts.n_steps),
            lasting=judged.lasting,
            ended=float(rollouts.ended.mean()),
            left=float((rollouts.left_by >= 0).mean()),
            ends_are_bad=ends_are_bad,
            succeeding=float(good.mean()),
            succeeding_low=float(low),
            succeeding_high=float(high),
            wanted=wanted,
            wanted_is_known=goal is not None or bool(data.terminals.any()),
            median_steps=float(np.median(over)) if len(over) else None,
            ends_by=names[int(ends_by.argmax())] if len(over) else None,
            change=chatter.change,
            fast=chatter.fast,
            score=judged.score,
            model_error=float(choices.unexplained),
            n_earlier_steps=int(choices.n_earlier_steps),
        )
        found.append((figures, rollouts))
    return found


def succeeded(rollouts: Rollouts, should_last: bool, goal: Limit | None) -> tuple[np.ndarray, str]:
    """
    Which trajectories do what is wanted. A goal is to be held until the end, once most of the time is over, or to be where the
    task ends. Without one, an end is what is wanted where it is better than going on, and otherwise going on is.

    :param rollouts: predicted
    :param should_last: whether the task is to go on
    :param goal: where the system is to be in the end
    :return: (m,), and what is wanted in words
    """
    if goal is None:
        return (rollouts.lasting, "last") if should_last else (rollouts.ended, "end the task, which is its goal")
    n_last = max(round(_HELD * len(rollouts.rewards)), 1)
    last = rollouts.states[-n_last:]
    inside = goal(last.reshape(-1, last.shape[-1])).reshape(last.shape[:2]).all(axis=0)
    arrived = rollouts.ended & goal(rollouts.last_states)
    return (rollouts.lasting & inside) | arrived, f"hold {goal.formula} in the end"


def _ends_by(rollouts: Rollouts, n_columns: int, data: TransitionDataset) -> np.ndarray:
    """How many of the trajectories that do not last are over by each column, (d_s,)."""
    over = ~rollouts.lasting
    low, high = data.observations.min(axis=0), data.observations.max(axis=0)
    last = rollouts.last_states[over]
    beyond = np.maximum(low - last, last - high) / np.where(high > low, high - low, np.inf)
    by = np.where(rollouts.left_by[over] >= 0, rollouts.left_by[over], beyond.argmax(axis=1))
    return np.bincount(by, minlength=n_columns)


def has_bad_ends(dataset: TransitionDataset, gamma: float) -> bool:
    """
    Whether the task has ended, and that was worse than going on would have been, as far as the mean reward tells.

    :param dataset: single transitions
    :param gamma: discount
    """
    ends, rewards = dataset.terminals, dataset.rewards.astype(np.float64)
    if not ends.any() or ends.all():
        return False
    return float(rewards[ends].mean()) < float(rewards[~ends].mean()) / (1.0 - gamma)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
