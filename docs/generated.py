"""Parts of the pages that are made from the code when they are built, so that they cannot grow old."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import typer.main
from field_meanings import MEANINGS
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import nopg_envs
from nopg_envs.cartpole import PARAMETER_SETS, CartPoleParameters
from nopg_robot.commands import collect, deploy, learn
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Connection, HilConnection, QuarcConnection, SerialConnection, SimulatedConnection
from sb3_nopg.commands import demo, improve, main

MARK = re.compile(r"^<!-- generated: (\w+) -->$", flags=re.MULTILINE)
ENVIRONMENTS = {
    "nopg/Pendulum-v0": nopg_envs.HangingPendulumEnv,
    "nopg/LQR-v0": nopg_envs.LQREnv,
    "nopg/QuanserCartPoleBalance-v0": nopg_envs.QuanserCartPoleBalanceEnv,
    "nopg/QuanserCartPoleSwingUp-v1": nopg_envs.QuanserCartPoleSwingUpEnv,
}
CONNECTIONS = (
    SimulatedConnection,
    QuarcConnection,
    HilConnection,
    SerialConnection,
)
_PARAMETER = re.compile(r"^:param (\w+): ", flags=re.MULTILINE)


def insert_generated(page: str) -> str:
    """
    :param page: Markdown
    :return: the same with ``<!-- generated: NAME -->`` replaced by what is made
    """
    return MARK.sub(lambda match: PARTS[match[1]](), page)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """
    :param header: of the columns
    :param rows: of Markdown
    """
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """
    :param text: for people, in which backquotes mark code and nothing else is markup
    :return: Markdown that shows it
    """
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]])", r"\\\1", part) for part in parts)


# Rig files


def rig_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Path of each section of a rig file, and its model."""
    yield "", RigFile
    for name, field in RigFile.model_fields.items():
        if name == "connection":
            for connection in CONNECTIONS:
                yield f"connection ({_plant_of(connection)})", connection
        elif _is_section(field.annotation):
            yield from _with_inner(name, field.annotation)


def _with_inner(path: str, model: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            yield from _with_inner(f"{path}.{name}", field.annotation)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _plant_of(connection: type[BaseModel]) -> str:
    return str(get_args(connection.model_fields["plant"].annotation)[0])


def rig_file_reference() -> str:
    """Every field of a rig file with its type, its range, its default and what it means."""
    parts = []
    for path, model in rig_sections():
        rows = [
            (f"`{name}`", _kind(field), _default(field), MEANINGS[model.__name__][name])
            for name, field in model.model_fields.items()
        ]
        heading = f"### `{path}`" if path else "### The file"
        parts.append(f"{heading}\n\n{table(('field', 'value', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _kind(field: FieldInfo) -> str:
    if field.annotation is Connection or "Connection" in str(field.annotation):
        return "section"
    bounds = [_bound(entry) for entry in field.metadata]
    return " ".join([_type_name(field.annotation), *(bound for bound in bounds if bound)])


def _type_name(annotation: Any) -> str:
    if _is_section(annotation):
        return "section"
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    # Annotated, inside of a union.
    metadata = getattr(annotation, "__metadata__", None)
    if metadata is not None:
        bounds = [_bound(entry) for part in metadata for entry in getattr(part, "metadata", [])]
        return " ".join([_type_name(annotation.__origin__), *(bound for bound in bounds if bound)])
    if get_origin(annotation) is dict:
        return "table of numbers"
    if get_args(annotation):
        return " or ".join(_type_name(part) for part in get_args(annotation))
    return {float: "number", int: "whole number", str: "text", bool: "`true` or `false`", type(None): "`null`"}[annotation]


def _bound(entry: Any) -> str:
    for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        if getattr(entry, name, None) is not None:
            return f"{sign} {getattr(entry, name):g}"
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if isinstance(field.default, BaseModel):
        return "its defaults"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "`null`" if field.default is None else f"`{field.default}`"


# Commands


def command_reference() -> str:
    """Every command of the command line with its arguments and options."""
    parts = []
    for name, command in _COMMANDS.items():
        if hasattr(command, "commands") or command.context_settings.get("ignore_unknown_options"):
            continue
        rows = [_parameter_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        parts.append(f"### `{name}`\n\n{plain(command.help or '')}\n\n{table(('argument', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def commands() -> dict[str, Any]:
    """All commands by their full names, groups too."""
    found: dict[str, Any] = {}
    _add_command(found, "nopg", typer.main.get_command(main.app))
    for name, function in (("demo", demo.demo), ("improve", improve.improve)):
        own = typer.Typer(add_completion=False)
        own.command()(function)
        found[f"nopg {name}"] = typer.main.get_command(own)
    for name, robot_app in (("deploy", deploy.app), ("collect", collect.app), ("learn", learn.app)):
        found[f"nopg-{name}"] = typer.main.get_command(robot_app)
    return found


def _add_command(found: dict[str, Any], name: str, command: Any) -> None:
    found[name] = command
    for inner, subcommand in getattr(command, "commands", {}).items():
        _add_command(found, f"{name} {inner}", subcommand)


def _parameter_row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        name = ", ".join(f"`{option}`" for option in names)
    default = getattr(parameter.default, "value", parameter.default)
    if parameter.required:
        shown = "**required**"
    elif default is None or isinstance(default, bool) or default == []:
        shown = ""
    else:
        shown = f"`{default}`"
    return name, shown, plain(parameter.help or "")


# Environments


def environment_reference() -> str:
    """The environments' docstrings, which are Markdown, one below the other."""
    parts = []
    for name, environment in ENVIRONMENTS.items():
        text = inspect.cleandoc(environment.__doc__ or "").replace("\n## ", "\n### ")
        text = re.sub(r":meth:`(\w+)`", r"`\1()`", text).replace("``", "`")
        text = _PARAMETER.sub(r"* `\1`: ", text)
        parts.append(f"## `{name}`\n\n{text}")
    return "\n\n".join(parts)


def parameter_reference() -> str:
    """The cart-pole's named sets of parameters."""
    meanings = dict(re.findall(r":param (\w+): (.*)", CartPoleParameters.__doc__ or ""))
    rows = [
        (
            f"`{field.name}`",
            *(f"{getattr(chosen, field.name):.5g}" for chosen in PARAMETER_SETS.values()),
            meanings[field.name],
        )
        for field in dataclasses.fields(CartPoleParameters)
    ]
    return table(("field", *(f"`{name}`" for name in PARAMETER_SETS), "meaning"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "commands": command_reference,
    "environments": environment_reference,
    "parameters": parameter_reference,
    "rig_file": rig_file_reference,
}


# Already now: commands read the defaults of NOPG when they are imported, and Sphinx replaces these by their texts once it has
# described the class.
_COMMANDS = commands()
