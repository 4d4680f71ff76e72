"""
The policy gradient, from the equation to the line.

Equation (9) of the paper, with values q = Λ⁻¹ r, visitation μ = Λ⁻ᵀ ε₀ and Λ = I − γ P̂:

    ∇Ĵ = (∂ε₀ᵀ/∂θ) q + γ μᵀ (∂P̂/∂θ) q

The parameters θ enter ε₀ and P̂ by the policy's actions alone, so that

    ∇Ĵ = Σ_i (∂Ĵ/∂a_i)ᵀ ∂a_i/∂θ,    a_i = π_θ(s_i)

The first factor is written out here, for each of three estimates of Ĵ: on samples as in the paper, on the nodes of a model,
and along trajectories through one. The second is one backward pass through the policy network. Solutions q and μ are held
constant, as the equation has them; that is exact, not an approximation.
"""

import time
from dataclasses import dataclass

import torch as th

from sb3_nopg.bellman.bundle import Bundle, follow_policy
from sb3_nopg.bellman.on_nodes import NodeEquation, NodeSolution, check_actions
from sb3_nopg.bellman.on_samples import BellmanSolution, WarmStart, solve_bellman
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.query_batches import QueryBatch
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import Trajectories, sweep_back
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import remembered


@dataclass(frozen=True)
class SampleGradient:
    """
    Solution and times of a gradient on samples.

    :param solution: of the policy as it was
    :param clock: times at which its stages began, s: policy, weights, solve, derivative, backward pass
    """

    solution: BellmanSolution
    clock: list[float]


def gradient_on_samples(
    problem: BellmanProblem,
    policy: NOPGPolicy,
    action_noise: th.Tensor | None,
    warm_start: WarmStart,
    tolerance: float,
    batch: QueryBatch | None = None,
) -> SampleGradient:
    """
    The paper's ∇Ĵ, added to the gradients of the policy's parameters with a minus, because optimisers descend.

    :param problem: the equation on samples
    :param policy: its parameters get gradients
    :param action_noise: standard normal draws of a stochastic policy, (m, a, d_a)
    :param warm_start: solutions for similar policies; remembers this one's
    :param tolerance: relative residual of the solves
    :param batch: queries to estimate the gradient from; None for all
    """
    clock = [time.perf_counter()]
    with th.set_grad_enabled(batch is None):
        actions = policy_actions(policy, problem, action_noise)
    clock.append(time.perf_counter())
    with th.no_grad():
        weights = problem.support.kernel_weights(problem.queries, actions)
        clock.append(time.perf_counter())
        # q and μ are solutions, not graph nodes: no derivative is taken through the solve.
        solution = solve_bellman(problem, weights, warm_start, tolerance)
        clock.append(time.perf_counter())
        derivative = derivative_on_samples(problem, solution, None if batch is None else batch.chosen)
    if batch is not None:
        noise = None if action_noise is None else action_noise[batch.chosen]
        actions = policy.sample_actions(problem.queries.states[batch.chosen], noise).to(derivative.dtype)
        derivative *= batch.factor
    clock.append(time.perf_counter())
    # The chain rule's last factor, ∂a/∂θ, is the only backward pass.
    actions.backward(-derivative)
    problem.processes.sum_gradients(list(policy.parameters()))
    warm_start.remember(solution)
    problem.coarse_model.grow_older()
    return SampleGradient(solution, clock)


