"""
The folder that learner and rig share. What is in it says how far the learning has come, so that whoever was killed in the
middle finds out where to go on:

    task.json                   what is learned, on which rig; task.py where it is a task of your own
    rounds.csv                  a line for each round
    round-00/                   random voltages: first-01.npz, …
    round-01/learned.json       written by the learner when all else that it leaves here is there: policy.onnx, report.html, …
    round-01/flight-01.npz, …   flights with this policy, or their journals where a flight was cut off
    round-01/flown.json         written by the rig when it has flown enough
    round-02/…
"""

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from nopg_envs.atomic_files import write_atomically
from nopg_robot.flight.journal import JOURNAL_SUFFIX
from nopg_robot.flight.log import LEARNING_PHASES, FlightLog, FlightLogError, read_flight
from nopg_robot.rig.file import RigFile
from nopg_robot.rounds.task import TASKS, LearningTask, load_task

FORMAT_VERSION = 2
#: name of a task of one's own in the folder
TASK_FILE = "task.py"
_ROUND = re.compile(r"round-(\d{2,})")
_TABLE = (
    "round",
    "transitions",
    "rig_seconds",
    "learning_seconds",
    "predicted_to_succeed",
    "error_ratio_1_10_50",
    "flights",
    "succeeded",
    "done",
)


@dataclass(frozen=True)
class Learned:
    """
    What the learner leaves for a round.

    :param policy: to fly, a path from the folder; empty for none
    :param digest: SHA-256 of that file
    :param done: the task is: nothing more is to be flown
    :param says: to the operator
    :param predicted_to_succeed: share of predicted flights that reach the goal
    :param n_transitions: that were learned from
    :param rig_seconds: in which they were recorded
    :param learning_seconds: that it took
    :param error_ratios: of the model that the last flights were predicted by, in these flights, to those it had promised,
        after 1, 10 and 50 steps, the largest of the flights; None where they were too short or there were none
    :param noise_scale: by which the model's noise was raised because flights contradicted the one before
    """

    policy: str
    digest: str
    done: bool
    says: str
    predicted_to_succeed: float
    n_transitions: int
    rig_seconds: float
    learning_seconds: float
    error_ratios: tuple[float | None, ...] = (None, None, None)
    noise_scale: float = 1.0


@dataclass(frozen=True)
class Round:
    """
    :param number: 0 for that of the random voltages
    :param folder: of its files
    """

    number: int
    folder: Path

    @property
    def learned(self) -> Learned | None:
        """What the learner left; None if it is not done, or has nothing to do here."""
        names = [field.name for field in fields(Learned)]
        found = _read_json(self.folder / "learned.json", *names)
        return None if found is None else Learned(**{**found, "error_ratios": tuple(found["error_ratios"])})

    @property
    def is_flown(self) -> bool:
        """Whether the rig has done its part."""
        return (self.folder / "flown.json").exists()

    @property
    def succeeded(self) -> list[bool]:
        """Of each flight that counts, whether it reached the goal."""
        found = _read_json(self.folder / "flown.json", "succeeded")
        return [] if found is None else list(found["succeeded"])

    def logs(self) -> list[Path]:
        """Flights, and journals of those that were cut off, in the order of their names."""
        sealed = set(self.folder.glob("*.npz"))
        journals = self.folder.glob(f"*.npz{JOURNAL_SUFFIX}")
        return sorted(sealed | {path for path in journals if path.with_suffix("") not in sealed})

    def next_log(self, kind: str) -> Path:
        """
        :param kind: how its name begins
        :return: of a flight that nobody has recorded yet
        """
        number = 1
        while any(path.name.startswith(f"{kind}-{number:02d}.") for path in self.logs()):
            number += 1
        return self.folder / f"{kind}-{number:02d}.npz"

    def write_learned(self, learned: Learned) -> None:
        """
        :param learned: last of all that the learner writes
        """
        _write_json(self.folder / "learned.json", asdict(learned))

    def write_flown(self, succeeded: list[bool]) -> None:
        """
        :param succeeded: of each flight that counts, whether it reached the goal
        """
        _write_json(self.folder / "flown.json", {"succeeded": succeeded})


