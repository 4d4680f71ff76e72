"""
An iteration recorded on a GPU and played back: all its small steps at the cost of starting one.

A CUDA graph repeats the same work in the same memory. So what it reads, the matrix and the preconditioner, must stay where it
is: a matrix that is refilled in place does, a new preconditioner needs a new recording.
"""

import logging

import torch as th

from sb3_nopg.bellman.solvers import fused_bicgstab
from sb3_nopg.bellman.solvers.bicgstab import Iteration, Vectors, iterate
from sb3_nopg.bellman.solvers.solution import LinearMap
from sb3_nopg.common import gpu_kernels as fused

_logger = logging.getLogger(__name__)
# What a library sets up at its first call cannot be recorded.
_WARM_UPS = 2


class RecordedIteration:
    """
    The same as :class:`sb3_nopg.bellman.solvers.bicgstab.PlainIteration`, on a GPU.

    :param operator: x ↦ A x
    :param preconditioner: x ↦ M⁻¹ x; None for x itself
    :param like: a vector of the right length, precision and device
    """

    def __init__(self, operator: LinearMap, preconditioner: LinearMap | None, like: th.Tensor):
        self._vectors = Vectors(*(th.zeros_like(like) for _ in range(4)))
        self._fused = fused_bicgstab.Numbers(like) if fused.usable(like, 1) else None
        self._numbers = like.new_zeros(4) if self._fused is None else self._fused.told
        self._graph = th.cuda.CUDAGraph()
        with th.cuda.device_of(like):
            side = th.cuda.Stream()
            side.wait_stream(th.cuda.current_stream())
            with th.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    self._work(operator, preconditioner)
            th.cuda.current_stream().wait_stream(side)
            # Whatever other threads do on the GPU at the time is no part of it.
            with th.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                self._work(operator, preconditioner)

    def _work(self, operator: LinearMap, preconditioner: LinearMap | None) -> None:
        if self._fused is not None:
            fused_bicgstab.iterate(operator, preconditioner, self._vectors, self._fused)
            return
        rho, *numbers = map(th.as_tensor, iterate(operator, preconditioner, self._vectors, self._numbers[-1]))
        th.stack([*numbers, rho], out=self._numbers)

    def begin(self, value: th.Tensor, residual: th.Tensor) -> None:
        """See :class:`sb3_nopg.bellman.solvers.bicgstab.Iteration`."""
        self._vectors.value.copy_(value)
        for vector in (self._vectors.residual, self._vectors.shadow, self._vectors.direction):
            vector.copy_(residual)
        self._numbers[-1].copy_(th.dot(residual, residual))

    def step(self, n_times: int = 1) -> list[float]:
        """See :class:`sb3_nopg.bellman.solvers.bicgstab.Iteration`."""
        with th.cuda.device_of(self._numbers):
            for _ in range(n_times):
                self._graph.replay()
        return self._numbers.tolist()

    @property
    def is_dear_to_read(self) -> bool:
        """It is a GPU's."""
        return True

    @property
    def value(self) -> th.Tensor:
        """A copy, which stays as it is."""
        return self._vectors.value.clone()


class Recordings:
    """Recorded iterations of the systems that a problem has, by name."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[object, ...], Iteration]] = {}
        self._impossible = False

    def __reduce__(self) -> tuple[type["Recordings"], tuple[()]]:
        # A copy, or what comes from a file, starts with none: recordings belong to the memory they were made in.
        return Recordings, ()

    def iteration(
        self,
        name: str,
        operator: LinearMap,
        preconditioner: LinearMap | None,
        made_of: tuple[object, ...],
        like: th.Tensor,
    ) -> Iteration | None:
        """
        :param name: of the system
        :param operator: x ↦ A x, always the same for this name
        :param preconditioner: x ↦ M⁻¹ x; None for x itself
        :param made_of: all that operator and preconditioner read: where one of these is another object, so is the recording
        :param like: a vector of the right length, precision and device
        :return: None where there is no GPU, or nothing can be recorded on it
        """
        if not like.is_cuda or self._impossible:
            return None
        if name not in self._kept or not _the_same(self._kept[name][0], made_of):
            # The old one first: there need not be room for both.
            self._kept.pop(name, None)
            try:
                self._kept[name] = made_of, RecordedIteration(operator, preconditioner, like)
            except th.cuda.OutOfMemoryError:
                return None  # there may be room for it another time
            except RuntimeError as error:
                self._impossible = True
                _logger.warning("The solver's iterations could not be recorded and run step by step: %s", error)
                return None
        return self._kept[name][1]


def _the_same(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Equal numbers, and not only equal but the very same objects."""
    return len(first) == len(second) and all(
        one == other if isinstance(one, float) else one is other for one, other in zip(first, second, strict=True)
    )
