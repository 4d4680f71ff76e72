"""Where a policy is predicted to go step by step, for a report: what becomes of its trajectories, in figures and words."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judge import N_MODELS, Judge, half_models, steps_ahead
from sb3_nopg.prediction.rollouts import Rollouts, together

# Where more than this share of the changes' variance is left unexplained, trajectories are no more than a hint.
POOR_MODEL = 0.2
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
    :param median_steps: until those that do not last are over; None if all last
    :param ends_by: name of the dimension by which most of these are over; None if all last
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
    median_steps: float | None
    ends_by: str | None
    score: float
    model_error: float
    n_earlier_steps: int

    @property
    def failing(self) -> float:
        """Share that comes to a bad end or leaves the recorded range."""
        return self.left + (self.ended if self.ends_are_bad else 0.0)

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
        place = f" mostly by {self.ends_by}" if self.failing else ""
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
    evaluation: PolicyEvaluation, names: tuple[str, ...]
) -> tuple[TrajectoryFigures, TrajectoryPicture] | tuple[None, None]:
    """
    :param evaluation: of the policy
    :param names: of the state's dimensions
    :return: figures and what is to be drawn; None for both where the data are too few to predict from, or nothing moves
    """
    data, settings = evaluation.data, evaluation.settings.model_kwargs
    given: dict[str, Any] = {name: settings.get(name) for name in ("limits", "reward")}
    try:
        models, _ = half_models(data, evaluation.estimator.dynamics.to("cpu"), N_MODELS, **given)
    except InputError:
        return None, None
    judge = Judge(models, evaluation.estimator.start_states, steps_ahead(evaluation.gamma))
    parts = judge.follow([evaluation.act])[0]
    (judged,) = judge.judgement(["policy"], [parts]).ranking
    rollouts = together(parts)
    over = rollouts.n_steps[~rollouts.lasting]
    ends_by = _ends_by(rollouts, data.observation_dim, data)
    figures = TrajectoryFigures(
        n_steps=judge.n_steps,
        n_trajectories=len(rollouts.n_steps),
        lasting=judged.lasting,
        ended=float(rollouts.ended.mean()),
        left=float((rollouts.left_by >= 0).mean()),
        ends_are_bad=has_bad_ends(data, evaluation.gamma),
        median_steps=float(np.median(over)) if len(over) else None,
        ends_by=names[int(ends_by.argmax())] if len(over) else None,
        score=judged.score,
        model_error=float(models[0].choices.unexplained),
        n_earlier_steps=int(models[0].choices.n_earlier_steps),
    )
    # Of many dimensions, those that trajectories end by, then the first ones.
    shown = np.sort(np.argsort(-ends_by, kind="stable")[:_MOST_SHOWN])
    states = np.concatenate([data.observations, data.next_observations])
    return figures, TrajectoryPicture(rollouts, states.min(axis=0), states.max(axis=0), tuple(int(i) for i in shown))


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
