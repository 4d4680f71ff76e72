"""A data set in one picture."""

import os
import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels

# More points than this only make the picture darker.
_N_POINTS = 5_000
# More histograms than this in one panel cannot be told apart.
_N_HISTOGRAMS = 6
_N_BINS = 50
_SUFFIXES = (".png", ".pdf", ".svg")


def plot_data(dataset: TransitionDataset, path: str | os.PathLike[str] | None = None) -> Figure:
    """
    :param dataset: the data
    :param path: ``.png``, ``.pdf`` or ``.svg`` to write, None for none
    :return: the figure
    """
    # Made without pyplot, which would keep it and might look for a screen.
    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 3).flat
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:_N_POINTS])
    _draw_states(next(panels), dataset, rows)
    _draw_histograms(next(panels), dataset.observations, "state", "s")
    _draw_histograms(next(panels), dataset.actions, "action", "a")
    _draw_histograms(next(panels), dataset.rewards[:, None], "reward", "r")
    _draw_episodes(next(panels), next(panels), dataset)
    figure.suptitle(f"{len(dataset):,} transitions")
    if path is not None:
        save_picture(figure, pathlib.Path(path))
    return figure


def save_picture(figure: Figure, path: pathlib.Path) -> None:
    """
    :param figure: to write
    :param path: whose ending chooses the format
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(str(path), f"no picture is called {suffix or 'without a suffix'}", f"Use {', '.join(_SUFFIXES)}")
    with replacing(path) as partial:
        figure.savefig(partial, format=suffix[1:])


def _draw_states(panel: Axes, dataset: TransitionDataset, rows: np.ndarray) -> None:
    """The first two dimensions that vary at all; where only one does, against the action."""
    states = _drawable(dataset.observations[rows])
    varying = np.flatnonzero(np.ptp(states, axis=0) > 0)
    panel.set_title("states, coloured by reward")
    horizontal = int(varying[0]) if len(varying) else 0
    if len(varying) > 1:
        vertical, values = f"s[{varying[1]}]", states[:, varying[1]]
    else:
        vertical, values = "a[0]", _drawable(dataset.actions[rows, 0])
    panel.scatter(states[:, horizontal], values, c=_drawable(dataset.rewards[rows]), s=4)
    ends = dataset.terminals[rows]
    panel.scatter(states[ends, horizontal], values[ends], marker="x", color="red", s=20, label="terminal")
    panel.set_xlabel(f"s[{horizontal}]")
    panel.set_ylabel(vertical)
    if ends.any():
        panel.legend()


def _drawable(array: np.ndarray) -> np.ndarray:
    """Axes overflow before numbers do."""
    return np.clip(array.astype(np.float64), -1e100, 1e100)


def _draw_histograms(panel: Axes, array: np.ndarray, title: str, symbol: str) -> None:
    for number in range(min(array.shape[1], _N_HISTOGRAMS)):
        label = symbol if array.shape[1] == 1 else f"{symbol}[{number}]"
        column = _drawable(array[:, number])
        # Numbers that differ by rounding only leave no room for bins.
        if np.ptp(column) > 4 * _N_BINS * np.spacing(np.abs(column).max()):
            panel.hist(column, bins=_N_BINS, histtype="step", label=label)
        else:
            panel.plot([], [], label=f"{label} = {column[0]:.4g} all along")
    panel.set_title(title if array.shape[1] <= _N_HISTOGRAMS else f"{title}, first {_N_HISTOGRAMS} of {array.shape[1]}")
    panel.set_ylabel("transitions")
    panel.legend()


def _draw_episodes(returns_panel: Axes, lengths_panel: Axes, dataset: TransitionDataset) -> None:
    returns_panel.set_title("return of each episode")
    lengths_panel.set_title("length of each episode")
    ids = episode_labels(dataset)
    if ids is None:
        for panel in (returns_panel, lengths_panel):
            panel.text(0.5, 0.5, "no episodes recorded", ha="center", va="center", transform=panel.transAxes)
        return
    inverse = np.unique(ids, return_inverse=True)[1]
    returns_panel.plot(np.bincount(inverse, weights=_drawable(dataset.rewards)), ".")
    lengths_panel.plot(np.bincount(inverse), ".")
    for panel in (returns_panel, lengths_panel):
        panel.set_xlabel("episode")
