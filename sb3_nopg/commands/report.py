"""``nopg report``: what a policy is predicted to do, before it moves anything."""

import pathlib
from typing import Annotated

import typer

from sb3_nopg.commands.arguments import DATA_HELP, TRUST_HELP, labels, load_data
from sb3_nopg.commands.models import ENV_HELP, MODEL_HELP, find_model, load_with_data, progress_path
from sb3_nopg.commands.stress import PARAMETERS_HELP, stress_of
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import check_output, one_line_errors
from sb3_nopg.common.progress import shown
from sb3_nopg.nopg import NOPG
from sb3_nopg.report.making import REPORT_SUFFIXES, make_report, read_curve
from sb3_nopg.report.policy_files import bind_reports
from sb3_nopg.report.summary import summary_path

_COLORS = {"go": typer.colors.GREEN, "care": typer.colors.YELLOW, "no": typer.colors.RED}


@one_line_errors
def report(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    output: Annotated[
        pathlib.Path,
        typer.Option(
            "--output",
            "-o",
            help="Page (.html, needs no other file) or picture (.png) to write; its figures (.json) go beside it.",
        ),
    ] = pathlib.Path("report.html"),
    data: Annotated[
        str | None, typer.Option(help=f"Data to judge it by; without it, what `nopg train` was given. {DATA_HELP}")
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Data that the policy was not optimised on, a file or a recipe; without it, what the model held out."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help='A region that shall not be left, like "abs(x)<0.35" or "s[0]**2+s[1]**2<1"; may be repeated.'),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help='Where the system is to be in the end, like "cos_theta>0.95"; without it, what the environment says, or the '
            "ends of the task."
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help="Of the state's dimensions, like x,sin,cos; without it, as environment or data call them."),
    ] = None,
    env: Annotated[str | None, typer.Option(help=ENV_HELP)] = None,
    parameters: Annotated[
        str | None,
        typer.Option(help=f"For a cart-pole, which is also flown on simulated rigs, see `nopg stress`. {PARAMETERS_HELP}"),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
) -> None:
    """
    Judge a policy before it moves anything: a verdict (go, care or no) and what it rests on: predicted return, where the
    policy goes, how likely it leaves limits, and where it leaves the data. A cart-pole's is also flown on simulated rigs.

    Example: nopg report model.zip --limit "abs(x)<0.35" -o report.html
    """
    check_output("--output", output, REPORT_SUFFIXES)
    check_output("--output", summary_path(output))
    path = find_model(model)
    loaded, record = load_with_data(path, data, env, trust=trust)
    assert isinstance(loaded, NOPG)
    seen, known_env = (0, None) if record is None else (record.seed, record.env)
    # Another seed than training's: a recipe would give the same transitions again.
    checked = None if held_out is None else load_data(held_out, env or known_env, seen + 1, trust=trust)
    assert loaded.dataset is not None
    stress = stress_of(loaded, parameters)
    if stress is None and parameters is not None:
        raise InputError("--parameters", "the model's environment is no Quanser cart-pole", "Leave it out, or give --env")
    with shown():
        result = make_report(
            loaded,
            read_curve(progress_path(path)),
            limits=limit or (),
            held_out=checked,
            names=labels(names),
            # Without a record that tells, nobody knows better than the person who named the data.
            learned_from=record is None or record.is_of(loaded.dataset) is not False,
            stress=stress,
            goal=goal,
        )
    # Only now, because drawing takes long to import, and other commands draw nothing.
    from sb3_nopg.report.page import facts, limit_text, write_report

    with shown():
        written = write_report(result, output)
    bind_reports(loaded, written.parent)
    summary = result.summary
    typer.secho(f"verdict: {summary.verdict}", fg=_COLORS[summary.verdict], bold=True)
    for reason in summary.reasons:
        typer.echo(f"  {reason}")
    for name, text in facts(summary):
        typer.echo(f"{name}: {text}")
    for found in summary.limits:
        typer.echo(f"limit {limit_text(found)}")
    typer.echo(f"Report: {output}, {summary_path(output).name}")
