"""Flight logs, read: as arrays, and as transitions to learn from."""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nopg_robot.flight.journal import COLUMNS, JOURNAL_SUFFIX, journal_path, read_journal

#: phases in which whoever is to be learned from was in command
LEARNING_PHASES = ("run", "collect")
# A control period that took half as long again is not the same step of the same process.
_LONGEST_PERIODS = 1.5
_ARRAYS = tuple(column.name for column in COLUMNS)


class FlightLogError(ValueError):
    """A file that is no flight log; the message names it and what is wrong with it."""


@dataclass(frozen=True)
class LoggedIntervention:
    """
    :param reason: of the safety supervisor, as a word
    :param message: with numbers
    :param time_s: by the same clock as the samples
    """

    reason: str
    message: str
    time_s: float


@dataclass(frozen=True)
class EpisodeEnd:
    """
    :param episode: its number
    :param reason: why it ended
    :param terminal: whether the task itself ended
    """

    episode: int
    reason: str
    terminal: bool


@dataclass(frozen=True, eq=False, repr=False)
class FlightLog:
    """
    A run, as it was recorded. Arrays have one entry for each cycle; see `nopg_robot.flight.recorder.Sample`.

    :param path: of the file that was read
    :param header: rig file, policy, versions, …
    :param interventions: in the order of time
    :param episode_ends: of those that ended in order
    :param summary: None if the recorder was not closed
    :param unread_bytes: at the end of a journal that breaks off within a record
    """

    path: Path
    header: Mapping[str, Any]
    interventions: tuple[LoggedIntervention, ...]
    episode_ends: tuple[EpisodeEnd, ...]
    summary: Mapping[str, Any] | None
    unread_bytes: int
    time_s: np.ndarray
    phase: np.ndarray
    raw_cart: np.ndarray
    raw_pole: np.ndarray
    x: np.ndarray
    theta: np.ndarray
    x_dot: np.ndarray
    theta_dot: np.ndarray
    asked_volt: np.ndarray
    applied_volt: np.ndarray
    late_s: np.ndarray
    busy_s: np.ndarray
    acted: np.ndarray
    episode: np.ndarray

    @property
    def complete(self) -> bool:
        """Whether the recorder was closed; otherwise the last moments of the run may be missing."""
        return self.summary is not None

    def __len__(self) -> int:
        return len(self.time_s)

    def of_phase(self, *phases: str) -> "FlightLog":
        """
        :param phases: names
        :return: the same log with the samples of these phases only
        """
        return self._pick(np.isin(self.phase, phases))

    def transitions(self) -> dict[str, np.ndarray]:
        """
        What `sb3_nopg.TransitionDataset` takes, from the phases ``run`` and ``collect`` at the control rate.

        Observations are (x, sin θ, cos θ, ẋ, θ̇) when an action was taken, actions the mean voltage that was applied until the
        next one, rewards cos θ of the state reached, as in nopg_envs. A period that an episode's end cuts short is left out,
        unless the task ended there: then it leads to the last state seen. So is a period that the loop was held up in.

        :return: observations (n, 5), actions (n, 1), rewards, next_observations, terminals, timeouts, episode_ids
        :raises FlightLogError: for a dry run, in which nothing moved by itself and x counts from wherever the cart stood
        """
        if self._is_dry_run():
            raise FlightLogError(
                f"{self.path}: options.dry_run is true in its header: a dry run is no training data, as x was never homed and "
                "the motor was off. Take the log of a real run"
            )
        log = self.of_phase(*LEARNING_PHASES)
        n_cycles, period_s = log._control_period()
        terminal_episodes = {end.episode for end in self.episode_ends if end.terminal}
        begins: list[int] = []
        ends: list[int] = []
        last_rows: dict[int, int] = {}
        # np.unique sorts; episodes are numbered in the order of time.
        for episode in np.unique(log.episode).tolist():
            rows = np.flatnonzero(log.episode == episode)
            actions = rows[log.acted[rows]]
            if not len(actions):
                continue
            last = int(min(rows[-1], actions[-1] + n_cycles))
            whole = last == actions[-1] + n_cycles or (episode in terminal_episodes and last > actions[-1])
            for begin, end in zip(actions, [*actions[1:], *([last] if whole else [])], strict=False):
                if log.time_s[end] - log.time_s[begin] <= _LONGEST_PERIODS * period_s:
                    begins.append(int(begin))
                    ends.append(int(end))
                    last_rows[episode] = len(begins) - 1
        return log._as_arrays(np.array(begins, dtype=np.intp), np.array(ends, dtype=np.intp), last_rows, terminal_episodes)

    def _is_dry_run(self) -> bool:
        options = self.header.get("options")
        return isinstance(options, Mapping) and bool(options.get("dry_run"))

    def _control_period(self) -> tuple[int, float]:
        """Cycles and seconds from an action to the next, as most of them were; infinitely many if there is no second one."""
        actions = np.flatnonzero(self.acted)
        same = self.episode[actions[1:]] == self.episode[actions[:-1]]
        if not same.any():
            return len(self) + 1, np.inf
        return int(np.median(np.diff(actions)[same])), float(np.median(np.diff(self.time_s[actions])[same]))

    def _as_arrays(
        self, begins: np.ndarray, ends: np.ndarray, last_rows: dict[int, int], terminal_episodes: set[int]
    ) -> dict[str, np.ndarray]:
        states = np.stack([self.x, np.sin(self.theta), np.cos(self.theta), self.x_dot, self.theta_dot], axis=-1)
        # Each by itself: the difference of running sums could round to a little more than the largest voltage.
        means = [self.applied_volt[begin:end].mean() for begin, end in zip(begins, ends, strict=True)]
        terminals, timeouts = np.zeros((2, len(begins)), dtype=bool)
        for episode, row in last_rows.items():
            (terminals if episode in terminal_episodes else timeouts)[row] = True
        return {
            "observations": states[begins],
            "actions": np.array(means, dtype=np.float64).reshape(-1, 1),
            "rewards": np.cos(self.theta[ends]),
            "next_observations": states[ends],
            "terminals": terminals,
            "timeouts": timeouts,
            "episode_ids": self.episode[begins].astype(np.int64),
        }

    def _pick(self, chosen: np.ndarray) -> "FlightLog":
        return replace(self, **{name: getattr(self, name)[chosen] for name in _ARRAYS})


