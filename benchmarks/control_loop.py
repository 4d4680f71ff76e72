"""
The control loop at 500 Hz: does it keep its time, and how long does a policy take?

    python benchmarks/control_loop.py [--seconds 60]

A policy acts in every cycle, on the simulated rig in real time and over both virtual rigs, each of which runs in a process of
its own and speaks the wire format of the real one. Beside it, in the same process: the same policy by onnxruntime and by
``model.predict``.
"""

import os

# One thread, and it must be said before NumPy is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

import nopg_envs
from machine import conditions
from nopg_robot.control.observation import Observer
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.control.safety import Checks
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import open_rig
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest
from sb3_nopg import NOPG, TransitionDataset

HZ = 500.0
# Enough to move the cart a little, too little to bring it to the end of the rail in a hurry.
VOLT = 0.5
N_CALLS = 10_000
RESULT = Path(__file__).parent / "results" / "control_loop.json"


def untrained_model() -> NOPG:
    env = gym.make("nopg/QuanserCartPoleBalance-v0")
    data = TransitionDataset(**nopg_envs.rollouts(env, "uniform", n_transitions=200, start="operator", seed=0))
    return NOPG("MlpPolicy", env, dataset=data, policy_kwargs={"net_arch": [64, 64]}, seed=0, device="cpu")


def call_times(call: Callable[[np.ndarray], Any], observations: np.ndarray) -> dict[str, float]:
    """
    :param call: to time
    :param observations: one a call
    :return: percentiles, ms
    """
    times = []
    for observation in observations:
        begin = time.perf_counter()
        call(observation)
        times.append(time.perf_counter() - begin)
    p50, p99, most = 1e3 * np.percentile(times[len(times) // 10 :], (50, 99, 100))
    return {"p50_ms": round(p50, 4), "p99_ms": round(p99, 4), "max_ms": round(most, 4)}


@contextlib.contextmanager
def virtual_rig(*arguments: str) -> Iterator[str]:
    """
    :param arguments: of ``python -m nopg_robot.virtual``
    :return: where it listens
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "nopg_robot.virtual", *arguments], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        # "Virtual … at ADDRESS, until Ctrl-C. …"
        yield process.stdout.readline().split(" at ")[1].split(",")[0]
    finally:
        process.terminate()
        process.wait()


def rig_file(name: str, connection: dict[str, Any]) -> RigFile:
    content = RigFile.load(name).model_dump(mode="json")
    content["connection"].update(connection)
    content["rates"] = {"sample_hz": HZ, "control_hz": HZ}
    # The figures are what is asked for here: nothing may end the run for lateness.
    content["timing"] = {"miss_s": 0.002, "max_misses": int(HZ) // 4, "watchdog_s": 1.0}
    content["limits"]["stale_s"] = 1.0
    return RigFile.from_dict(content)


def loop_figures(rig: RigFile, policy: OnnxPolicy, seconds: float) -> dict[str, Any]:
    """
    :param rig: that answers
    :param policy: asked in every cycle
    :param seconds: how long
    :return: lateness and busy time of the cycles, ms
    """
    with tempfile.TemporaryDirectory() as folder:
        recorder = FlightRecorder(Path(folder) / "flight.npz", {})
        with recorder, Session(open_rig(rig), recorder, NullDisplay(), StopRequest()) as session:
            session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False, voltage_volt=VOLT))
            episode = run_episode(session, policy, Observer(), seconds=seconds)
            recorder.close({})
            if episode.fault is not None:
                raise SystemExit(f"{rig.name}: {episode.fault.message}")
            return {name: round(value, 4) for name, value in session.loop.timing.summary().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each loop runs")
    arguments = parser.parse_args()
    th.set_num_threads(1)
    result: dict[str, Any] = {
        "conditions": conditions(("numpy", "torch", "onnxruntime", "stable-baselines3")),
        "hz": HZ,
        "seconds": arguments.seconds,
    }
    model = untrained_model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        model.export(path)
        policy = OnnxPolicy(path)
    policy.warm_up()
    observations = np.random.default_rng(0).normal(size=(N_CALLS, 5)).astype(np.float32)
    result["inference"] = {
        "onnxruntime": call_times(policy, observations),
        "model.predict": call_times(lambda observation: model.predict(observation, deterministic=True), observations),
    }
    print(json.dumps(result["inference"], indent=2))

    result["loops"] = {"simulated": loop_figures(rig_file("simulated", {}), policy, arguments.seconds)}
    with virtual_rig("tcp", "--port", "0") as address:
        host, port = address.split(":")
        rig = rig_file("quanser_ip02_quarc", {"host": host, "port": int(port), "read_timeout_s": 0.5, "virtual": True})
        result["loops"]["quarc"] = loop_figures(rig, policy, arguments.seconds)
    with virtual_rig("serial") as port:
        rig = rig_file("serial_board", {"port": port, "read_timeout_s": 0.5, "watchdog_s": 1.0, "virtual": True})
        result["loops"]["serial"] = loop_figures(rig, policy, arguments.seconds)
    for name, figures in result["loops"].items():
        print(name, json.dumps(figures))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {RESULT.name}")


if __name__ == "__main__":
    main()