class LearningFolder:
    """
    :param path: of a folder that :meth:`create` has made
    :param trust: whether to run a task that is a Python file
    :raises ValueError: if it has not
    """

    def __init__(self, path: Path, *, trust: bool = False):
        self.path = path
        about = _read_json(path / "task.json", "task")
        if about is None:
            raise ValueError(f"{path}: there is no task.json; nopg-learn makes such a folder")
        if about.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{path / 'task.json'}: format_version {about.get('format_version')!r}, {FORMAT_VERSION} is understood"
            )
        self.about: Mapping[str, Any] = about
        if about["task"] not in TASKS and not trust:
            raise ValueError(f"{path / TASK_FILE}: the task is a Python file, which is only run with --trust")
        self.task: LearningTask = load_task(about["task"] if about["task"] in TASKS else str(path / TASK_FILE))

    @classmethod
    def create(
        cls, path: Path, task: str, rig: RigFile, seed: int, told: Callable[[str], None] = lambda text: None
    ) -> "LearningFolder":
        """
        :param path: where there is none yet, or one that was made for the same task
        :param task: name or Python file, which is copied
        :param rig: to learn on
        :param seed: of everything
        :param told: that a task file which has changed is taken
        :raises ValueError: if the folder is about something else
        """
        wanted = load_task(task)
        about = {
            "format_version": FORMAT_VERSION,
            "task": task if task in TASKS else TASK_FILE,
            "rig": rig.name,
            "control_hz": rig.rates.control_hz,
            "voltage_volt": rig.limits.voltage_volt,
            "seed": seed,
            # All of the task that the flights of the first round depend on.
            "random_voltages": {
                "pole": wanted.pole,
                **{name: float(getattr(wanted, name)) for name in ("first_s", "fallen_s", "episode_s")},
            },
        }
        there = _read_json(path / "task.json")
        if there is None:
            path.mkdir(parents=True, exist_ok=True)
            # Whoever was killed here has left no more than these.
            if any(each.name != TASK_FILE and ".partial" not in each.suffixes for each in path.iterdir()):
                raise ValueError(f"{path}: has files but no task.json; choose another folder")
            if task not in TASKS:
                shutil.copyfile(task, path / TASK_FILE)
            _write_json(path / "task.json", about)
        elif there != about:
            other = next(name for name in about if there.get(name) != about[name])
            raise ValueError(
                f"{path}: was begun with {other} {there.get(other)!r}, and this is {about[other]!r}; choose another folder"
            )
        elif task not in TASKS and Path(task).read_bytes() != (path / TASK_FILE).read_bytes():
            _take_changed(path, Path(task))
            told(f"{task} has changed: the random voltages that {path} has are kept, and are learned from for the new one.")
        # It is the file that was named just now.
        return cls(path, trust=True)

    @property
    def rounds(self) -> list[Round]:
        """All that there are, in their order."""
        return _rounds_in(self.path)

    def round(self, number: int) -> Round:
        """
        :param number: of a round, whose folder is made
        """
        folder = self.path / f"round-{number:02d}"
        folder.mkdir(exist_ok=True)
        return Round(number, folder)

    def flights(self, before: int | None = None) -> list[FlightLog]:
        """
        :param before: this round; None for all
        :return: logs in which something was recorded to learn from
        """
        found = [_read(path) for one in self.rounds if before is None or one.number < before for path in one.logs()]
        # From a single step nothing is learned.
        return [log for log in found if log is not None and len(log.transitions()["rewards"]) > 1]

    @property
    def rig_seconds(self) -> float:
        """How long somebody was in command of the rig who is to be learned from, by the clock."""
        return sum(self.rig_seconds_of(one) for one in self.rounds)

    def rig_seconds_of(self, one: Round, kind: str = "") -> float:
        """
        :param one: a round
        :param kind: how the names of its logs begin
        """
        logs = [_read(path) for path in one.logs() if path.name.startswith(kind)]
        return sum(_seconds_in_command(log.of_phase(*LEARNING_PHASES)) for log in logs if log is not None)

    def write_table(self) -> Path:
        """Of all rounds, for a person."""
        target, lines = self.path / "rounds.csv", io.StringIO(newline="")
        csv.writer(lines).writerows([_TABLE, *self.table()])
        write_atomically(target, lambda partial: partial.write_text(lines.getvalue(), encoding="utf-8", newline=""))
        return target

    def table(self) -> list[tuple[str, ...]]:
        """Rows of the table, as text; what a round did not come to is empty."""
        rows: list[tuple[str, ...]] = []
        for one in self.rounds:
            learned, succeeded = one.learned, one.succeeded
            told = ("", "", "", "", "", "")
            if learned is not None:
                told = (
                    str(learned.n_transitions),
                    f"{learned.rig_seconds:.1f}",
                    f"{learned.learning_seconds:.0f}",
                    f"{learned.predicted_to_succeed:.2f}",
                    " ".join("-" if ratio is None else f"{ratio:.2g}" for ratio in learned.error_ratios),
                    "yes" if learned.done else "",
                )
            flights = str(len(one.logs()))
            rows.append((str(one.number), *told[:5], flights, str(sum(succeeded)) if one.is_flown else "", told[5]))
        return rows


