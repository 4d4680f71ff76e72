"""One display for all that takes long: named phases, how far each one is, and how long it will take."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

#: to be called after each step, or with the number of steps that are done
Advance = Callable[..., None]


def nothing(n_done: int | None = None) -> None:
    """Who is not watched."""


class Display:
    """Bars on the error stream, where somebody watches it; elsewhere one line for each phase when it is over."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._depth = 0
        self._bars: Any = None
        if sys.stderr.isatty():
            # Only now: who watches nothing need not wait for it.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bars = Progress(SpinnerColumn(finished_text="✓"), *columns, console=Console(stderr=True))

    def start(self) -> None:
        if self._bars is not None:
            self._bars.start()

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def phase(self, name: str, total: int | None) -> Iterator[Advance]:
        """See :func:`phase`."""
        # A judge fits many models: what is done over and over within another phase is shown once.
        again = self._depth > 0 and name in self._names
        self._names.add(name)
        self._depth += 1
        try:
            with nullcontext(nothing) if again else self._shown(name, total) as advance:
                yield advance
        finally:
            self._depth -= 1

    @contextmanager
    def _shown(self, name: str, total: int | None) -> Iterator[Advance]:
        began, bars = time.perf_counter(), self._bars
        if bars is None:
            yield nothing
            sys.stderr.write(f"{name}: {time.perf_counter() - began:.1f} s\n")
            return
        task = bars.add_task(name, total=total)
        try:
            yield lambda n_done=None: bars.advance(task) if n_done is None else bars.update(task, completed=n_done)
            # Whoever is done early is done.
            bars.update(task, total=1, completed=1)
        finally:
            bars.stop_task(task)


_shown: ContextVar[Display | None] = ContextVar("shown", default=None)


@contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """
    Show the phases of what is done within; in a display that there is already, if there is one.

    :param wanted: False to leave it as it is
    """
    if not wanted or _shown.get() is not None:
        yield
        return
    display = Display()
    token = _shown.set(display)
    display.start()
    try:
        yield
    finally:
        display.stop()
        _shown.reset(token)


@contextmanager
def phase(name: str, total: int | None = None) -> Iterator[Advance]:
    """
    Announce what is being done; nothing happens where nothing is shown.

    :param name: of it, for a person
    :param total: steps that it has, where that is known; the remaining time follows from it
    :return: to be called after each step, or with the number of steps that are done
    """
    display = _shown.get()
    if display is None:
        yield nothing
        return
    with display.phase(name, total) as advance:
        yield advance
