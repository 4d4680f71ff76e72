"""``nopg demonstrate``: a person drives, and what they do becomes a data set."""

import pathlib
from typing import Annotated

import gymnasium as gym
import numpy as np
import typer

from nopg_envs.demonstrations.driving import MANUAL, Recorder, check_drivable, drive
from nopg_envs.demonstrations.window import DemonstrationWindow
from sb3_nopg.commands.arguments import make_env
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import UnsuccessfulError, check_output, one_line_errors
from sb3_nopg.common.numbers import check_number
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.files import target_of
from sb3_nopg.data.quantities import Quantities

_DEFAULT_FPS = 30.0


@one_line_errors
def demonstrate(
    env: Annotated[str, typer.Option(help="Environment with one or two continuous actions, as Gymnasium knows it.")],
    output: Annotated[
        pathlib.Path, typer.Option("--output", "-o", help="Data set to write (.npz, .h5, .csv, .parquet); must not exist.")
    ] = pathlib.Path("demonstration.npz"),
    episodes: Annotated[int, typer.Option(min=1, help="How many to drive.")] = 10,
    fps: Annotated[
        float | None, typer.Option(help="Steps a second; fewer make it easier. By default as fast as the environment says.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first start, to repeat it.")] = None,
) -> None:
    """
    Drive an environment by hand and get a data set to learn from.

    Left and right arrow, or a gamepad's stick, push one way and the other (up and down the second action, where there is one).
    Enter ends an episode and keeps it, D or R discards it and starts again, Esc stops. Stopping loses nothing.

    Example: nopg demonstrate --env MountainCarContinuous-v0 --episodes 10 -o demo.npz
    """
    check_output("--output", output)
    # Also refuses endings that nothing can be written to, before a person drives.
    target = target_of(output)
    if target.exists():
        raise InputError("--output", f"{target} exists already", "Choose another name, so that no recording is lost")
    simulation = make_env(env, "rgb_array")
    recorder = Recorder(episodes)
    try:
        _check(simulation, fps)
        rate = float(simulation.metadata.get("render_fps") or _DEFAULT_FPS) if fps is None else fps
        typer.echo(MANUAL)
        _drive(simulation, recorder, f"{env}: drive it", rate, seed)
    finally:
        simulation.close()
        # Whatever happened, what a person has driven so far is not lost.
        if recorder.n_kept:
            _save(recorder, simulation, output)
    if not recorder.n_kept:
        raise UnsuccessfulError("no episode was kept, so there is no data set")


def _check(env: gym.Env, fps: float | None) -> None:
    try:
        check_drivable(env)
    except ValueError as error:
        raise InputError("--env", str(error).removeprefix("env: "), "Choose another environment") from error
    fix = "Give steps a second that a person can follow, for instance 15"
    check_number("--fps", fps, 0.0, 1000.0, high_included=True, optional=True, fix=fix)


def _drive(env: gym.Env, recorder: Recorder, title: str, fps: float, seed: int | None) -> None:
    with DemonstrationWindow(title, fps) as window:
        try:
            drive(env, window, recorder, seed)
        except KeyboardInterrupt:
            # The same as the Esc key, from the terminal.
            recorder.keep()


def _save(recorder: Recorder, env: gym.Env, output: pathlib.Path) -> None:
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    arrays = recorder.arrays()
    named = Quantities.told_by(env.metadata or {}, arrays["observations"].shape[1], arrays["actions"].shape[1])
    written = TransitionDataset(**arrays, **spaces, quantities=named).save(output)  # type: ignore[arg-type]
    returns = np.array(recorder.returns)
    typer.echo(f"{recorder.n_kept} episodes, returns from {returns.min():.4g} to {returns.max():.4g}: {written}")