def _rounds_in(path: Path) -> list[Round]:
    found = ((_ROUND.fullmatch(each.name), each) for each in path.iterdir() if each.is_dir())
    return sorted((Round(int(match.group(1)), each) for match, each in found if match), key=lambda one: one.number)


def _take_changed(path: Path, task_file: Path) -> None:
    """A task that was corrected may go on with flights that know nothing of what was wrong with it."""
    changed = f"{path}: was begun with another {task_file}"
    if any(one.number > 0 and (one.learned is not None or one.logs()) for one in _rounds_in(path)):
        raise ValueError(f"{changed}, and has learned for that one; choose another folder")
    # Nobody is to learn for the one while the other takes its place.
    with working_alone(path, "learner"):
        write_atomically(path / TASK_FILE, lambda partial: shutil.copyfile(task_file, partial))


@contextmanager
def working_alone(path: Path, role: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """
    :param path: of a folder
    :param role: of which one program at a time may be at work in it
    :param on_wait: told that another one is at work, which is waited for; None to refuse
    :raises ValueError: if there is another one
    """
    with (path / f".{role}.lock").open("a") as lock:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if on_wait is None:
                    raise ValueError(f"{path}: another program is at work there") from error
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def asked_before(path: Path) -> tuple[str, int]:
    """
    :param path: of a folder that may have been made before
    :return: its task and seed, or those that one gets without asking; no name for a task that is a file, which must be named
    """
    about = _read_json(path / "task.json", "task", "seed")
    if about is None:
        return "balance", 0
    return about["task"] if about["task"] in TASKS else "", about["seed"]


def _read(path: Path) -> FlightLog | None:
    try:
        return read_flight(path)
    except FlightLogError:
        if not path.name.endswith(JOURNAL_SUFFIX):
            raise
        # Killed before its first record was whole: nothing is lost.
        return None


def _seconds_in_command(log: FlightLog) -> float:
    times = [log.time_s[log.episode == episode] for episode in np.unique(log.episode)]
    return sum(float(own[-1] - own[0]) for own in times)


def observations_of(log: FlightLog) -> np.ndarray:
    """
    :param log: of a flight
    :return: at every action, and the last, (T + 1, 5)
    """
    found = log.transitions()
    return np.concatenate([found["observations"], found["next_observations"][-1:]])


def _read_json(path: Path, *needed: str) -> Any:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    missing = next((name for name in needed if not isinstance(content, dict) or name not in content), None)
    if missing is not None:
        raise ValueError(f"{path}: cannot be read (it has no {missing})")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))
