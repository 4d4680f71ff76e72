# ruff: noqa: T201
"""
How well does the simulated cart-pole follow a recorded one?

    python -m nopg_envs.fidelity FILE… [--parameters identified|datasheet|my_rig.yaml] [--plot OUT.png] [--json OUT.json]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nopg_envs.atomic_files import write_atomically
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.command_line import check_outputs, check_plot, run
from nopg_envs.identification.arguments import note_on_zeros, parameters_named, read_all
from nopg_envs.identification.prediction import LONGEST_DELAY_S, errors, predict, windows_of, wrapped
from nopg_envs.identification.recordings import Array, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOWS_S = (0.1, 0.5, 1.0)
PLOTTED_WINDOW_S = 0.5
# Windows overlap: with a fresh one every 20 ms the result no longer depends on where the first one starts.
EVERY_S = 0.02
_LARGEST_PLOT = 12

DESCRIPTION = """\
How well does the simulated cart-pole follow a recorded one?

The recording is cut into windows of 0.1, 0.5 and 1 s, a new one every 20 ms. In each of them the simulator starts from the
measured state, gets the recorded voltage, and is left alone until the window ends. The table gives, for each file and each
length, the root-mean-square difference between simulated and measured cart position x and pole angle over all samples of
all windows (not only at their ends, where it is about twice as large).

Each recording's angle is first corrected for the zero of its encoder, which is often 0.01 rad off, each time another. The
correction comes from the recorded motion alone, whatever the parameter set, and is printed (--raw-angle leaves it out).
Windows in which the cart comes within 5 mm of an end of the rail are left out.

Near upright the pole is unstable: an error of the angle grows 14-fold in half a second and 400-fold in one, whatever the
simulator. Expect larger angles from swing-ups, and at 1 s no more than an order of magnitude."""

EPILOG = """\
A FILE is an npz file with these arrays, evenly sampled:
  x           cart position, m, 0 = rail centre, positive volts drive it to +x
  theta       pole angle, rad, 0 = upright, + tips the bob towards -x
  u           voltage applied, V, as long as x or one shorter
  dt or t     sampling time or times, s
  x_dot_sg, theta_dot_sg   velocities without lag, m/s and rad/s; computed from x and theta if they are not there
or a flight log of nopg-deploy or nopg-collect.

examples:
  python -m nopg_envs.fidelity run1.npz run2.npz
  python -m nopg_envs.fidelity run*.npz --parameters my_rig.yaml --plot fidelity.png --json fidelity.json

Large errors? `python -m nopg_envs.identify run*.npz -o my_rig.yaml` fits the simulator to your rig."""


@dataclass(frozen=True)
class Score:
    """
    :param window_s: length of the windows, s
    :param x_rmse_m: over all samples of all windows, m
    :param theta_rmse_rad: over all samples of all windows, rad
    :param n_windows: how many there were
    :param n_left_out: how many more came to an end of the rail
    """

    window_s: float
    x_rmse_m: float
    theta_rmse_rad: float
    n_windows: int
    n_left_out: int


def score(recording: Recording, parameters: CartPoleParameters, window_s: float) -> Score:
    """
    :param recording: to compare with
    :param parameters: of the simulator
    :param window_s: length of the windows, s
    :return: how far the simulator is from the recording
    """
    windows, n_left_out = windows_of(
        recording,
        window_s,
        every_s=EVERY_S,
        rail_length_m=parameters.rail_length_m,
        longest_delay_s=max(LONGEST_DELAY_S, parameters.input_delay_s),
    )
    x_error, theta_error = errors([parameters], windows)
    return Score(
        window_s=window_s,
        x_rmse_m=float(np.sqrt(np.mean(x_error**2))),
        theta_rmse_rad=float(np.sqrt(np.mean(theta_error**2))),
        n_windows=len(windows),
        n_left_out=n_left_out,
    )


def plot(recordings: Sequence[Recording], parameter_sets: dict[str, CartPoleParameters], path: Path, *, title: str) -> None:
    """
    Draw measured against simulated; the simulator restarts from the measured state every half second.

    :param recordings: one row each
    :param parameter_sets: by the name to show, the one to be judged last
    :param path: of the picture
    :param title: of the picture
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: nothing is opened and no global backend is changed.
    shown = recordings[:_LARGEST_PLOT]
    figure = Figure(figsize=(17.0, 1.2 + 2.2 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 4, squeeze=False, sharex="row", width_ratios=(3, 2, 3, 2))
    for row, recording in zip(axes, shown, strict=True):
        _plot_recording(row, recording, parameter_sets)
    for axis in axes[-1]:
        axis.set_xlabel("time [s]")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    left_out = f", first {len(shown)} of {len(recordings)} recordings" if len(shown) < len(recordings) else ""
    heading = f"{title}, restarted from the measured state every {PLOTTED_WINDOW_S:g} s{left_out}"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=12)
    figure.savefig(path, dpi=100)


