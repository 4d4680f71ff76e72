"""The processes that share the rows of P̂, and what they exchange. One process alone exchanges nothing."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch as th
import torch.distributed as dist

from sb3_nopg.common.errors import InputError


class ProcessLostError(RuntimeError):
    """Another process of a distributed run ended, or did not answer in time, or this one was told to end."""


class Processes:
    """
    Rows are shared in blocks of equal size, the last one shorter: process 0 computes the first block, process 1 the next.

    Vectors over all samples are kept whole in every process, because they are small beside the rows and because all processes
    must come to the same decisions, of the solvers for one. So every method below gives the same bits to all of them.

    :param rank: number of this process
    :param n_processes: how many there are
    :param device: where tensors to exchange must lie
    """

    # Whether to end at the next exchange, and which process was told. A signal is for the whole program, so for all models.
    told_to_end: ClassVar[bool] = False
    noted_by: ClassVar[int | None] = None

    def __init__(self, rank: int = 0, n_processes: int = 1, device: th.device | None = None):
        self.rank, self.n_processes = rank, n_processes
        self._device = device or th.device("cpu")
        # The data that all were found to share.
        self.agreed_on: Any = None
        # What to tell a user whose run breaks off.
        self.last_checkpoint: str | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.n_processes > 1

    def block_size(self, n_rows: int) -> int:
        """
        :param n_rows: of all processes together
        :return: how many each but the last has
        """
        return -(-n_rows // self.n_processes)

    def check_rows(self, n_rows: int) -> None:
        """:raises InputError: where a process would be left without a row"""
        if n_rows <= self.block_size(n_rows) * (self.n_processes - 1):
            raise InputError("distributed", f"{n_rows} transitions for {self.n_processes} processes", "Start fewer processes")

    def own_rows(self, n_rows: int) -> slice:
        """
        :param n_rows: of all processes together
        :return: those of this process
        """
        size = self.block_size(n_rows)
        return slice(min(self.rank * size, n_rows), min((self.rank + 1) * size, n_rows))

    def own(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: (n, …)
        :return: the rows of this process
        """
        return x[self.own_rows(len(x))]

    def gather(self, own: th.Tensor, n_rows: int) -> th.Tensor:
        """
        :param own: the rows of this process
        :param n_rows: of all processes together, n
        :return: those of all, (n, …)
        """
        if not self.several:
            return own
        size = self.block_size(n_rows)
        if len(own) < size:
            own = th.cat([own, own.new_zeros(size - len(own), *own.shape[1:])])
        everything = own.new_empty(size * self.n_processes, *own.shape[1:])
        self._exchange(lambda: dist.all_gather(list(everything.split(size)), own.contiguous()))
        return everything[:n_rows]

    def concatenate(self, own: th.Tensor) -> th.Tensor:
        """
        :param own: any number of rows, (m_i, …)
        :return: those of all processes, one process after the other
        """
        if not self.several:
            return own
        counts = self.gather(th.tensor([len(own)], device=own.device), self.n_processes).tolist()
        size = max(counts)
        padded = th.cat([own, own.new_zeros(size - len(own), *own.shape[1:])])
        blocks = self.gather(padded, size * self.n_processes).split(size)
        return th.cat([block[:count] for block, count in zip(blocks, counts, strict=True)])

    def sum(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: this process's part of a sum; overwritten
        :return: the sum over all processes
        """
        if self.several:
            self._exchange(lambda: dist.all_reduce(x))
        return x

    def largest(self, value: float) -> float:
        """
        :param value: of this process
        :return: the largest of all
        """
        if not self.several:
            return value
        values = th.tensor([value], dtype=th.float64, device=self._device)
        self._exchange(lambda: dist.all_reduce(values, dist.ReduceOp.MAX))
        return float(values)

    def all_agree(self, yes: bool) -> bool:
        """
        :param yes: whether this process agrees
        :return: whether all do
        """
        return self.largest(0.0 if yes else 1.0) == 0.0

    def sum_gradients(self, parameters: list[th.nn.Parameter]) -> None:
        """
        :param parameters: whose gradients to replace by the sums over all processes
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self.several or not gradients:
            return
        # One message instead of many small ones.
        total = self.sum(th.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def from_main(self, make: Callable[[], Any]) -> Any:
        """
        :param make: called in the main process only
        :return: what it made there, in every process
        """
        if not self.several:
            return make()
        return self.gather_objects(make() if self.is_main else None)[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """
        :param value: of this process; small
        :return: those of all processes, in the order of their numbers
        """
        if not self.several:
            return [value]
        everyone: list[Any] = [None] * self.n_processes
        self._exchange(lambda: dist.all_gather_object(everyone, value))
        return everyone

    def _exchange(self, call: Callable[[], Any]) -> None:
        if self.told_to_end:
            raise ProcessLostError(self._lost("was told to end (SIGTERM): another one has ended, or someone stops the run"))
        try:
            call()
        except RuntimeError as error:
            lost = self._lost("lost contact with another one, which has ended or does not answer")
            raise ProcessLostError(f"{lost} ({error})") from error

    def _lost(self, what: str) -> str:
        resume = (
            f"Resume from {self.last_checkpoint}"
            if self.last_checkpoint
            else "There is no checkpoint to resume from: NOPGCheckpointCallback would write some"
        )
        return (
            f"Process {self.rank} of {self.n_processes} {what}, so training ends here. "
            f"The output of the process that ended first tells why. {resume}."
        )
