"""
Runs that several processes share, started by ``test_distributed.py``.

``launch`` has torchrun start them and watch over them, and ``start`` needs nobody who does. Both make copies of the process
that asks, which need not import anything.
"""

import multiprocessing
import os
import runpy
import signal
import socket
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, get_args_parser

import sb3_nopg.bellman.solvers.coarse
import sb3_nopg.bellman.transition
from helpers.long_runs import KillAt, build, pushed_point
from sb3_nopg import NOPG, InputError
from sb3_nopg.data.fingerprint import parameter_fingerprint
from sb3_nopg.training.callbacks import NOPGCheckpointCallback
from sb3_nopg.training.distributed import Processes, process_group
from sb3_nopg.training.log import record_support

# Neither 2 nor 4 divides the number of transitions or that of start states.
N = 91
UPDATES = 3
# Strict, so that what is left to compare is rounding and not where a solver happened to stop; a discount that keeps it short.
STRICT: dict[str, Any] = {"solver_tolerance": 1e-12, "gamma": 0.8}
CASES: dict[str, dict[str, Any]] = {
    "default": {"variant": "D"},
    "stochastic": {"variant": "S", "n_action_samples": 3, "resample_interval": 2, **STRICT},
    "pessimistic": {"variant": "D", "pessimism": 0.3, "held_out": 0.3, "patience": 50, **STRICT},
    "next-states": {"variant": "D", "n_next_state_samples": 3, "resample_interval": 2, **STRICT},
    "dense": {"variant": "D", "n_neighbors": None, "weights": "local_linear", **STRICT},
    "fixed-count": {"variant": "D", "n_neighbors": 20, "truncation_tolerance": 0.5, **STRICT},
    # Of 18 entries two are left, and products pass over the rest although the matrix is small.
    "sparsified": {"variant": "D", "n_neighbors": 18, "truncation_tolerance": 0.5, "keep_largest": 2, **STRICT},
    "sparse-coarse-model": {"variant": "D", "state_bandwidth": 0.15, "learning_rate": 1e-3, **STRICT},
}


# Four processes on few cores wait for each other most of the time.
CASES_OF = {2: list(CASES), 4: ["stochastic", "fixed-count"]}


def results(case: str, distributed: bool) -> dict[str, np.ndarray]:
    """
    :param case: one of ``CASES``
    :param distributed: whether to share the work
    :return: what a run computes, in arrays
    """
    n = N
    if case == "sparse-coarse-model":
        n, sb3_nopg.bellman.solvers.coarse._MAX_DENSE_CELLS["cpu"] = 4 * N, 4
    if case == "sparsified":
        sb3_nopg.bellman.transition._WORTH_LAYING_OUT_ANEW = range(10**9)
    try:
        model = build(pushed_point(n), distributed=distributed, **CASES[case]).learn(UPDATES)
        coarse = model.estimator.problem.coarse_model.state()
        found = {
            "parameters": np.concatenate([p.detach().numpy().reshape(-1) for p in model.policy.parameters()]),
            "q_values": model._training.warm_start.q_history.values[-1].numpy(),
            "visitation": model._training.warm_start.visitation_history.values[-1].numpy(),
            "policy_gradient": model.policy_gradient(),
            "n_neighbors": np.array(model.estimator.problem.queries.neighbors.n_neighbors),
            "transition": model.estimator.problem.transition.to_dense().numpy(),
            "coarse_model": np.array([coarse["pays"], coarse["n_cells"], coarse["age"]]),
            # It decides how long a solve takes and nothing else, so only it itself shows whether it is right.
            "coarse_matrix": np.concatenate(
                [part[part != 0] for part in coarse["matrix"].values() if part.is_floating_point()]
            ),
        }
        if case == "stochastic":
            found["value"] = model.value(pushed_point(5, seed=9).observations)
            found["held-out"] = np.array(model.estimated_return(pushed_point(40, seed=4)))
            logger = Logger(None, [])
            record_support(logger, model.estimator.problem, model.evaluation.policy_actions().detach())
            found["log"] = np.array(list(logger.name_to_value.values()))
        return found
    finally:
        sb3_nopg.bellman.transition._WORTH_LAYING_OUT_ANEW = range(2**17, 2**23)
        sb3_nopg.bellman.solvers.coarse._MAX_DENSE_CELLS["cpu"] = 256


def compare(processes: Processes, folder: Path) -> None:
    """Some cases, written by the last process: all have come to the same."""
    for case in CASES_OF[processes.n_processes]:
        found = results(case, distributed=True)
        if processes.rank == processes.n_processes - 1:
            np.savez(folder / f"{case}.npz", **found)


class SleepAt(KillAt):
    """Does not notice what becomes of the others, nor answer them."""

    def __init__(self, update: int, for_s: float):
        super().__init__(update)
        self.for_s = for_s

    def _on_step(self) -> bool:
        if self.num_timesteps == self.update:
            time.sleep(self.for_s)
        return True


