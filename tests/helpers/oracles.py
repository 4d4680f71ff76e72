"""
The paper's formulas, slow and obvious, in float64: what the fast engine is tested against.

Everything here is written twice. ``evaluate_loops`` follows the paper line by line in Python loops over NumPy arrays.
``autograd_return`` does the same densely in torch, so that a test can differentiate through every step, the linear solve
included. Nothing here imports the package under test.

A policy is a callable on a float64 tensor of states, (m, d_s):

- deterministic (``action_noise`` is None): it returns the actions, (m, d_a);
- stochastic (``action_noise`` given): it returns a tuple (mean, std) whose parts broadcast to (m, d_a), and the sampled
  actions at query number ``c`` are ``mean[c] + std[c] * action_noise[c]``, where ``action_noise[c]`` is (A, d_a).

Queries are counted in this order, with N Monte-Carlo next states for each of the n transitions: sample m of transition i is
query ``i * N + m``, terminal transitions included, and start state j is query ``n * N + j``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch as th

Policy = Callable[[th.Tensor], th.Tensor | tuple[th.Tensor, th.Tensor]]


@dataclass(frozen=True)
class OracleProblem:
    """
    A data set, its kernels and a discount factor: all that the return of a policy depends on. NumPy float64 throughout.

    :param states: s_i, (n, d_s)
    :param actions: a_i, (n, d_a)
    :param rewards: r_i, (n,)
    :param next_states: s'_i, (n, d_s)
    :param terminals: true where transition i ended the episode for good, (n,)
    :param initial_states: start states, (n_0, d_s)
    :param state_bandwidth: standard deviation of the kernel ψ, (d_s,)
    :param action_bandwidth: standard deviation of the kernel φ (varphi), (d_a,)
    :param next_state_bandwidth: standard deviation of the kernel ϕ (phi), (d_s,)
    :param gamma: discount factor, 0 <= γ < 1
    :param next_state_noise: standard normal draws, (N, n, d_s): the Monte-Carlo next states are
        ``next_states[i] + next_state_bandwidth * next_state_noise[m, i]``. None: one sample, the kernel's mean s'_i
    :param n_neighbors: at every query keep only this many support points, the nearest in ``states / state_bandwidth``.
        None: all of them, as in the paper
    :param local_linear: correct the weights to first order; only the dense and differentiable form does
    :param pessimism: κ: weights are multiplied by M / (M + κ), M = Σ_j exp(−½‖(s, a) − (s_j, a_j)‖²) in units of the
        bandwidths; with what is missing, the process falls into a state that pays (1 − γ) · worst_value forever
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray
    initial_states: np.ndarray
    state_bandwidth: np.ndarray
    action_bandwidth: np.ndarray
    next_state_bandwidth: np.ndarray
    gamma: float
    next_state_noise: np.ndarray | None = None
    n_neighbors: int | None = None
    local_linear: bool = False
    pessimism: float = 0.0

    @property
    def worst_value(self) -> float:
        """The least of zero, the rewards that ended an episode, and each other reward received forever."""
        candidates = [0.0]
        for reward, ended in zip(self.rewards, self.terminals, strict=True):
            candidates.append(float(reward) if ended else float(reward) / (1.0 - self.gamma))
        return min(candidates)

    @property
    def n_transitions(self) -> int:
        """n, the number of transitions."""
        return len(self.states)

    @property
    def n_next_state_samples(self) -> int:
        """N, the number of Monte-Carlo next states for each transition."""
        return 1 if self.next_state_noise is None else len(self.next_state_noise)

    def sampled_next_state(self, transition: int, sample: int) -> np.ndarray:
        """One Monte-Carlo next state, a draw from ϕ_i, (d_s,)."""
        if self.next_state_noise is None:
            return self.next_states[transition]
        return self.next_states[transition] + self.next_state_bandwidth * self.next_state_noise[sample, transition]


