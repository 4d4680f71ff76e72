"""A data set in one picture: a panel for each column, episode over episode, and where the states lie."""

import os
import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels, numbered_as_they_begin

# More points or episodes than this only make the picture darker.
_N_POINTS, _N_EPISODES = 5_000, 100
# Of an episode. A line of more points than the picture has dots looks the same.
_N_STEPS = 3_000
_N_BINS = 50
# Panels side by side: two or three states get the whole width, fifteen columns still fit on a screen.
_FEW, _SOME = 3, 8
_WIDTH, _HEIGHT = 12.0, 1.75
_TERMINAL, _CUT = "#b3261e", "#2d323c"
_SUFFIXES = (".png", ".pdf", ".svg")


def plot_data(dataset: TransitionDataset, path: str | os.PathLike[str] | None = None) -> Figure:
    """
    :param dataset: the data
    :param path: ``.png``, ``.pdf`` or ``.svg`` to write, None for none
    :return: the figure: a panel for each column of states and actions, one for the reward, and one for states by reward
    """
    columns = dataset.columns
    labels = [*columns.observation_labels, *columns.action_labels, "reward"]
    values = _drawable(np.column_stack([dataset.observations, dataset.actions, dataset.rewards]))
    n_side = 1 if len(labels) <= _FEW else 2 if len(labels) <= _SOME else 3
    n_rows = -(-(len(labels) + 1) // n_side)
    # Made without pyplot, which would keep it and might look for a screen.
    figure = Figure(figsize=(_WIDTH, 0.8 + _HEIGHT * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(n_rows, n_side, squeeze=False).flat)
    for spare in panels[len(labels) + 1 :]:
        spare.remove()
    ids = episode_labels(dataset)
    drawn = "each a sample of its own" if ids is None else _draw_episodes(panels[: len(labels)], dataset, values, ids)
    for panel, label, column in zip(panels, labels, values.T, strict=False):
        if ids is None:
            _draw_histogram(panel, column)
            panel.set_xlabel(label)
        else:
            panel.set_ylabel(label)
    _draw_states(panels[len(labels)], dataset)
    figure.suptitle(f"{len(dataset):,} transitions, {drawn}")
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


def _draw_episodes(panels: list[Axes], dataset: TransitionDataset, values: np.ndarray, ids: np.ndarray) -> str:
    """
    Each column over the steps of its episode, with a mark at its end.

    :return: what was drawn, in words
    """
    number = numbered_as_they_begin(ids)
    n_episodes = int(number.max()) + 1
    shown = np.sort(np.random.default_rng(0).permutation(n_episodes)[:_N_EPISODES])
    order = np.argsort(number, kind="stable")
    stretches = np.split(order, np.cumsum(np.bincount(number))[:-1])
    # Those of many episodes are fainter.
    alpha = float(np.clip(5.0 / len(shown), 0.3, 0.9))
    colors = [(*color[:3], alpha) for color in _palette(len(shown))]
    last: dict[str, list[tuple[int, int]]] = {"end of the task": [], "end of the record": []}
    lines: list[list[np.ndarray]] = [[] for _ in panels]
    actions = range(dataset.observation_dim, dataset.observation_dim + dataset.action_dim)
    for episode in shown:
        rows = stretches[episode]
        steps = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _N_STEPS)).astype(int))
        for place, (line, column) in enumerate(zip(lines, values.T, strict=True)):
            points = np.column_stack([steps, column[rows[steps]]])
            line.append(_held(points) if place in actions else points)
        kind = "end of the task" if dataset.terminals[rows[-1]] else "end of the record"
        last[kind].append((len(rows) - 1, rows[-1]))
    longest = max(len(stretches[episode]) for episode in shown)
    for place, panel in enumerate(panels):
        panel.add_collection(LineCollection(lines[place], colors=colors, linewidths=0.9))
        for (kind, ends), (color, marker) in zip(last.items(), ((_TERMINAL, "x"), (_CUT, ".")), strict=True):
            if ends:
                steps, rows = np.array(ends).T
                panel.scatter(
                    steps, values[rows, place], color=color, marker=marker, s=12, lw=0.8, alpha=0.7, zorder=3, label=kind
                )
        panel.set_xlim(-0.02 * longest, 1.02 * longest)
        panel.autoscale_view(scalex=False)
        panel.set_xlabel("step of the episode")
        panel.grid(alpha=0.25)
    panels[0].legend(loc="best", fontsize="small")
    return f"{n_episodes:,} episodes" + (f", {len(shown)} of them drawn" if len(shown) < n_episodes else "")


def _held(points: np.ndarray) -> np.ndarray:
    """A line that keeps its height until the next point: an action is held for its step."""
    return np.column_stack([np.repeat(points[:, 0], 2)[1:], np.repeat(points[:, 1], 2)[:-1]])


def _palette(n: int) -> np.ndarray:
    # Only here: maps of colours are found by name, which takes a while.
    from matplotlib import colormaps

    return colormaps["viridis"](np.linspace(0.0, 0.9, n))


def _draw_histogram(panel: Axes, column: np.ndarray) -> None:
    panel.set_ylabel("transitions")
    # Numbers that differ by rounding only leave no room for bins.
    if np.ptp(column) > 4 * _N_BINS * np.spacing(np.abs(column).max()):
        panel.hist(column, bins=_N_BINS, color=_CUT, alpha=0.6)
    else:
        panel.text(0.5, 0.5, f"{column[0]:.4g} all along", ha="center", va="center", transform=panel.transAxes)


def _draw_states(panel: Axes, dataset: TransitionDataset) -> None:
    """The first two dimensions that vary at all; where only one does, against the action."""
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:_N_POINTS])
    columns, states = dataset.columns, _drawable(dataset.observations[rows])
    varying = np.flatnonzero(np.ptp(states, axis=0) > 0)
    horizontal = int(varying[0]) if len(varying) else 0
    if len(varying) > 1:
        vertical, values = columns.observation_labels[varying[1]], states[:, varying[1]]
    else:
        vertical, values = columns.action_labels[0], _drawable(dataset.actions[rows, 0])
    rewards = _drawable(dataset.rewards[rows])
    panel.scatter(states[:, horizontal], values, c=rewards, s=4)
    # In words: a bar of colours would take room from the panels above.
    panel.set_title(f"dark to bright: reward {rewards.min():.3g} to {rewards.max():.3g}", fontsize="small")
    panel.set_xlabel(columns.observation_labels[horizontal])
    panel.set_ylabel(vertical)


def _drawable(array: np.ndarray) -> np.ndarray:
    """Axes overflow before numbers do."""
    return np.clip(array.astype(np.float64), -1e100, 1e100)
