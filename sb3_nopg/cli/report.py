"""``nopg report``: what a policy is predicted to do, before it moves anything."""

import pathlib
from typing import Annotated

import typer

from sb3_nopg.cli.arguments import DATA_HELP
from sb3_nopg.cli.failures import check_output, one_line_errors
from sb3_nopg.cli.models import ENV_HELP, MODEL_HELP, find_model, load_with_data, progress_path
from sb3_nopg.nopg import NOPG
from sb3_nopg.report import REPORT_SUFFIXES, make_report, read_curve


@one_line_errors
def report(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    output: Annotated[
        pathlib.Path, typer.Option("--output", "-o", help="Page (.html, needs no other file) or picture (.png) to write.")
    ] = pathlib.Path("report.html"),
    data: Annotated[
        str | None, typer.Option(help=f"Data to judge it by; without it, what `nopg train` was given. {DATA_HELP}")
    ] = None,
    env: Annotated[str | None, typer.Option(help=ENV_HELP)] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Read data in pickles (.pkl, .npy). They can run any program.")
    ] = False,
) -> None:
    """
    Show what a policy is predicted to do before it moves anything: return, value, where it goes, and how many samples that
    rests on.

    Example: nopg report model.zip -o report.html
    """
    check_output("--output", output, REPORT_SUFFIXES)
    path = find_model(model)
    loaded, _ = load_with_data(path, data, env, trust=trust)
    assert isinstance(loaded, NOPG)
    result = make_report(loaded, read_curve(progress_path(path)))
    # Only now, because drawing takes long to import, and other commands draw nothing.
    from sb3_nopg.report_page import write_report

    write_report(result, output)
    for name, text in result.facts[:2]:
        typer.echo(f"{name}: {text}")
    typer.echo(f"Report: {output}")