def derivative_on_samples(problem: BellmanProblem, solution: BellmanSolution, chosen: th.Tensor | None = None) -> th.Tensor:
    """
    ∂Ĵ/∂a for the policy's action at every query:

        ∂Ĵ/∂a_i = w_i ∂v_i/∂a_i,    v_i = ε(s_i, a_i)ᵀ q,    w_i = γ c_i μ_i / N at next states, 1/n₀ at start states

    Both terms of equation (9) are in it: the start states' is (∂ε₀ᵀ/∂θ) q, the next states' γ μᵀ (∂P̂/∂θ) q. N next states are
    drawn of each transition, c is 0 after a terminal one and 1 else, and each of several drawn actions has its share of w.

    With kernel weights ε_j ∝ ψ(s_i − s_j) φ((a_i − a_j) / h), ∂v/∂a is a covariance over the samples j:

        h ∂v_i/∂a_i = Σ_j ε_j (q_j − v_i) a_j / h

    It is computed by :func:`sb3_nopg.kernels.weights.action_covariance` for the paper's weights and by
    :mod:`sb3_nopg.kernels.local_linear` for corrected ones; dividing by h is left to the last line here.

    :param problem: the equation
    :param solution: of it
    :param chosen: numbers of the queries to do it for, (b,); None for all
    :return: (m, a, d_a), or (b, a, d_a)
    """
    visitation = problem.processes.own(solution.visitation)
    visits = problem.gamma * problem.continues * visitation / problem.n_next_state_samples
    starts = problem.start_weights
    if starts is None:
        n_starts = len(problem.queries) - problem.n_next_states
        starts = visits.new_full((n_starts,), 1.0 / problem.n_initial_states)
    query_weights = th.cat([visits.repeat_interleave(problem.n_next_state_samples), starts])
    values = solution.q_values
    if problem.worst_value != 0.0:
        # Weights that are missing have the worst value: above it, they have none.
        values = values - problem.worst_value
    queries, kernel_weights = problem.queries, solution.kernel_weights
    if chosen is not None:
        queries, kernel_weights, query_weights = queries.rows(chosen), kernel_weights.of(chosen), query_weights[chosen]
    derivative = problem.support.action_derivative(queries, kernel_weights, values)
    n_actions = derivative.shape[1]
    return derivative * (query_weights / n_actions)[:, None, None] / problem.support.action_bandwidth


def policy_actions(policy: NOPGPolicy, problem: BellmanProblem, action_noise: th.Tensor | None) -> th.Tensor:
    """
    :param policy: asked at every query of the equation
    :param problem: the equation on samples
    :param action_noise: standard normal draws of a stochastic policy, (m, a, d_a)
    :return: with the graph to the policy's parameters, (m, a, d_a)
    """
    actions = policy.sample_actions(problem.queries.states, action_noise).to(problem.rewards.dtype)
    check_actions(actions)
    return actions


def gradient_on_nodes(
    equation: NodeEquation, policy: NOPGPolicy, action_noise: th.Tensor | None, warm_start: WarmStart, tolerance: float
) -> NodeSolution:
    """
    ∇Ĵ on the nodes, added to the gradients of the policy's parameters with a minus.

    :param equation: on the nodes
    :param policy: its parameters get gradients
    :param action_noise: standard normal draws of a stochastic policy, (n, a, d_a)
    :param warm_start: solutions for similar policies; remembers this one's
    :param tolerance: relative residual of the solves
    :return: of the policy as it was
    """
    actions = policy.sample_actions(equation.observations, action_noise).to(equation.initial_weights.dtype)
    with th.no_grad():
        solution = equation.solve(actions.detach(), warm_start, tolerance)
        derivative = derivative_on_nodes(equation, solution)
    actions.backward(-derivative)
    warm_start.q_history.add(solution.values)
    warm_start.visitation_history.add(solution.visitation)
    return solution


