"""
From a cold rig to a policy that does its task: rounds, seconds of rig time, and what the policy does in the end.

    python benchmarks/learning_rounds.py --task balance               ten seeds on virtual QUARC models over TCP, in real time
    python benchmarks/learning_rounds.py --task swing_up --seeds 0 1 --fast     simulated rigs, as fast as the computer can
    python benchmarks/learning_rounds.py --again RESULTS.json --evaluate tcp -o OTHER.json        what was learned flies again

Every seed has a rig of its own, drawn around the identified one, with a delay of 4 to 12 ms (nopg_envs.cartpole.plausible).
`nopg-learn` learns on it as a person would start it; then its last policy flies from five starts, on a simulation of the same
rig, or, with `--evaluate tcp`, on the same virtual QUARC model over TCP, in real time.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
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
PERIOD_S = 1.0 / RigFile.load("simulated").rates.control_hz
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
    parser.add_argument("--evaluate", choices=("simulated", "tcp"), default="simulated", help="on what the last policy flies")
    parser.add_argument(
        "--again", type=Path, help="results of an earlier run: the policies in its folders fly, none is learned"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/learning_rounds"), help="folder of the learning")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    earlier: list[dict[str, Any]] = []
    if asked.again is not None:
        if asked.output is None:
            parser.error("--again: say with -o where to write; the results of the earlier run stay as they are")
        content = json.loads(asked.again.read_text(encoding="utf-8"))
        asked.task, asked.fast = content["task"], content["fast"]
        earlier = [trial for trial in content["trials"] if trial["seed"] in asked.seeds]
        if not earlier:
            parser.error(f"--again: {asked.again} has none of the seeds {asked.seeds}")
    output = asked.output or Path(__file__).parent / "results" / f"learning_rounds_{asked.task}.json"
    trials: list[dict[str, Any]] = []
    for trial in earlier or [{"seed": seed} for seed in asked.seeds]:
        trials.append(_evaluated(asked, trial if earlier else _learned(asked, trial["seed"])))
        results = {
            "conditions": conditions(("torch", "stable_baselines3")),
            "task": asked.task,
            "fast": asked.fast,
            "evaluated": asked.evaluate,
            "trials": trials,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        output.with_suffix(".md").write_text(_table(results), encoding="utf-8")
    print(_table(results))


def _folder(asked: argparse.Namespace, seed: int) -> Path:
    """Of the learning."""
    return Path(asked.work / f"{asked.task}-{seed}-{'fast' if asked.fast else 'tcp'}")


def _learned(asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    parameters = plausible_parameters(np.random.default_rng([seed, 21]), fixed=OF_THE_KIND)
    folder = _folder(asked, seed)
    # Not what an earlier run has left.
    shutil.rmtree(folder, ignore_errors=True)
    task = TASKS[asked.task]
    cart = SimulatedCart(parameters, lifts_pole=task.pole == "upright" or task.fallen_s > 0, seed=seed)
    stops: list[dict[str, Any]] = []
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
            if code not in (ExitCode.FINISHED, ExitCode.NOT_LEARNED):
                stops.append({"exit_code": code, **_last_words(folder)})
    took_s = time.monotonic() - begun_s
    shared = LearningFolder(folder)
    return {
        "seed": seed,
        "exit_code": code,
        "resumed": resumed,
        "stops": stops,
        "rounds": sum(one.number > 0 and one.is_flown for one in shared.rounds),
        "rig_seconds": shared.rig_seconds,
        "wall_seconds": took_s,
        "learning_seconds": sum(one.learned.learning_seconds for one in shared.rounds if one.learned is not None),
        "parameters": asdict(parameters),
    }


def _last_words(folder: Path) -> dict[str, Any]:
    """Of the last flight there is: why it ended. A program may also have ended before it flew."""
    logs = sorted(folder.glob("round-*/*.npz*"), key=lambda path: path.stat().st_mtime)
    summary = read_flight(logs[-1]).summary if logs else None
    if summary is None:
        return {"phase": None, "fault": None, "reason": "no flight was closed"}
    return {name: summary[name] for name in ("phase", "fault", "reason")}


def _evaluated(asked: argparse.Namespace, trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with what becomes of its last policy."""
    shared = LearningFolder(_folder(asked, trial["seed"]))
    last = next((one.learned for one in reversed(shared.rounds) if one.learned is not None and one.learned.policy), None)
    flights = [] if last is None else _evaluate(asked, shared.path / last.policy, trial)
    trial |= {"held": [flight["held"] for flight in flights], "evaluation": flights}
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


