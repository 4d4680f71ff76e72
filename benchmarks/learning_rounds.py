"""
From a cold rig to a policy that does its task: rounds, seconds of rig time, and what the policy does in the end.

    python benchmarks/learning_rounds.py --task balance               ten seeds on virtual QUARC models over TCP, in real time
    python benchmarks/learning_rounds.py --task swing_up --seeds 0 1 --fast     simulated rigs, as fast as the computer can

Every seed has a rig of its own, drawn around the identified one, with a delay of 4 to 12 ms (nopg_envs.cartpole.plausible). `nopg-learn` learns on it as a
person would start it; then its last policy flies from five starts, on a simulation of the same rig.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from machine import conditions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.plausible import OF_THE_KIND, plausible_parameters
from nopg_robot.commands.command_line import ExitCode
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.flight.log import read_flight
from nopg_robot.plants import simulated_twin
from nopg_robot.rig.file import RigFile
from nopg_robot.rounds.folder import LearningFolder, observations_of
from nopg_robot.rounds.task import TASKS, LearningTask, upright_at_the_end
from nopg_robot.run.deployment import RunOptions, deploy
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

N_STARTS = 5
# How long the last policy flies, and how long it must have been upright at the end.
EVALUATION = {"balance": (60.0, 60.0), "swing_up": (20.0, 10.0)}
# A desktop pauses now and then, and nothing real moves.
PATIENT_S = 0.25
# A fault ends a flight, as it must, a longer pause for one. Then the same command goes on, as a person would have it, whatever
# the fault was; how often is told.
FAULTS = (ExitCode.SAFETY_STOP, ExitCode.NO_CONNECTION, ExitCode.PHASE_FAILED)
MOST_RESUMED = 5


def main() -> None:
    """Write benchmarks/results/learning_rounds_TASK.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--task", choices=sorted(TASKS), default="balance")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rig-seconds", type=float)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--fast", action="store_true", help="simulated rigs instead of TCP, in simulated time")
    parser.add_argument("--work", type=Path, default=Path("runs/learning_rounds"), help="folder of the learning")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    output = asked.output or Path(__file__).parent / "results" / f"learning_rounds_{asked.task}.json"
    trials: list[dict[str, Any]] = []
    for seed in asked.seeds:
        trials.append(_trial(asked, seed))
        results = {
            "conditions": conditions(("torch", "stable_baselines3")),
            "task": asked.task,
            "fast": asked.fast,
            "trials": trials,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        output.with_suffix(".md").write_text(_table(results), encoding="utf-8")
    print(_table(results))


def _trial(asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    parameters = plausible_parameters(np.random.default_rng([seed, 21]), fixed=OF_THE_KIND)
    folder = asked.work / f"{asked.task}-{seed}-{'fast' if asked.fast else 'tcp'}"
    # Not what an earlier run has left.
    shutil.rmtree(folder, ignore_errors=True)
    task = TASKS[asked.task]
    cart = SimulatedCart(parameters, lifts_pole=task.pole == "upright" or task.fallen_s > 0, seed=seed)
    begun_s = time.monotonic()
    with ExitStack() as stack:
        server = None if asked.fast else stack.enter_context(VirtualQuarcServer(cart, watchdog_s=PATIENT_S))
        rig = _rig(parameters, seed, None if server is None else server.address)
        path = asked.work / f"{asked.task}-{seed}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(rig), encoding="utf-8")
        program = [
            sys.executable,
            "-m",
            "nopg_robot.commands.learn",
            "--rig",
            str(path),
            "--task",
            asked.task,
            "--yes",
            "--plain",
        ]
        program += ["--folder", str(folder), "--seed", str(seed)]
        for name in ("rounds", "rig_seconds", "updates"):
            if getattr(asked, name) is not None:
                program += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
        resumed = -1
        code: int = ExitCode.SAFETY_STOP
        while code in FAULTS and resumed < MOST_RESUMED:
            resumed += 1
            code = subprocess.run(program, check=False, stdout=sys.stderr).returncode
    took_s = time.monotonic() - begun_s
    shared = LearningFolder(folder)
    last = next((one.learned for one in reversed(shared.rounds) if one.learned is not None and one.learned.policy), None)
    trial: dict[str, Any] = {
        "seed": seed,
        "exit_code": code,
        "resumed": resumed,
        "rounds": sum(one.number > 0 and one.is_flown for one in shared.rounds),
        "rig_seconds": shared.rig_seconds,
        "wall_seconds": took_s,
        "learning_seconds": sum(one.learned.learning_seconds for one in shared.rounds if one.learned is not None),
        "parameters": asdict(parameters),
        "held": [] if last is None else _evaluate(shared.path / last.policy, task, parameters, asked.work, seed),
    }
    print({name: value for name, value in trial.items() if name != "parameters"}, flush=True)
    return trial


def _rig(parameters: CartPoleParameters, seed: int, address: tuple[str, int] | None) -> dict[str, Any]:
    """A rig file that knows nothing of the parameters, unless it is the simulation itself."""
    named = "simulated" if address is None else "quanser_ip02_quarc"
    rig: dict[str, Any] = yaml.safe_load(RigFile.load(named).to_yaml())
    if address is None:
        rig["connection"] |= {"parameters": asdict(parameters), "real_time": False, "seed": seed}
    else:
        rig["connection"] |= {
            "host": address[0],
            "port": address[1],
            "watchdog_s": PATIENT_S,
            "read_timeout_s": 0.1,
            "virtual": True,
        }
        rig["limits"]["stale_s"] = PATIENT_S
        rig["timing"] |= {"miss_s": 0.02, "watchdog_s": PATIENT_S}
    return rig


def _evaluate(policy_file: Path, task: LearningTask, parameters: CartPoleParameters, work: Path, seed: int) -> list[bool]:
    """Whether the policy holds, from each of some starts of its own, in simulated time."""
    seconds, hold_s = EVALUATION[task.name]
    policy = OnnxPolicy(policy_file)
    held = []
    for number in range(N_STARTS):
        rig = simulated_twin(RigFile.load("simulated"), real_time=False, lifts_pole=task.pole == "upright")
        rig = rig.model_copy(
            update={
                "connection": rig.connection.model_copy(
                    update={"parameters": asdict(parameters), "seed": 1000 * (seed + 1) + number}
                )
            }
        )
        log = work / f"{task.name}-{seed}-evaluation" / f"{number}.npz"
        for old in (log, log.with_name(log.name + ".journal")):
            old.unlink(missing_ok=True)
        summary = deploy(policy, policy.metadata, rig, log, RunOptions(seconds, pole=task.pole))
        goal = upright_at_the_end(hold_s - 1.0 / rig.rates.control_hz)
        observations = observations_of(read_flight(log))
        held.append(summary.outcome == "finished" and goal(observations, 1.0 / rig.rates.control_hz))
    return held


def _table(results: dict[str, Any]) -> str:
    head = ("seed", "learned", "rounds", "resumed", "rig time / s", "learning / s", "wall / s", "starts held")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for trial in results["trials"]:
        learned = {ExitCode.FINISHED: "yes", ExitCode.NOT_LEARNED: "no"}.get(
            trial["exit_code"], f"exit code {trial['exit_code']}"
        )
        lines.append(
            f"| {trial['seed']} | {learned} | {trial['rounds']} | {trial.get('resumed', 0)} | {trial['rig_seconds']:.1f} | "
            f"{trial['learning_seconds']:.0f} | {trial['wall_seconds']:.0f} | {sum(trial['held'])} of {len(trial['held'])} |"
        )
    about = "in simulated time" if results["fast"] else "over TCP in real time"
    lines += [
        "",
        f"{results['task']}, {about}. `{results['conditions']['command']}`, load {results['conditions']['load_average']}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
