"""``nopg-collect``: gather training data on a rig."""

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from gymnasium import spaces
from rich.console import Console

from nopg_envs.behaviours import BEHAVIOURS
from nopg_robot.commands import command_line
from nopg_robot.commands.deploy import show
from nopg_robot.commands.operator_console import CONSOLE_HELP, served_console
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.rig.file import RigFile
from nopg_robot.run.collection import CollectOptions, collect
from nopg_robot.run.deployment import check_policy
from nopg_robot.run.session import Policy
from nopg_robot.run.stop import StopRequest

app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=command_line.EXIT_CODES)
def collect_command(
    rig: Annotated[str, typer.Option(help="Rig file, or the name of one that comes with the package.")] = "simulated",
    behaviour: Annotated[str, typer.Option(help="uniform, gaussian_mixture, or an exported policy (.onnx).")] = "uniform",
    episodes: Annotated[int, typer.Option(help="At most so many episodes.")] = 20,
    transitions: Annotated[int | None, typer.Option(help="Enough when there are so many transitions.")] = None,
    seconds: Annotated[float, typer.Option(help="Longest episode.")] = 10.0,
    spread: Annotated[float, typer.Option(help="Starts within so many metres of the rail's middle.")] = 0.25,
    angle_limit: Annotated[
        float | None, typer.Option(help="An episode ends at this angle, rad; never above the rig file's limit.")
    ] = None,
    start: Annotated[str, typer.Option(help="How the pole starts: upright or hanging.")] = "upright",
    plant: Annotated[
        str,
        typer.Option(help="rig: as the rig file says; auto: the same, or a simulation if it does not answer; simulated."),
    ] = "rig",
    require_hardware: Annotated[bool, typer.Option("--require-hardware", help="Refuse to run a simulation.")] = False,
    seed: Annotated[int, typer.Option(help="Of the behaviour and of the starts.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Flight log; by default flights/collect_DATE.npz.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A simulation as fast as the computer can.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live display.")] = False,
    with_console: Annotated[bool, typer.Option("--console", help=CONSOLE_HELP)] = False,
) -> None:
    """Gather training data on a cart-pole rig: episodes of a behaviour, each from a pole that was lifted upright."""

    def command() -> int:
        rig_file = with_angle_limit(command_line.rig_named(rig, fast=fast, lifts_pole=start == "upright"), angle_limit)
        path = command_line.log_path(log, "collect")
        options = CollectOptions(episodes, transitions, seconds, spread, start, plant, require_hardware, seed)
        chosen = behaviour_named(behaviour, rig_file, seed)
        metadata = chosen.metadata if isinstance(chosen, OnnxPolicy) else None
        console = Console(soft_wrap=True)
        for note in check_policy(metadata, rig_file) if metadata else ():
            console.print(f"note: {note}", style="yellow", markup=False)
        with (
            StopRequest(enter_key=True) as stop,
            command_line.make_display(rig_file.limits, plain=plain) as terminal,
            served_console(with_console, terminal, stop) as (display, served),
        ):
            served.begin(rig_file, title=f"collecting: {Path(behaviour).name}", seconds=seconds, pole=start)
            stop.end_program = partial(served.end_hung, log=path, display=terminal)
            summary = collect(
                chosen,
                rig_file,
                path,
                options,
                metadata=metadata,
                display=display,
                stop=stop,
                on_connect=served.announce,
            )
            served.end(summary)
        show(summary, console)
        console.print(f"Flight log: {command_line.written_log(path)}", markup=False)
        return command_line.exit_code(summary)

    raise typer.Exit(command_line.run(command))


def behaviour_named(name: str, rig: RigFile, seed: int) -> Policy:
    """
    :param name: of a random behaviour, or path of an exported policy, which is made ready
    :param rig: whose voltage limit is the range of random behaviours
    :param seed: of random behaviours
    """
    if name.endswith(".onnx"):
        policy = OnnxPolicy(name)
        policy.warm_up()
        return policy
    if name not in BEHAVIOURS:
        raise ValueError(f"behaviour: unknown {name!r}; known are {', '.join(BEHAVIOURS)}, or a .onnx file")
    limit = rig.limits.voltage_volt
    return BEHAVIOURS[name](spaces.Box(-limit, limit, (1,)), np.random.default_rng(seed))


def with_angle_limit(rig: RigFile, angle_rad: float | None) -> RigFile:
    """
    :param rig: as it was read
    :param angle_rad: at which episodes end, None for the rig file's
    """
    if angle_rad is None:
        return rig
    if not 0 < angle_rad <= rig.limits.angle_rad:
        raise ValueError(
            f"angle_limit: must be above 0 and at most {rig.limits.angle_rad:g} rad, the rig file's; got {angle_rad:g}"
        )
    return rig.model_copy(update={"limits": rig.limits.model_copy(update={"angle_rad": angle_rad})})


def main() -> None:
    """Entry point."""
    command_line.run_app(app)


if __name__ == "__main__":
    main()
