"""
Where trials run: here, in processes of this machine, or on a Dask cluster. Each gives outcomes in the order in which they are
done, and survives the loss of a worker.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import joblib  # type: ignore[import-untyped]
import torch as th

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.experiments.code_version import code_version
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.versions import versions_here

Run = Callable[[Trial], Result]
# A worker that was lost may have been killed by somebody, or by the trial itself, which would do it again.
N_RETRIES = 2
_CONNECTION_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """
    What became of a trial.

    :param index: of the trial
    :param code: version of the code that ran it
    :param seconds: what it took
    :param versions: of Python and packages there
    :param result: None where it failed
    :param failure: what happened, in full
    """

    index: int
    code: str
    seconds: float
    versions: dict[str, str]
    result: Result | None = None
    failure: str | None = None


def run_one(run: Run, index: int, trial: Trial) -> Outcome:
    """
    One trial, on one thread: trials run beside each other, and results must not depend on how many cores there are.

    :param run: of the experiment
    :param index: of the trial
    :param trial: its parameters
    """
    n_threads, code, versions = th.get_num_threads(), code_version(run.__module__), versions_here()
    began = time.perf_counter()
    th.set_num_threads(1)
    try:
        result = run(trial)
        return Outcome(index, code, time.perf_counter() - began, versions, result)
    except Exception:
        # Whatever it is, it must not take the other trials with it; the caller tells of it in the end.
        return Outcome(index, code, time.perf_counter() - began, versions, failure=traceback.format_exc())
    finally:
        th.set_num_threads(n_threads)


def run_here(run: Run, trials: Sequence[Trial]) -> Iterator[Outcome]:
    """
    One after the other, in this process.

    :param run: of the experiment
    :param trials: parameters
    """
    for index, trial in enumerate(trials):
        yield run_one(run, index, trial)


def run_in_processes(run: Run, trials: Sequence[Trial], n_jobs: int) -> Iterator[Outcome]:
    """
    In processes of this machine. Where one is lost, the trials under way are run again after all others, each by itself, so
    that it shows which one is to blame.

    :param run: of the experiment
    :param trials: parameters
    :param n_jobs: processes
    """
    waiting, suspects = list(range(len(trials))), list[int]()
    while waiting:
        started: list[int] = []
        try:
            for outcome in _pool(run, trials, waiting, n_jobs, started):
                started.remove(outcome.index)
                waiting.remove(outcome.index)
                yield outcome
        except BrokenProcessPool:
            suspects += started
            waiting = [index for index in waiting if index not in started]
    for index in suspects:
        yield _run_alone(run, trials, index)


def _pool(run: Run, trials: Sequence[Trial], indices: list[int], n_jobs: int, started: list[int]) -> Iterator[Outcome]:
    """
    :param indices: of the trials to run
    :param started: gets those that were handed out, for the caller to strike off
    """

    def tasks() -> Iterator[Any]:
        for index in list(indices):
            started.append(index)
            yield joblib.delayed(run_one)(run, index, trials[index])

    # No more handed out than there are processes: what is handed out is lost with the pool.
    settings: dict[str, Any] = {"pre_dispatch": "n_jobs", "batch_size": 1, "return_as": "generator_unordered"}
    with joblib.parallel_config("loky", n_jobs=n_jobs, inner_max_num_threads=1):
        yield from joblib.Parallel(**settings)(tasks())


def _run_alone(run: Run, trials: Sequence[Trial], index: int) -> Outcome:
    for _ in range(N_RETRIES):
        try:
            # Two, since joblib runs a single job in this process, which would then be lost.
            return next(iter(_pool(run, trials, [index], 2, [])))
        except BrokenProcessPool as error:
            reason = one_line(error)
    return _lost(run, index, reason)


def _lost(run: Run, index: int, reason: str) -> Outcome:
    failure = f"its worker was lost {N_RETRIES + 1} times, out of memory perhaps: {reason}"
    return Outcome(index, code_version(run.__module__), 0.0, {}, failure=failure)


def run_on_cluster(run: Run, trials: Sequence[Trial], scheduler: str) -> Iterator[Outcome]:
    """
    On a Dask cluster, whose workers have this package installed. Trials that a lost worker was at, or had waiting, are run
    again after all others, each by itself, so that it shows which one is to blame.

    :param run: of the experiment
    :param trials: parameters
    :param scheduler: its address, ``tcp://…``
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("--scheduler", f"dask.distributed is missing ({error})", 'pip install "sb3-nopg[cluster]"') from error
    try:
        client = Client(scheduler, timeout=_CONNECTION_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            "--scheduler", f"no Dask scheduler answers at {scheduler} ({one_line(error)})", "Start dask scheduler there"
        ) from error
    with client:
        suspects = []
        for index, outcome in _on_client(client, run, trials, range(len(trials))):
            if isinstance(outcome, Outcome):
                yield outcome
            else:
                suspects.append(index)
        for index in suspects:
            for _ in range(N_RETRIES):
                ((_, outcome),) = _on_client(client, run, trials, [index])
                if isinstance(outcome, Outcome):
                    break
            yield outcome if isinstance(outcome, Outcome) else _lost(run, index, outcome)


def _on_client(client: Any, run: Run, trials: Sequence[Trial], chosen: Sequence[int]) -> Iterator[tuple[int, Outcome | str]]:
    """
    :param client: of the cluster
    :param chosen: numbers of the trials to run
    :return: number and outcome, or the reason where its worker was lost
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    indices = {client.submit(run_one, run, index, trials[index], pure=False): index for index in chosen}
    # Fetched as soon as they are there: what a worker still holds is lost with it.
    for future, outcome in as_completed(list(indices), loop=client.loop, with_results=True, raise_errors=False):
        # Not kept, or the cluster would compute it again when the worker that had done it is lost.
        index = indices.pop(future)
        if future.status == "finished":
            yield index, outcome
            continue
        reason = future.exception()
        if not isinstance(reason, KilledWorker):
            raise InputError(
                "--scheduler", f"a worker cannot run the trial ({one_line(reason)})", "Install sb3-nopg there too"
            ) from reason
        yield index, one_line(reason)
