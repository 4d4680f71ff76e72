"""``nopg train``: from a data set to a policy."""

import ast
import inspect
import pathlib
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.logger import CSVOutputFormat, Logger

from sb3_nopg.bellman.settings import NAMES
from sb3_nopg.commands import arguments
from sb3_nopg.commands.models import TrainingRecord, progress_path, record_path
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import check_output, one_line_errors
from sb3_nopg.common.files import replacing
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.dynamics.description import described
from sb3_nopg.kernels.bandwidth import EFFECTIVE_NEIGHBORS
from sb3_nopg.kernels.bandwidth_rules import MARGINAL_RULES
from sb3_nopg.nopg import NOPG, NOPGD, NOPGS
from sb3_nopg.policies.told_names import quantities_of
from sb3_nopg.report.making import SupportSummary, support_along_the_way


class Algorithm(str, Enum):
    """Names of the variants."""

    NOPG_D = "nopg_d"
    NOPG_S = "nopg_s"


class TransitionsFrom(str, Enum):
    """Where next states come from."""

    MODEL = "model"
    SAMPLES = "samples"


class Keep(str, Enum):
    """Which parameters to end with."""

    LAST = "last"
    BEST_HELDOUT = "best_heldout"


class PolicyName(str, Enum):
    """Kinds of policy."""

    MLP = "MlpPolicy"
    LINEAR = "LinearPolicy"


_CLASSES: dict[Algorithm, type[NOPG]] = {Algorithm.NOPG_D: NOPGD, Algorithm.NOPG_S: NOPGS}
_RULES = ", ".join((*MARGINAL_RULES, EFFECTIVE_NEIGHBORS))
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(NOPG).parameters.items()}
_KEEP = Keep(_DEFAULTS["keep"])
_TRANSITIONS = TransitionsFrom(_DEFAULTS["transitions"])
_UPDATES = inspect.signature(NOPG.learn).parameters["total_timesteps"].default


