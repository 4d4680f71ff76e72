"""
Trajectories through the model, and the derivative of what they earn with respect to every action on the way.

    Ĵ_H = Σ_{t<H} γᵗ S_t ( r̂_t + γ e_t w ) + γᴴ S_H V̂(x_H),      S_{t+1} = S_t s_t

S_t is the probability of still going on, e_t that of leaving what is known, which has the worst value w. A step may also cost
something beside its reward (see costs.py). The derivative is a reverse sweep through the affine maps, written out here. A
policy enters by its derivative ∂a/∂o at the states that were passed; of its parameters the sweep knows nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.bounds import Crossing
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.interpolation import Weights
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.stepping import Stepper

#: observations (m, d_s) and the number of the step to actions (m, d_a)
Act = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class EndValue:
    """
    V̂ where trajectories are left.

    :param weights: of the nodes
    :param of_nodes: V, (n,)
    """

    weights: Weights
    of_nodes: th.Tensor


@dataclass(frozen=True)
class Trajectories:
    """
    m trajectories of H steps.

    :param observations: before each step, (H, m, d_s)
    :param states: before each step, and after the last, (H + 1, m, d)
    :param applied: actions within their range, (H, m, d_a)
    :param asked_for: which of them the policy asked for as they are, (H, m, d_a)
    :param earlier: actions and changes of the steps before each, the last one first, (H, m, n_earlier · (d_a + d))
    :param nearest: node of each field of maps next to each state, (H, m, f)
    :param kept: coordinates of the states after each step that the bounds left alone, (H, m, d)
    :param rewards: r̂, (H, m)
    :param costs: of each step beside its reward, (H, m)
    :param costs_by: what these are made of
    :param crossing: of the bounds after each step, (H · m)
    :param survival: S, probability of still going on before each step, and after the last, (H + 1, m)
    :param returns: Ĵ_H of each, (m,)
    :param end_value: V̂ at the last states; None without
    """

    observations: th.Tensor
    states: th.Tensor
    applied: th.Tensor
    asked_for: th.Tensor
    earlier: th.Tensor
    nearest: th.Tensor
    kept: th.Tensor
    rewards: th.Tensor
    costs: th.Tensor
    costs_by: Costs
    crossing: Crossing
    survival: th.Tensor
    returns: th.Tensor
    end_value: EndValue | None


@dataclass(frozen=True)
class Path:
    """
    Where m trajectories of H steps went.

    :param observations: before each step, (H, m, d_s)
    :param states: before each step, and after the last, (H + 1, m, d)
    :param applied: actions within their range, (H, m, d_a)
    :param earlier: actions and changes of the steps before each, the last one first, (H, m, n_earlier · (d_a + d))
    :param nearest: node of each field of maps next to each state, (H, m, f)
    :param local_rewards: r̂ before it is cut to its range, where the nodes know it, (H, m, 0) or (H, m, 1)
    """

    observations: th.Tensor
    states: th.Tensor
    applied: th.Tensor
    earlier: th.Tensor
    nearest: th.Tensor
    local_rewards: th.Tensor


def step_through(
    model: DynamicsModel,
    act: Act,
    starts: th.Tensor,
    n_steps: int,
    noise: th.Tensor | None = None,
    earlier: th.Tensor | None = None,
) -> Path:
    """
    :param model: of the system
    :param act: the policy
    :param starts: states, (m, d)
    :param n_steps: H
    :param noise: added to the next states, (H, m, d)
    :param earlier: what the steps before the starts did, (m, n_earlier · (d_a + d)); None for rest
    """
    stepper, device = Stepper(model), starts.device
    draws = None if noise is None else noise.cpu().numpy()
    situation = stepper.begin(starts.cpu().numpy(), None if earlier is None else earlier.cpu().numpy())
    tape: list[tuple[np.ndarray, ...]] = []
    for t in range(n_steps):
        seen = stepper.observe(situation.states)
        applied = stepper.applied(np.asarray(act(seen, t), dtype=np.float64))
        before = situation
        situation, local_rewards = stepper.step(before, applied, None if draws is None else draws[t])
        tape.append((seen, before.states, applied, before.earlier, before.nearest, local_rewards))
    observations, states, *others = (th.from_numpy(np.stack(column)).to(device) for column in zip(*tape, strict=True))
    last = th.from_numpy(situation.states).to(device)
    return Path(observations, th.cat([states, last[None]]), *others)


def weigh(
    model: DynamicsModel, path: Path, gamma: float, node_values: th.Tensor | None = None, costs_by: Costs | None = None
) -> Trajectories:
    """
    What the steps of a path earn, and how likely each is to be reached.

    :param model: that it went through
    :param path: from :func:`step_through`
    :param gamma: discount
    :param node_values: V at the nodes, (n,), for what follows the last step; None for nothing
    :param costs_by: what steps cost beside their reward; None for nothing
    """
    n_steps, costs_by = len(path.applied), costs_by or Costs()
    rewards = _rewards(model, path)
    costs = costs_by.of_steps(rewards, path.applied, _span(*model.action_range), path.states[1:], model.bounds)
    crossing = model.bounds.cross(path.states[1:].flatten(0, 1))
    going_on = crossing.goes_on.view(n_steps, -1)
    survival = th.cat([th.ones_like(going_on[:1]), going_on]).cumprod(dim=0)
    discounts = gamma ** th.arange(n_steps, dtype=survival.dtype, device=survival.device)
    gained = rewards - costs + gamma * model.worst_value(gamma) * crossing.unknown.view(n_steps, -1)
    returns = (discounts[:, None] * survival[:-1] * gained).sum(dim=0)
    end_value = None
    if node_values is not None:
        last, interpolation = path.states[-1], model.nodes.interpolation
        end_value = EndValue(interpolation.weights(last, interpolation.locate(last)), node_values)
        returns = returns + gamma**n_steps * survival[-1] * end_value.weights.mean(node_values)
    return Trajectories(
        **{name: getattr(path, name) for name in ("observations", "states", "applied", "earlier", "nearest")},
        asked_for=model.asked_for(path.applied),
        kept=model.bounds.left_alone(path.states[1:]),
        rewards=rewards,
        costs=costs,
        costs_by=costs_by,
        crossing=crossing,
        survival=survival,
        returns=returns,
        end_value=end_value,
    )


def sweep_back(model: DynamicsModel, trajectories: Trajectories, policy_slopes: th.Tensor, gamma: float) -> th.Tensor:
    """
    ∂Ĵ_H/∂a for every action of every trajectory, with the policy's answer to moved states taken into account.

    :param model: that they went through
    :param trajectories: from :func:`weigh`
    :param policy_slopes: K = ∂a/∂o at every step, (H, m, d_a, d_s)
    :param gamma: discount
    :return: (H, m, d_a)
    """
    steps = _step_slopes(model, trajectories)
    by_state, by_action, by_earlier, by_next_state = _direct_slopes(model, trajectories, steps, gamma)
    d, n_past = by_state.shape[2], by_earlier.shape[2]
    # What the next step remembers of this one: its action, and x' − x.
    n_actions, n_step = by_action.shape[2], by_action.shape[2] + d
    slopes = th.cat([steps.state, steps.earlier, steps.action], dim=3)[:, :, :d]
    # One step after the other, each little work: in NumPy, as in stepping.py.
    of_state, of_action, of_earlier, of_next_state, jacobians, answers, kept, asked_for = (
        part.cpu().numpy()
        for part in (
            by_state,
            by_action,
            by_earlier,
            by_next_state,
            slopes,
            _in_coordinates(model, trajectories, policy_slopes),
            trajectories.kept,
            trajectories.asked_for,
        )
    )
    x_bar, found = _from_the_end(model, trajectories, gamma).cpu().numpy(), np.empty_like(of_action)
    earlier_bar = np.zeros_like(of_earlier[0])
    for t in reversed(range(len(found))):
        # By x', which the next step remembers a second time.
        arrived, changed = x_bar + of_next_state[t], earlier_bar[:, n_actions:n_step]
        if n_past:
            arrived += changed
        arrived *= kept[t]
        through = np.einsum("mi,mij->mj", arrived, jacobians[t])
        found[t] = of_action[t] + through[:, d + n_past :]
        if n_past:
            found[t] += earlier_bar[:, :n_actions]
        found[t] *= asked_for[t]
        # By x: along the step, and by the action that answers it.
        x_bar = of_state[t] + arrived + through[:, :d] + np.einsum("ma,maj->mj", found[t], answers[t])
        if n_past:
            x_bar -= changed
            remembered, earlier_bar = earlier_bar[:, n_step:], of_earlier[t] + through[:, d : d + n_past]
            earlier_bar[:, : n_past - n_step] += remembered
    return th.from_numpy(found).to(by_action.device)


def _in_coordinates(model: DynamicsModel, trajectories: Trajectories, policy_slopes: th.Tensor) -> th.Tensor:
    """∂a/∂x at every step from ∂a/∂o, (H, m, d_a, d)."""
    slopes = policy_slopes.to(trajectories.states.dtype)
    states = trajectories.states[:-1, :, None].expand(-1, -1, slopes.shape[2], -1)
    return model.coordinates.pull_back(states, slopes)


def draw_noise(model: DynamicsModel, n_steps: int, n: int, generator: th.Generator) -> th.Tensor:
    """
    What predictions have missed, drawn again for each step.

    :param generator: on the processor, whatever the model's device, so that all devices get the same draws
    :return: (n_steps, n, d)
    """
    chosen = th.randint(len(model.noise), (n_steps, n), generator=generator)
    return model.noise[chosen.to(model.noise.device)]


def _span(low: th.Tensor, high: th.Tensor) -> th.Tensor:
    return th.where(high > low, high - low, th.ones_like(low))


def _rewards(model: DynamicsModel, path: Path) -> th.Tensor:
    """(H, m)."""
    if model.reward is None:
        return path.local_rewards[..., 0].clamp(*model.reward_range)
    flat = (part.flatten(0, 1) for part in (path.states[:-1], path.applied, path.states[1:]))
    return model.reward(*flat).view(path.applied.shape[:2])


@dataclass(frozen=True)
class _Slopes:
    """
    Of one step alone, in all trajectories at once.

    :param state: ∂f/∂x of the change, and of the reward where the nodes know it, (H, m, t, d)
    :param action: ∂f/∂a, (H, m, t, d_a)
    :param earlier: ∂f/∂(earlier steps), (H, m, t, n_earlier · (d_a + d))
    """

    state: th.Tensor
    action: th.Tensor
    earlier: th.Tensor


def _step_slopes(model: DynamicsModel, trajectories: Trajectories) -> _Slopes:
    shape = trajectories.applied.shape[:2]
    states, applied = trajectories.states[:-1].flatten(0, 1), trajectories.applied.flatten(0, 1)
    inputs, size = th.cat([model.features(applied), trajectories.earlier.flatten(0, 1)], dim=1), model.features.size
    of_states, of_inputs = model.nodes.slopes(states, inputs, trajectories.nearest.flatten(0, 1))
    n_targets = of_states.shape[1]
    of_features, of_earlier = of_inputs[..., :size].flatten(0, 1), of_inputs[..., size:]
    of_action = model.features.pull_back(applied.repeat_interleave(n_targets, dim=0), of_features)
    return _Slopes(*(part.reshape(*shape, n_targets, -1) for part in (of_states, of_action, of_earlier)))


def _direct_slopes(
    model: DynamicsModel, trajectories: Trajectories, slopes: _Slopes, gamma: float
) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor]:
    """What Ĵ_H gains by x, a, earlier steps and x' of each step, all else where it is, (H, m, …) each."""
    crossing, survival = trajectories.crossing, trajectories.survival
    n_steps, m = trajectories.rewards.shape
    discounts = gamma ** th.arange(n_steps, dtype=survival.dtype, device=survival.device)[:, None]
    weight, worst = discounts * survival[:-1], model.worst_value(gamma)
    of_next = (gamma * worst * weight)[..., None] * crossing.unknown_slope.view(n_steps, m, -1)
    of_going = _of_going(trajectories, discounts, gamma * worst, gamma)
    of_next = of_next + (survival[:-1] * of_going)[..., None] * crossing.goes_on_slope.view(n_steps, m, -1)
    of_state, of_action, of_earlier, of_next_state = _reward_slopes(model, trajectories, slopes)
    costs_by, next_states = trajectories.costs_by, trajectories.states[1:]
    lost = costs_by.share_lost(next_states, model.bounds) * (trajectories.rewards > 0.0)
    scaled = (weight * (1.0 - lost))[..., None]
    cost_of_action, cost_of_next = costs_by.slopes(
        weight, trajectories.rewards, trajectories.applied, _span(*model.action_range), next_states, model.bounds
    )
    return (
        scaled * of_state,
        scaled * of_action - cost_of_action,
        scaled * of_earlier,
        of_next + scaled * of_next_state - cost_of_next,
    )