def _evaluate(asked: argparse.Namespace, policy_file: Path, trial: dict[str, Any]) -> list[dict[str, Any]]:
    """Whether the policy holds, from each of some starts of its own, and why a flight ended."""
    task, parameters = TASKS[asked.task], CartPoleParameters(**trial["parameters"])
    seconds, hold_s = EVALUATION[task.name]
    found = []
    for number in range(N_STARTS):
        log = asked.work / f"{task.name}-{trial['seed']}-evaluation" / f"{number}.npz"
        log.parent.mkdir(parents=True, exist_ok=True)
        for old in (log, log.with_name(log.name + ".journal")):
            old.unlink(missing_ok=True)
        seed = 1000 * (trial["seed"] + 1) + number
        fly = _fly_over_tcp if asked.evaluate == "tcp" else _fly_simulated
        fly(policy_file, parameters, log, task, seconds, seed)
        flight = read_flight(log)
        summary = flight.summary
        assert summary is not None
        held = summary["outcome"] == "finished" and upright_at_the_end(hold_s - PERIOD_S)(observations_of(flight), PERIOD_S)
        found.append({"held": bool(held), **{name: summary[name] for name in ("outcome", "phase", "fault", "reason")}})
    return found


def _fly_simulated(
    policy_file: Path, parameters: CartPoleParameters, log: Path, task: LearningTask, seconds: float, seed: int
) -> None:
    rig = simulated_twin(RigFile.load("simulated"), real_time=False, lifts_pole=task.pole == "upright")
    changes = {"parameters": asdict(parameters), "seed": seed}
    rig = rig.model_copy(update={"connection": rig.connection.model_copy(update=changes)})
    policy = OnnxPolicy(policy_file)
    deploy(policy, policy.metadata, rig, log, RunOptions(seconds, pole=task.pole))


def _fly_over_tcp(
    policy_file: Path, parameters: CartPoleParameters, log: Path, task: LearningTask, seconds: float, seed: int
) -> None:
    """As an operator does it, with a program of its own."""
    cart = SimulatedCart(parameters, lifts_pole=task.pole == "upright", seed=seed)
    with VirtualQuarcServer(cart, watchdog_s=PATIENT_S) as server:
        path = log.with_suffix(".yaml")
        path.write_text(yaml.safe_dump(_rig(parameters, seed, server.address)), encoding="utf-8")
        program = [sys.executable, "-m", "nopg_robot.commands.deploy", str(policy_file), "--rig", str(path), "--plain"]
        program += ["--no-plot", "--log", str(log), "--seconds", f"{seconds:g}", "--start", task.pole]
        subprocess.run(program, check=False, stdout=sys.stderr)


def _table(results: dict[str, Any]) -> str:
    head = ("seed", "learned", "rounds", "stopped by", "rig time / s", "learning / s", "wall / s", "starts held")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    reasons = []
    for trial in results["trials"]:
        learned = {ExitCode.FINISHED: "yes", ExitCode.NOT_LEARNED: "no"}.get(
            trial["exit_code"], f"exit code {trial['exit_code']}"
        )
        # Results from before reasons were kept have their number only.
        stops = trial.get("stops", trial.get("resumed", 0) * [{"fault": "unknown", "phase": None, "reason": "not kept"}])
        counts = Counter(stop["fault"] or stop["phase"] or "unknown" for stop in stops)
        stopped = ", ".join(f"{name} ×{n}" for name, n in counts.items()) or "–"
        lines.append(
            f"| {trial['seed']} | {learned} | {trial['rounds']} | {stopped} | {trial['rig_seconds']:.1f} | "
            f"{trial['learning_seconds']:.0f} | {trial['wall_seconds']:.0f} | {sum(trial['held'])} of {len(trial['held'])} |"
        )
        reasons += [f"* Seed {trial['seed']}, {stop['phase'] or 'no phase'}: {stop['reason']}" for stop in stops]
        reasons += [
            f"* Seed {trial['seed']}, start {number}, {flight['outcome']} in {flight['phase']}: {flight['reason']}"
            for number, flight in enumerate(trial.get("evaluation", []))
            if not flight["held"]
        ]
    how = {True: "in simulated time", False: "over TCP in real time"}
    about = f"learned {how[results['fast']]}, evaluated {how[results.get('evaluated') != 'tcp']}"
    lines += ["", *reasons, ""] if reasons else [""]
    lines += [
        f"{results['task']}, {about}. `{results['conditions']['command']}`, load {results['conditions']['load_average']}"
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
