"""Predicted against recorded episodes, as a picture."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.column_heads import label
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.plot import save_picture
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.quality import fit_without, open_loop, windows

# Longer stretches than this show only that small errors grow.
_MOST_STEPS = 200
_RECORDED, _PREDICTED = "#2d323c", "#b3261e"


def plot_predictions(
    dataset: TransitionDataset,
    path: str | os.PathLike[str] | None = None,
    *,
    like: DynamicsModel | None = None,
    n_episodes: int = 4,
    names: Sequence[str] | None = None,
    seed: int = 0,
    **fit_settings: Any,
) -> Figure:
    """
    Episodes that a model has not seen, and what it predicts of them from their first state and the recorded actions.

    :param dataset: recorded transitions, in episodes
    :param path: ``.png``, ``.pdf`` or ``.svg`` to write; None for none
    :param like: a model of the same data whose choices to take over; None to choose again
    :param n_episodes: to draw at most, the longest of those that were left out
    :param names: of the observation's columns
    :param seed: of what is left out
    :param fit_settings: of :meth:`sb3_nopg.DynamicsModel.fit`
    :return: the figure
    """
    model, left_out = fit_without(dataset, like, seed, **fit_settings)
    data = Prepared.of(dataset, model.coordinates, np.array(dataset.rewards, dtype=np.float64))
    stretches = _longest(data, left_out, model.choices.n_earlier_steps, n_episodes)
    if not stretches:
        raise InputError("dataset", "no two transitions follow each other in what is left out", "Give data in episodes")
    labels = _labels(model, dataset, names)
    # Made without pyplot, which would keep it and might look for a screen.
    figure = Figure(figsize=(4.0 * len(stretches), 1.8 * len(labels) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(labels), len(stretches), squeeze=False, sharex="col", sharey="row")
    for column, (start, n_steps) in enumerate(stretches):
        rows = start + np.arange(n_steps)
        recorded = np.concatenate([data.states[rows[:1]].numpy(), data.next_states[rows].numpy()])
        followed = open_loop(model, data, np.array([start]), n_steps)[:, 0]
        predicted = model.coordinates.encode(data.states.new_tensor(followed)).numpy()
        recorded = _as_read(model, recorded, names)
        predicted = _as_read(model, predicted, names, near=recorded)
        for number, panel in enumerate(panels[:, column]):
            panel.plot(recorded[:, number], color=_RECORDED, label="recorded")
            panel.plot(predicted[:, number], "--", color=_PREDICTED, label="predicted")
            if column == 0:
                panel.set_ylabel(labels[number])
        panels[-1, column].set_xlabel("step")
    panels[0, 0].legend()
    figure.suptitle("Episodes that the model has not seen, from their first state on under the recorded actions")
    if path is not None:
        save_picture(figure, pathlib.Path(path))
    return figure


def _labels(model: DynamicsModel, dataset: TransitionDataset, names: Sequence[str] | None) -> list[str]:
    """Names of the coordinates with their units; those of an angle are radians."""
    coordinates, known = model.coordinates, dataset.quantities
    units = [known.observation_units[i] if known else "" for i in coordinates.plain] + ["rad"] * len(coordinates.angles)
    return [label(name, unit) for name, unit in zip(coordinates.names(names), units, strict=True)]


def _as_read(
    model: DynamicsModel, states: np.ndarray, names: Sequence[str] | None, near: np.ndarray | None = None
) -> np.ndarray:
    """
    :param states: one after the other, (T, d)
    :param near: states whose turns of the circle to take, as they are read; None to follow the angle around it
    """
    shown = model.coordinates.shown(states, names)
    first = len(model.coordinates.plain)
    if near is None:
        shown[:, first:] = np.unwrap(shown[:, first:], axis=0)
    else:
        shown[:, first:] -= 2.0 * np.pi * np.round((shown[:, first:] - near[:, first:]) / (2.0 * np.pi))
    return shown


def _longest(data: Prepared, left_out: np.ndarray, n_earlier: int, n: int) -> list[tuple[int, int]]:
    """First row and length of the longest stretches without a row that was learned from."""
    begins = windows(data, left_out, 2, n_earlier)
    found: list[tuple[int, int]] = []
    for start in begins:
        # The next row carries on the stretch that the last one began.
        if found and start == sum(found[-1]) - 1:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((int(start), 2))
    found.sort(key=lambda stretch: -stretch[1])
    return [(start, min(length, _MOST_STEPS)) for start, length in found[:n]]
