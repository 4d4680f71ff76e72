"""Small problems in the oracle's form and in the engine's, and policies for them."""

import numpy as np
import pytest
import torch as th

from helpers.oracles import OracleProblem
from sb3_nopg.bellman.on_samples import BellmanSolution, WarmStart, solve_bellman
from sb3_nopg.bellman.problem import BellmanProblem, prepare_problem
from sb3_nopg.kernels.support import Support

VARIATIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"n_terminals": 0, "n_initial": 1}, id="no-terminals-one-start"),
    pytest.param({"n_terminals": 15, "n_initial": 6}, id="many-terminals-six-starts"),
    pytest.param({"n_next_state_samples": 4}, id="four-next-states"),
    pytest.param({"d_a": 3}, id="three-actions"),
    pytest.param({"d_a": 3, "d_s": 4, "n_next_state_samples": 3}, id="three-actions-four-states-three-next-states"),
    pytest.param({"gamma": 0.0}, id="gamma-0"),
    pytest.param({"gamma": 0.999}, id="gamma-0.999"),
    pytest.param({"n_neighbors": 7}, id="seven-neighbours"),
    pytest.param({"n_neighbors": 7, "n_next_state_samples": 3, "d_a": 2}, id="seven-neighbours-three-next-states"),
]


def random_problem(
    seed: int = 0,
    n: int = 30,
    d_s: int = 2,
    d_a: int = 1,
    n_initial: int = 3,
    n_next_state_samples: int = 1,
    n_terminals: int = 4,
    gamma: float = 0.95,
    n_neighbors: int | None = None,
) -> OracleProblem:
    """A small problem without structure: whatever holds for it holds because of the mathematics."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, d_s))
    terminals = np.zeros(n, dtype=bool)
    terminals[:n_terminals] = True
    noise = None if n_next_state_samples == 1 else rng.normal(size=(n_next_state_samples, n, d_s))
    return OracleProblem(
        states=states,
        actions=rng.normal(size=(n, d_a)),
        rewards=rng.normal(size=n) - 2.0,
        next_states=states + 0.3 * rng.normal(size=(n, d_s)),
        terminals=terminals,
        initial_states=rng.normal(size=(n_initial, d_s)),
        state_bandwidth=rng.uniform(0.3, 0.6, size=d_s),
        action_bandwidth=rng.uniform(0.5, 1.0, size=d_a),
        next_state_bandwidth=rng.uniform(0.1, 0.3, size=d_s),
        gamma=gamma,
        next_state_noise=noise,
        n_neighbors=n_neighbors,
    )


def engine_problem(oracle: OracleProblem, **support_arguments: object) -> BellmanProblem:
    """The engine's form of an oracle's problem, in float64."""

    def tensor(array: np.ndarray) -> th.Tensor:
        return th.as_tensor(np.asarray(array, dtype=np.float64))

    noise = None if oracle.next_state_noise is None else tensor(oracle.next_state_noise).transpose(0, 1).contiguous()
    support = Support(
        tensor(oracle.states),
        tensor(oracle.actions),
        tensor(oracle.state_bandwidth),
        tensor(oracle.action_bandwidth),
        **{"n_neighbors": oracle.n_neighbors, **support_arguments},  # type: ignore[arg-type]
    )
    return prepare_problem(
        support,
        tensor(oracle.rewards),
        tensor(oracle.next_states),
        th.as_tensor(oracle.terminals),
        tensor(oracle.initial_states),
        oracle.gamma,
        tensor(oracle.next_state_bandwidth),
        noise,
    )


def evaluate(
    problem: BellmanProblem, actions: th.Tensor, warm_start: WarmStart | None = None, tolerance: float = 1e-8
) -> BellmanSolution:
    """The equation solved for a policy that takes these actions at the queries, (m, a, d_a)."""
    return solve_bellman(problem, problem.support.kernel_weights(problem.queries, actions), warm_start, tolerance)


class TinyPolicy(th.nn.Module):
    """A float64 network for the oracle's convention: actions, or mean and σ."""

    def __init__(self, d_s: int, d_a: int, stochastic: bool, seed: int = 0):
        super().__init__()
        th.manual_seed(seed)
        outputs = 2 * d_a if stochastic else d_a
        self.network = th.nn.Sequential(th.nn.Linear(d_s, 7), th.nn.Tanh(), th.nn.Linear(7, outputs)).double()
        self.stochastic = stochastic

    def forward(self, states: th.Tensor) -> th.Tensor | tuple[th.Tensor, th.Tensor]:
        if not self.stochastic:
            return self.network(states)
        mean, raw = self.network(states).chunk(2, dim=-1)
        return mean, th.sigmoid(raw)

    def sample(self, states: th.Tensor, noise: np.ndarray | None) -> th.Tensor:
        """The engine's convention: (m, a, d_a)."""
        if noise is None:
            return self(states)[:, None, :]
        mean, std = self(states)
        return mean[:, None, :] + std[:, None, :] * th.as_tensor(noise)


def action_noise(oracle: OracleProblem, stochastic: bool, n_samples: int = 5) -> np.ndarray | None:
    """Of a stochastic policy at every query, (m, a, d_a); None for a deterministic one."""
    if not stochastic:
        return None
    n_queries = len(oracle.states) * oracle.n_next_state_samples + len(oracle.initial_states)
    return np.random.default_rng(99).normal(size=(n_queries, n_samples, oracle.actions.shape[1]))
