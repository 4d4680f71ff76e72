"""
Training that several processes share, on one machine or on many, started with ``torchrun``.

    with process_group():
        model = NOPG("MlpPolicy", env, dataset=data, distributed=True)
        model.learn(500, callback=NOPGCheckpointCallback("run.ckpt", interval=20))

Each process owns a block of the rows of P̂, with their neighbour lists and weights. Products with P̂ and P̂ᵀ and the policy
gradient are summed over all of them; policy and optimiser are the same in each. The first process writes logs and files.
"""

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch as th
import torch.distributed as dist
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.utils import get_device

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number
from sb3_nopg.common.processes import Processes, ProcessLostError
from sb3_nopg.data.dataset import TransitionDataset

__all__ = ["ProcessLostError", "Processes", "join_processes", "process_group"]

_START_WITH_TORCHRUN = "Start the script with torchrun, for instance: torchrun --nproc-per-node=2 script.py"


@contextmanager
def process_group(device: th.device | str = "auto", timeout_s: float = 300.0) -> Iterator[Processes]:
    """
    Join the processes that ``torchrun`` has started, and leave them in the end.

    :param device: that the model will be on; ``"cuda"`` gives each process of a machine its own GPU and exchanges by NCCL,
        ``"cpu"`` exchanges by gloo
    :param timeout_s: how long to wait for another process before it counts as lost. A process waits while another one still
        searches neighbours or writes a checkpoint
    :return: the processes, to ask ``is_main`` of
    """
    check_number("timeout_s", timeout_s, 0.0, math.inf, fix="Give a positive number of seconds to wait")
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError("process_group", f"{', '.join(missing)} not set in the environment", _START_WITH_TORCHRUN)
    on_gpu = get_device(device).type == "cuda"
    if on_gpu:
        _take_own_gpu()
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_s))
    processes = join_processes()
    with _only_errors_from_others(processes), _ends_at_an_exchange(processes):
        # Not in a finally clause: taking leave of processes that are gone may wait for them.
        yield processes
    dist.destroy_process_group()


def _take_own_gpu() -> None:
    local_rank, n_gpus = int(os.environ.get("LOCAL_RANK", "0")), th.cuda.device_count()
    if local_rank >= n_gpus:
        raise InputError(
            "device", f"process {local_rank} of this machine finds {n_gpus} GPUs", "Start one process for each GPU"
        )
    th.cuda.set_device(local_rank)
    # Without it a lost process is noticed by a thread that aborts the program instead of telling it.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")


@contextmanager
def _only_errors_from_others(processes: Processes) -> Iterator[None]:
    """All processes would warn of the same things."""
    logger = logging.getLogger("sb3_nopg")
    level = logger.level
    if not processes.is_main:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _ends_at_an_exchange(processes: Processes) -> Iterator[None]:
    """
    When a process has ended, torchrun sends SIGTERM to the others, which need not have noticed yet. They take note and end at
    their next exchange, where they can tell why and from which checkpoint to resume.
    """
    # Signals are for the main thread, the caller may have plans of their own for this one, and who exchanges nothing would
    # never come to it.
    free = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _take_note)
    if not (processes.several and free and threading.current_thread() is threading.main_thread()):
        yield
        return
    Processes.told_to_end = False
    Processes.noted_by = os.getpid()
    signal.signal(signal.SIGTERM, _take_note)
    # Not in a finally clause: a process that ends with an error is left the time to print it.
    yield
    if signal.getsignal(signal.SIGTERM) is _take_note:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if Processes.told_to_end:
        signal.raise_signal(signal.SIGTERM)


def _take_note(number: int, _: object) -> None:
    """Once: who asks a second time means it. Nor is it for processes that this one has forked."""
    if Processes.told_to_end or Processes.noted_by != os.getpid():
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    Processes.told_to_end = True


def join_processes() -> Processes:
    """The processes of torch's process group, which must have been set up."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("distributed", "there is no group of processes", "Build and train the model within process_group()")
    device = th.device("cuda", th.cuda.current_device()) if dist.get_backend() == "nccl" else None
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def check_same_everywhere(
    processes: Processes, dataset: TransitionDataset | None, describe: Callable[[], dict[str, Any]]
) -> None:
    """
    :param processes: about to train a model together
    :param dataset: that they learn from
    :param describe: what must be the same in all of them
    :raises InputError: in every process, where one of them is about to train something else
    """
    if not processes.several or processes.agreed_on is dataset:
        return
    own = {
        **describe(),
        # All processes compute the same vectors, and must round them in the same way to decide the same.
        "torch version": th.__version__,
        "torch threads": th.get_num_threads(),
        "processor": th.backends.cpu.get_cpu_capability(),
    }
    everyone = processes.gather_objects(own)
    for rank, other in enumerate(everyone):
        different = [name for name in own if other[name] != everyone[0][name]]
        if different:
            raise InputError(
                different[0],
                f"process {rank} has another one than process 0",
                "All processes must run the same script on the same data, on machines of the same kind",
            )
    processes.agreed_on = dataset


class AgreedCallback(CallbackList):
    """
    Goes on only while the callbacks of all processes want to: those of one may not leave the others waiting.

    :param callback: of this process
    :param processes: to agree with
    """

    def __init__(self, callback: BaseCallback, processes: Processes):
        super().__init__([callback])
        self._processes = processes

    def _on_step(self) -> bool:
        return self._processes.all_agree(super()._on_step())
