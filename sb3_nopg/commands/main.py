"""``nopg``: from recorded data to a controller, on one command line."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated

import typer

from sb3_nopg import __version__
from sb3_nopg.commands.group import ProgramGroup
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import EXIT_CODES, one_line_errors, run_app

# Whatever follows, --help too, is the other program's business.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_EXTRAS_OF_THE_DEMO = {"export": ("onnx",), "robot": ("onnxruntime", "pydantic", "serial")}

app = typer.Typer(
    name="nopg",
    cls=ProgramGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    # A defect shows where it is, in Python's own way.
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"nopg {__version__}")
        raise typer.Exit


@app.callback()
def nopg(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and stop.")] = False,
) -> None:
    """
    Turn a small, fixed data set into a controller, without a step on the real system.

    \b
    nopg data info FILE         what is in a recording
    nopg model FILE             what a model of the system makes of it, and how good that is
    nopg train FILE             learn a policy from it, into model.zip
    nopg judge FILE a.zip b.zip     which of several policies is best, by the data alone
    nopg report model.zip       what the policy is predicted to do, before it moves anything
    nopg evaluate model.zip     how it does in a simulation
    nopg stress policy.onnx     how many simulated rigs that might be yours it holds on
    nopg export model.zip policy.onnx, nopg deploy policy.onnx      take it to the rig
    """


@app.command("deploy", context_settings=_PASSED_ON)
def deploy(context: typer.Context) -> None:
    """Run an exported policy on a rig; the same as nopg-deploy."""
    _pass_on("deploy", context)


@app.command("collect", context_settings=_PASSED_ON)
def collect(context: typer.Context) -> None:
    """Gather training data on a rig; the same as nopg-collect."""
    _pass_on("collect", context)


@app.command("learn", context_settings=_PASSED_ON)
def learn(context: typer.Context) -> None:
    """Learn a task on a rig in rounds of flying and learning; the same as nopg-learn."""
    _pass_on("learn", context)


@app.command("improve", context_settings=_PASSED_ON)
def improve(context: typer.Context) -> None:
    """The learner's half of a round on a rig, from a folder that both see."""
    program = typer.Typer(rich_markup_mode=None, add_completion=False)
    program.command(epilog=EXIT_CODES)(_robot_part("sb3_nopg.commands.improve").improve)
    program(context.args, prog_name="nopg improve")


@app.command("demo", context_settings=_PASSED_ON)
def demo(context: typer.Context) -> None:
    """Record a simulated rig, learn to balance its pole, and run the policy on it, in a few minutes."""
    _check_extras()
    program = typer.Typer(rich_markup_mode=None, add_completion=False)
    program.command(epilog=EXIT_CODES)(_robot_part("sb3_nopg.commands.demo").demo)
    program(context.args, prog_name="nopg demo")


@one_line_errors
def _check_extras() -> None:
    """:raises InputError: where the demo would find out at its end, minutes later, that a package is missing"""
    missing = {
        f"{name} ({extra})" for extra, names in _EXTRAS_OF_THE_DEMO.items() for name in names if find_spec(name) is None
    }
    if missing:
        problem = f"missing, with the extra that brings it: {', '.join(sorted(missing))}"
        raise InputError("packages", problem, f'pip install "sb3-nopg[{",".join(_EXTRAS_OF_THE_DEMO)}]"')


@one_line_errors
def _robot_part(name: str) -> ModuleType:
    try:
        # Only now: the rig's packages are an extra, and nothing else needs them.
        return import_module(name)
    except ImportError as error:
        raise InputError(name, f"the rig's packages are missing ({error})", 'pip install "sb3-nopg[robot]"') from error


def _pass_on(name: str, context: typer.Context) -> None:
    _robot_part(f"nopg_robot.commands.{name}").app(context.args, prog_name=f"nopg {name}")


def main() -> None:
    """Entry point."""
    run_app(app)


if __name__ == "__main__":
    main()
