"""``nopg-learn``: from a cold rig to a policy that does its task, in rounds of flying and learning."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nopg_robot.commands import command_line
from nopg_robot.commands.deploy import show_reports
from nopg_robot.commands.operator_console import CONSOLE_HELP, ServedConsole
from nopg_robot.commands.preflight import reports_beside
from nopg_robot.console.feed import BesideConsole, OperatorConsole
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.rig.file import is_virtual
from nopg_robot.rounds.flights import FlightStoppedError, RigHalf
from nopg_robot.rounds.folder import LearningFolder, Round
from nopg_robot.run.session import RunSummary
from nopg_robot.run.stop import StopRequest

app = typer.Typer(add_completion=True, rich_markup_mode=None)
# The learner may be another computer, which writes over a network.
_POLL_S = 1.0


@app.command(epilog=command_line.EXIT_CODES)
def learn_command(
    rig: Annotated[str, typer.Option(help="Rig file, or the name of one that comes with the package.")] = "simulated",
    task: Annotated[str, typer.Option(help="balance, swing_up, or a Python file that assigns TASK.")] = "balance",
    folder: Annotated[Path | None, typer.Option(help="To leave everything in; by default runs/learn-TASK.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="At most so many policies.")] = 8,
    rig_seconds: Annotated[float, typer.Option(help="At most so long in command of the rig, all flights together.")] = 180.0,
    updates: Annotated[int | None, typer.Option(min=1, help="Of each policy; the learner knows a good number.")] = None,
    learner: Annotated[
        str, typer.Option(help="here: learn on this computer; elsewhere: wait for `nopg improve` on another one; auto.")
    ] = "auto",
    yes: Annotated[bool, typer.Option("--yes", help="Fly without asking. For virtual rigs only.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything.")] = 0,
    fast: Annotated[bool, typer.Option("--fast", help="A simulation as fast as the computer can.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live display.")] = False,
    with_console: Annotated[bool, typer.Option("--console", help=CONSOLE_HELP)] = False,
) -> None:
    """
    Learn a task on a rig: random voltages, then rounds of learning, a look at the prediction, your consent, and flights.

    It ends when two flights and the prediction agree that the task is done, or when rounds or rig time are used up. Killed
    at any moment, the same command goes on where it was.
    """

    def command() -> int:
        console = Console(soft_wrap=True, highlight=False)
        where = folder or Path("runs") / f"learn-{Path(task).stem}"
        try:
            with OperatorConsole() if with_console else nullcontext() as page:
                if page is not None:
                    console.print(f"Console, for all flights: {page.address}", markup=False)
                terminal = _Terminal(console, page, plain=plain)
                work = _Learning(where, task, rig, seed, terminal, fast=fast, yes=yes, rig_seconds=rig_seconds)
                is_done = work.run(rounds, _learner(learner), [] if updates is None else ["--updates", str(updates)])
        except FlightStoppedError as stop:
            console.print(f"{stop}\nNothing is lost: the same command goes on from here.", style="bold red", markup=False)
            return command_line.exit_code(stop.summary)
        return command_line.ExitCode.FINISHED if is_done else command_line.ExitCode.NOT_LEARNED

    raise typer.Exit(command_line.run(command))


@dataclass
class _Terminal:
    """
    Where the operator looks.

    :param console: to print on
    :param page: beside it, if any
    :param plain: lines instead of a live display
    """

    console: Console
    page: OperatorConsole | None
    plain: bool


class _Learning:
    """What to do next, by what is in the folder."""

    def __init__(
        self,
        where: Path,
        task: str,
        rig: str,
        seed: int,
        terminal: _Terminal,
        *,
        fast: bool,
        yes: bool,
        rig_seconds: float,
    ):
        named = command_line.rig_named(rig, fast=fast)
        if yes and not is_virtual(named):
            raise ValueError("--yes: this rig is real, and somebody must agree to every flight")
        self.folder = LearningFolder.create(where, task, named, seed)
        self._rig = command_line.rig_named(rig, fast=fast, lifts_pole=self.folder.task.pole == "upright")
        self._terminal, self._console, self._yes = terminal, terminal.console, yes
        # Of the report on the policy that flies next.
        self._bands: list[Any] = []
        self._served: ServedConsole | None = None
        self._rig_half = RigHalf(self._rig, self.folder, rig_seconds, self._around_flight, ended=self._end)

    def run(self, most_rounds: int, learns_here: bool, options: list[str]) -> bool:
        """
        :param most_rounds: policies at most
        :param learns_here: on this computer
        :param options: of the learner
        :return: whether the task is done
        """
        first = self.folder.round(0)
        if not first.is_flown:
            self._rig_half.random_voltages(first)
        while True:
            last = self.folder.rounds[-1]
            if last.number > 0 and not _is_to_be_flown(last):
                # The learner was killed on its way, or has only looked whether the task is done.
                last = self.folder.round(last.number - 1)
            if last.is_flown:
                following = self.folder.round(last.number + 1)
                # The last flights may have settled it.
                is_last = last.number >= most_rounds or self._rig_half.left_s <= 0
                self._learn(following, learns_here, ["--review"] if is_last else options)
                last = following
            learned = last.learned
            assert learned is not None
            self.folder.write_table()
            self._show()
            if not learns_here:
                self._console.print(learned.says, markup=False)
            if learned.done:
                return True
            if learned.policy == "":
                self._console.print("Rounds or rig time are used up, and the task is not done.", style="bold red")
                return False
            self._consent(last)
            self._rig_half.fly(last, self.folder.path / learned.policy)
            self.folder.write_table()

    def _learn(self, one: Round, learns_here: bool, options: list[str]) -> None:
        if learns_here:
            # A process of its own: the rig's computer needs no torch, and its loop none of torch's threads.
            program = [sys.executable, "-m", "sb3_nopg.commands.main", "improve", str(self.folder.path), *options]
            failed = subprocess.run(program, check=False).returncode
            if failed:
                raise ValueError(f"the learner ended with exit code {failed}; see what it says above")
            if one.learned is None:
                raise ValueError(f"the learner has left nothing in {one.folder}")
            return
        self._console.print(
            f"Run this where torch is, on the same folder: nopg improve {self.folder.path} {' '.join(options)}", markup=False
        )
        with self._console.status("waiting for the learner …"):
            while one.learned is None or ("--review" not in options and not _is_to_be_flown(one)):
                time.sleep(_POLL_S)

    def _consent(self, one: Round) -> None:
        learned = one.learned
        assert learned is not None
        policy = self.folder.path / learned.policy
        reports = reports_beside(policy, OnnxPolicy(policy).metadata.digest)
        show_reports(reports, self._console)
        self._bands = [report.band for report in reports]
        if self._yes:
            return
        if not sys.stdin.isatty():
            raise ValueError("somebody must agree to a flight: run it in a terminal, or a virtual rig with --yes")
        answer = self._console.input(f"Fly the policy of round {one.number}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            raise KeyboardInterrupt

    @contextmanager
    def _around_flight(self, what: str, log: Path, seconds: float) -> Iterator[dict[str, Any]]:
        self._console.rule(what)
        page = self._terminal.page
        with (
            StopRequest(enter_key=True) as stop,
            command_line.make_display(self._rig.limits, plain=self._terminal.plain) as display,
        ):
            self._served = ServedConsole(page, stop)
            stop.end_program = partial(self._served.end_hung, log=log, display=display)
            self._served.begin(self._rig, title=what, seconds=seconds, pole=self.folder.task.pole, bands=self._bands)
            shown = display if page is None else BesideConsole(display, page)
            yield {"stop": stop, "display": shown, "on_connect": self._served.announce}

    def _end(self, summary: RunSummary) -> None:
        assert self._served is not None
        self._served.end(summary)

    def _show(self) -> None:
        table = Table("round", "transitions", "rig s", "learning s", "predicted", "errors 1/10/50", "flights", "good", "done")
        for row in self.folder.table():
            table.add_row(*row)
        self._console.print(table)


def _is_to_be_flown(one: Round) -> bool:
    learned = one.learned
    return one.is_flown or (learned is not None and (learned.done or learned.policy != ""))


def _learner(asked: str) -> bool:
    if asked not in ("auto", "here", "elsewhere"):
        raise ValueError(f"--learner: unknown {asked!r}; known are here, elsewhere and auto")
    return asked == "here" or (asked == "auto" and importlib.util.find_spec("torch") is not None)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
