"""``nopg data``: look into recorded data, convert it from one format to another, cut and relabel it."""

import json
import pathlib
import re
from typing import Annotated, Any

import typer
from rich.console import Console

from sb3_nopg.commands.data_files import File, Overwrite, Reader, Seed, Trust, file_errors, reads_data, write_parts
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import gathered_notes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.info import describe_data, info_table

app = typer.Typer(
    help="Look into recorded data, convert it, cut it, give it other rewards.", no_args_is_help=True, rich_markup_mode=None
)

By = Annotated[str | None, typer.Option(help="What --split and --subsample choose: whole 'episode's or single 'transition's.")]


@app.command()
@reads_data
def info(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    *,
    reader: Reader,
) -> None:
    """Show sizes, ranges, episodes and returns, and what looks suspicious."""
    with file_errors(file), gathered_notes() as said:
        dataset = reader.load(file)
        description = {**describe_data(dataset), "reading": said}
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
@reads_data
def validate(
    file: File,
    *,
    reader: Reader,
) -> None:
    """Check that a file can be learned from: exit code 0 if so, 2 and one line that says why if not."""
    with file_errors(file):
        dataset = reader.load(file)
    typer.echo(
        f"{file}: valid, {len(dataset)} transitions, {dataset.observation_dim} state and {dataset.action_dim} action dims"
    )


@app.command()
@reads_data
def plot(
    file: File,
    output: Annotated[pathlib.Path, typer.Option("--output", "-o", help="Picture to write: .png, .pdf or .svg.")],
    *,
    reader: Reader,
) -> None:
    """Draw a panel for each column of states and actions and one for the reward, episode over episode."""
    # Only here, because drawing takes a second to load.
    from sb3_nopg.data.plot import plot_data

    with file_errors(file):
        plot_data(reader.load(file), output)
    typer.echo(f"Wrote {output}")


@app.command()
def merge(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Data files of the same system.")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; its ending tells the format.")],
    trust: Trust = False,
    overwrite: Overwrite = False,
) -> None:
    """Put several data files together into one; their episodes stay apart."""
    loaded = []
    for file in files:
        with file_errors(file):
            loaded.append(TransitionDataset.load(file, trust=trust))
    with file_errors(output):
        write_parts([(TransitionDataset.merge(*loaded), output)], None, overwrite)


@app.command()
@reads_data
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
            help="New reward, a formula over s (state), a (action), s2 (next state), r (old reward) and the names of columns, "
            "with next_ before them for the next state. Examples: 'cos(next_theta) - 0.1*u**2', "
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
    overwrite: Overwrite = False,
) -> None:
    """
    Write data in another format; on the way it can be cut, relabelled and brought to other units.

    In this order: --filter and --relabel (in the file's units), --observation-scale and --action-scale, --subsample, --split.
    """
    with file_errors(file):
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
    with file_errors(output):
        write_parts(parts, output_format, overwrite)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(option, f"{text!r} is not a list of numbers", "Separate numbers by commas, like 0.8,0.2") from error


def _scale(option: str, text: str) -> float | list[float]:
    numbers = _numbers(option, text)
    return numbers[0] if len(numbers) == 1 else numbers


def _numbered(output: str, number: int) -> str:
    if output.startswith("minari:"):
        # The version comes last in an id.
        return re.sub(r"(-v\d+)?$", rf"-{number}\1", output, count=1)
    path = pathlib.Path(output)
    return str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