@dataclass(frozen=True)
class OracleSolution:
    """
    A policy, evaluated. NumPy float64 throughout.

    :param transition: P̂_π, without γ; row i starts at s'_i, column j is support point j, (n, n)
    :param initial_weights: ε_π,0, (n,)
    :param q: q_π = Λ⁻¹ r, (n,)
    :param mu: μ_π = Λ⁻ᵀ ε_π,0, (n,)
    :param estimated_return: Ĵ_π = ε_π,0ᵀ q_π
    """

    transition: np.ndarray
    initial_weights: np.ndarray
    q: np.ndarray
    mu: np.ndarray
    estimated_return: float


# --- Single points, in loops ---------------------------------------------------------------------------------------------


def gaussian_log_kernel(x: np.ndarray, center: np.ndarray, bandwidth: np.ndarray) -> float:
    """
    Logarithm of the normalised Gaussian kernel, a product over dimensions.

    :param x: where the kernel is evaluated, (d,)
    :param center: where it is centred, (d,)
    :param bandwidth: standard deviations, (d,)
    :return: log density
    """
    log_kernel = 0.0
    for k in range(len(x)):
        log_kernel += -0.5 * ((x[k] - center[k]) / bandwidth[k]) ** 2 - np.log(bandwidth[k] * np.sqrt(2.0 * np.pi))
    return log_kernel


def responsibilities(
    state: np.ndarray,
    action: np.ndarray,
    states: np.ndarray,
    actions: np.ndarray,
    state_bandwidth: np.ndarray,
    action_bandwidth: np.ndarray,
) -> np.ndarray:
    """
    Weight of each support point at one query, ψ_j(s) φ_j(a) / Σ_l ψ_l(s) φ_l(a), normalised in log space.

    :param state: (d_s,)
    :param action: (d_a,)
    :param states: support, (n, d_s)
    :param actions: support, (n, d_a)
    :param state_bandwidth: (d_s,)
    :param action_bandwidth: (d_a,)
    :return: weights that sum to one, (n,)
    """
    n_support = len(states)
    log_weights = np.zeros(n_support)
    for j in range(n_support):
        log_weights[j] = gaussian_log_kernel(state, states[j], state_bandwidth)
        log_weights[j] += gaussian_log_kernel(action, actions[j], action_bandwidth)
    # Subtracting the largest keeps a query far from all data from becoming 0/0.
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def nearest_rows(queries: np.ndarray, states: np.ndarray, bandwidth: np.ndarray, k: int) -> np.ndarray:
    """
    The k support points nearest to each query in the metric scaled by 1/bandwidth, nearest first, ties by row number.

    :param queries: (m, d_s)
    :param states: support, (n, d_s)
    :param bandwidth: (d_s,)
    :param k: how many, at most n
    :return: row numbers, (m, k)
    """
    rows = np.zeros((len(queries), k), dtype=np.int64)
    for i in range(len(queries)):
        squared_distances = [float((((queries[i] - states[j]) / bandwidth) ** 2).sum()) for j in range(len(states))]
        rows[i] = np.argsort(squared_distances, kind="stable")[:k]
    return rows


def truncated_mass(queries: np.ndarray, states: np.ndarray, bandwidth: np.ndarray, k: int) -> np.ndarray:
    """
    Relative state-kernel mass that is lost when only the k nearest support points are kept:
    Σ_{j dropped} ψ_j(s) / Σ_{all j} ψ_j(s), which does not depend on any policy.

    :param queries: (m, d_s)
    :param states: support, (n, d_s)
    :param bandwidth: (d_s,)
    :param k: how many are kept, at most n
    :return: between zero and one, (m,)
    """
    kept = nearest_rows(queries, states, bandwidth, k)
    dropped_mass = np.zeros(len(queries))
    for i in range(len(queries)):
        log_kernels = np.array([gaussian_log_kernel(queries[i], states[j], bandwidth) for j in range(len(states))])
        kernels = np.exp(log_kernels - log_kernels.max())
        # Summed over the dropped points, not one minus the kept ones: a mass of 1e-20 must not round to zero.
        dropped = [kernels[j] for j in range(len(states)) if j not in kept[i]]
        dropped_mass[i] = sum(dropped) / kernels.sum()
    return dropped_mass


