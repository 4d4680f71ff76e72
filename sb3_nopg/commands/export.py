"""``nopg export``: a policy for a computer without torch."""

import pathlib
from typing import Annotated

import typer

from sb3_nopg.commands.arguments import DATA_HELP, TRUST_HELP, labels
from sb3_nopg.commands.models import ALGORITHMS, ENV_HELP, MODEL_HELP, attach_normalization, find_model, load_with_data
from sb3_nopg.common.failures import check_output, note, one_line_errors
from sb3_nopg.nopg import NOPG
from sb3_nopg.policies.export import export as export_policy
from sb3_nopg.policies.told_names import told_by_environment
from sb3_nopg.report.policy_files import bind_reports


@one_line_errors
def export(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    output: Annotated[pathlib.Path, typer.Argument(metavar="POLICY.onnx", help="ONNX file to write.")],
    control_period_s: Annotated[
        float | None,
        typer.Option(help="Seconds between two actions. Like all below, by default as environment or data say."),
    ] = None,
    observation_names: Annotated[str | None, typer.Option(help="One for each dimension, like x,theta.")] = None,
    observation_units: Annotated[str | None, typer.Option(help="One for each, like m,rad; 1 where there is none.")] = None,
    action_names: Annotated[str | None, typer.Option(help="One for each dimension, like voltage.")] = None,
    action_units: Annotated[str | None, typer.Option(help="One for each dimension, like V.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help=f"Data whose ranges a rig shall know; without it, what `nopg train` was given. {DATA_HELP}"),
    ] = None,
    env: Annotated[str | None, typer.Option(help=ENV_HELP)] = None,
    algo: Annotated[str, typer.Option(help=f"What wrote the model: {', '.join(ALGORITHMS)}.")] = "nopg",
    vec_normalize: Annotated[
        pathlib.Path | None,
        typer.Option(help="What VecNormalize.save() wrote, for a model of another algorithm that was trained behind one."),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
) -> None:
    """
    Write a policy as an ONNX file, which `nopg deploy` runs on a rig: raw observation in, action in its own units out.

    Example: nopg export model.zip policy.onnx
    """
    check_output("POLICY.onnx", output, (".onnx",))
    path = find_model(model)
    loaded, record = load_with_data(path, data, env, trust=trust, algo=algo, needs_data=False)
    if not isinstance(loaded, NOPG):
        trained_in = record.env if env is None and record is not None else env
        attach_normalization(loaded, path, vec_normalize, trained_in, trust=trust)
    elif loaded.dataset is None:
        note("without --data the file does not know the range of the training data, which a rig's supervisor watches.")
    output.parent.mkdir(parents=True, exist_ok=True)
    export_policy(
        loaded,
        output,
        control_period_s=control_period_s,
        observation_names=labels(observation_names),
        observation_units=labels(observation_units),
        action_names=labels(action_names),
        action_units=labels(action_units),
    )
    own = getattr(loaded, "quantities", None)
    told = told_by_environment(loaded.get_env()).get("control_period_s")
    if control_period_s is None and told is None:
        if own is None or own.control_period_s is None:
            note("nobody says how long a step is; --control-period-s tells a rig.")
        else:
            note(f"the control period is the step of the data, {own.control_period_s:g} s.")
    bind_reports(loaded, output.parent)
    typer.echo(f"Policy: {output}, whose actions were compared with the model's")
