"""
How good a model of the system is: what it predicts of episodes that it has not seen, under the actions that were recorded
there, beside "nothing changes" and one affine model.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import is_count
from sb3_nopg.data.action_lag import rows_with_a_past
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels
from sb3_nopg.dynamics.cross_validation import LeftOut
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.model_settings import check_model_settings
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.regression import Kernel
from sb3_nopg.dynamics.stepping import Stepper

# More places to start from only take longer.
_MOST_WINDOWS = 300
# What a model takes over from another one does not go with what a user wants of it.
_BESIDE_LIKE = ("limits", "reward", "n_nodes", "initial_states")


@dataclass(frozen=True)
class Errors:
    """
    In standard deviations of each coordinate.

    :param rmse: root of the mean square, over places and coordinates
    :param median: over places
    """

    rmse: float
    median: float

    def __str__(self) -> str:
        return f"{self.rmse:.3g} ({self.median:.3g})"


@dataclass(frozen=True)
class ErrorsAfter:
    """
    What was predicted wrongly after some steps. None for what no left-out episode is long enough to tell.

    :param n_steps: that were followed under the recorded actions
    :param n_places: in left-out episodes, that predictions started from
    :param model: of the model
    :param nothing_changes: of predicting the state that one started from
    :param one_affine: of one affine model of all states
    :param by_coordinate: root mean square of the model's, for each coordinate
    """

    n_steps: int
    n_places: int
    model: Errors | None
    nothing_changes: Errors | None
    one_affine: Errors | None
    by_coordinate: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelErrors:
    """
    :param coordinates: their names
    :param after: errors after each number of steps
    """

    coordinates: tuple[str, ...]
    after: tuple[ErrorsAfter, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Of a table: steps, the model, nothing changes, one affine model."""
        return [
            (_steps(one.n_steps), _told(one.model), _told(one.nothing_changes), _told(one.one_affine)) for one in self.after
        ]

    def text(self) -> str:
        """A table, a line for each number of steps."""
        head = ("after", "model", "nothing changes", "one affine model")
        widths = [max(len(row[i]) for row in (head, *self.rows())) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *self.rows())]
        return "\n".join(line.rstrip() for line in lines)


def model_errors(
    dataset: TransitionDataset,
    like: DynamicsModel | None = None,
    steps: Sequence[int] = (1, 10, 50),
    seed: int = 0,
    **fit_settings: Any,
) -> ModelErrors:
    """
    Errors out of sample: a model is fitted without a fifth of the episodes and followed along them.

    :param dataset: recorded transitions
    :param like: a model of the same data whose choices to take over, which is quicker; None to choose without those episodes
    :param steps: numbers of steps
    :param seed: of what is left out
    :param fit_settings: of :meth:`DynamicsModel.fit`
    """
    if not steps or not all(is_count(n) for n in steps):
        raise InputError("steps", f"{steps!r} are no numbers of steps", "Give positive whole numbers")
    model, left_out = fit_without(dataset, like, seed, **fit_settings)
    affine = _one_affine(_rest(dataset, left_out), model, **fit_settings)
    data = Prepared.of(dataset, model.coordinates, np.array(dataset.rewards, dtype=np.float64))
    scale = data.states.std(dim=0).clamp_min(1e-12)
    after = []
    for n_steps in steps:
        starts = windows(data, left_out, int(n_steps), model.choices.n_earlier_steps)
        if not len(starts):
            after.append(ErrorsAfter(int(n_steps), 0, None, None, None))
            continue
        chosen = starts[np.unique(np.linspace(0, len(starts) - 1, _MOST_WINDOWS).astype(int))]
        reached = data.next_states[chosen + n_steps - 1]

        def away(states: th.Tensor, reached: th.Tensor = reached) -> th.Tensor:
            return data.coordinates.difference(states, reached) / scale

        found = away(_encoded(model, open_loop(model, data, chosen, int(n_steps))[-1]))
        of_affine = found if affine is model else away(_encoded(affine, open_loop(affine, data, chosen, int(n_steps))[-1]))
        after.append(
            ErrorsAfter(
                int(n_steps),
                len(chosen),
                _errors(found),
                _errors(away(data.states[chosen])),
                _errors(of_affine),
                tuple(found.square().mean(dim=0).sqrt().tolist()),
            )
        )
    return ModelErrors(model.coordinates.names(), tuple(after))


