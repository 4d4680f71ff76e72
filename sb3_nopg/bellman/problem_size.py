"""
How much memory a run takes, worked out before it starts.

Nearly all of it is spent on pairs of a query and one of its neighbours: k for each of m = n·N + n₀ queries. With b bytes a
number (8 in float64, 4 in float32), d_a action dimensions and a draws of the action at each state a pair takes

    8 + b (1 + d_a)          its sample's number, log state kernel and neighbour's action
    2 b + 12                 P̂ by rows and by columns, and the way from one to the other
    8                        both once more in float32, where b is 8 and there are 2²⁰ pairs or more
    a (b + 1) + b            during an update: ε, a look at whether it is finite, the neighbours' values
    b                        its mean, where a > 1 or N > 1 or weights are local-linear
    c b                      for these, where c = (d_s + 1) (d_s + 2) / 2, or 4 with d_s = 1, is ≤ 2 a: powers of the way to
                             the neighbour's state

and a query what the policy network remembers of it for the backward pass and, with local-linear weights, what corrects them
for each of its actions. With all samples as neighbours there are no numbers of samples and P̂ is one dense matrix. The
rest is vectors of one number a transition, the data, and room to work in.
"""

import os
from dataclasses import dataclass, replace

import numpy as np
import torch as th

from sb3_nopg.bellman.settings import EstimatorSettings
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.memory import free_memory
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.kernels.displacements import n_kept_powers, worth_keeping

# Solutions of past updates, the solvers' vectors, cells of the coarse settings.
_VECTORS = 40
# Blocks of rows, coarse model and search, at the most; local-linear weights keep as much again on a processor.
_WORKING_BYTES = {"cpu": 2**26, "cuda": 6 * 2**30}
# Where "auto" begins: what it needs beyond that it finds out later, and it stops by itself.
_AUTO_STARTS_AT = 32
_SINGLE_COPIES_FROM = 2**20


@dataclass(frozen=True)
class ProblemSize:
    """
    What memory depends on.

    :param n: transitions
    :param n_queries: of one process, m
    :param n_neighbors: k; None for all samples
    :param d_s: state dimensions
    :param d_a: action dimensions
    :param n_action_samples: a; one for a deterministic policy
    :param n_next_state_samples: N
    :param n_bytes: of a number, b
    :param local_linear: whether weights are corrected to first order
    :param n_units: of the policy network, those of all layers
    :param device: "cpu" or "cuda"
    """

    n: int
    n_queries: int
    n_neighbors: int | None
    d_s: int
    d_a: int
    n_action_samples: int = 1
    n_next_state_samples: int = 1
    n_bytes: int = 8
    local_linear: bool = False
    n_units: int = 51
    device: str = "cpu"

    @property
    def n_pairs(self) -> int:
        return self.n_queries * (self.n if self.n_neighbors is None else min(self.n_neighbors, self.n))

    @property
    def bytes_a_pair(self) -> int:
        """See the formula above."""
        a, b = self.n_action_samples, self.n_bytes
        per_pair = b * (1 + self.d_a) + a * (b + 1) + b
        if a > 1 or self.n_next_state_samples > 1 or self.local_linear:
            per_pair += b
        if self.local_linear and worth_keeping(self.d_s, a):
            per_pair += n_kept_powers(self.d_s) * b
        if self.n_neighbors is None:
            return per_pair + b
        single = 8 if b == 8 and self.n_pairs >= _SINGLE_COPIES_FROM else 0
        return per_pair + 8 + 2 * b + 12 + single

    @property
    def bytes_besides(self) -> int:
        """All that does not grow with the number of neighbours."""
        data = self.n * (2 * self.d_s + self.d_a + 2) * (8 + 8 + self.n_bytes)
        vectors = self.n * _VECTORS * self.n_bytes
        # An activation and its derivative in float32 for each unit, and the states that the network sees.
        network = self.n_queries * 4 * (2 * self.n_units + 2 * self.d_s)
        actions = self.n_queries * self.n_action_samples * self.d_a * 4 * self.n_bytes
        # Those of the actions and of the states; where they were more than ε, nobody keeps them.
        n_corrections = (self.d_s + 1) ** 2 + (self.d_a + 1) ** 2 if self.local_linear else 0
        if self.n_neighbors is not None and n_corrections >= self.n_neighbors:
            n_corrections = 0
        corrections = self.n_queries * self.n_action_samples * n_corrections * self.n_bytes
        room = _WORKING_BYTES[self.device] * (2 if self.local_linear and self.device == "cpu" else 1)
        return data + vectors + network + actions + corrections + room

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.n_pairs * self.bytes_a_pair + self.bytes_besides


def size_of(
    settings: EstimatorSettings, dataset: TransitionDataset, n_initial_states: int, processes: Processes
) -> ProblemSize:
    """
    :param settings: of the estimate
    :param dataset: to learn from
    :param n_initial_states: n₀
    :param processes: that share the queries
    """
    samples = settings.samples
    n_queries = len(dataset) * samples.n_next_state_samples + n_initial_states
    n_neighbors = _AUTO_STARTS_AT if samples.n_neighbors == "auto" else samples.n_neighbors
    return ProblemSize(
        n=len(dataset),
        n_queries=processes.block_size(n_queries),
        n_neighbors=None if n_neighbors is None else int(n_neighbors),
        d_s=dataset.observation_dim,
        d_a=dataset.action_dim,
        n_action_samples=samples.n_actions_at_queries if settings.is_stochastic else 1,
        n_next_state_samples=samples.n_next_state_samples,
        n_bytes=th.finfo(samples.dtype).bits // 8,
        local_linear=samples.weights == "local_linear",
        n_units=settings.n_units,
        device=settings.device.type if settings.device.type in _WORKING_BYTES else "cpu",
    )


def check_memory(size: ProblemSize, available: int | None) -> None:
    """
    :param size: of the problem
    :param available: bytes; None where nobody knows
    :raises InputError: unless the problem fits, with the number and what to change
    """
    if available is None or size.total <= available:
        return
    k = "all samples" if size.n_neighbors is None else f"{min(size.n_neighbors, size.n)} neighbours"
    raise InputError(
        "dataset",
        f"{size.n} transitions with {k} each take {_readable(size.total)} of memory, and {_readable(available)} are free on "
        f"{size.device}",
        "Give " + ", ".join(_remedies(size, available)),
    )


def _remedies(size: ProblemSize, available: int) -> list[str]:
    """What would make it fit, the mildest first."""
    remedies = []
    n_neighbors = (available - size.bytes_besides) // (size.n_queries * replace(size, n_neighbors=1).bytes_a_pair)
    if n_neighbors >= 8:
        remedies.append(f"n_neighbors={min(int(n_neighbors), 64)}")
    if size.n_bytes == 8 and replace(size, n_bytes=4).total <= available:
        remedies.append("precision='float32'")
    share = available / size.total if size.n_neighbors is not None else np.sqrt(available / size.total)
    remedies.append(f"a subsample of {int(0.9 * share * size.n)} transitions")
    remedies.append("distributed=True with several machines" if size.device == "cpu" else "device='cpu' or distributed=True")
    return remedies


def available_memory(device: th.device) -> int | None:
    """
    :param device: of the computations
    :return: bytes that this process may still take there; None where nobody knows
    """
    if device.type == "cuda":
        free, _ = th.cuda.mem_get_info(device)
        return free + th.cuda.memory_reserved(device) - th.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    # Processes that torchrun starts on one machine share its memory.
    return free_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _readable(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
