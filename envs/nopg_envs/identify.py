# ruff: noqa: T201
"""
Fit the simulated cart-pole to recordings of your own rig.

    python -m nopg_envs.identify FILE… -o my_rig.yaml [--start identified|datasheet|other.yaml] [--plot OUT.png] [--seed 0]
"""

import argparse
import sys
from collections.abc import Sequence

from tqdm import tqdm  # type: ignore[import-untyped]

from nopg_envs.atomic_files import write_atomically
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.command_line import check_outputs, check_plot, run
from nopg_envs.fidelity import EPILOG as RECORDINGS_HELP
from nopg_envs.fidelity import plot
from nopg_envs.identification.arguments import note_on_zeros, parameters_named, read_all
from nopg_envs.identification.fit import WINDOW_S, Identification, identify
from nopg_envs.identification.prediction_errors import FITTED

# A fit rarely ends exactly on a bound; within this share of the parameter's scale it leans on it.
BOUND_TOLERANCE = 0.01
# No cart of this kind is followed so badly in half a second, unless something in its recordings means something else.
SUSPICIOUS_X_RMSE_M = 0.01

DESCRIPTION = """\
Fit the simulated cart-pole to recordings of your own rig, in less than a minute.

The recordings are cut into windows of half a second. The simulator starts each of them from the measured state, gets the
recorded voltage, and its parameters are varied until position and angle follow the measured ones (least squares, from
several starts). A quarter of the files is held out (of a single file, its last quarter): the validation error, on what the
fit has not seen, is the one to believe.

Good recordings: ten seconds or more in several files, voltage both ways and up to what you will use, slow and fast (a
chirp), and the pole swinging widely (a swing-up is best). What they cannot tell is named in a warning and keeps its start
value. Uncertainties are one standard deviation, by leaving out recordings (or seconds) in turn; they do not include what the
equations of motion leave out."""


def _print_table(found: Identification) -> None:
    print(f"\n{'parameter':<20}  {'start':>9}  {'fitted':>9}   {'uncertainty':<13}  unit")
    for name, about in FITTED.items():
        start, fitted = getattr(found.start, name), getattr(found.fitted, name)
        spread = "not identified" if name in found.unidentified else f"± {found.uncertainty[name]:.2g}"
        margin = BOUND_TOLERANCE * about.scale
        at_bound = name in found.uncertainty and not about.low + margin < fitted < about.high - margin
        print(
            f"{name:<20}  {start:>9.5g}  {fitted:>9.5g}   {spread:<13}  {about.unit}{'  (at its limit)' if at_bound else ''}"
        )
    print("Uncertainties are one standard deviation and do not include model error.")
    print(f"\nRMSE over windows of {WINDOW_S:g} s:")
    print(f"{'':<12}  {'x, start':>10}  {'x, fitted':>10}  {'theta, start':>13}  {'theta, fitted':>13}")
    for part, values in found.rmse.items():
        (x_start, theta_start), (x, theta) = values["start"], values["fitted"]
        print(f"{part:<12}  {1e3 * x_start:>7.2f} mm  {1e3 * x:>7.2f} mm  {theta_start:>9.4f} rad  {theta:>9.4f} rad")


def _print_warnings(found: Identification) -> None:
    for reason in dict.fromkeys(found.unidentified.values()):
        names = ", ".join(name for name, why in found.unidentified.items() if why == reason)
        sys.stderr.write(f"Warning: not identified, start values kept: {names}: {reason}.\n")
    start, fitted = found.rmse["validation"]["start"], found.rmse["validation"]["fitted"]
    if any(after > 1.05 * before for before, after in zip(start, fitted, strict=True)):
        sys.stderr.write(
            "Warning: on the held-out recordings the fitted parameters are worse than the start values; "
            "were they made on the same rig? More recordings help.\n"
        )
    if fitted[0] > SUSPICIOUS_X_RMSE_M:
        sys.stderr.write(
            f"Warning: after fitting, x is {1e3 * fitted[0]:.1f} mm off within {WINDOW_S:g} s on the held-out recordings; "
            "check signs and units of x, theta and u.\n"
        )


def _command(arguments: argparse.Namespace) -> None:
    check_plot(arguments.plot)
    check_outputs(arguments.output, arguments.plot)
    if arguments.seed < 0 or arguments.starts < 1:
        raise ValueError("--seed must not be negative, and --starts must be at least 1")
    start = parameters_named(arguments.start)
    recordings, zeros = read_all(arguments.files, raw_angle=arguments.raw_angle)
    # The delay keeps the bar away from what fails at once, whose message then stands alone.
    with tqdm(total=arguments.starts + 2, desc="fitting", unit="stage", delay=0.2) as bar:

        def progress(stage: str) -> None:
            # Dropping a parameter repeats stages.
            bar.total = max(bar.total, bar.n + 1)
            bar.set_postfix_str(stage, refresh=False)
            bar.update()

        found = identify(recordings, start, n_starts=arguments.starts, seed=arguments.seed, progress=progress)
    print("Angle zeros: " + ", ".join(f"{r.name} {zero:+.4f} rad" for r, zero in zip(recordings, zeros, strict=True)))
    note = note_on_zeros(recordings, zeros, raw_angle=arguments.raw_angle)
    if note is not None:
        print(note)
    _print_table(found)
    _print_warnings(found)
    write_atomically(arguments.output, found.fitted.save)
    print(f"\nWritten: {arguments.output}")
    if arguments.plot is not None:
        sets = {f"start ({arguments.start})": start, "fitted": found.fitted}
        write_atomically(arguments.plot, lambda partial: plot(recordings, sets, partial, title="Before and after fitting"))
        print(f"Written: {arguments.plot}")


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments of the command, or None for those it was called with
    :return: exit code
    """
    parser = argparse.ArgumentParser(
        prog="python -m nopg_envs.identify",
        description=DESCRIPTION,
        epilog=RECORDINGS_HELP.split("\nexamples:")[0]
        + "\nexample:\n  python -m nopg_envs.identify run*.npz -o my_rig.yaml --plot before_after.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="recordings of one rig")
    parser.add_argument("-o", "--output", metavar="OUT.yaml", required=True, help="where to write the parameters")
    parser.add_argument(
        "--start",
        default="identified",
        metavar="SET",
        help=f"parameters to start from: {', '.join(PARAMETER_SETS)}, or a YAML file (default: identified)",
    )
    parser.add_argument("--plot", metavar="OUT.png", help="draw measured against simulated, before and after")
    parser.add_argument("--seed", type=int, default=0, help="which files are held out, and the other starts (default: 0)")
    parser.add_argument(
        "--starts", type=int, default=4, help="searches, one from the start, the others from around it (default: 4)"
    )
    parser.add_argument("--raw-angle", action="store_true", help="do not correct the zero of the pole's encoder")
    arguments = parser.parse_args(argv)
    return run("identify", lambda: _command(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
