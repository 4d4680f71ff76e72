"""The picture of a stress test: which rigs held, by what they differ in."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from sb3_nopg.report.stress import FactorFigures, StressPicture

_HELD, _FAILED = "#9aa3b2", "#b3261e"
# The factors that make the largest differences; the others make less.
_MOST_SHOWN = 10
# Of a row's height.
_STRIP, _SCATTER = 0.8, 0.6


def size_of_stress(picture: StressPicture) -> tuple[float, float]:
    """
    :param picture: to draw
    :return: width and height, inches
    """
    return 9.0, 1.0 + 0.42 * max(min(len(picture.places), _MOST_SHOWN), 1)


def draw_stress(figure: FigureBase, picture: StressPicture) -> None:
    """
    :param figure: to draw on
    :param picture: rigs and their factors
    """
    axes = figure.subplots()
    shown = picture.figures.factors[:_MOST_SHOWN]
    for row, (factor, places) in enumerate(zip(shown, picture.places, strict=False)):
        _draw_strip(axes, row, factor, places, picture.held)
    axes.set_yticks(range(len(shown)), [_label(factor) for factor in shown])
    for text, factor in zip(axes.get_yticklabels(), shown, strict=True):
        text.set_fontweight("bold" if factor.clear else "normal")
    axes.invert_yaxis()
    axes.set_xticks((1 / 6, 1 / 2, 5 / 6), ("lower third", "middle third", "upper third"))
    axes.tick_params(length=0)
    axes.set_xlim(0.0, 1.0)
    axes.set_frame_on(False)


def _draw_strip(axes: Axes, row: int, factor: FactorFigures, places: np.ndarray, held: np.ndarray) -> None:
    for third, share in enumerate(factor.shares):
        left, pale = third / 3.0, 0.35 * (1.0 - share)
        axes.fill_between((left, left + 1 / 3), row - _STRIP / 2, row + _STRIP / 2, color=_FAILED, alpha=pale, linewidth=0)
        axes.text(left + 0.005, row - 0.12, f"{100 * share:.0f} %", fontsize=7, va="bottom")
    # Side by side rather than on top of each other, always in the same way.
    heights = row + _SCATTER * (np.arange(len(places)) * 0.618 % 1.0 - 0.5)
    for fate, color, size in ((held, _HELD, 6), (~held, _FAILED, 10)):
        axes.scatter(places[fate], heights[fate], s=size, color=color, linewidths=0)


def _label(factor: FactorFigures) -> str:
    return f"{factor.name}\n{factor.low:.3g} to {factor.high:.3g} {factor.unit}"
