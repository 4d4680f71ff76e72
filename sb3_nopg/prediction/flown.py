"""
Predicted against flown: where a model that has not seen a flight was right about it, and where not.

The recorded actions are followed from places of the flight, for 1, 10 and 50 steps, and the errors compared with those that
the model had promised: its errors along episodes that it was fitted without.
"""

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch as th
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_nopg.data.action_lag import rows_with_a_past
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.plot import save_picture
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.quality import model_errors, open_loop, windows

STEPS = (1, 10, 50)
#: errors above so many times those that were promised contradict a model
CONTRADICTS = 1.5
#: the most by which noise is raised for it
MOST_NOISE_SCALE = 3.0
_MOST_PLACES = 300
# Of a picture: predictions start again so often. What a model promises is asked after these steps, and lies between them else.
_STRETCH = 50
_ASKED_AFTER = (1, 2, 5, 10, 20, 35, _STRETCH)
# Of a band that holds 95 % of errors that are normally distributed.
_ROOT_MEAN_SQUARES = 1.96
_FLOWN, _PREDICTED, _OUTSIDE = "#2d323c", "#2f6f4f", "#b3261e"


@dataclass(frozen=True)
class FlownAgainstPredicted:
    """
    Root mean square errors, in standard deviations of each coordinate of the data that the model was fitted to. None for
    what flights or data are too short to tell.

    :param steps: numbers of steps
    :param flown: errors along the flights
    :param promised: errors along left-out episodes of the model's data
    """

    steps: tuple[int, ...]
    flown: tuple[float | None, ...]
    promised: tuple[float | None, ...]

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Of the errors to those that were promised: about 1 where they are what the model had promised."""
        return tuple(
            None if one is None or other is None else one / max(other, 1e-12)
            for one, other in zip(self.flown, self.promised, strict=True)
        )

    @property
    def contradicts(self) -> bool:
        """Whether the flights contradict the model: it was further off than it had said."""
        return any(ratio is not None and ratio > CONTRADICTS for ratio in self.ratios)

    @property
    def noise_scale(self) -> float:
        """What to multiply the noise of the next model by, where flights contradict this one: the largest of the ratios."""
        if not self.contradicts:
            return 1.0
        return min(max(ratio for ratio in self.ratios if ratio is not None), MOST_NOISE_SCALE)

    def text(self) -> str:
        """For a person, in a sentence or two."""
        told = ", ".join(
            f"{ratio:.2g} times after {n} step{'s' if n > 1 else ''}"
            for n, ratio in zip(self.steps, self.ratios, strict=True)
            if ratio is not None
        )
        if not told:
            return "The flights were too short to be compared with the prediction."
        verdict = "They contradict the model" if self.contradicts else "They are about what it had promised"
        raised = f", and its noise is raised to {self.noise_scale:.2g} times what it was" if self.noise_scale > 1.0 else ""
        return f"Errors along the flights, against those that the model had promised: {told}. {verdict}{raised}."


def flown_against_predicted(
    model: DynamicsModel, learned_from: TransitionDataset, flown: TransitionDataset, steps: Sequence[int] = STEPS
) -> FlownAgainstPredicted:
    """
    :param model: of the system, fitted before the flights
    :param learned_from: what it was fitted to
    :param flown: what was recorded since
    :param steps: numbers of steps to follow the recorded actions for
    """
    promised = [None if one.model is None else one.model.rmse for one in model_errors(learned_from, model, steps).after]
    before, data = (_prepared(model, each) for each in (learned_from, flown))
    scale = before.states.std(dim=0).clamp_min(1e-12)
    errors: list[float | None] = []
    for n_steps in steps:
        starts = windows(data, np.ones(len(flown), dtype=bool), n_steps, model.choices.n_earlier_steps)
        if not len(starts):
            errors.append(None)
            continue
        chosen = starts[np.unique(np.linspace(0, len(starts) - 1, _MOST_PLACES).astype(int))]
        reached = model.coordinates.encode(th.from_numpy(open_loop(model, data, chosen, n_steps)[-1]))
        away = model.coordinates.difference(reached, data.next_states[chosen + n_steps - 1]) / scale
        errors.append(float(away.square().mean().sqrt()))
    return FlownAgainstPredicted(tuple(steps), tuple(errors), tuple(promised))


def plot_flown(
    model: DynamicsModel,
    learned_from: TransitionDataset,
    flown: TransitionDataset,
    path: str | os.PathLike[str],
    *,
    period_s: float,
    names: Sequence[str] | None = None,
) -> pathlib.Path:
    """
    The longest stretch of a flight without a gap, and what the model predicts of it from every fiftieth state on: a band as
    wide as the errors that it had promised, and in red what was flown outside of it.

    :param model: of the system, fitted before the flight
    :param learned_from: what it was fitted to
    :param flown: what was recorded
    :param path: ``.png``, ``.pdf`` or ``.svg``
    :param period_s: of a step
    :param names: of the observation's columns
    """
    recorded, low, high = beside_its_band(model, learned_from, flown)
    outside, known = (recorded < low) | (recorded > high), np.isfinite(low)
    labels = model.coordinates.names(names)
    figure = Figure(figsize=(9.0, 1.7 * len(labels) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(labels), 1, squeeze=False, sharex=True)[:, 0]
    time_s = period_s * np.arange(len(recorded))
    for number, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        own = recorded[:, number]
        panel.fill_between(time_s, low[:, number], high[:, number], color=_PREDICTED, alpha=0.25, lw=0, label="predicted")
        panel.plot(time_s, own, color=_FLOWN, lw=1.0, label="flown")
        panel.plot(time_s, np.where(outside[:, number], own, np.nan), color=_OUTSIDE, lw=1.6, label="flown outside of it")
        panel.set_ylabel(label)
    panels[0].legend(loc="upper right", ncols=3)
    panels[-1].set_xlabel("time / s")
    told = f"{100 * float(outside[known].mean()):.0f} % flown outside of them" if known.any() else "nothing was promised"
    figure.suptitle(f"Predicted again from every fiftieth state on, with twice the promised errors: {told}")
    save_picture(figure, pathlib.Path(path))
    return pathlib.Path(path)


def beside_its_band(
    model: DynamicsModel, learned_from: TransitionDataset, flown: TransitionDataset
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param model: of the system, fitted before the flight
    :param learned_from: what it was fitted to
    :param flown: what was recorded
    :return: coordinates along the longest stretch without a gap, and the ends of the band that was predicted of it, NaN where
        there is none; (t + 1, d) each
    """
    data = _prepared(model, flown)
    rows = _longest_run(data)
    recorded = np.concatenate([data.states[rows[:1]].numpy(), data.next_states[rows].numpy()])
    half_width = _ROOT_MEAN_SQUARES * _promised(model, learned_from)
    low, high = (np.full_like(recorded, np.nan) for _ in range(2))
    for first in range(0, len(rows), _STRETCH):
        stretch = rows[first : first + _STRETCH]
        there = slice(first + 1, first + 1 + len(stretch))
        predicted = model.coordinates.encode(th.from_numpy(open_loop(model, data, stretch[:1], len(stretch))[1:, 0]))
        # Angles that have wrapped are shown beside what was flown.
        middle = recorded[there] + model.coordinates.difference(predicted, th.from_numpy(recorded[there])).numpy()
        low[there], high[there] = middle - half_width[: len(stretch)], middle + half_width[: len(stretch)]
    return recorded, low, high


