"""What the commands of ``nopg data`` share: options of reading a file, writing all or nothing, and errors in one line."""

import inspect
import pathlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.failures import ExitCode, ended, note, notes_of_the_package
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.files import FORMATS, target_of

_FORMAT_HELP = f"Format, if the file's ending does not tell: {', '.join(FORMATS)}."


def _table(kind: type, help: str) -> Any:
    return Annotated[kind | None, typer.Option(help=help, rich_help_panel="CSV and Parquet tables")]


def _names_of(what: str, example: str) -> Any:
    return Annotated[str | None, typer.Option(help=f"Names for the columns of {what}, with units. Example: '{example}'")]


Trust = Annotated[
    bool,
    typer.Option("--trust", help="Read pickles (.pkl, .npy) too. They can run any program: only if you know who wrote them."),
]
File = Annotated[
    str, typer.Argument(metavar="FILE", help="A data file, a Minari folder, or minari:ID. CSV and Parquet may need --obs etc.")
]
_READ_OPTIONS: dict[str, tuple[Any, Any]] = {
    "format": (Annotated[str | None, typer.Option("--format", help=_FORMAT_HELP)], None),
    "trust": (Trust, False),
    "obs": (_table(str, "Columns of the state, separated by commas. Example: --obs x,theta,x_dot,theta_dot"), None),
    "action": (_table(str, "Columns of the action. Example: --action u"), None),
    "next_obs": (_table(str, "Columns of the state that followed. Without it, the state of the next row."), None),
    "reward": (_table(str, "Column of the reward; 'none' if there is none (then set it by convert --relabel)."), None),
    "terminal": (_table(str, "Column that is 1 where the task truly ended; a time limit is no end."), None),
    "timeout": (_table(str, "Column that is 1 where a time limit ended the episode."), None),
    "episode": (_table(str, "Column with a number or name for each episode."), None),
    "time": (
        _table(str, "Column of the time; where it jumps, an episode begins. By default t or time; or 'none'."),
        None,
    ),
    "gap": (_table(float, "Longest step in time that is no jump. Without it, 1.5 times the median step."), None),
    "keep_jumps": (_table(bool, "Take rows that cannot follow from the one before them as they are."), None),
    "delimiter": (_table(str, "Character between the fields of a CSV file. By default as its first line has it."), None),
    "observation_names": (_names_of("states", "position [m],theta [rad]"), None),
    "action_names": (_names_of("actions", "u [V]"), None),
}
Seed = Annotated[int, typer.Option(help="Of random choices: the same seed, the same data.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")]


@dataclass(frozen=True)
class Reader:
    """
    :param options: of `TransitionDataset.load` that the user gave
    """

    options: Mapping[str, Any]

    def load(self, file: str) -> TransitionDataset:
        return TransitionDataset.load(file, **self.options)

    @property
    def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Of the columns of states and actions, for use in formulas."""
        return self.options.get("obs", ()), self.options.get("action", ())


@contextmanager
def file_errors(file: str) -> Iterator[None]:
    """
    What the user did wrong ends the program with one line and exit code 2; anything else is a defect and shows where.

    :param file: that is worked on
    """
    try:
        with notes_of_the_package(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            note(str(warning.message))
    except (InputError, OSError, MemoryError) as error:
        message = one_line(error, longest=None)
        raise ended(message if file in message else f"{file}: {message}", ExitCode.USAGE) from None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """
    The options of reading a file, written down once and added to each command that reads one.

    :param command: takes a ``reader``, which reads a file as the options say
    """

    def with_options(**given: Any) -> None:
        options = {name: given.pop(name) for name in _READ_OPTIONS}
        for name in ("obs", "action", "next_obs", "observation_names", "action_names"):
            options[name] = _names(options[name])
        command(**given, reader=Reader({name: value for name, value in options.items() if value is not None}))

    own = inspect.signature(command).parameters.values()
    parameters = [
        *(parameter for parameter in own if parameter.name != "reader"),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _READ_OPTIONS.items()
        ),
    ]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def check_free(outputs: Sequence[str], format: str | None, overwrite: bool) -> None:
    """
    :param outputs: files to write
    :param format: of the files, None where their endings tell
    :param overwrite: whether files that are there may go
    """
    for output in outputs:
        if target_of(output, format).exists() and not overwrite:
            raise InputError(output, "is there already", "Choose another name, or pass --overwrite")


def write_parts(parts: list[tuple[TransitionDataset, str]], format: str | None, overwrite: bool) -> None:
    """
    All of them or none: if one cannot be written, those before it that are new go again.

    :param parts: data sets and the files to write them to
    :param format: of the files, None where their endings tell
    :param overwrite: whether files that are there may go
    """
    check_free([output for _, output in parts], format, overwrite)
    new: list[pathlib.Path] = []
    try:
        for dataset, output in parts:
            existed = target_of(output, format).exists()
            path = dataset.save(output, format)
            new += [] if existed else [path]
            typer.echo(f"Wrote {len(dataset)} transitions to {path}")
    except BaseException:
        for path in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
