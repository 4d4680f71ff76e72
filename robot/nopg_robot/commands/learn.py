"""``nopg-learn``: from a cold rig to a policy that does its task, in rounds of flying and learning."""

import importlib.util
import math
import signal
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
from nopg_robot.rounds.folder import TASK_FILE, Learned, LearningFolder, Round, asked_before, working_alone
from nopg_robot.rounds.task import load_task
from nopg_robot.run.session import RunSummary
from nopg_robot.run.stop import StopRequest

app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)
# The learner may be another computer, which writes over a network.
_POLL_S = 1.0


@app.command(epilog=command_line.EXIT_CODES)
def learn_command(
    rig: Annotated[str, typer.Option(help="Rig file, or the name of one that comes with the package.")] = "simulated",
    task: Annotated[
        str | None,
        typer.Option(help="balance, swing_up, or a Python file that assigns TASK; by default as before, or balance."),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="To leave everything in; by default runs/learn-TASK.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="At most so many policies.")] = 8,
    rig_seconds: Annotated[float, typer.Option(help="At most so long in command of the rig, all flights together.")] = 180.0,
    updates: Annotated[int | None, typer.Option(min=1, help="Of each policy; the learner knows a good number.")] = None,
    learner: Annotated[
        str, typer.Option(help="here: learn on this computer; elsewhere: wait for `nopg improve` on another one; auto.")
    ] = "auto",
    yes: Annotated[bool, typer.Option("--yes", help="Fly without asking. For virtual rigs only.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything; by default as before, or 0.")] = None,
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
        where = folder or Path("runs") / f"learn-{Path(task or 'balance').stem}"
        named, number = asked_before(where)
        if not (task or named):
            raise ValueError(f"the task of {where} is a Python file: name it with --task")
        chosen = (where, task or named, rig, number if seed is None else seed)
        try:
            with OperatorConsole() if with_console else nullcontext() as page:
                if page is not None:
                    console.print(f"Console, for all flights: {page.address}", markup=False)
                terminal = _Terminal(console, page, plain=plain)
                work = _Learning(*chosen, terminal, fast=fast, yes=yes, rig_seconds=rig_seconds)
                with working_alone(where, "rig"):
                    is_done = work.run(rounds, _learner(learner), [] if updates is None else ["--updates", str(updates)])
        except _LearnerFailedError as failure:
            console.print(str(failure), style="bold red", markup=False)
            return failure.exit_code
        except FlightStoppedError as stop:
            console.print(f"{stop}\nNothing is lost: the same command goes on from here.", style="bold red", markup=False)
            return command_line.exit_code(stop.summary)
        return command_line.ExitCode.FINISHED if is_done else command_line.ExitCode.NOT_LEARNED

    raise typer.Exit(command_line.run(command))


class _LearnerFailedError(Exception):
    """
    :param code: that the learner ended with; that of a signal is negative
    """

    def __init__(self, code: int):
        ending = _ending(code)
        see = "it may have run out of memory" if ending.endswith("SIGKILL") else "see what it says above"
        super().__init__(f"The learner {ending}; {see}. The same command goes on from here.")
        known = (command_line.ExitCode.USAGE, command_line.ExitCode.OPERATOR)
        if code == -signal.SIGINT:
            self.exit_code = command_line.ExitCode.OPERATOR
        elif code < 0:
            self.exit_code = command_line.ExitCode.LEARNER_KILLED
        else:
            self.exit_code = command_line.ExitCode(code) if code in known else command_line.ExitCode.DEFECT


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
            raise ValueError("--yes: this rig may be real, and somebody must agree before every round")
        # All that may be wrong with it, before a folder is made that is for this task and no other.
        wanted = load_task(task)
        longest_s, wanted_s = named.limits.max_seconds, max(wanted.flight_s, wanted.episode_s)
        if wanted_s > longest_s:
            raise ValueError(
                f"task: flights of {wanted_s:g} s are longer than the rig file's limits.max_seconds, {longest_s:g}"
            )
        self._random_s = wanted.first_s + wanted.fallen_s
        if not self._random_s < rig_seconds < math.inf:
            raise ValueError(f"--rig-seconds: must be above the task's {self._random_s:g} s of random voltages")
        self.folder = LearningFolder.create(where, task, named, seed, partial(terminal.console.print, markup=False))
        self._rig = command_line.rig_named(rig, fast=fast, lifts_pole=wanted.pole == "upright" or wanted.fallen_s > 0)
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
            self._ask(f"Random voltages of up to {self._rig.limits.voltage_volt:g} V, for {self._random_s:g} s?")
            self._rig_half.random_voltages(first)
        while True:
            last = self.folder.rounds[-1]
            if last.number > 0 and not _is_to_be_flown(last):
                # The learner was killed on its way, or has only looked whether the task is done.
                last = self.folder.round(last.number - 1)
            if last.is_flown:
                following = self.folder.round(last.number + 1)
                # The last flights may have settled it.
                is_last = last.number >= most_rounds or not self._rig_half.can_fly
                self._learn(following, learns_here, ["--review"] if is_last else options)
                last = following
            learned = last.learned
            assert learned is not None
            self.folder.write_table()
            self._show()
            self._console.print(learned.says, markup=False)
            if learned.done:
                return True
            if learned.policy == "" or last.number > most_rounds or not self._rig_half.can_fly:
                self._console.print("Rounds or rig time are used up, and the task is not done.", style="bold red")
                return False
            self._rig_half.fly(last, self._agreed_policy(last, learned))
            self.folder.write_table()

    def _learn(self, one: Round, learns_here: bool, options: list[str]) -> None:
        if self.folder.about["task"] == TASK_FILE:
            # The operator has named it to this program.
            options = [*options, "--trust"]
        if learns_here:
            # A process of its own: the rig's computer needs no torch, and its loop none of torch's threads.
            program = [sys.executable, "-m", "sb3_nopg.commands.main", "improve", str(self.folder.path), *options]
            code = subprocess.run(program, check=False).returncode
            if not _is_learned(one, options):
                raise _LearnerFailedError(code)
            if code:
                self._console.print(f"The learner {_ending(code)}, after its work was done.", style="yellow", markup=False)
            return
        self._console.print(
            f"Run this where torch is, on the same folder: nopg improve {self.folder.path} {' '.join(options)}", markup=False
        )
        with self._console.status("waiting for the learner …"):
            while not _is_learned(one, options):
                time.sleep(_POLL_S)

    def _agreed_policy(self, one: Round, learned: Learned) -> OnnxPolicy:
        """The policy that was judged and that the operator has been told of, and no other file of its name."""
        path = self.folder.path / learned.policy
        policy = OnnxPolicy(path)
        if policy.metadata.digest != learned.digest:
            raise ValueError(f"{path}: is not the file that the learner has judged; remove {one.folder}, and learn again")
        reports = reports_beside(path, policy.metadata.digest)
        if not reports:
            self._console.print(f"There is no report on {path}.", style="yellow", markup=False)
        show_reports(reports, self._console)
        self._bands = [report.band for report in reports]
        self._ask(f"Fly the policy of round {one.number}, up to three times?")
        return policy

    def _ask(self, question: str) -> None:
        if self._yes:
            return
        if not sys.stdin.isatty():
            raise ValueError("somebody must agree to a flight: run it in a terminal, or a virtual rig with --yes")
        command_line.forget_typed()
        try:
            answer = self._console.input(f"{question} [y/N] ", markup=False)
        except EOFError:
            answer = ""
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


def _ending(code: int) -> str:
    """Of a process, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_learned(one: Round, options: list[str]) -> bool:
    """Whether the learner has left what it was asked for with these options; an earlier review is no policy."""
    return one.learned is not None and ("--review" in options or _is_to_be_flown(one))


def _is_to_be_flown(one: Round) -> bool:
    learned = one.learned
    return one.is_flown or (learned is not None and (learned.done or learned.policy != ""))


def _learner(asked: str) -> bool:
    if asked not in ("auto", "here", "elsewhere"):
        raise ValueError(f"--learner: unknown {asked!r}; known are here, elsewhere and auto")
    return asked == "here" or (asked == "auto" and importlib.util.find_spec("torch") is not None)


def main() -> None:
    """Entry point."""
    command_line.run_app(app)


if __name__ == "__main__":
    main()
