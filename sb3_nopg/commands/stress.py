"""``nopg stress``: a policy on many simulated rigs that might be the real one."""

import dataclasses
import hashlib
import io
import json
import pathlib
from typing import Annotated, Any

import gymnasium as gym
import typer
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.base_class import BaseAlgorithm

from nopg_envs.cartpole.env import QuanserCartPoleEnv
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.stress import StressTest, stress_test
from sb3_nopg.commands.arguments import TRUST_HELP
from sb3_nopg.commands.flown_policies import flown_policy, largest_action
from sb3_nopg.commands.models import TrainingRecord, find_policy
from sb3_nopg.commands.waiting import waiting
from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.failures import check_output, note, one_line_errors
from sb3_nopg.common.files import replacing
from sb3_nopg.prediction.rollouts import Actor
from sb3_nopg.report.stress import PLACES, StressFigures, StressPicture

PARAMETERS_HELP = (
    "What was identified, around which rigs are drawn: a YAML file that `python -m nopg_envs.identify` wrote, or the name of "
    "a set: identified, datasheet, long_pole."
)
# Option of the command for each argument of the test, for errors.
_OPTIONS = {"seconds": "--seconds", "start": "--start", "task": "--task", "voltage_limit_volt": "--voltage"}


@one_line_errors
def stress(
    policy: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="POLICY", help="Exported policy (.onnx), or model of NOPG or, with --trust, of SB3's algorithms (.zip)."
        ),
    ],
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", help="File to write all figures to, .json; a picture (.png) goes beside it."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="balance or swing_up; by default as the model's record says, or balance.")
    ] = None,
    rigs: Annotated[int, typer.Option(min=1, help="How many to draw.")] = 200,
    seconds: Annotated[float, typer.Option(help="Length of each flight.")] = 20.0,
    start: Annotated[str, typer.Option(help="operator, as a person starts it, or paper, still at the centre.")] = "operator",
    parameters: Annotated[str, typer.Option(help=PARAMETERS_HELP)] = "identified",
    voltage: Annotated[
        float | None, typer.Option(help="Larger voltages are cut; by default the most that the policy asks for.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the rigs, their noise and their starts.")] = 0,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
) -> None:
    """
    Fly a policy on simulated cart-poles that might be yours: the share that holds, and which parameter hurts.

    Parameters, friction, delay, voltage offset, sensor noise, encoder slips and starts are drawn for each.

    Example: nopg stress policy.onnx --parameters my_cart.yaml -o stress.json
    """
    if output is not None:
        check_output("--output", output, (".json",))
        check_output("--output", output.with_suffix(".png"))
    path = find_policy(policy)
    flown = flown_policy(path, trust=trust)
    told = _recorded_options(path, task)
    if told is None:
        told = CartPoleOptions()
        _say_assumed(path, None if task is not None else told.task, None if flown.control_hz is not None else told.control_hz)
    with waiting(f"flying on {rigs} rigs"):
        result = _tested(
            flown.actor,
            task=told.task if task is None else task,
            n_rigs=rigs,
            seconds=seconds,
            start=start,
            parameters=parameters,
            voltage_limit_volt=flown.voltage_limit_volt if voltage is None else voltage,
            control_hz=told.control_hz if flown.control_hz is None else flown.control_hz,
            seed=seed,
        )
    _show(result)
    if output is not None:
        _write(result, path, parameters, output)
        typer.echo(f"Figures: {output}, {output.with_suffix('.png').name}")


def stress_of(model: BaseAlgorithm, parameters: Any = None) -> StressTest | None:
    """
    For a report: ``make_report(model, stress=stress_of(model))``.

    :param model: with its environment
    :param parameters: what was identified, as for :func:`nopg_envs.stress.stress_test`; None for the environment's own
    :return: what becomes of its policy on 200 rigs; None where its environment is not the Quanser cart-pole as it is
    """
    env = _cart_pole_of(model)
    if env is None:
        return None
    options = env.options
    with waiting("flying on simulated rigs"):
        return _tested(
            lambda observations: model.predict(observations, deterministic=True)[0],
            task=options.task,
            parameters=options.nominal if parameters is None else parameters,
            voltage_limit_volt=largest_action(model.action_space),
            control_hz=options.control_hz,
            theta_limit_rad=options.theta_limit_rad,
        )