def policy_responsibilities(
    problem: OracleProblem, policy: Policy, state: np.ndarray, action_noise: np.ndarray | None = None
) -> np.ndarray:
    """
    ε_π(s) at one state. For a stochastic policy the *normalised* weights are averaged over the sampled actions.

    :param problem: where the support and the kernels come from
    :param policy: see the head of this file
    :param state: (d_s,)
    :param action_noise: this query's noise, (A, d_a), or None for a deterministic policy
    :return: weights that sum to one, or with pessimism to less, (n,)
    """
    rows: Iterable[int] = range(problem.n_transitions)
    if problem.n_neighbors is not None:
        rows = nearest_rows(state[None], problem.states, problem.state_bandwidth, problem.n_neighbors)[0]
    rows = list(rows)

    actions = _actions_at_one_state(policy, state, action_noise)
    average = np.zeros(problem.n_transitions)
    for action in actions:
        weights = responsibilities(
            state,
            action,
            problem.states[rows],
            problem.actions[rows],
            problem.state_bandwidth,
            problem.action_bandwidth,
        )
        mass = 0.0
        for j in rows:
            state_distance = (((state - problem.states[j]) / problem.state_bandwidth) ** 2).sum()
            action_distance = (((action - problem.actions[j]) / problem.action_bandwidth) ** 2).sum()
            mass += np.exp(-0.5 * (state_distance + action_distance))
        confidence = 1.0 if problem.pessimism == 0.0 else mass / (mass + problem.pessimism)
        average[rows] += confidence * weights
    return average / len(actions)


def _actions_at_one_state(policy: Policy, state: np.ndarray, action_noise: np.ndarray | None) -> list[np.ndarray]:
    """The policy's action at a state, or its A sampled actions, each (d_a,)."""
    with th.no_grad():
        output = policy(th.as_tensor(state, dtype=th.float64)[None])
    if action_noise is None:
        assert isinstance(output, th.Tensor), "a deterministic policy returns actions; a stochastic one needs action_noise"
        return [output[0].numpy()]
    assert isinstance(output, tuple), "action_noise is for a policy that returns (mean, std)"
    mean, std = (np.broadcast_to(part.numpy(), (1, action_noise.shape[-1]))[0] for part in output)
    return [mean + std * noise for noise in action_noise]


# --- Evaluation, in loops ------------------------------------------------------------------------------------------------


def evaluate_loops(problem: OracleProblem, policy: Policy, action_noise: np.ndarray | None = None) -> OracleSolution:
    """
    Theorem 1 and the definitions around it, in loops, with dense NumPy solves.

    :param problem: what is known
    :param policy: see the head of this file
    :param action_noise: (n * N + n_0, A, d_a), or None for a deterministic policy
    :return: the policy, evaluated
    """
    n, n_samples, n_initial = problem.n_transitions, problem.n_next_state_samples, len(problem.initial_states)

    # P̂_ij = ∫ ϕ_i(s') ε_j(s') ds', an average over N draws from ϕ_i; nothing follows a terminal transition.
    transition = np.zeros((n, n))
    for i in range(n):
        if problem.terminals[i]:
            continue
        for m in range(n_samples):
            noise = None if action_noise is None else action_noise[i * n_samples + m]
            next_state = problem.sampled_next_state(i, m)
            transition[i] += policy_responsibilities(problem, policy, next_state, noise) / n_samples

    # ε_π,0 = ∫ μ₀(s) ε_π(s) ds
    initial_weights = np.zeros(n)
    for j in range(n_initial):
        noise = None if action_noise is None else action_noise[n * n_samples + j]
        initial_weights += policy_responsibilities(problem, policy, problem.initial_states[j], noise) / n_initial

    if problem.pessimism == 0.0:
        bellman_operator = np.eye(n) - problem.gamma * transition
        q = np.linalg.solve(bellman_operator, problem.rewards)
        mu = np.linalg.solve(bellman_operator.T, initial_weights)
        return OracleSolution(transition, initial_weights, q, mu, float(initial_weights @ q))

    # The last state takes what the rows lack, and keeps it.
    chain, rewards = np.zeros((n + 1, n + 1)), np.zeros(n + 1)
    chain[:n, :n], chain[n, n] = transition, 1.0
    rewards[:n], rewards[n] = problem.rewards, (1.0 - problem.gamma) * problem.worst_value
    for i in range(n):
        chain[i, n] = 0.0 if problem.terminals[i] else 1.0 - transition[i].sum()
    start = np.append(initial_weights, 1.0 - initial_weights.sum())
    bellman_operator = np.eye(n + 1) - problem.gamma * chain
    q = np.linalg.solve(bellman_operator, rewards)
    mu = np.linalg.solve(bellman_operator.T, start)
    return OracleSolution(transition, initial_weights, q[:n], mu[:n], float(start @ q))


