"""A report on a policy as a page that needs no other file, or as one picture."""

import base64
import html
import io
import os
import pathlib
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from sb3_nopg.datafiles.files import replacing
from sb3_nopg.errors import InputError
from sb3_nopg.report import REPORT_SUFFIXES, THIN, PolicyReport, StateMap

_TITLE = "What this policy is predicted to do"
_CAUTION = (
    "A prediction from the data, made before anything moved, and not a measurement. Where less than one sample stands behind "
    "it, it is a guess."
)
_STYLE = """
body { font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #2d323c; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: 0.3em 1em 0.3em 0; vertical-align: top; border-bottom: 1px solid #cdd0d5; }
th { font-weight: normal; color: #6b717c; }
figure { margin: 2em 0; } img { max-width: 100%; } figcaption { color: #6b717c; }
"""


def write_report(report: PolicyReport, path: str | os.PathLike[str]) -> pathlib.Path:
    """
    :param report: of a policy
    :param path: ``.html`` or ``.png``
    :return: the path
    """
    target = pathlib.Path(path)
    if target.suffix.lower() not in REPORT_SUFFIXES:
        raise InputError("path", f"{target} does not end in {' or '.join(REPORT_SUFFIXES)}", "The ending chooses the format")
    content = _page(report).encode() if target.suffix.lower() == ".html" else _poster(report)
    with replacing(target) as partial:
        partial.write_bytes(content)
    return target


def _panels(report: PolicyReport) -> list[tuple[str, str, Callable[[Axes], None]]]:
    """Title, explanation and picture of each."""
    panels: list[tuple[str, str, Callable[[Axes], None]]] = [
        (
            "Where it goes",
            "Share of its time, later times discounted, that the policy is predicted to spend in each place.",
            lambda axes: _draw_map(axes, report.visitation, PowerNorm(0.5), "share of time"),
        ),
        (
            "What it expects",
            "Discounted return predicted from each place, averaged over what is not shown. White: no data.",
            lambda axes: _draw_map(axes, report.value, Normalize(), "value"),
        ),
        (
            "What that rests on",
            "Samples behind the estimates, by share of the policy's time. Left of the line they are guesses.",
            lambda axes: _draw_support(axes, report),
        ),
    ]
    curve = report.curve
    if curve is not None:
        panels.append(
            ("How it was learned", "Predicted return during training.", lambda axes: _draw_curve(axes, np.asarray(curve)))
        )
    return panels


def _page(report: PolicyReport) -> str:
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>\n" for name, text in report.facts)
    figures = []
    for title, explanation, draw in _panels(report):
        picture = base64.b64encode(_single(draw)).decode()
        figures.append(
            f'<figure><h2>{html.escape(title)}</h2><img alt="{html.escape(title)}" src="data:image/png;base64,{picture}">'
            f"<figcaption>{html.escape(explanation)}</figcaption></figure>\n"
        )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{_TITLE}</h1>\n<p>{_CAUTION}</p>\n<table>{rows}</table>\n{''.join(figures)}</body></html>\n"
    )


def _single(draw: Callable[[Axes], None]) -> bytes:
    figure = _figure((7.5, 4.5))
    draw(figure.subplots())
    return _png(figure)


def _poster(report: PolicyReport) -> bytes:
    figure = _figure((13, 9.5))
    figure.suptitle(f"{_TITLE}\n" + "\n".join(f"{name}: {text}" for name, text in report.facts), fontsize=9)
    panels = _panels(report)
    places = figure.subplots(2, 2).flat
    for axes, (title, _, draw) in zip(places, panels, strict=False):
        axes.set_title(title)
        draw(axes)
    for axes in places:
        axes.set_axis_off()
    return _png(figure)


def _figure(size: tuple[float, float]) -> Figure:
    # Made without pyplot, which would keep it and might look for a screen.
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_map(axes: Axes, state_map: StateMap, norm: Normalize, label: str) -> None:
    axes.set_xlabel(state_map.names[0])
    if state_map.values.ndim == 1:
        (low, high) = state_map.ranges[0]
        centers = low + (np.arange(len(state_map.values)) + 0.5) * (high - low) / len(state_map.values)
        axes.plot(centers, state_map.values)
        axes.set_ylabel(label)
        return
    (left, right), (bottom, top) = state_map.ranges
    image = axes.imshow(state_map.values.T, origin="lower", extent=(left, right, bottom, top), aspect="auto", norm=norm)
    axes.set_ylabel(state_map.names[1])
    axes.figure.colorbar(image, ax=axes, label=label)


def _draw_support(axes: Axes, report: PolicyReport) -> None:
    # Far below any sample, how far no longer matters.
    samples = np.maximum(report.support.samples, 1e-3)
    bins = np.geomspace(samples.min() / 1.1, samples.max() * 1.1, 40)
    axes.hist(samples, bins=bins.tolist(), weights=report.support.weights)
    axes.axvline(THIN, color="tab:red", linewidth=1.0)
    axes.set(xscale="log", xlabel="samples behind the estimate", ylabel="share of time")


def _draw_curve(axes: Axes, curve: np.ndarray) -> None:
    axes.plot(curve[:, 0], curve[:, 1])
    axes.set(xlabel="policy updates", ylabel="predicted return")
