"""``nopg reproduce``: experiments of the paper, with its numbers beside ours."""

import json
import os
import pathlib
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import gymnasium as gym
import typer
from rich.progress import track

from sb3_nopg.cli.failures import one_line_errors
from sb3_nopg.datafiles.files import replacing
from sb3_nopg.errors import InputError
from sb3_nopg.nopg import NOPG
from sb3_nopg.zoo.recipes import make_dataset

_RULE = "effective_neighbors"
_PENDULUM_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "effective neighbours": {"state_bandwidth": _RULE, "action_bandwidth": _RULE, "next_state_bandwidth": _RULE},
    "local-linear": {"weights": "local_linear"},
}
# Samples of the grid: levels of angle, angular velocity and torque, and the mean return of the paper's NOPG-D over ten runs.
_PENDULUM_GRIDS = {200: ((10, 10, 2), -3775), 450: ((15, 15, 2), -593), 800: ((20, 20, 2), -579), 3200: ((40, 40, 2), -432)}
_PENDULUM_UPDATES = 400


def pendulum_grid(seeds: int, quick: bool) -> list[dict[str, Any]]:
    """
    Undiscounted return over 500 steps from hanging, learned from a grid of transitions (the paper's figure 2, left).

    :param seeds: 0, 1, … below this
    :param quick: two grids and few updates, to see that it works
    """
    env = gym.make("nopg/Pendulum-v0")
    grids = dict(list(_PENDULUM_GRIDS.items())[:2]) if quick else _PENDULUM_GRIDS
    cases = [(n, name) for n in grids for name in _PENDULUM_SETTINGS]
    rows = []
    for n, name in track(cases, description="pendulum-grid"):
        levels, paper = grids[n]
        data = make_dataset({"grid": {"levels": list(levels)}}, env, seed=0)
        returns, start = [], time.perf_counter()
        for seed in range(seeds):
            model = NOPG(
                "MlpPolicy",
                env,
                dataset=data,
                gamma=0.97,
                initial_states=[-1.0, 0.0, 0.0],
                seed=seed,
                device="cpu",
                **_PENDULUM_SETTINGS[name],
            )
            model.learn(10 if quick else _PENDULUM_UPDATES)
            returns.append(round(_return_from_start(model, env)))
        seconds = round((time.perf_counter() - start) / seeds, 1)
        rows.append({"samples": n, "settings": name, "returns": returns, "paper": paper, "seconds a seed": seconds})
    return rows


def _return_from_start(model: NOPG, env: gym.Env) -> float:
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


EXPERIMENTS: dict[str, Callable[[int, bool], list[dict[str, Any]]]] = {"pendulum-grid": pendulum_grid}


@one_line_errors
def reproduce(
    name: Annotated[str, typer.Argument(help=f"Experiment: {', '.join(EXPERIMENTS)}. The paper's others are not there yet.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case, with seeds 0, 1, …")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small part, to see that it works.")] = False,
    output: Annotated[pathlib.Path, typer.Option("--output", "-o", help="Folder for the numbers.")] = pathlib.Path(
        "reproduced"
    ),
) -> None:
    """Run an experiment of the paper, every seed reported, and write its numbers beside the paper's."""
    if name not in EXPERIMENTS:
        raise InputError("NAME", f"{name!r} is unknown or not there yet", f"Give one of {', '.join(EXPERIMENTS)}")
    output.mkdir(parents=True, exist_ok=True)
    rows = EXPERIMENTS[name](seeds, quick)
    table = markdown(rows)
    conditions = {
        "command": f"nopg reproduce {name} --seeds {seeds}" + (" --quick" if quick else ""),
        "python": platform.python_version(),
        **{package: version(package) for package in ("sb3-nopg", "numpy", "torch", "stable-baselines3")},
        "cpu_count": os.cpu_count(),
    }
    with replacing(output / f"{name}.json") as partial:
        partial.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    with replacing(output / f"{name}.md") as partial:
        partial.write_text(table, encoding="utf-8")
    typer.echo(table)
    typer.echo(f"{output / name}.json, {output / name}.md")


def markdown(rows: list[dict[str, Any]]) -> str:
    """
    :param rows: all with the same columns
    :return: as a table
    """
    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    for row in rows:
        cells = [" ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for cell in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