def value(
    problem: OracleProblem,
    solution: OracleSolution,
    policy: Policy,
    states: np.ndarray,
    action_noise: np.ndarray | None = None,
) -> np.ndarray:
    """
    V̂_π(s) = ε_π(s)ᵀ q_π, and the worst value where weights are missing.

    :param problem: the problem that was solved
    :param solution: its solution under this policy
    :param policy: see the head of this file
    :param states: queries, (m, d_s)
    :param action_noise: (m, A, d_a), or None for a deterministic policy
    :return: (m,)
    """
    values = _weighted_at(problem, policy, states, action_noise, solution.q)
    if problem.pessimism == 0.0:
        return values
    missing = 1.0 - _weighted_at(problem, policy, states, action_noise, np.ones(problem.n_transitions))
    return values + missing * problem.worst_value


def state_distribution(
    problem: OracleProblem,
    solution: OracleSolution,
    policy: Policy,
    states: np.ndarray,
    action_noise: np.ndarray | None = None,
) -> np.ndarray:
    """
    ε_π(s)ᵀ μ_π, the paper's estimate of where the policy goes (figure "muv"). It is not normalised over states.

    :param problem: the problem that was solved
    :param solution: its solution under this policy
    :param policy: see the head of this file
    :param states: queries, (m, d_s)
    :param action_noise: (m, A, d_a), or None for a deterministic policy
    :return: (m,)
    """
    return _weighted_at(problem, policy, states, action_noise, solution.mu)


def _weighted_at(
    problem: OracleProblem, policy: Policy, states: np.ndarray, action_noise: np.ndarray | None, coefficients: np.ndarray
) -> np.ndarray:
    """ε_π(s)ᵀ c at each of the states, (m,)."""
    result = np.zeros(len(states))
    for i in range(len(states)):
        noise = None if action_noise is None else action_noise[i]
        result[i] = policy_responsibilities(problem, policy, states[i], noise) @ coefficients
    return result


# --- Evaluation, dense and differentiable --------------------------------------------------------------------------------


def evaluate(problem: OracleProblem, policy: Policy, action_noise: np.ndarray | None = None) -> OracleSolution:
    """
    The same as :func:`evaluate_loops`, dense in torch: quicker, and the graph that the gradient goes through.

    :param problem: what is known
    :param policy: see the head of this file
    :param action_noise: (n * N + n_0, A, d_a), or None for a deterministic policy
    :return: the policy, evaluated
    """
    n = problem.n_transitions
    with th.no_grad():
        transition, initial_weights = _dense_weights(problem, policy, action_noise)
        bellman_operator, rewards, start = _with_worst_state(problem, transition, initial_weights)
        q = th.linalg.solve(bellman_operator, rewards)
        mu = th.linalg.solve(bellman_operator.T, start)
    return OracleSolution(transition.numpy(), initial_weights.numpy(), q[:n].numpy(), mu[:n].numpy(), float(start @ q))