def _cart_pole_of(model: BaseAlgorithm) -> QuanserCartPoleEnv | None:
    vec_env = model.get_env()
    if vec_env is None:
        return None
    env = vec_env.get_attr("unwrapped", 0)[0]
    changed = any(vec_env.env_is_wrapped(kind, 0)[0] for kind in (gym.ObservationWrapper, gym.ActionWrapper))
    return env if isinstance(env, QuanserCartPoleEnv) and not changed else None


def _tested(actor: Actor, **arguments: Any) -> StressTest:
    try:
        return stress_test(actor, **arguments)
    except ValueError as error:
        field, _, problem = one_line(error).partition(": ")
        if field in _OPTIONS:
            raise InputError(_OPTIONS[field], problem, "See --help") from error
        raise InputError("--parameters", one_line(error), "Give a set's name or a YAML file of nopg_envs.identify") from error


def _recorded_options(path: pathlib.Path, task: str | None) -> CartPoleOptions | None:
    """
    :param path: of a policy
    :param task: that somebody named, who needs no record
    :return: those of the cart-pole that the record beside a model names, if there is one
    """
    record = TrainingRecord.load(path) if path.suffix == ".zip" else None
    try:
        env = None if record is None else record.make_env()
    except InputError:
        if task is None:
            raise
        env = None
    return env.unwrapped.options if env is not None and isinstance(env.unwrapped, QuanserCartPoleEnv) else None


def _say_assumed(path: pathlib.Path, task: str | None, control_hz: float | None) -> None:
    """
    :param path: of a policy
    :param task: that nothing tells; None if somebody did
    :param control_hz: that nothing tells; None if somebody did
    """
    assumed = [] if task is None else [f"the task is taken for {task}, --task names another"]
    assumed += [] if control_hz is None else [f"it is asked {control_hz:g} times a second"]
    if assumed:
        note(f"nothing beside {path} tells what it was trained for: {'; '.join(assumed)}.")


def _show(result: StressTest) -> None:
    figures, console = StressFigures.of(result), Console()
    table = Table("held where this is", "range", *PLACES, "")
    for factor in figures.factors:
        shares = (f"{100 * share:.0f} %" for share in factor.shares)
        ends = f"{factor.low:.3g} to {factor.high:.3g} {factor.unit}"
        table.add_row(factor.name, ends, *shares, "hurts" if factor.clear else "")
    # Where all rigs fare alike there is nothing to compare.
    if 0 < figures.n_held < figures.n_rigs and figures.factors:
        console.print(table)
    fates = f": {figures.fate_text()}" if figures.fate_text() else ""
    console.print(f"Of plausible rigs {figures.share_text()}{fates}.", highlight=False, soft_wrap=True)
    console.print(f"What hurts: {figures.what_hurts()}.", highlight=False, soft_wrap=True)


def _write(result: StressTest, policy: pathlib.Path, parameters: str, output: pathlib.Path) -> None:
    # Only now, because drawing takes long to import.
    from matplotlib.figure import Figure

    from sb3_nopg.report.stress_drawing import draw_stress, size_of_stress

    picture = StressPicture.of(result)
    content = {
        "policy": {"file": policy.name, "sha256": hashlib.sha256(policy.read_bytes()).hexdigest()},
        "parameters": parameters,
        **{name: getattr(result, name) for name in ("start", "control_hz", "seed")},
        **dataclasses.asdict(picture.figures),
        "share": picture.figures.share,
        "what_hurts": [factor.name for factor in picture.figures.factors if factor.clear],
        "rigs": [
            {**{name: float(values[number]) for name, values in result.values.items()}, **dataclasses.asdict(outcome)}
            for number, outcome in enumerate(result.outcomes)
        ],
    }
    figure = Figure(figsize=size_of_stress(picture), layout="constrained", dpi=110)
    draw_stress(figure, picture)
    figure.suptitle(f"Of plausible rigs {picture.figures.share_text()}", fontsize=11)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    with replacing(output) as partial, replacing(output.with_suffix(".png")) as partial_picture:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial_picture.write_bytes(drawn.getvalue())