def _promised(model: DynamicsModel, learned_from: TransitionDataset) -> np.ndarray:
    """Root mean square of a coordinate's errors along left-out episodes after each step of a stretch, NaN where none tells."""
    told = [one for one in model_errors(learned_from, model, _ASKED_AFTER).after if one.model is not None]
    scale = _prepared(model, learned_from).states.std(dim=0).numpy()
    if not told:
        return np.full((_STRETCH, len(scale)), np.nan)
    steps = np.arange(1, _STRETCH + 1)
    known = np.array([one.by_coordinate for one in told]).T
    after = [one.n_steps for one in told]
    return np.stack([np.interp(steps, after, own, right=np.nan) for own in known], axis=1) * scale


def _prepared(model: DynamicsModel, data: TransitionDataset) -> Prepared:
    return Prepared.of(data, model.coordinates, np.array(data.rewards, dtype=np.float64))


def _longest_run(data: Prepared) -> np.ndarray:
    """Rows that follow each other in time, each from where the one before it led."""
    if data.labels is None:
        return np.arange(min(len(data.states), 1))
    begins = np.ones(len(data.states), dtype=bool)
    begins[rows_with_a_past(data.dataset, data.labels, 1)] = False
    runs = np.cumsum(begins)
    return np.flatnonzero(runs == np.argmax(np.bincount(runs)))
