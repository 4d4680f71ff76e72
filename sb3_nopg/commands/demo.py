"""``nopg demo``: from an unknown cart-pole to a controller on it, in a few minutes."""

import time
from pathlib import Path
from typing import Annotated

import gymnasium as gym
import typer

import nopg_envs  # noqa: F401 - makes the environments known
from nopg_robot.commands.collect import behaviour_named, with_angle_limit
from nopg_robot.commands.command_line import rig_named
from nopg_robot.commands.deploy import app as deploy_app
from nopg_robot.control.safety_checks import Reason
from nopg_robot.flight.log import read_flight
from nopg_robot.run.collection import CollectOptions, collect
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.commands.stress import stress_of
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import one_line_errors
from sb3_nopg.common.progress import phase, shown
from sb3_nopg.report.making import make_report
from sb3_nopg.report.page import write_report
from sb3_nopg.report.summary import ReportSummary

GAMMA = 0.99
ENV = "nopg/QuanserCartPoleBalance-v0"
# Fewer than learn() makes: a stranger is waiting, and this task is learned by then.
_UPDATES = 300
# Where the task of nopg_envs ends, so that what was recorded and what is learned end alike.
ANGLE_LIMIT_RAD = 0.2


@one_line_errors
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("runs/demo"),
    transitions: Annotated[int, typer.Option(help="Recorded on the simulated rig.")] = 1500,
    updates: Annotated[int, typer.Option(min=1, help="Of the policy, of all candidates together.")] = _UPDATES,
    seconds: Annotated[float, typer.Option(help="That the policy runs on the simulated rig.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
) -> None:
    """
    Record a simulated rig driven at random, learn to balance its pole, look at the prediction, and run the policy on it.
    """
    output.mkdir(parents=True, exist_ok=True)
    recorded, flight = _fresh(output / "recorded.npz"), _fresh(output / "flight.npz")
    _record(recorded, transitions, seed)
    data = TransitionDataset.load(recorded)
    typer.echo(f"\n{data}\n")

    env = gym.make(ENV)
    model, took_s = _learn(env, data, updates, seed)
    model.save(output / "model")
    with shown():
        made = make_report(model, stress=stress_of(model))
        report = write_report(made, output / "report.html")
    policy = model.export(output / "policy.onnx")
    found = model.dynamics.describe(env.metadata["observation_names"])
    typer.echo(
        f"{updates} updates on {len(data)} transitions took {took_s:.0f} s\n\n{found}\n\n"
        f"candidates, the chosen one first:\n{_candidates(model)}\n\n{_prediction(made.summary)}\nsee {report}\n"
    )
    _deploy(policy, flight, seconds)


def _record(path: Path, n_transitions: int, seed: int) -> None:
    """Episodes of random volts, each from a pole that the simulated operator has lifted, as fast as the computer can."""
    rig = with_angle_limit(rig_named("simulated", fast=True), ANGLE_LIMIT_RAD)
    options = CollectOptions(episodes=n_transitions, transitions=n_transitions, spread_m=0.25, seed=seed)
    with shown(), phase("recording the rig", n_transitions) as advance:
        summary = collect(
            behaviour_named("uniform", rig, seed), rig, path, options, on_episode=lambda episodes, done: advance(done)
        )
    if summary.outcome != "finished":
        raise InputError("transitions", f"recording ended early: {summary.reason}", "See the flight log")


def _learn(env: gym.Env, data: TransitionDataset, updates: int, seed: int) -> tuple[NOPG, float]:
    model = NOPG("MlpPolicy", env, dataset=data, gamma=GAMMA, seed=seed)
    start = time.perf_counter()
    model.learn(updates, progress_bar=True)
    return model, time.perf_counter() - start


def _prediction(summary: ReportSummary) -> str:
    """What the policy is predicted to do, before it does it."""
    lines = [f"verdict: {summary.verdict}", *(f"  {reason}" for reason in summary.reasons)]
    if summary.trajectories is not None:
        lines.append(f"predicted: {summary.trajectories.success_text()} for {summary.trajectories.n_steps:,} steps")
    if summary.stress is not None:
        lines.append(f"of simulated rigs that might be yours {summary.stress.text()}")
    return "\n".join(lines)


def _candidates(model: NOPG) -> str:
    lines = [f"  {candidate}" for candidate in model.candidates]
    if model.judgement is not None and len(lines) > 1:
        lines.append(f"  {model.judgement.text()}")
    return "\n".join(lines)


def _deploy(policy: Path, flight: Path, seconds: float) -> None:
    """The whole sequence on the simulated rig in real time, as a person would start it; if need be again in simulated time."""
    arguments = [str(policy), "--rig", "simulated", "--seconds", str(seconds), "--log", str(flight)]
    typer.echo(f"nopg-deploy {' '.join(arguments)}")
    code = deploy_app(arguments, standalone_mode=False)
    if code and _computer_was_late(flight):
        stopped = _fresh(flight.with_stem("flight-stopped"))
        flight.rename(stopped)
        typer.echo(
            "\nThis computer was too busy for real time, so the supervisor stopped the cart, as it would a real one.\n"
            f"That flight is in {stopped}. The same again in simulated time, which waits for the computer:\n"
        )
        typer.echo(f"nopg-deploy {' '.join(arguments)} --fast")
        code = deploy_app([*arguments, "--fast"], standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _computer_was_late(flight: Path) -> bool:
    summary = read_flight(flight).summary if flight.exists() else None
    return summary is not None and summary["fault"] in (Reason.DEADLINE.value, Reason.STALE.value, Reason.JUMP.value)


def _fresh(path: Path) -> Path:
    """A recorder never overwrites a flight; the demo makes its own again."""
    for old in (path, path.with_name(path.name + ".journal")):
        old.unlink(missing_ok=True)
    return path