def derivative_on_nodes(equation: NodeEquation, solution: NodeSolution) -> th.Tensor:
    """
    ∂Ĵ/∂a for the policy's action at every node:

        ∂Ĵ/∂a_i = μ_i [ ∂r_i/∂a + γ (∂x'_i/∂a)ᵀ ∇_x'( e w + s V̂ )(x'_i) ]

    where the action leads to x', which is unknown ground of the worst value w with probability e, and from which the task goes
    on with probability s and value V̂, interpolated between the nodes (:mod:`sb3_nopg.bellman.on_nodes`).

    :param equation: on the nodes
    :param solution: of it
    :return: (n, a, d_a)
    """
    landing, model, gamma = solution.landing, equation.model, equation.gamma
    crossing, weights, interpolation = landing.crossing, landing.weights, model.nodes.interpolation
    value_there = weights.mean(solution.values)
    # ∇_x'( r + γ e w + γ s V̂ )
    slope = interpolation.pull_back(weights, solution.values[weights.nodes])
    slope = crossing.goes_on[:, None] * slope + value_there[:, None] * crossing.goes_on_slope
    slope = landing.reward.of_next_state + gamma * (slope + equation.worst * crossing.unknown_slope)
    slope = th.where(landing.kept, slope, th.zeros_like(slope))
    n_each = len(landing.applied) // equation.n_nodes
    action_slope = model.nodes.without_past.action_slope[:, : model.coordinates.dim].repeat_interleave(n_each, dim=0)
    of_action = landing.reward.of_action + model.features.pull_back(landing.applied, (slope[:, None] @ action_slope)[:, 0])
    of_action = th.where(landing.asked_for, of_action, th.zeros_like(of_action)).view(equation.n_nodes, n_each, -1)
    return of_action * (solution.visitation / n_each)[:, None, None]


def gradient_along_trajectories(
    model: DynamicsModel, policy: NOPGPolicy, bundle: Bundle, most_weight: float | None = None
) -> Trajectories:
    """
    ∇Ĵ_H along trajectories, the mean of all, added to the gradients of the policy's parameters with a minus:

        ∇Ĵ_H = Σ_t (∂Ĵ_H/∂a_t)ᵀ ∂a_t/∂θ,    ∂Ĵ_H/∂a_t = γᵗ ∂r_t/∂a_t + (∂x_t+1/∂a_t)ᵀ x̄_t+1

    where x̄_t = ∂Ĵ_H/∂x_t is carried back from the last step, with the policy's answer K_t = ∂a_t/∂x_t to a moved state
    (:func:`sb3_nopg.dynamics.trajectories.sweep_back`).

    :param model: of the system
    :param policy: its parameters get gradients
    :param bundle: trajectories to follow
    :param most_weight: of one trajectory's derivative, in medians of all, because unstable ones would dominate the mean; None
        for the gradient as it is
    :return: of the policy as it was
    """
    # K = ∂a/∂o at every state that was passed: what the sweep needs to know of the policy.
    steps = remembered(policy)
    trajectories = follow_policy(model, steps, bundle)
    actions, policy_slopes = steps.answers()
    check_actions(actions)
    shape = trajectories.applied.shape
    policy_slopes = policy_slopes.view(*shape, -1)
    if bundle.friction is not None:
        by_asked_for = bundle.friction.slope(actions.view(shape))
        policy_slopes = policy_slopes * by_asked_for[..., None]
    with th.no_grad():
        derivative = sweep_back(model, trajectories, policy_slopes, bundle.gamma)
        if most_weight is not None:
            size = derivative.square().sum(dim=(0, 2)).sqrt()
            derivative = derivative * (most_weight * size.median() / size.clamp_min(1e-300)).clamp_max(1.0)[:, None]
        if bundle.friction is not None:
            derivative = derivative * by_asked_for
    steps.push_back(-derivative.flatten(0, 1) / shape[1])
    return trajectories


def flat_gradient(outputs: th.Tensor, policy: NOPGPolicy, slope: th.Tensor | None = None) -> th.Tensor:
    """
    :param outputs: with the graph to the policy's parameters: its actions, or a scalar
    :param policy: to differentiate by
    :param slope: of what is sought in the outputs; None where they are what is sought
    :return: in the order of ``policy.parameters()``, whose own gradients stay as they are; zero for those that do not matter,
        (p,)
    """
    parameters = list(policy.parameters())
    gradients = th.autograd.grad(outputs, parameters, slope, allow_unused=True)
    flat = [th.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return th.cat([gradient.reshape(-1) for gradient in flat])