@one_line_errors
def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help=arguments.DATA_HELP)],
    output: Annotated[
        pathlib.Path,
        typer.Option("--output", "-o", help="Model to write, .zip; its log (.progress.csv) and record (.json) go beside it."),
    ] = pathlib.Path("model.zip"),
    env: Annotated[
        str | None,
        typer.Option(help="Environment, for ranges and start states. It is never stepped; without it, the data tells both."),
    ] = None,
    algo: Annotated[Algorithm, typer.Option(help="With a deterministic or a stochastic policy.")] = Algorithm.NOPG_D,
    policy: Annotated[PolicyName, typer.Option(help="A network, or a linear function of the state.")] = PolicyName.MLP,
    updates: Annotated[int, typer.Option(min=1, help="Policy updates, of all candidates together.")] = _UPDATES,
    gamma: Annotated[
        float, typer.Option(help="Discount below 1: how much a reward loses a step; 0.99 looks about 100 steps ahead.")
    ] = 0.99,
    learning_rate: Annotated[float, typer.Option(help="Of the policy updates (Adam).")] = 1e-2,
    initial_states: Annotated[
        list[str] | None,
        typer.Option(help="A state where the task starts, like -1,0,0; may be repeated. By default as the data's episodes."),
    ] = None,
    transitions: Annotated[
        TransitionsFrom,
        typer.Option(help="Next states from a local affine model of the system, or the recorded ones, as in the paper."),
    ] = _TRANSITIONS,
    horizon: Annotated[
        str,
        typer.Option(
            help="With a model, steps to follow a policy: a count, then the nodes' value; inf or auto, then nothing."
        ),
    ] = _DEFAULTS["horizon"],
    limit: Annotated[list[str] | None, typer.Option(help=arguments.LIMIT_HELP)] = None,
    angle: Annotated[list[str] | None, typer.Option(help=arguments.ANGLE_HELP)] = None,
    reward: Annotated[str | None, typer.Option(help=arguments.REWARD_HELP)] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of the estimator on samples, as Python has it: state_bandwidth=[0.1,0.4], weights=local_constant, "
            f"n_neighbors=64; may be repeated. Names: {', '.join(NAMES)}. Rules of bandwidths: {_RULES}.",
        ),
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the data, by episodes, that is never learned from but checked on.")
    ] = None,
    keep: Annotated[
        Keep,
        typer.Option(help="Which parameters to end with: the last or, with --held-out, those that did best on it."),
    ] = _KEEP,
    patience: Annotated[int | None, typer.Option(min=1, help="Stop after so many updates without an improvement.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same policy.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there already.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help=arguments.TRUST_HELP)] = False,
) -> None:
    """
    Learn a policy from recorded data. Nothing is tried out on the way: no environment is stepped.

    Example: nopg train grid:20,20,2 --env nopg/Pendulum-v0 --gamma 0.97 -o pendulum.zip
    """
    check_output("--output", output, (".zip",))
    check_output("--output", progress_path(output))
    if output.exists() and not overwrite:
        raise InputError("--output", f"{output} is there already", "Choose another name, or pass --overwrite")
    kwargs = _model_kwargs(transitions, limit, angle, reward)
    dataset = arguments.load_data(data, env, seed, trust=trust)
    model = _CLASSES[algo](
        policy.value,
        None if env is None else arguments.make_env(env),
        dataset=dataset,
        gamma=gamma,
        learning_rate=learning_rate,
        initial_states=arguments.states("--initial-states", initial_states),
        transitions=transitions.value,
        horizon=_horizon(horizon),
        model_kwargs=kwargs,
        estimator_kwargs=_estimator_kwargs(estimator),
        held_out=held_out,
        keep=keep.value,
        patience=patience,
        seed=seed,
        device=_device(device),
    )
    before = model.estimated_return()
    _learn(model, updates, output)
    TrainingRecord(_findable(data), env, seed, dataset_fingerprint(dataset)).save(output)
    _show(model, dataset, before, support_along_the_way(model.evaluation), output)


def _learn(model: NOPG, updates: int, output: pathlib.Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    logger = Logger(folder=None, output_formats=[CSVOutputFormat(str(progress_path(output)))])
    model.set_logger(logger)
    try:
        model.learn(updates, log_interval=max(1, updates // 200), progress_bar=True)
    finally:
        logger.close()
    with replacing(output) as partial:
        model.save(partial)


def _model_kwargs(
    transitions: TransitionsFrom, limit: list[str] | None, angle: list[str] | None, reward: str | None
) -> dict[str, Any] | None:
    given: dict[str, Any] = {
        "limits": arguments.limits("--limit", limit),
        "angles": arguments.angles("--angle", angle),
        "reward": reward,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if given and transitions is TransitionsFrom.SAMPLES:
        fix = "Drop it; `nopg data convert --relabel` gives data another reward"
        raise InputError(f"--{next(iter(given)).removesuffix('s')}", "it belongs to the model, and there is none", fix)
    return given or None


def _horizon(text: str) -> str | float:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise InputError("--horizon", f"{text!r} is no number of steps", "Give a whole number, inf or auto") from error


def _estimator_kwargs(given: list[str] | None) -> dict[str, Any] | None:
    """
    :param given: texts like ``n_neighbors=64``
    """
    found: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError("--estimator", f"{text!r} is no setting", "Write a name and a value once, like n_neighbors=64")
        try:
            found[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            # The name of a rule, or of a kind of weights.
            found[name] = value
    return found or None


def _device(text: str) -> str:
    if text.partition(":")[0] not in ("cpu", "cuda", "auto"):
        raise InputError("--device", f"{text!r} is unknown", "Give cpu, cuda or auto")
    return text


def _findable(data: str) -> str:
    """A file as later commands will find it from elsewhere; a recipe as it is."""
    return str(pathlib.Path(data).absolute()) if pathlib.Path(data).exists() else data


def _show(model: NOPG, data: TransitionDataset, before: float, support: SupportSummary, output: pathlib.Path) -> None:
    table = Table(show_header=False)
    table.add_row("data", f"{len(data)} transitions, {data.observation_dim} state and {data.action_dim} action dimensions")
    table.add_row("predicted return", f"{model.estimated_return():.4g} (before learning {before:.4g}), discounted")
    if model.held_out_data is not None:
        table.add_row("on held-out data", f"{model.held_out_return():.4g}, by {len(model.held_out_data)} transitions")
    table.add_row("samples behind it", support.text())
    for number, candidate in enumerate(model.candidates):
        table.add_row("" if number else "candidates, chosen first", str(candidate))
    if model.judgement is not None and len(model.judgement.ranking) > 1:
        table.add_row("margin", model.judgement.text())
    if model.transitions == TransitionsFrom.MODEL.value:
        names = quantities_of(model.get_env(), data.quantities, data.observation_dim, data.action_dim)
        for row in described(model.dynamics, None if names is None else names.observation_names):
            table.add_row(*row)
    table.add_row("written", f"{output}, {progress_path(output).name}, {record_path(output).name}")
    Console().print(table)
