"""``nopg judge``: which of several policies is best, by recorded data alone."""

import dataclasses
import json
import pathlib
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sb3_nopg.commands import arguments
from sb3_nopg.commands.models import find_policy
from sb3_nopg.common.failures import check_output, note, one_line_errors
from sb3_nopg.common.files import replacing
from sb3_nopg.common.numbers import check_number
from sb3_nopg.common.progress import shown
from sb3_nopg.prediction.judge import judge as judge_policies
from sb3_nopg.prediction.judgement import Judgement


@one_line_errors
def judge(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help=f"Best such that no policy was trained on. {arguments.DATA_HELP}"),
    ],
    policies: Annotated[
        list[pathlib.Path],
        typer.Argument(
            metavar="POLICY...",
            help="Models of NOPG or, with --trust, of SB3's algorithms (.zip), or exported policies (.onnx).",
        ),
    ],
    output: Annotated[
        pathlib.Path | None, typer.Option("--output", "-o", help="File to write all figures to, .json; none by default.")
    ] = None,
    gamma: Annotated[float, typer.Option(help="Discount below 1, which tells how far to look ahead.")] = 0.99,
    steps: Annotated[
        int | None, typer.Option(min=1, help="To follow each policy; by default ten times 1/(1-gamma), 1000 at most.")
    ] = None,
    initial_states: Annotated[
        list[str] | None,
        typer.Option(help="A state where the task starts, like -1,0,0; may be repeated. By default as the data's episodes."),
    ] = None,
    limit: Annotated[list[str] | None, typer.Option(help=arguments.LIMIT_HELP)] = None,
    angle: Annotated[list[str] | None, typer.Option(help=arguments.ANGLE_HELP)] = None,
    reward: Annotated[str | None, typer.Option(help=arguments.REWARD_HELP)] = None,
    level: Annotated[float, typer.Option(help="Of the intervals, between 0 and 1.")] = 0.95,
    env: Annotated[str | None, typer.Option(help="Environment that a recipe asks for transitions.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the models, the noise, and a recipe.")] = 0,
    trust: Annotated[bool, typer.Option("--trust", help=arguments.TRUST_HELP)] = False,
) -> None:
    """
    Rank policies by what recorded data predict of them: each is followed step by step through models of the system.

    Example: nopg judge recorded.npz first.zip second.zip other.onnx
    """
    if output is not None:
        check_output("--output", output, (".json",))
    for option, value in (("--gamma", gamma), ("--level", level)):
        check_number(option, value, 0.0, 1.0)
    named = dict(zip(names_of(policies), (str(find_policy(path)) for path in policies), strict=True))
    recorded = arguments.load_data(data, env, seed, trust=trust)
    with shown():
        judgement = judge_policies(
            recorded,
            named,
            gamma=gamma,
            initial_states=arguments.states("--initial-states", initial_states),
            n_steps=steps,
            limits=arguments.limits("--limit", limit),
            angles=arguments.angles("--angle", angle),
            reward=reward,
            level=level,
            seed=seed,
            trust=trust,
        )
    _show(judgement, level)
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(dataclasses.asdict(judgement), indent=2) + "\n", encoding="utf-8")


def names_of(paths: list[pathlib.Path]) -> list[str]:
    """
    :param paths: of policies
    :return: a name for each: its file's, with as much of the path before it as tells it from others
    """
    names = [path.stem for path in paths]
    for depth in range(2, 2 + max(len(path.parts) for path in paths)):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else "/".join([*path.parts[-depth:-1], path.name])
            for name, path in zip(names, paths, strict=True)
        ]
    seen: Counter[str] = Counter()
    for number, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            names[number] = f"{name} ({seen[name]})"
    return names


def _show(judgement: Judgement, level: float) -> None:
    table = Table("rank", "policy", "score", f"{100 * level:g} % interval", "lasting", "chatter", "fast")
    for rank, one in enumerate(judgement.ranking, start=1):
        table.add_row(
            str(rank),
            one.name,
            f"{one.score:.4g}",
            one.interval(),
            f"{100 * one.lasting:.0f} %",
            f"{100 * one.chatter.change:.1f} %",
            f"{100 * one.chatter.fast:.0f} %",
        )
    console = Console()
    console.print(table)
    console.print(judgement.text(), highlight=False, soft_wrap=True)
    explained = (
        f"Score: rewards along {judgement.n_trajectories} predicted trajectories of {judgement.n_steps:,} steps, not "
        "discounted. Lasting: share that neither ends nor leaves the data. Chatter: mean change of the action from step to "
        "step, as a share of its range. Fast: how much of the action's variance is faster than four steps. The models leave "
        f"{100 * judgement.unexplained:.2g} % of the changes unexplained where they have not seen them."
    )
    console.print(explained, highlight=False, soft_wrap=True)
    for text in judgement.notes:
        note(text)
