# ruff: noqa: T201
"""
A flight log as a picture and a paragraph.

    python -m nopg_robot.flight.plot LOG [-o FILE.png]
"""

import argparse
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from nopg_envs.atomic_files import write_atomically
from nopg_envs.command_line import check_outputs, check_plot, run
from nopg_robot.flight.journal import JOURNAL_SUFFIX
from nopg_robot.flight.log import LEARNING_PHASES, FlightLog, read_flight

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PHASE_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:olive", "tab:cyan", "tab:pink")

DESCRIPTION = """\
Draw a flight log: cart, pole, speeds, voltages, timing and interventions over time, with the limits of the rig file that was
in force. LOG is a sealed log (.npz) or the journal of a run that did not end in order (.npz.journal)."""


def plot_flight(log: FlightLog | str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """
    :param log: a flight log, or where it is
    :param output: where to draw it; by default beside the log, with the ending ``.png``
    :return: where it was drawn
    """
    if not isinstance(log, FlightLog):
        log = read_flight(log)
    path = _beside(log.path) if output is None else Path(output)
    check_plot(str(path))
    check_outputs(str(path))
    write_atomically(path, lambda partial: _draw(log, partial))
    return path


def describe(log: FlightLog) -> str:
    """
    :param log: to summarise
    :return: a paragraph: duration, phases, interventions, timing
    """
    ending = "" if log.complete else " INCOMPLETE: the recorder was not closed, the last moments may be missing."
    if not len(log):
        return f"{log.path.name}: no samples.{ending}{_interventions(log)}"
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in _phase_durations(log).items())
    duration_s = log.time_s[-1] - log.time_s[0]
    return (
        f"{log.path.name}: {duration_s:.1f} s, {len(log)} samples.{ending} Phases: {phases}.{_interventions(log)}"
        f" Cycles began {_percentiles(log.late_s)} after their time, and the voltage was written {_percentiles(log.busy_s)}"
        " after that (median, 99 %, largest)."
    )


def _interventions(log: FlightLog) -> str:
    counts = Counter(intervention.reason for intervention in log.interventions)
    found = ", ".join(f"{reason} x{count}" for reason, count in counts.items()) or "none"
    ends = ", ".join(f"{reason} x{count}" for reason, count in Counter(end.reason for end in log.episode_ends).items())
    return f" Interventions noted: {found}." + (f" Episodes ended by: {ends}." if ends else "")


def _percentiles(values_s: np.ndarray) -> str:
    return " / ".join(f"{1e3 * value:.2f}" for value in np.percentile(values_s, (50, 99, 100))) + " ms"


def _phase_durations(log: FlightLog) -> dict[str, float]:
    durations: dict[str, float] = {}
    for name, begin, end in _stretches(log):
        durations[name] = durations.get(name, 0.0) + float(log.time_s[end] - log.time_s[begin])
    return durations


def _stretches(log: FlightLog) -> Iterator[tuple[str, int, int]]:
    """Phases in the order of time: name, first sample, and first sample of the next phase (or the last sample)."""
    edges = [0, *(np.flatnonzero(log.phase[1:] != log.phase[:-1]) + 1).tolist(), len(log) - 1]
    for begin, end in itertools.pairwise(edges):
        yield str(log.phase[begin]), begin, end


def _limits(log: FlightLog) -> dict[str, Any]:
    """Of the rig file in the header; none if there is no such text."""
    try:
        content = yaml.safe_load(log.header.get("rig") or "")
    except yaml.YAMLError as error:
        raise ValueError(f"{log.path}: the rig file in its header is not YAML: {error}") from error
    limits = content.get("limits") if isinstance(content, dict) else None
    return limits if isinstance(limits, dict) else {}


