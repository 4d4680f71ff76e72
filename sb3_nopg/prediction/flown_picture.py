"""A picture of flights, beside what a model that has not seen them predicts."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.plot import save_picture
from sb3_nopg.prediction.promised_errors import STRETCH, PromisedErrors

# Flights beside each other that can still be read.
_MOST_DRAWN = 4
_FLOWN, _PREDICTED, _OUTSIDE = "#2d323c", "#2f6f4f", "#b3261e"


def plot_flown(
    promised: PromisedErrors,
    flown: Mapping[str, TransitionDataset],
    path: str | os.PathLike[str],
    *,
    period_s: float,
    names: Sequence[str] | None = None,
) -> pathlib.Path:
    """
    A column for each flight, the worst four where there are more: its longest stretch without a gap, the band in which 95 %
    of it should lie by the errors that the model had promised, and in red what was flown outside of it.

    :param promised: of a model that was fitted before the flights
    :param flown: what was recorded, a flight each, by its name
    :param path: ``.png``, ``.pdf`` or ``.svg``
    :param period_s: of a step
    :param names: of the observation's columns
    """
    drawn = {name: _Stretch(*promised.band(flight)) for name, flight in flown.items()}
    worst = sorted(drawn, key=lambda name: -drawn[name].share_outside)[:_MOST_DRAWN]
    drawn = {name: stretch for name, stretch in drawn.items() if name in worst}
    labels = promised.model.coordinates.names(names)
    figure = Figure(figsize=(3.0 + 6.0 * len(drawn), 1.7 * len(labels) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(labels), len(drawn), squeeze=False, sharex="col", sharey="row")
    for (name, stretch), column in zip(drawn.items(), panels.T, strict=True):
        stretch.draw(column, period_s)
        column[0].set_title(f"{name}: {stretch.told}")
        column[-1].set_xlabel("time / s")
    for panel, label in zip(panels[:, 0], labels, strict=True):
        panel.set_ylabel(label)
    panels[0, 0].legend(loc="upper right", ncols=3)
    of_which = f" (of {len(flown)} flights the worst {len(drawn)})" if len(flown) > len(drawn) else ""
    figure.suptitle(f"Predicted again every {STRETCH} steps, with what 95 % of the errors should stay within{of_which}")
    save_picture(figure, pathlib.Path(path))
    return pathlib.Path(path)


@dataclass(frozen=True)
class _Stretch:
    """
    :param recorded: coordinates, (t + 1, d)
    :param low: end of the band, NaN where there is none, (t + 1, d)
    :param high: its other end, (t + 1, d)
    """

    recorded: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def outside(self) -> np.ndarray:
        """What was flown outside of the band, (t + 1, d)."""
        return (self.recorded < self.low) | (self.recorded > self.high)

    @property
    def share_outside(self) -> float:
        """Of what has a band; below 0 where there is none."""
        known = np.isfinite(self.low)
        return float(self.outside[known].mean()) if known.any() else -1.0

    @property
    def told(self) -> str:
        return "nothing was promised" if self.share_outside < 0.0 else f"{100 * self.share_outside:.0f} % flown outside"

    def draw(self, panels: np.ndarray, period_s: float) -> None:
        """
        :param panels: one for each coordinate
        :param period_s: of a step
        """
        time_s, outside = period_s * np.arange(len(self.recorded)), self.outside
        for number, panel in enumerate(panels):
            own = self.recorded[:, number]
            band = (self.low[:, number], self.high[:, number])
            panel.fill_between(time_s, *band, color=_PREDICTED, alpha=0.25, lw=0, label="predicted")
            panel.plot(time_s, own, color=_FLOWN, lw=1.0, label="flown")
            panel.plot(time_s, np.where(outside[:, number], own, np.nan), color=_OUTSIDE, lw=1.6, label="flown outside of it")
