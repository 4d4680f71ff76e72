"""``--console``: the page beside the terminal, for programs that fly."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import rich

from nopg_robot.commands import command_line
from nopg_robot.console.feed import LINGER_S, BesideConsole, OperatorConsole
from nopg_robot.console.flight import describe_ending, describe_flight
from nopg_robot.console.prediction import drawn_band
from nopg_robot.plants import Rig
from nopg_robot.rig.file import RigFile
from nopg_robot.run.loop import ShowsSnapshots
from nopg_robot.run.session import RunSummary
from nopg_robot.run.stop import StopRequest

CONSOLE_HELP = "Serve a page to watch and stop the flight, to this computer alone; the address is printed."


class ServedConsole:
    """
    A flight as the console is told of it; without a console, nothing of it happens.

    :param console: that is served, if any
    :param stop: the operator's
    """

    def __init__(self, console: OperatorConsole | None, stop: StopRequest):
        self._console, self._stop = console, stop

    def begin(
        self,
        rig: RigFile,
        *,
        title: str,
        seconds: float,
        pole: str = "upright",
        dry_run: bool = False,
        bands: Sequence[Any] = (),
    ) -> None:
        """
        :param rig: that flies
        :param title: what flies
        :param seconds: how long the policy acts, at most
        :param pole: how it starts
        :param dry_run: the motor stays off
        :param bands: of the reports beside the policy; the first that can be drawn is
        """
        if self._console is None:
            return
        drawable = (drawn_band(band, 1.0 / rig.rates.control_hz) for band in bands)
        # A rig that nobody drives does not follow a prediction.
        band = None if dry_run else next((band for band in drawable if band is not None), None)
        flight = describe_flight(rig, title=title, seconds=seconds, pole=pole, dry_run=dry_run, band=band)
        self._console.begin_flight(flight, self._stop)

    def announce(self, rig: Rig) -> None:
        """
        :param rig: that has answered
        """
        command_line.announce(rig)
        if self._console is not None:
            self._console.connected(rig.plant.is_hardware)

    def end(self, summary: RunSummary) -> None:
        """
        :param summary: of the flight
        """
        if self._console is not None:
            self._console.end_flight(describe_ending(summary, command_line.exit_code(summary)))

    def end_hung(self, summary: RunSummary, log: Path, display: AbstractContextManager[object]) -> NoReturn:
        """
        The loop never comes back: tell the page how it ended, and leave; see
        :func:`nopg_robot.commands.command_line.end_hung`.

        :param summary: of the flight
        :param log: of the flight
        :param display: of the terminal
        """
        if self._console is not None:
            self._console.end_flight(describe_ending(summary, command_line.ExitCode.HUNG))
        command_line.end_hung(summary, log, display)


@contextmanager
def served_console(asked: bool, terminal: ShowsSnapshots, stop: StopRequest) -> Iterator[tuple[ShowsSnapshots, ServedConsole]]:
    """
    :param asked: whether there is to be a page
    :param terminal: display there, with or without a page
    :param stop: the operator's
    :return: what shows a flight, and whom to tell of it
    """
    if not asked:
        yield terminal, ServedConsole(None, stop)
        return
    with OperatorConsole() as console:
        served = f"Console: {console.address} (until {LINGER_S:g} s after the flight)"
        rich.get_console().print(served, markup=False, highlight=False, soft_wrap=True)
        yield BesideConsole(terminal, console), ServedConsole(console, stop)
