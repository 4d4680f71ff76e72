"""``nopg evaluate``: let a policy act in a simulation and count."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch as th
import typer
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_nopg.commands.arguments import TRUST_HELP, make_env
from sb3_nopg.commands.models import ALGORITHMS, ENV_HELP, MODEL_HELP, TrainingRecord, check_fits_env, find_model, load_model
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import UnsuccessfulError, one_line_errors
from sb3_nopg.common.progress import phase, shown
from sb3_nopg.prediction.chatter import Chatter, chatter_of

# Steps without an end after which an episode is given up.
LONGEST_EPISODE = 100_000


@dataclass(frozen=True)
class Episode:
    """
    :param seed: of its start
    :param episode_return: sum of its rewards
    :param discounted_return: the same with the model's discount, as the model predicts it
    :param n_steps: its length
    :param terminated: whether the task ended; otherwise a time limit cut it
    :param chatter: how much the actuator moves, and how fast
    """

    seed: int
    episode_return: float
    discounted_return: float
    n_steps: int
    terminated: bool
    chatter: Chatter


def confidence_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """
    Of the mean, by Student's t.

    :param values: at least two
    :param level: how sure
    """
    half = stdtrit(len(values) - 1, 0.5 + level / 2.0) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def run_episode(model: BaseAlgorithm, env: gym.Env, seed: int, *, deterministic: bool) -> Episode:
    """
    :param model: acts
    :param env: acted in
    :param seed: of the episode's start
    :param deterministic: without the policy's noise
    """
    observation, _ = env.reset(seed=seed)
    rewards: list[float] = []
    actions: list[np.ndarray] = []
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    while len(rewards) < LONGEST_EPISODE:
        action, _ = model.predict(observation, deterministic=deterministic)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        actions.append(np.asarray(action, dtype=np.float64).ravel())
        if terminated or truncated:
            discounts = model.gamma ** np.arange(len(rewards))  # type: ignore[attr-defined]
            chatter = chatter_of(np.array(actions)[:, None], (space.high - space.low).ravel().astype(np.float64))
            return Episode(seed, float(np.sum(rewards)), float(discounts @ rewards), len(rewards), bool(terminated), chatter)
    raise InputError("--env", f"an episode has not ended after {LONGEST_EPISODE:,} steps", "Give it a time limit")


@one_line_errors
def evaluate(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    env: Annotated[str | None, typer.Option(help=ENV_HELP)] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode's start; the next one has the next number.")] = 0,
    video: Annotated[
        pathlib.Path | None, typer.Option(help="Folder for films (.mp4) of the first episodes; needs moviepy.")
    ] = None,
    video_episodes: Annotated[int, typer.Option(min=1, help="How many episodes --video films.")] = 1,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="With the policy's own noise instead of its mean.")] = False,
    minimum: Annotated[
        float | None, typer.Option(help="Exit code 1 if the mean return is below this number, for scripts.")
    ] = None,
    algo: Annotated[str, typer.Option(help=f"What wrote the model: {', '.join(ALGORITHMS)}.")] = "nopg",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
) -> None:
    """
    Let a policy act in a simulation: return of every episode, mean, standard deviation and 95 % confidence interval.

    Example: nopg evaluate model.zip --env nopg/Pendulum-v0 --episodes 20
    """
    path = find_model(model)
    record = TrainingRecord.load(path) if env is None else None
    env_id = env if record is None else record.env
    if env_id is None:
        raise InputError("--env", f"nothing beside {path} tells what it was trained for", "Pass --env")
    loaded = load_model(path, algo, trust=trust)
    options = None if record is None else record.env_options
    simulation = make_env(env_id, options=options) if video is None else _filmed(env_id, video, video_episodes, options)
    try:
        check_fits_env(loaded, simulation)
        th.manual_seed(seed)
        results = []
        with shown(not as_json), phase("episodes", episodes) as advance:
            for number in range(seed, seed + episodes):
                results.append(run_episode(loaded, simulation, number, deterministic=not stochastic))
                advance()
    finally:
        simulation.close()
    summary = _summary(results)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _show(results, summary)
    if not np.isfinite(summary["mean"]):
        raise UnsuccessfulError("the returns are not finite")
    if minimum is not None and summary["mean"] < minimum:
        raise UnsuccessfulError(f"the mean return {summary['mean']:.4g} is below {minimum:g}")


def _filmed(env_id: str, folder: pathlib.Path, n_episodes: int, options: Mapping[str, Any] | None) -> gym.Env:
    if find_spec("moviepy") is None:
        raise InputError("--video", "films need the package moviepy", "pip install moviepy")
    if folder.exists() and not folder.is_dir():
        raise InputError("--video", f"{folder} is a file", "Give a folder")
    # Films need no window, and a computer in a laboratory may have no screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = make_env(env_id, "rgb_array", options)
    return gym.wrappers.RecordVideo(
        env, str(folder), episode_trigger=lambda number: number < n_episodes, name_prefix=env_id.replace("/", "_")
    )


def _summary(results: list[Episode]) -> dict[str, Any]:
    returns = np.array([result.episode_return for result in results])
    discounted = np.array([result.discounted_return for result in results])
    chatter = np.mean([dataclasses.astuple(result.chatter) for result in results], axis=0).tolist()
    alone = len(returns) < 2
    return {
        "mean": float(returns.mean()),
        "std": None if alone else float(returns.std(ddof=1)),
        "confidence_interval_95": None if alone else list(confidence_interval(returns)),
        "mean_discounted": float(discounted.mean()),
        "mean_chatter": dataclasses.asdict(Chatter(*chatter)),
        "episodes": [dataclasses.asdict(result) for result in results],
    }


def _show(results: list[Episode], summary: dict[str, Any]) -> None:
    table = Table("seed", "return", "discounted", "steps", "ended by")
    for result in results:
        ended = "the task" if result.terminated else "time limit"
        table.add_row(
            str(result.seed), f"{result.episode_return:.2f}", f"{result.discounted_return:.2f}", str(result.n_steps), ended
        )
    console = Console()
    console.print(table)
    console.print(f"mean return {summary['mean']:.2f}, discounted {summary['mean_discounted']:.2f}")
    console.print(f"the actuator moves by {Chatter(**summary['mean_chatter']).text()}", soft_wrap=True)
    if summary["std"] is not None:
        low, high = summary["confidence_interval_95"]
        console.print(f"standard deviation {summary['std']:.2f}, 95 % confidence interval of the mean {low:.2f} to {high:.2f}")
