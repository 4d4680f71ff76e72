"""Candidates of a training on a model: where they start, what they went through, and what the judge says of them."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sb3_nopg.prediction.model_estimator import ModelEstimator

#: where candidates start
VALUE_ITERATION, OWN, RICCATI, BEHAVIOUR = "value_iteration", "own", "riccati", "behaviour"
# Somebody was in control where this share of the recorded actions follows from the states.
_UNDER_CONTROL = 0.3


@dataclass(frozen=True)
class Candidate:
    """
    A policy that was trained, and what the judge says of it.

    :param recipe: where it started: ``"value_iteration"``, ``"own"``, ``"riccati"`` or ``"behaviour"``
    :param trained_on: ``"half"`` of the episodes, or ``"all"``
    :param score: predicted rewards along a trajectory, by models of both halves of the episodes. What was trained on all of
        the data has seen both, and what was trained on a half one of them; which candidate is trained on all of the data was
        chosen before, by the half that none was trained on
    :param lasting: share of its trajectories that neither end nor leave the data
    :param n_updates: that it was trained for there
    :param seconds: that it took
    :param unseen_score: the same score by a model of the half that it was not trained on; None for what has seen both
    :param unseen_lasting: share of these trajectories that neither end nor leave the data
    """

    recipe: str
    trained_on: str
    score: float
    lasting: float
    n_updates: int
    seconds: float
    unseen_score: float | None = None
    unseen_lasting: float | None = None

    def __str__(self) -> str:
        untrained = "" if self.n_updates else ", untrained"
        return f"{self.recipe} ({self.trained_on}{untrained}) {self.score:.4g}, {100 * self.lasting:.0f} % last"


@dataclass
class Trained:
    """A candidate's parameters, how it came about, and what episodes say of it that it was not trained on."""

    recipe: str
    trained_on: str
    parameters: dict[str, Any]
    n_updates: int
    seconds: float
    unseen_score: float | None = None
    unseen_lasting: float | None = None


@dataclass
class Stage:
    """
    One candidate in training.

    :param recipe: where it starts
    :param trained_on: ``"half"`` or ``"all"``
    :param n_updates: that it will be trained for
    :param goes_on_from: parameters that it starts with in the place of the recipe's
    :param done: updates made
    :param best: parameters that earned most along the trajectories that they are all compared by; None before any were
    :param best_return: what these earned
    :param began: when, s
    """

    recipe: str
    trained_on: str
    n_updates: int
    goes_on_from: dict[str, Any] | None = None
    done: int = 0
    best: dict[str, Any] | None = None
    best_return: float = -np.inf
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class CourseSettings:
    """
    :param n_updates: of all stages together
    :param horizon: steps to follow, 0 for the nodes alone, infinity, or ``"auto"``
    :param n_action_samples: draws of a stochastic policy's action at each node
    :param solver_tolerance: of the nodes' equations
    :param seed: of all draws
    :param recipes: starts to try
    """

    n_updates: int
    horizon: str | float
    n_action_samples: int
    solver_tolerance: float
    seed: int
    recipes: tuple[str, ...]


def recipes_for(estimator: ModelEstimator) -> tuple[str, ...]:
    """
    :param estimator: on all of the data
    :return: starts worth trying, in the order in which they are tried
    """
    # A pole that goes around is no linear system.
    linear = () if bool(estimator.dynamics.coordinates.bent.any()) else (RICCATI,)
    # Demonstrations show what works, random actions nothing that is worth imitating.
    shown = (BEHAVIOUR,) if estimator.share_under_control >= _UNDER_CONTROL else ()
    return (VALUE_ITERATION, OWN, *linear, *shown)


def name_of(trained: Trained) -> str:
    """What the judge calls it."""
    return f"{trained.recipe} ({trained.trained_on}{'' if trained.n_updates else ', untrained'})"