def autograd_return(problem: OracleProblem, policy: Policy, action_noise: np.ndarray | None = None) -> th.Tensor:
    """
    Ĵ_π = ε_π,0ᵀ (I − γ P̂_π)⁻¹ r as a float64 scalar, differentiable in whatever the policy depends on.

    :param problem: what is known
    :param policy: see the head of this file
    :param action_noise: (n * N + n_0, A, d_a), or None for a deterministic policy
    :return: ()
    """
    transition, initial_weights = _dense_weights(problem, policy, action_noise)
    bellman_operator, rewards, start = _with_worst_state(problem, transition, initial_weights)
    return start @ th.linalg.solve(bellman_operator, rewards)


def _with_worst_state(
    problem: OracleProblem, transition: th.Tensor, initial_weights: th.Tensor
) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """
    The process with one state more, which takes what rows lack and keeps it, paying (1 − γ) · worst_value forever.

    :return: Λ (n + 1, n + 1), rewards (n + 1,), start (n + 1,)
    """
    if problem.pessimism == 0.0:
        return (
            th.eye(len(transition), dtype=th.float64) - problem.gamma * transition,
            _tensor(problem.rewards),
            initial_weights,
        )
    goes_on = 1.0 - _tensor(problem.terminals)
    chain = th.cat([transition, (goes_on - transition.sum(dim=1))[:, None]], dim=1)
    forever = _tensor(np.eye(len(transition) + 1)[-1:])
    bellman_operator = th.eye(len(transition) + 1, dtype=th.float64) - problem.gamma * th.cat([chain, forever])
    rewards = _tensor(np.append(problem.rewards, (1.0 - problem.gamma) * problem.worst_value))
    return bellman_operator, rewards, th.cat([initial_weights, (1.0 - initial_weights.sum())[None]])