def _plot_recording(row: Sequence["Axes"], recording: Recording, parameter_sets: dict[str, CartPoleParameters]) -> None:
    """Cart, its error, pole, its error."""
    time = np.arange(len(recording.x)) * recording.dt_s
    # Angles from hanging read continuously through a swing-up, where those from upright jump at ±π.
    turns = wrapped(recording.theta[:1] - np.pi)[0] - recording.theta[0]
    measured = (1e3 * recording.x, np.rad2deg(recording.theta + turns))
    for axis, values in zip(row[::2], measured, strict=True):
        axis.plot(time, values, color="0.75", linewidth=4.0, solid_capstyle="round", label="measured")
    colours = ["tab:orange", "tab:blue"][-len(parameter_sets) :]
    scores = []
    for (name, parameters), colour in zip(parameter_sets.items(), colours, strict=True):
        windows, _ = windows_of(
            recording,
            PLOTTED_WINDOW_S,
            every_s=PLOTTED_WINDOW_S,
            rail_length_m=parameters.rail_length_m,
            longest_delay_s=max(LONGEST_DELAY_S, parameters.input_delay_s),
        )
        x, theta = (values[0] for values in predict([parameters], windows))
        simulated = (
            np.hstack([1e3 * windows.start[:, :1], 1e3 * x]),
            np.rad2deg(np.hstack([windows.start[:, 1:2], theta]) + turns),
        )
        samples = windows.first[:, None] + np.arange(x.shape[1] + 1)
        for axis, error_axis, real, values in zip(row[::2], row[1::2], measured, simulated, strict=True):
            axis.plot(*_with_gaps(time[samples], values), color=colour, linewidth=1.4, label=f"simulated, {name}")
            error_axis.plot(*_with_gaps(time[samples], values - real[samples]), color=colour, linewidth=1.2)
        scores.append(score(recording, parameters, PLOTTED_WINDOW_S))
    texts = (
        " → ".join(f"{1e3 * found.x_rmse_m:.1f}" for found in scores) + " mm",
        " → ".join(f"{found.theta_rmse_rad:.3f}" for found in scores) + " rad",
    )
    for axis, error_axis, label, text in zip(
        row[::2], row[1::2], ("cart x [mm]", "pole from hanging [°]"), texts, strict=True
    ):
        axis.set_ylabel(label)
        error_axis.set_ylabel("error [mm]" if axis is row[0] else "error [°]")
        error_axis.set_title(f"RMSE {text}", loc="right", fontsize=10)
    row[0].set_title(recording.name, loc="left", fontsize=10)
    for axis in row:
        axis.grid(alpha=0.25)
        axis.margins(x=0.01)


def _with_gaps(times: Array, values: Array) -> tuple[Array, Array]:
    """Windows one after the other as one line, with a NaN between them that lifts the pen."""
    gap = np.full((len(times), 1), np.nan)
    return np.hstack([times, gap]).ravel(), np.hstack([values, gap]).ravel()


def _command(arguments: argparse.Namespace) -> None:
    check_plot(arguments.plot)
    check_outputs(arguments.plot, arguments.json)
    parameters = parameters_named(arguments.parameters)
    recordings, zeros = read_all(arguments.files, raw_angle=arguments.raw_angle)
    rows = [
        (path, zero, score(recording, parameters, window_s))
        for path, zero, recording in zip(arguments.files, zeros, recordings, strict=True)
        for window_s in WINDOWS_S
    ]
    width = max(len("file"), *(len(recording.name) for recording in recordings))
    print(f"Parameters: {arguments.parameters}. RMSE over windows started from measured states.")
    print(f"{'file':<{width}}  {'angle zero':>12}  {'window':>7}  {'x RMSE':>9}  {'theta RMSE':>11}  {'windows':>7}")
    for path, zero, found in rows:
        first = found.window_s == WINDOWS_S[0]
        name, shown_zero = (Path(path).name, f"{zero:+.4f} rad") if first else ("", "")
        left_out = f"  ({found.n_left_out} at the rail's ends left out)" if found.n_left_out else ""
        print(
            f"{name:<{width}}  {shown_zero:>12}  {found.window_s:>5.1f} s  {1e3 * found.x_rmse_m:>6.2f} mm"
            f"  {found.theta_rmse_rad:>7.4f} rad  {found.n_windows:>7}{left_out}"
        )
    note = note_on_zeros(recordings, zeros, raw_angle=arguments.raw_angle)
    if note is not None:
        print(note)
    if arguments.json is not None:
        fields = ("window_s", "x_rmse_m", "theta_rmse_rad", "n_windows")
        content = [{"file": path, **{field: getattr(found, field) for field in fields}} for path, _, found in rows]
        write_atomically(arguments.json, lambda partial: partial.write_text(json.dumps(content, indent=2) + "\n"))
    if arguments.plot is not None:
        sets, title = {arguments.parameters: parameters}, "Measured against simulated"
        write_atomically(arguments.plot, lambda partial: plot(recordings, sets, partial, title=title))


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments of the command, or None for those it was called with
    :return: exit code
    """
    parser = argparse.ArgumentParser(
        prog="python -m nopg_envs.fidelity",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="recordings")
    parser.add_argument(
        "--parameters",
        default="identified",
        metavar="SET",
        help=f"of the simulator: {', '.join(PARAMETER_SETS)}, or a YAML file (default: identified)",
    )
    parser.add_argument("--plot", metavar="OUT.png", help="draw measured against simulated")
    parser.add_argument(
        "--json", metavar="OUT.json", help="write the table as a list of file, window_s, x_rmse_m, …, n_windows"
    )
    parser.add_argument("--raw-angle", action="store_true", help="do not correct the zero of the pole's encoder")
    arguments = parser.parse_args(argv)
    return run("fidelity", lambda: _command(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
