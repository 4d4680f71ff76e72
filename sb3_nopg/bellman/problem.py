"""
What the Bellman equation on a fixed data set is made of, prepared once; :mod:`.bellman.on_samples` solves it for one policy
after another.
"""

from dataclasses import dataclass, field, replace

import torch as th

from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.bellman.solvers.recording import Recordings
from sb3_nopg.bellman.transition import SharedTransitionMatrix, TransitionMatrix
from sb3_nopg.common.processes import Processes
from sb3_nopg.kernels.queries import Queries
from sb3_nopg.kernels.support import Support


@dataclass(frozen=True)
class BellmanProblem:
    """
    All of the equation that does not depend on the policy. Build it with :func:`prepare_problem`.

    Where several processes share it, queries and rows of P̂ are those of this process, and all else is whole.

    :param support: the samples
    :param queries: states where the policy acts: N sampled next states of transition 0, of transition 1, …, then the n₀
        start states; m = n·N + n₀
    :param rewards: r, (n,)
    :param continues: zero for a terminal transition, one for any other, for each row of P̂, (n,)
    :param all_continue: whether no transition is terminal
    :param gamma: discount
    :param n_next_state_samples: N
    :param transition: structure of P̂, refilled for every policy
    :param coarse_model: what makes the solves fast, refreshed now and then
    :param n_initial_states: n₀, of all processes
    :param worst_value: w, what a policy gets where weights are missing
    :param start_weights: how much each start state counts, (n₀,); None: all the same, one together
    :param processes: that share the queries and the rows of P̂
    :param recordings: of the solvers' iterations, on a GPU
    :param order: which transition of the data each sample here is, (n,); None where it is the data's own order
    """

    support: Support
    queries: Queries
    rewards: th.Tensor
    continues: th.Tensor
    all_continue: bool
    gamma: float
    n_next_state_samples: int
    transition: TransitionMatrix
    coarse_model: CoarseModel
    n_initial_states: int
    worst_value: float = 0.0
    start_weights: th.Tensor | None = None
    processes: Processes = field(default_factory=Processes)
    recordings: Recordings = field(default_factory=Recordings)
    order: th.Tensor | None = None

    @property
    def n_next_states(self) -> int:
        """How many of the queries are next states; the others are start states."""
        return len(self.continues) * self.n_next_state_samples

    @property
    def n_queries(self) -> int:
        """m, of all processes."""
        return len(self.rewards) * self.n_next_state_samples + self.n_initial_states

    @property
    def n_entries(self) -> int:
        """Pairs of query and neighbour in one process; the same number for all, because rounding may depend on it."""
        return self.processes.block_size(self.n_queries) * self.queries.neighbors.n_neighbors

    def to_data_order(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: one number a sample, (n,)
        :return: one a transition, as the data has them
        """
        return x if self.order is None else th.empty_like(x).index_copy_(0, self.order, x)

    def from_data_order(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: one number a transition, as the data has them, (n,)
        :return: one a sample, as they are here
        """
        return x if self.order is None else x.index_select(0, self.order)

    def own_queries(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: something for each query of all processes, (m, …)
        :return: that of this process's queries
        """
        if not self.processes.several:
            return x
        n, n_samples = len(self.rewards), self.n_next_state_samples
        rows = self.processes.own_rows(n)
        return th.cat([x[rows.start * n_samples : rows.stop * n_samples], self.processes.own(x[n * n_samples :])])


def prepare_problem(
    support: Support,
    rewards: th.Tensor,
    next_observations: th.Tensor,
    terminals: th.Tensor,
    initial_states: th.Tensor,
    gamma: float,
    next_state_bandwidth: th.Tensor,
    next_state_noise: th.Tensor | None = None,
    processes: Processes | None = None,
) -> BellmanProblem:
    """
    Find the neighbour lists and lay out P̂. Dtype and device are those of the tensors given.

    :param support: the samples
    :param rewards: r, (n,)
    :param next_observations: s', (n, d_s)
    :param terminals: boolean, (n,)
    :param initial_states: (n₀, d_s)
    :param gamma: discount
    :param next_state_bandwidth: of the next-state kernel ϕ, (d_s,)
    :param next_state_noise: standard normal draws for the next states, (n, N, d_s); None: the kernel's mean, s' itself
    :param processes: that share the queries; None for one alone
    """
    processes = processes or Processes()
    processes.check_rows(len(rewards))
    next_states, n_next_state_samples = processes.own(next_observations), 1
    if next_state_noise is not None:
        n_next_state_samples = next_state_noise.shape[1]
        noise = processes.own(next_state_noise)
        next_states = (next_states[:, None, :] + next_state_bandwidth * noise).flatten(0, 1)
    queries = _locate_alike(support, th.cat([next_states, processes.own(initial_states)]), processes)
    columns, continues = None, 1.0 - processes.own(terminals).to(rewards.dtype)
    if queries.neighbors.indices is not None:
        columns = queries.neighbors.indices[: len(next_states)].reshape(len(continues), -1)
    return BellmanProblem(
        support=support,
        queries=queries,
        rewards=rewards,
        continues=continues,
        all_continue=not bool(terminals.any()),
        gamma=gamma,
        n_next_state_samples=n_next_state_samples,
        transition=_lay_out(columns, rewards, processes),
        coarse_model=CoarseModel(next_observations / support.state_bandwidth, processes.several),
        worst_value=_worst_value(rewards, terminals, gamma) if support.pessimism > 0.0 else 0.0,
        n_initial_states=len(initial_states),
        processes=processes,
    )


def _locate_alike(support: Support, states: th.Tensor, processes: Processes) -> Queries:
    """Neighbours of this process's states, as many as those of any other process need."""
    queries = support.locate(states)
    longest = int(processes.largest(queries.neighbors.n_neighbors))
    if longest == queries.neighbors.n_neighbors:
        return queries
    return replace(support, n_neighbors=longest).locate(states)


def _lay_out(columns: th.Tensor | None, rewards: th.Tensor, processes: Processes) -> TransitionMatrix:
    if processes.several:
        return SharedTransitionMatrix(columns, len(rewards), rewards.dtype, rewards.device, processes)
    return TransitionMatrix(columns, len(rewards), rewards.dtype, rewards.device)


def _worst_value(rewards: th.Tensor, terminals: th.Tensor, gamma: float) -> float:
    """
    The least that a policy can get by what the data has seen: that the task ends, with the worst reward of all its ends or
    with none, or that it goes on forever with the worst reward of all else.
    """
    return min(0.0, float(th.where(terminals, rewards, rewards / (1.0 - gamma)).min()))
