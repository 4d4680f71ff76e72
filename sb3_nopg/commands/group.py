"""Commands that are imported when they are called: torch and Stable-Baselines3 take seconds, and help needs neither."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from sb3_nopg.common.failures import EXIT_CODES

#: commands with the line that help has for each; each is a function, or a group ``app``, in the module of its name here
COMMANDS = {
    "train": "Learn a policy from recorded data.",
    "model": "Fit a model of the system to recorded data, and say how good it is.",
    "judge": "Rank policies by what recorded data predict of them.",
    "evaluate": "Let a policy act in a simulation.",
    "report": "Judge a policy before it moves anything: a verdict, and what it rests on.",
    "stress": "Fly a policy on simulated cart-poles that might be yours.",
    "export": "Write a policy as an ONNX file, which nopg deploy runs on a rig.",
    "demonstrate": "Drive an environment by hand and get a data set to learn from.",
    "reproduce": "Run an experiment of the paper, and write its numbers beside the paper's.",
    "data": "Look into recorded data, convert it, cut it, give it other rewards.",
}

#: programs that know nothing of this one, by the module with the function
_ELSEWHERE = {"reproduce": "sb3_nopg.experiments.command"}


class ProgramGroup(TyperGroup):
    """Has `COMMANDS`, and those that it was given."""

    @property
    def commands(self) -> dict[str, Any]:
        """All of them, imported."""
        return {name: self.get_command(None, name) for name in self.list_commands(None)}

    @commands.setter
    def commands(self, given: Mapping[str, Any]) -> None:
        self._imported = dict(given)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(name for name in self._imported if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self._imported:
            self._imported[cmd_name] = _import_command(cmd_name)
        return self._imported.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        given = {name: command.get_short_help_str(90) for name, command in self._imported.items()}
        with formatter.section("Commands"):
            formatter.write_dl(
                list({**COMMANDS, **{name: line for name, line in given.items() if name not in COMMANDS}}.items())
            )


def _import_command(name: str) -> Any:
    module = import_module(_ELSEWHERE.get(name, f"sb3_nopg.commands.{name}"))
    program = getattr(module, "app", None)
    if program is None:
        program = typer.Typer(rich_markup_mode=None, add_completion=False)
        program.command(epilog=EXIT_CODES)(getattr(module, name))
    command = typer.main.get_command(program)
    command.name = name
    return command