def autograd_gradient(
    problem: OracleProblem,
    policy: Policy,
    parameters: Iterable[th.Tensor],
    action_noise: np.ndarray | None = None,
) -> th.Tensor:
    """
    ∇_θ Ĵ_π by automatic differentiation: the paper's closed-form gradient, found without using it.

    :param problem: what is known
    :param policy: see the head of this file
    :param parameters: leaf tensors that the policy reads
    :param action_noise: (n * N + n_0, A, d_a), or None for a deterministic policy
    :return: all parameters' gradients, flattened one after the other, (p,)
    """
    parameters = list(parameters)
    estimated_return = autograd_return(problem, policy, action_noise)
    gradients = th.autograd.grad(estimated_return, parameters, allow_unused=True)
    # A parameter that the return does not depend on has gradient zero.
    return th.cat(
        [
            th.zeros(parameter.numel(), dtype=th.float64) if gradient is None else gradient.reshape(-1)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )


def finite_difference_gradient(
    problem: OracleProblem,
    policy: Policy,
    parameters: Iterable[th.Tensor],
    action_noise: np.ndarray | None = None,
    step: float = 1e-6,
) -> th.Tensor:
    """
    ∇_θ Ĵ_π by central differences. Parameters are changed in place, one entry at a time, and put back.

    :param problem: what is known
    :param policy: see the head of this file
    :param parameters: float64 leaf tensors that the policy reads
    :param action_noise: (n * N + n_0, A, d_a), or None for a deterministic policy
    :param step: half the distance between the two evaluations
    :return: all parameters' gradients, flattened one after the other, (p,)
    """
    differences = []
    for parameter in parameters:
        entries = parameter.detach().view(-1)  # shares memory with the parameter
        for k in range(len(entries)):
            original = entries[k].item()
            entries[k] = original + step
            above = evaluate(problem, policy, action_noise).estimated_return
            entries[k] = original - step
            below = evaluate(problem, policy, action_noise).estimated_return
            entries[k] = original
            differences.append((above - below) / (2.0 * step))
    return th.tensor(differences, dtype=th.float64)


def _tensor(array: np.ndarray) -> th.Tensor:
    """The array as a float64 tensor."""
    return th.as_tensor(array, dtype=th.float64)


def _dense_weights(problem: OracleProblem, policy: Policy, action_noise: np.ndarray | None) -> tuple[th.Tensor, th.Tensor]:
    """P̂_π, (n, n), and ε_π,0, (n,), differentiable in the policy."""
    n, n_samples = problem.n_transitions, problem.n_next_state_samples
    next_states = [problem.sampled_next_state(i, m) for i in range(n) for m in range(n_samples)]
    queries = np.concatenate([np.stack(next_states), problem.initial_states])  # (n * N + n_0, d_s)

    weights = _dense_responsibilities(problem, policy, queries, action_noise)  # (n * N + n_0, n)
    transition = weights[: n * n_samples].reshape(n, n_samples, n).mean(dim=1)
    goes_on = 1.0 - _tensor(problem.terminals)
    return transition * goes_on[:, None], weights[n * n_samples :].mean(dim=0)


def _dense_responsibilities(
    problem: OracleProblem, policy: Policy, queries: np.ndarray, action_noise: np.ndarray | None
) -> th.Tensor:
    """ε_π at each of the query states, (m, n), differentiable in the policy."""
    output = policy(_tensor(queries))
    if action_noise is None:
        assert isinstance(output, th.Tensor), "a deterministic policy returns actions; a stochastic one needs action_noise"
        sampled_actions = output[:, None, :]  # (m, 1, d_a)
    else:
        assert isinstance(output, tuple), "action_noise is for a policy that returns (mean, std)"
        noise = _tensor(action_noise)
        assert len(noise) == len(queries), f"action_noise has {len(noise)} rows for {len(queries)} queries"
        mean, std = (part.expand(len(queries), noise.shape[-1]) for part in output)
        sampled_actions = mean[:, None, :] + std[:, None, :] * noise  # (m, A, d_a)
    assert sampled_actions.dtype == th.float64, "the oracle's policies are float64"

    # The kernels' normalising constants are the same in every column and drop out of the softmax.
    state_differences = (_tensor(queries)[:, None, :] - _tensor(problem.states)) / _tensor(problem.state_bandwidth)
    log_state_kernel = -0.5 * (state_differences**2).sum(dim=-1)  # (m, n)
    if problem.n_neighbors is not None:
        kept = nearest_rows(queries, problem.states, problem.state_bandwidth, problem.n_neighbors)
        dropped = th.ones_like(log_state_kernel, dtype=th.bool)
        dropped[th.arange(len(queries))[:, None], th.as_tensor(kept)] = False
        log_state_kernel = log_state_kernel.masked_fill(dropped, -th.inf)
    action_differences = (sampled_actions[:, :, None, :] - _tensor(problem.actions)) / _tensor(problem.action_bandwidth)
    log_action_kernel = -0.5 * (action_differences**2).sum(dim=-1)  # (m, A, n)

    log_kernel = log_state_kernel[:, None, :] + log_action_kernel
    weights = th.softmax(log_kernel, dim=-1)  # normalised for each action ...
    if problem.local_linear:
        # Actions first: where the samples cannot meet both, the state matters more.
        weights = _corrected_to_first_order(weights, -action_differences)
        weights = _corrected_to_first_order(weights, -state_differences[:, None])
    if problem.pessimism > 0.0:
        mass = th.logsumexp(log_kernel, dim=-1, keepdim=True).exp()
        weights = weights * (mass / (mass + problem.pessimism))
    return weights.mean(dim=1)  # ... and averaged only then


def _corrected_to_first_order(weights: th.Tensor, delta: th.Tensor) -> th.Tensor:
    """
    ℓ_j ∝ w_j max(1 + bᵀδ_j, 0.02) with b = −(E_w[δδᵀ] + 0.01 I)⁻¹ E_w[δ], by explicit inversion.

    :param weights: w, (m, A, n)
    :param delta: δ, (m, 1 or A, n, d)
    """
    first = (weights[..., None] * delta).sum(dim=2)
    second = (weights[..., None, None] * delta[..., None] * delta[..., None, :]).sum(dim=2)
    slope = -th.linalg.inv(second + 0.01 * th.eye(delta.shape[-1], dtype=th.float64)) @ first[..., None]
    corrected = weights * th.clamp(1.0 + (delta @ slope)[..., 0], min=0.02)
    return corrected / corrected.sum(dim=-1, keepdim=True)
