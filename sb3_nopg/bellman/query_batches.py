"""
An estimate of the policy gradient from some of the queries.

The gradient is a sum over queries, Σ_i w_i (∂v_i/∂a_i)ᵀ ∂π_θ(s_i)/∂θ. Values and visitation need all of them, but the sum need
not: over a batch drawn uniformly, m/b times its part of the sum has the whole sum as its mean.
"""

from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.bellman.problem import BellmanProblem


@dataclass(frozen=True)
class QueryBatch:
    """
    :param chosen: numbers of the queries among those of this process, (b_i,)
    :param factor: m / b, what makes their part of the sum an estimate of all of it
    """

    chosen: th.Tensor
    factor: float


def draw_queries(problem: BellmanProblem, batch_size: int, seed: tuple[int, int]) -> QueryBatch:
    """
    Without repetition, all subsets being equally likely.

    :param problem: the equation
    :param batch_size: b; all queries if there are no more
    :param seed: the model's and the number of the update: the same two give the same batch, also in a resumed run and whatever
        the number of processes
    """
    n_queries = problem.n_queries
    size = min(batch_size, n_queries)
    drawn = np.zeros(n_queries, dtype=bool)
    drawn[np.random.default_rng(seed).choice(n_queries, size, replace=False)] = True
    own = problem.own_queries(th.from_numpy(drawn))
    return QueryBatch(own.nonzero()[:, 0].to(problem.rewards.device), n_queries / size)
