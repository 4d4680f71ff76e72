"""``nopg model``: what a model of the system makes of recorded data, and how good that is."""

import pathlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sb3_nopg.commands import arguments
from sb3_nopg.commands.waiting import waiting
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import check_output, one_line_errors
from sb3_nopg.common.progress import shown
from sb3_nopg.dynamics.description import described
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.model_settings import check_model_settings
from sb3_nopg.dynamics.quality import model_errors

_PICTURES = (".png", ".pdf", ".svg")


@one_line_errors
def model(
    data: Annotated[str, typer.Argument(metavar="DATA", help=arguments.DATA_HELP)],
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", help="Picture to write of predicted against recorded episodes: .png, .pdf or .svg."),
    ] = None,
    names: Annotated[str | None, typer.Option(help="Of the state's columns, like x,sin,cos; by default the data's.")] = None,
    limit: Annotated[list[str] | None, typer.Option(help=arguments.LIMIT_HELP)] = None,
    angle: Annotated[list[str] | None, typer.Option(help=arguments.ANGLE_HELP)] = None,
    reward: Annotated[str | None, typer.Option(help=arguments.REWARD_HELP)] = None,
    env: Annotated[str | None, typer.Option(help="Environment that a recipe asks for transitions.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is left out, and a recipe.")] = 0,
    trust: Annotated[bool, typer.Option("--trust", help=arguments.TRUST_HELP)] = False,
) -> None:
    """
    Fit a model of the system to recorded data: which coordinates it has found, what counts, and how far its predictions are
    off where it has not seen the episode.

    Example: nopg model recorded.npz -o predicted.png
    """
    if output is not None:
        check_output("--output", output, _PICTURES)
    recorded = arguments.load_data(data, env, seed, trust=trust)
    columns = arguments.labels(names)
    if columns is not None and len(columns) != recorded.observation_dim:
        raise InputError("--names", f"{len(columns)} names", f"Give one for each of {recorded.observation_dim} columns")
    settings: dict[str, Any] = {
        "limits": arguments.limits("--limit", limit),
        "angles": arguments.angles("--angle", angle),
        "reward": reward,
    }
    check_model_settings(recorded, settings)
    with shown():
        found = DynamicsModel.fit(recorded, seed=seed, **settings)
    table = Table(show_header=False)
    for row in described(found, columns):
        table.add_row(*row)
    console = Console()
    console.print(table)
    with waiting("predicting what it has not seen"):
        errors = model_errors(recorded, found, seed=seed, **settings)
    table = Table("after", "model", "nothing changes", "one affine model")
    for errors_row in errors.rows():
        table.add_row(*errors_row)
    console.print(table)
    console.print(
        "Root mean square error (median) in standard deviations, along episodes that were left out, under their own actions.",
        highlight=False,
    )
    if output is not None:
        # Only now, because drawing takes a second to load.
        from sb3_nopg.dynamics.quality_plot import plot_predictions

        with waiting("drawing"):
            plot_predictions(recorded, output, like=found, names=columns, seed=seed, **settings)
        console.print(f"Picture: {output}", highlight=False)
