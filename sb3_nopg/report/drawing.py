"""The pictures of a report."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure, FigureBase

from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.making import PolicyReport
from sb3_nopg.report.portraits import NEAR, Histogram, Slice, StateMap
from sb3_nopg.report.stress_drawing import draw_stress, size_of_stress
from sb3_nopg.report.support import THIN, SupportSummary
from sb3_nopg.report.trajectories import TrajectoryPicture
from sb3_nopg.report.verdict import EXIT_CARE, EXIT_NO, HELD_OUT, PLAIN, Returns

_DATA, _POLICY, _LINE = "#9aa3b2", "#d1572c", "#b3261e"
_N_COLUMNS = 3
# How much of a colour is left where no sample is near.
_PALE = 0.25
# Trajectories are drawn as far beyond the recorded range, in shares of it: some leave it by a great leap.
_BEYOND = 0.2


@dataclass(frozen=True)
class Panel:
    """
    :param section: of the page that it belongs to
    :param title: short
    :param explanation: what is to be seen
    :param size: width and height, inches
    :param draw: on a figure
    """

    section: str
    title: str
    explanation: str
    size: tuple[float, float]
    draw: Callable[[FigureBase], None]


def panels(report: PolicyReport) -> Iterator[Panel]:
    """
    :param report: of a policy
    :return: in the order of the page
    """
    summary, followed = report.summary, report.trajectories
    yield Panel(
        "returns",
        "Predicted return",
        "Bars: predicted returns. Black: an interval of one of them, had other episodes been recorded.",
        (7.5, 2.6),
        partial(draw_returns, returns=summary.returns),
    )
    if summary.limits:
        yield Panel(
            "limits",
            "Leaving the limits",
            "Predicted discounted probability of leaving each limit; dotted lines: where care begins, and where it is a no.",
            (7.5, 1.4 + 0.7 * len(summary.limits)),
            partial(draw_limits, limits=summary.limits),
        )
    yield Panel(
        "distribution",
        "Each dimension of the state",
        "Grey: the data. Orange: where the policy is predicted to spend its time, later times discounted.",
        _size_of_places(len(report.histograms)),
        partial(draw_histograms, histograms=report.histograms),
    )
    yield Panel(
        "distribution",
        "Where it goes",
        "Share of its time that the policy is predicted to spend in each place, whatever is not shown. White: nothing.",
        (7.5, 4.5),
        lambda figure: draw_map(figure.subplots(), report.visitation, PowerNorm(0.5), "share of time"),
    )
    if followed is not None:
        yield Panel(
            "distribution",
            "Step by step",
            "Grey: the recorded range. Orange: predicted trajectories, each by a model of one half of the data. Cross: it "
            "leaves that half's range. Dot: the task ends.",
            _size_of_places(len(followed.shown)),
            partial(draw_trajectories, picture=followed, labels=report.labels),
        )
    if report.stress is not None:
        yield Panel(
            "stress",
            "Which rigs hold",
            "A dot for each rig, red where it fails, by what the rigs differ in. Numbers: share that holds in each third of "
            "the range. Bold: more than chance.",
            size_of_stress(report.stress),
            partial(draw_stress, picture=report.stress),
        )
    for cut in report.slices:
        yield Panel(
            "portraits",
            f"Value and policy over {' and '.join(cut.value.names)}",
            f"A slice through the state where the policy mostly is: {cut.through}. Pale: no sample within {NEAR:g} "
            f"bandwidths, and nothing known.{' Dashed: the limits.' if cut.limits else ''}",
            (4.6 * (1 + len(cut.actions)), 3.8),
            partial(draw_slice, cut=cut, action_labels=report.action_labels),
        )
    yield Panel(
        "support",
        "What the predictions rest on",
        "Samples behind the estimates, by share of the policy's time. Left of the line they are guesses.",
        (7.5, 4.0),
        partial(draw_support, support=report.support),
    )
    if report.curve is not None:
        drawn = partial(draw_curve, curve=report.curve)
        yield Panel("learning", "Training", "Predicted return during training.", (7.5, 4.0), drawn)


def picture(panel: Panel) -> bytes:
    """
    :param panel: to draw
    :return: PNG
    """
    figure = _figure(panel.size)
    panel.draw(figure)
    return _png(figure)


def poster(report: PolicyReport, heading: str) -> bytes:
    """
    All pictures as one.

    :param report: of a policy
    :param heading: what stands above them
    :return: PNG
    """
    shown = list(panels(report))
    n_rows = -(-len(shown) // 2)
    figure = _figure((16.0, 4.6 * n_rows + 1.5))
    figure.suptitle(heading, fontsize=11, wrap=True)
    for part, panel in zip(figure.subfigures(n_rows, 2, squeeze=False).flat, shown, strict=False):
        part.suptitle(panel.title, fontsize=11)
        panel.draw(part)
    return _png(figure)


def draw_returns(figure: FigureBase, returns: Returns) -> None:
    """
    :param figure: to draw on
    :param returns: predicted
    """
    axes = figure.subplots()
    own = "data it learned from" if returns.learned_from else "other data than it learned from"
    bars = [
        ("recorded episodes", returns.behaviour, _DATA),
        ("held-out data", returns.held_out, _POLICY),
        (own, returns.plain, "#e8a487"),
    ]
    shown = [(name, value, color) for name, value, color in bars if value is not None]
    names, values, colors = zip(*shown, strict=True)
    axes.barh(range(len(shown)), values, color=colors)
    axes.set_yticks(range(len(shown)), names)
    row = {PLAIN: own, HELD_OUT: "held-out data"}.get(returns.interval_of)
    if row is not None and returns.interval_low is not None and returns.interval_high is not None:
        axes.plot(
            [returns.interval_low, returns.interval_high], 2 * [names.index(row)], color="black", linewidth=2.5, marker="|"
        )
    axes.axvline(0.0, color="black", linewidth=0.6)
    axes.set_xlabel("discounted return")


def draw_limits(figure: FigureBase, limits: tuple[LimitFinding, ...]) -> None:
    """
    :param figure: to draw on
    :param limits: with their findings
    """
    axes = figure.subplots()
    rows = np.arange(len(limits))
    bars: tuple[tuple[str, list[float | None], str], ...] = (
        ("policy", [limit.probability for limit in limits], _POLICY),
        ("policy, held-out data", [limit.held_out_probability for limit in limits], "#e8a487"),
        ("recorded behaviour", [limit.behaviour_probability for limit in limits], _DATA),
    )
    for number, (name, probabilities, color) in enumerate(bars):
        if any(probability is not None for probability in probabilities):
            axes.barh(rows + 0.27 * (number - 1), [p or 0.0 for p in probabilities], 0.25, color=color, label=name)
    for threshold in (EXIT_CARE, EXIT_NO):
        axes.axvline(threshold, color=_LINE, linewidth=1.0, linestyle=":")
    axes.set_yticks(rows, [limit.formula for limit in limits])
    axes.invert_yaxis()
    axes.set(xlim=(0.0, 1.0), xlabel="discounted probability of leaving")
    axes.legend(fontsize=7, loc="upper right")


def draw_histograms(figure: FigureBase, histograms: list[Histogram]) -> None:
    """
    :param figure: to draw on
    :param histograms: of every dimension
    """
    places = _places(figure, len(histograms))
    for axes, histogram in zip(places, histograms, strict=False):
        axes.stairs(histogram.data, histogram.edges, fill=True, color=_DATA, label="data")
        axes.stairs(histogram.policy, histogram.edges, fill=True, color=_POLICY, alpha=0.6, label="policy")
        axes.set_xlabel(histogram.name)
        axes.set_yticks([])
    places[0].legend(fontsize=7)


def draw_trajectories(figure: FigureBase, picture: TrajectoryPicture, labels: list[str]) -> None:
    """
    :param figure: to draw on
    :param picture: trajectories and the recorded range
    :param labels: of the state's dimensions
    """
    rollouts = picture.rollouts
    longest = int(rollouts.n_steps.max())
    places = _places(figure, len(picture.shown))
    for axes, dimension in zip(places, picture.shown, strict=False):
        low, high = picture.low[dimension], picture.high[dimension]
        edge = _BEYOND * (high - low) or 1.0
        states = np.clip(rollouts.states[: longest + 1, :, dimension], low - edge, high + edge)
        last = np.clip(rollouts.last_states[:, dimension], low - edge, high + edge)
        axes.axhspan(low, high, color=_DATA, alpha=0.4, linewidth=0)
        axes.plot(states, color=_POLICY, linewidth=0.8, alpha=0.7)
        for over, marker in ((rollouts.left_by >= 0, "x"), (rollouts.ended, "o")):
            axes.plot(rollouts.n_steps[over], last[over], marker, color=_LINE, markersize=4)
        axes.set(xlabel="step", ylabel=labels[dimension], xlim=(0, longest), ylim=(low - 1.1 * edge, high + 1.1 * edge))


def _size_of_places(n: int) -> tuple[float, float]:
    return 9.0, 0.6 + 2.1 * -(-n // _N_COLUMNS)


def _places(figure: FigureBase, n: int) -> np.ndarray:
    """Axes for small pictures, and perhaps some more that show nothing."""
    places = figure.subplots(-(-n // _N_COLUMNS), min(_N_COLUMNS, n), squeeze=False).reshape(-1)
    for axes in places[n:]:
        axes.set_axis_off()
    return places


def draw_map(axes: Axes, state_map: StateMap, norm: Normalize, label: str, near: np.ndarray | None = None) -> None:
    """
    :param axes: to draw on
    :param state_map: over one or two dimensions
    :param norm: from values to colours
    :param label: of the values
    :param near: where colours are not pale; None for everywhere
    """
    axes.set_xlabel(state_map.names[0])
    if state_map.values.ndim == 1:
        (low, high) = state_map.ranges[0]
        centers = low + (np.arange(len(state_map.values)) + 0.5) * (high - low) / len(state_map.values)
        axes.plot(centers, state_map.values, color=_DATA, linewidth=1.0)
        axes.plot(centers, state_map.values if near is None else np.where(near, state_map.values, np.nan), color=_POLICY)
        axes.set_ylabel(label)
        return
    (left, right), (bottom, top) = state_map.ranges
    alpha = None if near is None else np.where(near.T, 1.0, _PALE)
    image = axes.imshow(
        state_map.values.T, origin="lower", extent=(left, right, bottom, top), aspect="auto", norm=norm, alpha=alpha
    )
    axes.set_ylabel(state_map.names[1])
    # A bar of an image with pale parts would be pale itself.
    bar = axes.figure.colorbar(image, ax=axes, label=label)
    if bar.solids is not None:
        bar.solids.set_alpha(1.0)


def draw_slice(figure: FigureBase, cut: Slice, action_labels: list[str]) -> None:
    """
    :param figure: to draw on
    :param cut: value and policy
    :param action_labels: names of the actions
    """
    places = figure.subplots(1, 1 + len(cut.actions), squeeze=False).flat
    maps = [(cut.value, "value"), *zip(cut.actions, action_labels, strict=False)]
    for axes, (state_map, label) in zip(places, maps, strict=True):
        # Colours for what is known: far from the data, values may be anything.
        known = state_map.values[cut.near] if cut.near.any() else state_map.values
        draw_map(axes, state_map, Normalize(known.min(), known.max()), label, cut.near)
        for _, inside in cut.limits:
            if state_map.values.ndim == 2 and inside.any() and not inside.all():
                (left, right), (bottom, top) = state_map.ranges
                axes.contour(
                    inside.T.astype(float), [0.5], extent=(left, right, bottom, top), colors="black", linestyles="dashed"
                )


def draw_support(figure: FigureBase, support: SupportSummary) -> None:
    """
    :param figure: to draw on
    :param support: along the predicted way
    """
    axes = figure.subplots()
    # Far below any sample, how far no longer matters.
    samples = np.maximum(support.samples, 1e-3)
    bins = np.geomspace(samples.min() / 1.1, samples.max() * 1.1, 40)
    axes.hist(samples, bins=bins.tolist(), weights=support.weights, color=_POLICY)
    axes.axvline(THIN, color=_LINE, linewidth=1.0)
    axes.set(xscale="log", xlabel="samples behind the estimate", ylabel="share of time")


def draw_curve(figure: FigureBase, curve: np.ndarray) -> None:
    """
    :param figure: to draw on
    :param curve: updates and predicted return, (k, 2)
    """
    axes = figure.subplots()
    axes.plot(curve[:, 0], curve[:, 1], color=_POLICY, marker="." if len(curve) < 20 else None)
    axes.set(xlabel="policy updates", ylabel="predicted return")


def _figure(size: tuple[float, float]) -> Figure:
    # Made without pyplot, which would keep it and might look for a screen.
    return Figure(figsize=size, layout="constrained", dpi=110)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
