"""What the person beside the rig sees: a live picture in a terminal, lines in a pipe, nothing in a benchmark."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import rich
from rich.align import Align
from rich.box import HEAVY
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nopg_robot.rig.sections import Limits

REFRESH_HZ = 8.0
# Python lets a drawing thread run on for 5 ms while the control loop waits for its turn: more than a whole cycle.
SWITCH_INTERVAL_S = 1e-4
# With names and numbers 80 columns wide.
_BAR_WIDTH = 41
_SIGNS = ("─", "│", "●")
# An old Windows console knows its code page and nothing else.
_PLAIN_SIGNS = ("-", "|", "O")
# In other phases the pole hangs, far from any limit that means something.
_PHASES_WITH_ANGLE_LIMIT = ("run", "collect")


class ShownState(Protocol):
    """What is shown of a state; see `nopg_robot.control.estimator.State`."""

    @property
    def x(self) -> float: ...

    @property
    def theta(self) -> float: ...

    @property
    def x_dot(self) -> float: ...

    @property
    def theta_dot(self) -> float: ...


@dataclass(frozen=True)
class Snapshot:
    """
    One cycle of the control loop, to look at.

    :param phase: of the run
    :param time_s: by the plant's clock
    :param state: as estimated
    :param asked_volt: NaN if it was no number
    :param applied_volt: after the supervisor
    :param late_s: from the cycle's deadline to its begin
    :param busy_s: from the cycle's begin to the voltage being written
    :param misses: so far
    :param interventions: how many so far, by reason
    :param message: to the operator
    """

    phase: str
    time_s: float
    state: ShownState
    asked_volt: float
    applied_volt: float
    late_s: float
    busy_s: float
    misses: int
    interventions: Mapping[str, int]
    message: str


class NullDisplay:
    """Shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """
        :param snapshot: of the cycle that has just passed
        """

    def __enter__(self) -> "NullDisplay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        pass


class PlainDisplay:
    """
    A line whenever the phase or the message changes.

    :param console: where to; by default the one that everything on the terminal shares
    """

    def __init__(self, console: Console | None = None):
        self._console = console or rich.get_console()
        self._shown: tuple[str, str] | None = None
        self._begin_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """
        :param snapshot: of the cycle that has just passed
        """
        news = (snapshot.phase, snapshot.message)
        if news == self._shown:
            return
        if self._shown is None:
            self._begin_s = snapshot.time_s
        self._shown = news
        line = f"[{snapshot.time_s - self._begin_s:7.2f} s] {snapshot.phase}: {snapshot.message}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        pass


class LiveDisplay:
    """
    A picture that a thread of its own redraws 8 times a second; `update` only stores. While it is shown, threads of this
    program take turns after 0.1 ms, so that the loop does not wait for the drawing.

    :param limits: of the rig, drawn as marks on the bars
    :param console: a terminal; by default the one that everything on the terminal shares
    """

    def __init__(self, limits: Limits, console: Console | None = None):
        self._limits = limits
        self._console = console or rich.get_console()
        self._snapshot: Snapshot | None = None
        self._begin_s: float | None = None
        self._switch_interval_s = sys.getswitchinterval()
        self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=REFRESH_HZ)

    def update(self, snapshot: Snapshot) -> None:
        """
        :param snapshot: of the cycle that has just passed
        """
        if self._begin_s is None:
            self._begin_s = snapshot.time_s
        self._snapshot = snapshot

    def __enter__(self) -> "LiveDisplay":
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._switch_interval_s))
        self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._live.stop()
        finally:
            sys.setswitchinterval(self._switch_interval_s)

    def _draw(self) -> RenderableType:
        snapshot = self._snapshot
        if snapshot is None:
            return Text("waiting for the rig ...")
        passed_s = snapshot.time_s - (self._begin_s or 0.0)
        heading = Text.assemble((f"  {' '.join(snapshot.phase.upper())}  ", "bold white on blue"), f"   {passed_s:.1f} s")
        message = Text(snapshot.message, style="bold")
        return Panel(
            Group(Align.center(heading), Align.center(message), Text(), self._table(snapshot)), box=HEAVY, border_style="blue"
        )

    def _table(self, snapshot: Snapshot) -> Table:
        state, limits = snapshot.state, self._limits
        half_rail_m = limits.rail_length_m / 2.0
        guarded = snapshot.phase in _PHASES_WITH_ANGLE_LIMIT
        angle_limit, angle_reach = (limits.angle_rad, 1.25 * limits.angle_rad) if guarded else (None, math.pi)
        rows = (
            (
                "cart",
                self._bar(state.x, half_rail_m - limits.rail_margin_m, half_rail_m),
                f"{1e3 * state.x:+7.1f} mm {state.x_dot:+8.3f} m/s",
            ),
            (
                "pole",
                self._bar(state.theta, angle_limit, angle_reach),
                f"{math.degrees(state.theta):+7.1f} deg {state.theta_dot:+7.3f} rad/s",
            ),
            (
                "motor",
                self._bar(snapshot.applied_volt, limits.voltage_volt, 1.05 * limits.voltage_volt),
                f"{snapshot.applied_volt:+7.2f} V, asked {snapshot.asked_volt:+.2f} V",
            ),
        )
        table = Table.grid(padding=(0, 1))
        for name, bar, numbers in rows:
            table.add_row(name, bar, numbers)
        misses = Text(f"{snapshot.misses} missed", style="bold red" if snapshot.misses else "green")
        loop = Text(f"{1e3 * snapshot.late_s:.2f} ms late, {1e3 * snapshot.busy_s:.2f} ms busy, ").append_text(misses)
        table.add_row("loop", loop)
        # Copied at once: the loop goes on counting.
        counts = dict(snapshot.interventions)
        found = ", ".join(f"{reason} x{count}" for reason, count in counts.items()) or "no intervention"
        table.add_row("safety", Text(found, style="bold yellow" if counts else "green"))
        return table

    def _bar(self, value: float, limit: float | None, reach: float) -> Text:
        return bar_text(value, limit, reach, _SIGNS if self._console.encoding.lower().startswith("utf") else _PLAIN_SIGNS)


def bar_text(value: float, limit: float | None, reach: float, signs: tuple[str, str, str] = _SIGNS) -> Text:
    """
    A value between two limits, as a mark on a line.

    :param value: to show; one beyond the reach stands at its end
    :param limit: marked on both sides, None for none
    :param reach: value at the ends of the line
    :param signs: line, limit and mark
    :return: 41 characters, the mark red where the value is beyond its limit; no mark for a value that is no number
    """
    line, stop, mark = signs

    def column(of: float) -> int:
        return round((max(-1.0, min(1.0, of / reach)) + 1.0) / 2.0 * (_BAR_WIDTH - 1))

    stops = {column(0.0)} if limit is None else {column(-limit), column(0.0), column(limit)}
    drawn = "".join(stop if place in stops else line for place in range(_BAR_WIDTH))
    if not math.isfinite(value):
        return Text(drawn, style="red")
    place, beyond = column(value), limit is not None and abs(value) > limit
    return Text.assemble((drawn[:place], "dim"), (mark, "bold red" if beyond else "bold green"), (drawn[place + 1 :], "dim"))


def banner(text: str, style: str, console: Console | None = None) -> None:
    """
    Something that nobody may overlook; it stays above a live picture.

    :param text: what to say
    :param style: as rich names them, such as ``bold white on red``
    :param console: where to; by default the one that everything on the terminal shares
    """
    (console or rich.get_console()).print(Panel(Align.center(Text(text)), style=style, box=HEAVY, padding=(1, 2)))