def fit_without(
    dataset: TransitionDataset, like: DynamicsModel | None, seed: int, **fit_settings: Any
) -> tuple[DynamicsModel, np.ndarray]:
    """
    :param dataset: recorded transitions
    :param like: whose choices to take over
    :param seed: of what is left out
    :param fit_settings: of :meth:`DynamicsModel.fit`
    :return: a model of four fifths of the episodes, and which rows are those of the others, (n,)
    """
    check_model_settings(dataset, fit_settings)
    left_out = LeftOut.of(episode_labels(dataset), len(dataset), seed=seed).fold.numpy() == 0
    part = _rest(dataset, left_out)
    check_model_settings(part, {})
    if like is not None:
        fit_settings = {name: value for name, value in fit_settings.items() if name in _BESIDE_LIKE}
    return DynamicsModel.fit(part, like=like, seed=seed, **fit_settings), left_out


def windows(data: Prepared, left_out: np.ndarray, n_steps: int, n_earlier: int) -> np.ndarray:
    """
    :param data: recorded transitions
    :param left_out: rows that may be predicted, (n,)
    :param n_steps: that follow each other, none of them a row that was learned from
    :param n_earlier: steps that must be known before the first
    :return: first rows
    """
    if n_steps == 1:
        ends = np.arange(len(left_out))
    elif data.labels is None:
        return np.zeros(0, dtype=np.int64)
    else:
        ends = rows_with_a_past(data.dataset, data.labels, n_steps - 1)
    starts = ends - (n_steps - 1)
    within = np.concatenate([[0], np.cumsum(left_out)])
    # A last step that an end cut short is no step to be judged by.
    good = (within[ends + 1] - within[starts] == n_steps) & data.free_steps[ends]
    known = good & (data.n_past[starts] >= n_earlier)
    # Where hardly an episode has a past, its first steps must do: as if from rest.
    return starts[known] if known.any() else starts[good]


def open_loop(
    model: DynamicsModel, data: Prepared, starts: np.ndarray, n_steps: int, noise: np.ndarray | None = None
) -> np.ndarray:
    """
    :param model: of the system
    :param data: recorded transitions
    :param starts: rows
    :param n_steps: to follow the recorded actions from each
    :param noise: added to the states after each step, (n_steps, m, d)
    :return: predicted observations, the recorded ones first, (n_steps + 1, m, d_s)
    """
    stepper = Stepper(model)
    # What was done before the first step was recorded, too.
    situation = stepper.begin(data.states[starts].numpy(), model.past_of(data)[starts].numpy())
    found = [stepper.observe(situation.states)]
    for number in range(n_steps):
        applied = stepper.applied(data.actions[starts + number].numpy())
        situation, _ = stepper.step(situation, applied, None if noise is None else noise[number])
        found.append(stepper.observe(situation.states))
    return np.stack(found)


def _rest(dataset: TransitionDataset, left_out: np.ndarray) -> TransitionDataset:
    part = dataset.filter(~left_out)
    if part.action_space is not None:
        return part
    # What can be applied is known, whatever is left out.
    actions = np.asarray(dataset.actions, dtype=np.float64)
    return replace(part, action_space=spaces.Box(actions.min(axis=0), actions.max(axis=0), dtype=np.float64))


def _one_affine(part: TransitionDataset, model: DynamicsModel, **fit_settings: Any) -> DynamicsModel:
    """The same with one affine model of all states, and, but for stops, nothing else."""
    choices = model.choices
    if choices.is_affine and not choices.products and not choices.held:
        return model
    like = copy.copy(model)
    everywhere = tuple(Kernel(math.inf, replace(kernel.form, turning=False)) for kernel in choices.kernels)
    like.choices = replace(choices, kernels=everywhere, products=False, held=(), reward=replace(choices.reward, kernel=None))
    settings = {name: fit_settings[name] for name in ("limits", "n_nodes") if name in fit_settings}
    return DynamicsModel.fit(part, like=like, **settings)


def _errors(away: th.Tensor) -> Errors:
    """Of places, (m, d)."""
    squared = away.square().mean(dim=1)
    return Errors(float(squared.mean().sqrt()), float(squared.sqrt().median()))


def _steps(n: int) -> str:
    return f"{n} step{'s' if n > 1 else ''}"


def _told(errors: Errors | None) -> str:
    return "not known" if errors is None else str(errors)


def _encoded(model: DynamicsModel, observations: np.ndarray) -> th.Tensor:
    return model.coordinates.encode(th.from_numpy(observations))
