"""
Kernel value iteration: the best that the data knows, on the lists that the policy gradient uses.

The weights at a state are a function of the action taken there. With a handful of candidate actions the nonparametric Bellman
equation becomes a small decision problem with an optimum that iteration always finds (kernel-based reinforcement learning;
Ormoneit and Sen, 2002).
"""

from dataclasses import dataclass

import torch as th

from sb3_nopg.bellman.problem import BellmanProblem

# Weights held at one time, for all queries and candidates: 1 GB in float64. More are computed again in every round.
_MOST_WEIGHTS = 2**27
_ROUNDS, _SWEEPS = 60, 40
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class CandidateChoice:
    """
    What value iteration ends with.

    :param candidates: actions considered at every state, (c, d_a)
    :param q_values: of the samples when the best candidates follow, (n,)
    :param action_values: of each candidate at each query, (m, c)
    :param estimated_return: mean over the start states
    :param n_rounds: rounds until no choice changed
    """

    candidates: th.Tensor
    q_values: th.Tensor
    action_values: th.Tensor
    estimated_return: float
    n_rounds: int


@th.no_grad()
def iterate_candidate_values(problem: BellmanProblem, candidates: th.Tensor) -> CandidateChoice:
    """
    Choose the best candidate everywhere, evaluate that choice for a while, choose again, until no choice changes.

    :param problem: the equation
    :param candidates: (c, d_a)
    """
    n, rewards, worst = len(problem.rewards), problem.rewards, problem.worst_value
    weights = _CandidateWeights(problem, candidates)
    discount = problem.gamma * problem.continues
    q_values = (rewards.mean() / (1.0 - problem.gamma)).expand(n)
    chosen = weights.values(q_values).argmax(dim=1)
    n_rounds = 0
    while n_rounds < _ROUNDS:
        n_rounds += 1
        rows = weights.rows(chosen)
        for _ in range(_SWEEPS):
            # What a pessimist's row lacks has the worst value.
            values = worst + (rows * problem.queries.neighbors.gather(q_values - worst)).sum(dim=1)
            next_values = values[: problem.n_next_states].view(n, problem.n_next_state_samples).mean(dim=1)
            before, q_values = q_values, rewards + discount * next_values
            settled = float((q_values - before).abs().max()) <= _TOLERANCE * float(q_values.abs().max())
            if settled:
                break
        action_values = weights.values(q_values)
        best = action_values.argmax(dim=1)
        if settled and bool((best == chosen).all()):
            break
        chosen = best
    estimated_return = float(action_values.max(dim=1).values[problem.n_next_states :].mean())
    return CandidateChoice(candidates, q_values, action_values, estimated_return, n_rounds)


class _CandidateWeights:
    """What neighbours count at each query under each candidate: kept where memory allows, else computed when asked for."""

    def __init__(self, problem: BellmanProblem, candidates: th.Tensor):
        self._problem, self._candidates = problem, candidates
        m, k = problem.queries.neighbors.log_state_kernel.shape
        self._blocks = list(th.arange(m, device=candidates.device).split(max(1, _MOST_WEIGHTS // (len(candidates) * k))))
        self._kept = self._compute(self._blocks[0]) if len(self._blocks) == 1 else None

    def values(self, q_values: th.Tensor) -> th.Tensor:
        """Of each candidate at each query, (m, c)."""
        worst = self._problem.worst_value
        above_worst = self._problem.queries.neighbors.gather(q_values - worst)
        return worst + th.cat([th.einsum("mck,mk->mc", self._of(block), above_worst[block]) for block in self._blocks])

    def rows(self, chosen: th.Tensor) -> th.Tensor:
        """
        :param chosen: number of a candidate for each query, (m,)
        :return: (m, k)
        """
        return th.cat([th.take_along_dim(self._of(block), chosen[block, None, None], dim=1)[:, 0] for block in self._blocks])

    def _of(self, block: th.Tensor) -> th.Tensor:
        return self._compute(block) if self._kept is None else self._kept

    def _compute(self, block: th.Tensor) -> th.Tensor:
        """(rows, c, k)."""
        queries = self._problem.queries.rows(block)
        return self._problem.support.weights(queries, self._candidates.expand(len(block), -1, -1))
