"""``nopg-deploy``: run an exported policy on a rig."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nopg_robot.commands import command_line
from nopg_robot.commands.operator_console import CONSOLE_HELP, served_console
from nopg_robot.commands.preflight import Preflight, reports_beside
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.flight.plot import plot_flight
from nopg_robot.run.deployment import RunOptions, check_policy, deploy
from nopg_robot.run.session import RunSummary
from nopg_robot.run.stop import StopRequest

app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=command_line.EXIT_CODES)
def deploy_command(
    policy: Annotated[Path, typer.Argument(help="ONNX file that model.export() wrote.")],
    rig: Annotated[str, typer.Option(help="Rig file, or the name of one that comes with the package.")] = "simulated",
    seconds: Annotated[float, typer.Option(help="How long the policy runs.")] = 60.0,
    plant: Annotated[
        str,
        typer.Option(help="rig: as the rig file says; auto: the same, or a simulation if it does not answer; simulated."),
    ] = "rig",
    require_hardware: Annotated[bool, typer.Option("--require-hardware", help="Refuse to run a simulation.")] = False,
    start: Annotated[str, typer.Option(help="How the pole starts: upright or hanging.")] = "upright",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the sensors and ask the policy, but leave the motor at 0 V.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="Flight log; by default flights/deploy_DATE.npz.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A simulation as fast as the computer can.")] = False,
    plot: Annotated[bool, typer.Option(help="Draw the flight beside the log.")] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live display.")] = False,
    with_console: Annotated[bool, typer.Option("--console", help=CONSOLE_HELP)] = False,
) -> None:
    """
    Run an exported policy on a cart-pole rig: connect, self-test, home, centre, wait for the pole, run, stop at zero volts.

    Ctrl-C, the Enter key or a terminate signal stop the motor at once.
    """

    def command() -> int:
        onnx_policy = OnnxPolicy(policy)
        onnx_policy.warm_up()
        rig_file = command_line.rig_named(rig, fast=fast, lifts_pole=start == "upright")
        options = RunOptions(seconds, plant, require_hardware, start, dry_run)
        console = Console(soft_wrap=True)
        for note in check_policy(onnx_policy.metadata, rig_file):
            console.print(f"note: {note}", style="yellow", markup=False)
        reports = reports_beside(policy, onnx_policy.metadata.digest)
        show_reports(reports, console)
        path = command_line.log_path(log, "deploy")
        with (
            StopRequest(enter_key=True) as stop,
            command_line.make_display(rig_file.limits, plain=plain) as terminal,
            served_console(with_console, terminal, stop) as (display, served),
        ):
            bands = [report.band for report in reports]
            served.begin(rig_file, title=policy.name, seconds=seconds, pole=start, dry_run=dry_run, bands=bands)
            stop.end_program = partial(served.end_hung, log=path, display=terminal)
            summary = deploy(
                onnx_policy,
                onnx_policy.metadata,
                rig_file,
                path,
                options,
                display=display,
                stop=stop,
                on_connect=served.announce,
            )
            served.end(summary)
        show(summary, console)
        console.print(f"Flight log: {command_line.written_log(path)}", markup=False)
        if plot and summary.phase != "connect":
            draw(path, console)
        return command_line.exit_code(summary)

    raise typer.Exit(command_line.run(command))


def show_reports(reports: list[Preflight], console: Console) -> None:
    """
    :param reports: that lie beside the policy
    :param console: to print their verdicts on
    """
    for report in reports:
        for line in report.lines():
            console.print(line, style=report.style, markup=False, highlight=False)


def draw(path: Path, console: Console) -> None:
    """
    :param path: of a log
    :param console: to say where the picture is, or why there is none: how the run ended has nothing to do with it
    """
    try:
        console.print(f"Picture: {plot_flight(path)}", markup=False)
    except (OSError, ValueError) as error:
        console.print(f"No picture: {error}", style="yellow", markup=False)


def show(summary: RunSummary, console: Console) -> None:
    """
    :param summary: of a run
    :param console: to print it on
    """
    good = summary.outcome == "finished"
    console.print(
        f"{summary.outcome.upper()} in phase '{summary.phase}': {summary.reason}",
        style="green" if good else "bold red",
        markup=False,
    )
    table = Table(show_header=False)
    table.add_row("policy ran for", f"{summary.seconds:.2f} s" + (" (simulated)" if summary.simulated else ""))
    # What a run did not come to is not a number.
    if math.isfinite(summary.mean_reward):
        table.add_row("mean cos θ", f"{summary.mean_reward:.4f}")
    if math.isfinite(summary.span_m):
        table.add_row("rail measured", f"{1e3 * summary.span_m:.1f} mm")
    if math.isfinite(summary.latency_s):
        table.add_row("from push to count", f"{1e3 * summary.latency_s:.0f} ms")
    timing = summary.timing
    if "late_p99_ms" in timing:
        table.add_row("cycles, missed", f"{timing['cycles']}, {timing['misses']}")
        table.add_row(
            "late p50 / p99 / max",
            f"{timing['late_p50_ms']:.3f} / {timing['late_p99_ms']:.3f} / {timing['late_max_ms']:.3f} ms",
        )
        table.add_row(
            "busy p50 / p99 / max",
            f"{timing['busy_p50_ms']:.3f} / {timing['busy_p99_ms']:.3f} / {timing['busy_max_ms']:.3f} ms",
        )
    for reason, count in summary.interventions.items():
        table.add_row(f"limit: {reason}", f"{count} cycles")
    console.print(table)


def main() -> None:
    """Entry point."""
    command_line.run_app(app)


if __name__ == "__main__":
    main()