def read_flight(path: str | os.PathLike[str]) -> FlightLog:
    """
    :param path: of a log, of a journal, or of a log of which only the journal is left
    """
    path = Path(path)
    if path.name.endswith(JOURNAL_SUFFIX):
        return _read_journal(path)
    journal = journal_path(path)
    if not path.exists() and journal.exists():
        return _read_journal(journal)
    return _read_sealed(path)


def _read_journal(path: Path) -> FlightLog:
    try:
        journal = read_journal(path)
        arrays = {name: journal.samples[name] for name in _ARRAYS}
    except FileNotFoundError as error:
        raise FlightLogError(f"{path}: there is no such file") from error
    except (OSError, ValueError, KeyError) as error:
        raise FlightLogError(f"{path}: {error}") from error
    return _assembled(path, journal.header, journal.events, arrays, journal.unread_bytes)


def _read_sealed(path: Path) -> FlightLog:
    if not path.is_file():
        raise FlightLogError(f"{path}: there is no such file, and no journal of it")
    try:
        # Opened here, as NumPy leaves a broken file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            lacking = [name for name in (*_ARRAYS, "header_json", "events_json") if name not in content]
            if lacking:
                raise FlightLogError(f"{path}: not a flight log, it lacks {', '.join(lacking)}")
            header, events = (json.loads(str(content[name])) for name in ("header_json", "events_json"))
            arrays = {name: content[name] for name in _ARRAYS}
    except FlightLogError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise FlightLogError(f"{path}: not a readable npz file: {error}") from error
    return _assembled(path, header, events, arrays, 0)


def _assembled(path: Path, header: dict[str, Any], events: Any, arrays: dict[str, np.ndarray], unread_bytes: int) -> FlightLog:
    by_type: dict[str, list[dict[str, Any]]] = {"intervention": [], "episode_end": [], "summary": []}
    for event in events:
        fields = dict(event)
        by_type.setdefault(fields.pop("type"), []).append(fields)
    arrays["phase"] = arrays["phase"].astype(str)
    for array in arrays.values():
        array.setflags(write=False)
    summaries = by_type["summary"]
    return FlightLog(
        path=path,
        header=header,
        interventions=tuple(LoggedIntervention(**fields) for fields in by_type["intervention"]),
        episode_ends=tuple(EpisodeEnd(**fields) for fields in by_type["episode_end"]),
        summary=summaries[-1]["summary"] if summaries else None,
        unread_bytes=unread_bytes,
        **arrays,
    )
