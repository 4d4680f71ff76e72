"""``nopg data``: look into recorded data, convert it from one format to another, cut and relabel it."""

import inspect
import json
import logging
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from sb3_nopg.data_info import describe_data, info_table
from sb3_nopg.datafiles import FORMATS, target_of
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError

app = typer.Typer(help="Look into recorded data, convert it, cut it, give it other rewards.", no_args_is_help=True)
EXIT_BAD_INPUT = 2

_FORMAT_HELP = f"Format, if the file's ending does not tell: {', '.join(FORMATS)}."


def _table(kind: type, help: str) -> Any:
    return Annotated[kind | None, typer.Option(help=help, rich_help_panel="CSV and Parquet tables")]


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
    "time": (_table(str, "Column of the time; a new episode begins where it jumps."), None),
    "gap": (_table(float, "Longest step in time that is no jump. Without it, 1.5 times the median step."), None),
    "delimiter": (_table(str, "Character between the fields of a CSV file, if it is not a comma."), None),
}
Seed = Annotated[int, typer.Option(help="Of random choices: the same seed, the same data.")]
By = Annotated[str | None, typer.Option(help="What --split and --subsample choose: whole 'episode's or single 'transition's.")]


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


class _Notes(logging.Handler):
    """What readers have to say goes to the error stream, so that a pipe gets only results."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"Note: {record.getMessage()}", err=True)


@contextmanager
def one_line_errors(file: str) -> Iterator[None]:
    """
    What the user did wrong ends the program with one line and exit code 2; anything else is a defect and shows where.

    :param file: that is worked on
    """
    notes, logger = _Notes(), logging.getLogger("sb3_nopg")
    # The command line says it in its own way; other handlers would say it again.
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(notes)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in caught:
            typer.echo(f"Note: {warning.message}", err=True)
    except (InputError, OSError, MemoryError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        typer.echo(f"Error: {message if file in message else f'{file}: {message}'}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    finally:
        logger.removeHandler(notes)
        logger.propagate = propagated


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(option, f"{text!r} is not a list of numbers", "Separate numbers by commas, like 0.8,0.2") from error


def _loads(command: Callable[..., None]) -> Callable[..., None]:
    """
    The options of reading a file, written down once and added to each command that reads one.

    :param command: takes a ``reader``, which reads a file as the options say
    """

    def with_options(**given: Any) -> None:
        options = {name: given.pop(name) for name in _READ_OPTIONS}
        for name in ("obs", "action", "next_obs"):
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


@app.command()
@_loads
def info(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    *,
    reader: Reader,
) -> None:
    """Show sizes, ranges, episodes and returns, and what looks suspicious."""
    with one_line_errors(file):
        description = describe_data(reader.load(file))
    if as_json:
        # Infinity, of a mean out of range, is no JSON.
        typer.echo(json.dumps(_finite(description), indent=2, allow_nan=False))
    else:
        Console().print(info_table(description))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and value - value != 0 else value


@app.command()
@_loads
def validate(
    file: File,
    *,
    reader: Reader,
) -> None:
    """Check that a file can be learned from: exit code 0 if so, 2 and one line that says why if not."""
    with one_line_errors(file):
        dataset = reader.load(file)
    typer.echo(
        f"{file}: valid, {len(dataset)} transitions, {dataset.observation_dim} state and {dataset.action_dim} action dims"
    )


@app.command()
@_loads
def plot(
    file: File,
    output: Annotated[pathlib.Path, typer.Option("--output", "-o", help="Picture to write: .png, .pdf or .svg.")],
    *,
    reader: Reader,
) -> None:
    """Draw states, actions, rewards, returns and episode lengths in one picture."""
    # Only here, because drawing takes a second to load.
    from sb3_nopg.data_plot import plot_data

    with one_line_errors(file):
        plot_data(reader.load(file), output)
    typer.echo(f"Wrote {output}")


@app.command()
def merge(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Data files of the same system.")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; its ending tells the format.")],
    trust: Trust = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
) -> None:
    """Put several data files together into one; their episodes stay apart."""
    loaded = []
    for file in files:
        with one_line_errors(file):
            loaded.append(TransitionDataset.load(file, trust=trust))
    with one_line_errors(output):
        _write([(TransitionDataset.merge(*loaded), output)], None, overwrite)


@app.command()
@_loads
def convert(
    file: File,
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="File to write; its ending tells the format. Or minari:NAME-v0.")
    ],
    *,
    reader: Reader,
    output_format: Annotated[str | None, typer.Option("--output-format", help="Format of OUT, the same way.")] = None,
    where: Annotated[
        str | None, typer.Option("--filter", help="Keep only transitions for which this is true: 's[0] < 2'")
    ] = None,
    relabel: Annotated[
        str | None,
        typer.Option(
            help="New reward, a formula over s (state), a (action), s2 (next state), r (old reward) and the names that --obs "
            "and --action give, with next_ before them for the next state. Examples: 'cos(next_theta) - 0.1*u**2', "
            "'cos(s2[1]) - 0.1*a[0]**2'."
        ),
    ] = None,
    observation_scale: Annotated[
        str | None, typer.Option(help="Other units: factor for all states, or one for each dimension. Example: 0.001,1")
    ] = None,
    action_scale: Annotated[str | None, typer.Option(help="Other units: factor for actions.")] = None,
    subsample: Annotated[int | None, typer.Option(help="Keep so many, chosen at random; see --by.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Parts to write, as shares that add up to 1: 0.8,0.2 writes OUT with -1 and -2 before its ending."),
    ] = None,
    by: By = None,
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
) -> None:
    """
    Write data in another format; on the way it can be cut, relabelled and brought to other units.

    In this order: --filter and --relabel (in the file's units), --observation-scale and --action-scale, --subsample, --split.
    """
    with one_line_errors(file):
        dataset = reader.load(file)
        if where is not None:
            dataset = dataset.filter(where, *reader.names)
        if relabel is not None:
            dataset = dataset.relabel(relabel, *reader.names)
        if observation_scale is not None:
            dataset = dataset.with_units(observation_scale=_scale("--observation-scale", observation_scale))
        if action_scale is not None:
            dataset = dataset.with_units(action_scale=_scale("--action-scale", action_scale))
        if subsample is not None:
            dataset = dataset.subsample(subsample, by=by or "transition", seed=seed)
        parts = [(dataset, output)]
        if split is not None:
            pieces = dataset.split(_numbers("--split", split), by=by or "episode", seed=seed)
            parts = [(piece, _numbered(output, number)) for number, piece in enumerate(pieces, start=1)]
    with one_line_errors(output):
        _write(parts, output_format, overwrite)


def _scale(option: str, text: str) -> float | list[float]:
    numbers = _numbers(option, text)
    return numbers[0] if len(numbers) == 1 else numbers


def _numbered(output: str, number: int) -> str:
    if output.startswith("minari:"):
        # The version comes last in an id.
        return re.sub(r"(-v\d+)?$", rf"-{number}\1", output, count=1)
    path = pathlib.Path(output)
    return str(path.with_name(f"{path.stem}-{number}{path.suffix}"))


def _write(parts: list[tuple[TransitionDataset, str]], format: str | None, overwrite: bool) -> None:
    """All of them or none: if one cannot be written, those before it that are new go again."""
    for _, output in parts:
        if target_of(output, format).exists() and not overwrite:
            raise InputError(output, "is there already", "Choose another name, or pass --overwrite")
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