def _of_going(trajectories: Trajectories, discounts: th.Tensor, after_leaving: float, gamma: float) -> th.Tensor:
    """∂Ĵ/∂S after each step: S̄_t = γᵗ (r̂_t + γ e_t w) + S̄_{t+1} s_t, from the end, (H, m)."""
    n_steps, m = trajectories.rewards.shape
    gained = discounts * (
        trajectories.rewards - trajectories.costs + after_leaving * trajectories.crossing.unknown.view(n_steps, m)
    )
    going_on, end = trajectories.crossing.goes_on.view(n_steps, m), trajectories.end_value
    last = th.zeros_like(gained[0]) if end is None else gamma**n_steps * end.weights.mean(end.of_nodes)
    bar, gains, shares = (part.cpu().numpy() for part in (last, gained, going_on))
    found = np.empty_like(gains)
    for t in reversed(range(n_steps)):
        found[t] = bar
        bar = gains[t] + bar * shares[t]
    return th.from_numpy(found).to(gained.device)


def _reward_slopes(
    model: DynamicsModel, trajectories: Trajectories, slopes: _Slopes
) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor]:
    """Of r̂ with respect to x, a, earlier steps and x', (H, m, …) each."""
    d, (low, high) = model.coordinates.dim, model.reward_range
    if model.reward is None:
        # On the edge of the range it is cut off.
        counts = ((trajectories.rewards > low) & (trajectories.rewards < high))[..., None]
        local = (part[:, :, d] * counts for part in (slopes.state, slopes.action, slopes.earlier))
        return *local, th.zeros_like(trajectories.states[1:])  # type: ignore[return-value]
    flat = (part.flatten(0, 1) for part in (trajectories.states[:-1], trajectories.applied, trajectories.states[1:]))
    reward, shape = model.reward.with_slopes(*flat), trajectories.rewards.shape
    of_state, of_action, of_next = (
        part.view(*shape, -1) for part in (reward.of_state, reward.of_action, reward.of_next_state)
    )
    return of_state, of_action, th.zeros_like(trajectories.earlier), of_next


def _from_the_end(model: DynamicsModel, trajectories: Trajectories, gamma: float) -> th.Tensor:
    """∂Ĵ/∂x_H, (m, d)."""
    end = trajectories.end_value
    if end is None:
        return th.zeros_like(trajectories.states[-1])
    slope = model.nodes.interpolation.pull_back(end.weights, end.of_nodes[end.weights.nodes])
    return (gamma ** len(trajectories.rewards) * trajectories.survival[-1])[:, None] * slope