def _draw(log: FlightLog, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("drawing needs Matplotlib: pip install matplotlib") from error
    # A figure of its own, without pyplot: nothing is opened and no global backend is changed.
    figure = Figure(figsize=(14.0, 13.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(6, 1, sharex=True, height_ratios=(3, 3, 2, 3, 2, 1.5))
    limits = _limits(log)
    # Clocks count from anywhere.
    origin_s = log.time_s[0] if len(log) else 0.0
    time = log.time_s - origin_s
    _draw_cart(axes[0], time, log, limits)
    _draw_pole(axes[1], time, log, limits)
    _draw_speeds(axes[2], time, log)
    _draw_volts(axes[3], time, log, limits)
    _draw_timing(axes[4], time, log)
    _draw_interventions(axes[5], log, origin_s)
    _shade_phases(axes, time, log)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.margins(x=0.01)
    for axis in axes[[0, 1, 3, 4]]:
        axis.legend(loc="upper right", ncols=3, fontsize=8)
    axes[-1].set_xlabel("time [s]")
    state = "" if log.complete else ", INCOMPLETE: the recorder was not closed"
    figure.suptitle(f"{log.path.name}, {log.header.get('started_utc', 'time unknown')}{state}", x=0.01, ha="left", fontsize=12)
    figure.savefig(path, dpi=100)


def _draw_cart(axis: "Axes", time: np.ndarray, log: FlightLog, limits: dict[str, Any]) -> None:
    axis.plot(time, 1e3 * log.x, color="tab:blue", linewidth=1.0, label="cart")
    half_m = limits.get("rail_length_m", math.nan) / 2.0
    _mark_limit(axis, 1e3 * half_m, "end of the rail", "-")
    _mark_limit(axis, 1e3 * (half_m - limits.get("rail_margin_m", math.nan)), "rail limit", "--")
    axis.set_ylabel("cart x [mm]")


def _draw_pole(axis: "Axes", time: np.ndarray, log: FlightLog, limits: dict[str, Any]) -> None:
    theta = np.array(log.theta)
    # Where the angle wraps around the pen is lifted.
    theta[1:][np.abs(np.diff(theta)) > math.pi] = math.nan
    axis.plot(time, np.rad2deg(theta), color="tab:blue", linewidth=1.0, label="pole")
    limit = math.degrees(limits.get("angle_rad", math.nan))
    _mark_limit(axis, limit, "angle limit", "--")
    axis.set_ylabel("pole θ [°]")
    controlled = np.rad2deg(log.of_phase(*LEARNING_PHASES).theta)
    if len(controlled):
        # A pole that hangs while the cart is homed must not flatten the run.
        reach = 1.2 * max(_largest(controlled), limit if math.isfinite(limit) else 0.0, 1.0)
        axis.set_ylim(-reach, reach)


def _draw_speeds(axis: "Axes", time: np.ndarray, log: FlightLog) -> None:
    for shown, values, colour, label in (
        (axis, log.x_dot, "tab:blue", "cart [m/s]"),
        (axis.twinx(), log.theta_dot, "tab:orange", "pole [rad/s]"),
    ):
        shown.plot(time, values, color=colour, linewidth=0.8)
        shown.set_ylabel(label, color=colour)


def _draw_volts(axis: "Axes", time: np.ndarray, log: FlightLog, limits: dict[str, Any]) -> None:
    axis.step(time, log.asked_volt, where="post", color="0.6", linewidth=1.6, label="asked")
    axis.step(time, log.applied_volt, where="post", color="tab:red", linewidth=0.8, label="applied")
    limit = limits.get("voltage_volt", math.nan)
    _mark_limit(axis, limit, "voltage limit", "--")
    # A policy may ask for anything.
    reach = 1.3 * max(1.0, _largest(log.applied_volt), limit if math.isfinite(limit) else 0.0)
    axis.set_ylim(-reach, reach)
    axis.set_ylabel("motor [V]")


def _draw_timing(axis: "Axes", time: np.ndarray, log: FlightLog) -> None:
    axis.plot(time, 1e3 * log.late_s, color="tab:purple", linewidth=0.6, label="late")
    axis.plot(time, 1e3 * log.busy_s, color="tab:green", linewidth=0.6, label="busy")
    axis.set_ylabel("cycle [ms]")
    axis.set_ylim(bottom=0.0)


def _draw_interventions(axis: "Axes", log: FlightLog, origin_s: float) -> None:
    counts = Counter(intervention.reason for intervention in log.interventions)
    for row, reason in enumerate(counts):
        times = [each.time_s - origin_s for each in log.interventions if each.reason == reason]
        axis.plot(times, [row] * len(times), "|", color="tab:red", markersize=12, markeredgewidth=1.5)
    axis.set_yticks(range(len(counts)), [f"{reason} ×{count}" for reason, count in counts.items()])
    axis.set_ylim(len(counts) - 0.4, -0.6)
    if not counts:
        axis.text(0.5, 0.5, "no interventions", transform=axis.transAxes, ha="center", va="center", color="0.4")


def _largest(values: np.ndarray) -> float:
    """Magnitude, of what is a number at all."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _mark_limit(axis: "Axes", limit: float, label: str, linestyle: str) -> None:
    if math.isfinite(limit):
        axis.axhline(limit, color="tab:red", linestyle=linestyle, linewidth=0.8, label=label)
        axis.axhline(-limit, color="tab:red", linestyle=linestyle, linewidth=0.8)


def _shade_phases(axes: Sequence["Axes"], time: np.ndarray, log: FlightLog) -> None:
    if not len(log):
        return
    colours: dict[str, str] = {}
    for name, begin, end in _stretches(log):
        colour = colours.setdefault(name, _PHASE_COLOURS[len(colours) % len(_PHASE_COLOURS)])
        for axis in axes:
            axis.axvspan(time[begin], time[end], color=colour, alpha=0.08, linewidth=0)
        axes[0].annotate(
            name,
            ((time[begin] + time[end]) / 2.0, 1.02),
            xycoords=("data", "axes fraction"),
            ha="left",
            va="bottom",
            rotation=30,
            fontsize=8,
            color=colour,
        )


def _beside(path: Path) -> Path:
    name = path.name.removesuffix(JOURNAL_SUFFIX).removesuffix(".npz")
    return path.with_name(f"{name}.png")


def _command(arguments: argparse.Namespace) -> None:
    log = read_flight(arguments.log)
    print(describe(log))
    print(f"Written: {plot_flight(log, arguments.output)}")


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments of the command, or None for those it was called with
    :return: exit code
    """
    parser = argparse.ArgumentParser(
        prog="python -m nopg_robot.flight.plot", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", metavar="LOG", help="a flight log")
    parser.add_argument("-o", "--output", metavar="FILE.png", help="where to draw it (default: beside LOG, ending in .png)")
    arguments = parser.parse_args(argv)
    return run("plot", lambda: _command(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