def lose_one(processes: Processes, folder: Path) -> None:
    """The last process is killed in the midst of training, and torchrun notices before the main process does."""
    callbacks: list[BaseCallback] = [NOPGCheckpointCallback(folder / "run.ckpt", interval=10)]
    callbacks.append(SleepAt(25, 1.0) if processes.is_main else KillAt(25))
    build(pushed_point(N), distributed=True).learn(100_000, callback=callbacks)


def wait_in_vain(processes: Processes, folder: Path) -> None:
    """The last process stops answering."""
    callback = None if processes.is_main else SleepAt(3, 600.0)
    build(pushed_point(N), distributed=True).learn(100_000, callback=callback)


class StopAt(KillAt):
    """Wants no more training."""

    def _on_step(self) -> bool:
        return self.num_timesteps < self.update


def behave(processes: Processes, folder: Path) -> None:
    """All that concerns who does what. Each process writes what it saw."""
    saw: dict[str, Any] = {}
    # Without a seed, all draw the same numbers all the same.
    model = build(pushed_point(N), distributed=True, seed=None, variant="S", n_action_samples=2, verbose=1)
    stop = None if processes.is_main else StopAt(5)
    model.learn(50, callback=stop, log_interval=2, progress_bar=True)
    saw["updates"], saw["parameters"] = model.num_timesteps, parameter_fingerprint(model.policy)
    saw["rows"] = len(model.estimator.problem.continues)
    model.save(folder / f"model-{processes.rank}.zip")
    model.save_checkpoint(folder / f"run-{processes.rank}.ckpt")
    resumed = NOPG.resume(folder / "run-0.ckpt", pushed_point(N), device="cpu", distributed=True)
    saw["same circumstances"] = resumed.learn(1, reset_num_timesteps=False).num_timesteps
    model.learn(1, reset_num_timesteps=False)
    try:
        model.exit_probability(lambda states: states[:, 0] < 1.0)
    except InputError as error:
        saw["exit"] = str(error)
    saw["resumed like"] = parameter_fingerprint(model.policy) == parameter_fingerprint(resumed.policy)
    for name, arguments in {
        "other data": {"dataset": pushed_point(N, seed=processes.rank)},
        "other settings": {"dataset": pushed_point(N), "gamma": 0.9 + 0.01 * processes.rank},
        "other policy": {"dataset": pushed_point(N), "seed": processes.rank},
    }.items():
        try:
            build(initial_states=[0.5, 0.5], distributed=True, **{"data": arguments.pop("dataset"), **arguments}).learn(1)
        except InputError as error:
            saw[name] = str(error)
    np.savez(folder / f"saw-{processes.rank}.npz", **saw)


def run(scenario: str, folder: str) -> None:
    """
    :param scenario: name of a function of this file
    :param folder: where to write
    """
    with process_group("cpu", timeout_s=3.0 if scenario == "wait_in_vain" else 60.0) as processes:
        {"compare": compare, "lose_one": lose_one, "wait_in_vain": wait_in_vain, "behave": behave}[scenario](
            processes, Path(folder)
        )


def run_script(script: str) -> None:
    """
    :param script: to run as a program, where it lies
    """
    os.chdir(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def fork(rank: int, n_processes: int, port: int, program: Callable[..., None], arguments: tuple[str, ...]) -> None:
    """One of the processes, as torchrun would have set it up."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n_processes), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    program(*arguments)


def start(n_processes: int, program: Callable[..., None], *arguments: str) -> int:
    """
    :param n_processes: copies of this process to run it in
    :param program: ``run`` or ``run_script``
    :param arguments: of the program
    :return: exit code of the main process, when it has ended
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=fork, args=(rank, n_processes, port, program, arguments)) for rank in range(n_processes)]
    for process in started:
        process.start()
    started[0].join(100.0)
    for process in started[1:]:
        # Others have ended as well, but for those that do not answer.
        process.join(2.0)
    for process in started:
        process.kill()
        process.join()
    assert started[0].exitcode is not None
    return started[0].exitcode


def begin_anew(program: Callable[..., None], *arguments: str) -> None:
    """As a program of its own, which knows nothing of what torchrun does with signals and tells its errors itself."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        program(*arguments)
    except Exception:
        traceback.print_exc()
        raise


def torchrun(n_processes: int, program: Callable[..., None], arguments: tuple[str, ...]) -> None:
    """What torchrun does with its options, but that processes are copies of this one."""
    options = get_args_parser().parse_args(["--standalone", f"--nproc-per-node={n_processes}", "no script"])
    config, _, _ = config_from_args(options)
    # What ``--standalone`` stands for.
    config.rdzv_backend, config.rdzv_endpoint, config.run_id = "c10d", "localhost:0", str(uuid.uuid4())
    config.start_method = "fork"
    elastic_launch(config, begin_anew)(program, *arguments)


def launch(n_processes: int, program: Callable[..., None], *arguments: str) -> int:
    """
    :param n_processes: that torchrun starts, and ends when one is lost
    :param program: ``run`` or ``run_script``
    :param arguments: of the program
    :return: torchrun's exit code
    """
    started = multiprocessing.get_context("fork").Process(target=torchrun, args=(n_processes, program, arguments))
    started.start()
    started.join(100.0)
    assert started.exitcode is not None
    return started.exitcode
