"""Trajectories through the model, and the reverse sweep along them, against autograd and against differences."""

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import (
    bends_along_the_first,
    bent_reward,
    cart,
    held_by_friction,
    linear,
    linear_reward,
    on_circle,
    pendulum,
    pendulum_reward,
    pendulum_with_friction,
    pendulum_with_top_speed,
    record,
    truth,
    two_forces,
)
from sb3_nopg import DynamicsModel
from sb3_nopg.bellman.bundle import Bundle, Friction
from sb3_nopg.bellman.gradient import gradient_along_trajectories
from sb3_nopg.common.errors import SolverError
from sb3_nopg.dynamics.costs import Costs
from sb3_nopg.dynamics.stepping import Stepper
from sb3_nopg.dynamics.trajectories import Path, Trajectories, draw_noise, step_through, sweep_back, weigh
from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
)

pytestmark = pytest.mark.slow

BOTH_COSTS = Costs(change=0.3, distance=0.2)
GAMMA, N_STEPS, N_NODES = 0.97, 12, 80


# Models of pendulums, by their names.
SWUNG: dict[str, tuple[Any, dict[str, Any]]] = {
    "angle, local reward": (pendulum, {"n_nodes": N_NODES, "bandwidth": 0.7, "n_earlier_steps": 0}),
    "stops": (pendulum_with_top_speed, {"n_nodes": N_NODES}),
}


def off_the_rail(state: np.ndarray) -> bool:
    return abs(state[0]) > 1.0


@functools.cache
def model_of(name: str) -> DynamicsModel:
    if name.startswith("dry friction"):
        return model_with_friction(name)
    if name in SWUNG:
        advance, options = SWUNG[name]
        return DynamicsModel.fit(record(advance, pendulum_reward, start=(3.1, 3.0), observe=on_circle), **options)
    data = record(cart, start=(0.8, 0.8))
    if name == "ends, quadratic reward":
        return DynamicsModel.fit(record(cart, start=(0.8, 0.8), ends=off_the_rail), n_nodes=N_NODES, n_earlier_steps=0)
    if name == "two actions and their products":
        return DynamicsModel.fit(record(two_forces, d_a=2), n_nodes=N_NODES, n_earlier_steps=0)
    if name.endswith("one map"):
        return DynamicsModel.fit(record(linear, linear_reward, delay=int(name != "one map")), n_nodes=N_NODES)
    if name == "two earlier actions of two":
        return DynamicsModel.fit(record(two_forces, d_a=2, delay=2, length=20), n_nodes=N_NODES, n_earlier_steps=2)
    if name == "earlier action, angle":
        data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle, delay=1)
        return DynamicsModel.fit(data, n_nodes=N_NODES, bandwidth=0.7, n_earlier_steps=1)
    if name == "maps of several kinds":
        data = record(bends_along_the_first, bent_reward, n_episodes=30, start=(1.0, 1.0, 1.0))
        return DynamicsModel.fit(data, n_nodes=4 * N_NODES, n_earlier_steps=0)
    if name == "limits":
        return DynamicsModel.fit(data, n_nodes=N_NODES, limits={0: (-0.6, 0.6), 1: (None, 0.9)}, n_earlier_steps=0)
    assert name == "given reward"
    reward = "cos(2 * s2[0]) - 0.1 * a**2 + 0.2 * s[1] * s2[1]"
    return DynamicsModel.fit(data, n_nodes=N_NODES, reward=reward, n_earlier_steps=0)


def model_with_friction(name: str) -> DynamicsModel:
    if name == "dry friction":
        data = record(held_by_friction, start=(3.0, 0.3), n_episodes=40)
        return DynamicsModel.fit(data, n_nodes=N_NODES, bandwidth=math.inf)
    data = record(pendulum_with_friction, pendulum_reward, start=(3.1, 2.0), n_episodes=40, observe=on_circle, delay=1)
    return DynamicsModel.fit(data, n_nodes=N_NODES, n_earlier_steps=1)


TRACEABLE = [
    "angle, local reward",
    "ends, quadratic reward",
    "two actions and their products",
    "one map",
    "one earlier action, one map",
    "two earlier actions of two",
    "earlier action, angle",
    "maps of several kinds",
    "dry friction",
    "dry friction, angle, earlier action",
    "limits",
    "stops",
]


def test_the_models_are_what_their_names_say():
    assert model_of("angle, local reward").reward is None
    assert not model_of("angle, local reward").nodes.single
    assert model_of("ends, quadratic reward").bounds.has_ends
    assert model_of("two actions and their products").choices.products
    assert model_of("one map").nodes.single
    assert model_of("one earlier action, one map").choices.n_earlier_steps == 1
    assert model_of("two earlier actions of two").nodes.fields[0].maps.action_slope.shape[2] >= 10
    assert model_of("earlier action, angle").choices.n_earlier_steps == 1
    assert model_of("earlier action, angle").coordinates.round.any()
    several = model_of("maps of several kinds").nodes
    assert len(several.fields) > 1
    assert several.order.tolist() != sorted(several.order.tolist())
    assert len(model_of("limits").bounds.limit_columns) == 2
    assert len(model_of("stops").choices.stops) == 2
    assert model_of("dry friction").nodes.single
    around = model_of("dry friction, angle, earlier action")
    assert around.coordinates.round.any()
    for model in (model_of("dry friction"), around):
        assert len(model.nodes.friction) == 1


def policy_for(model: DynamicsModel, stochastic: bool = False, size: float = 3.0):
    """A network that moves actions beyond their range now and then."""
    th.manual_seed(0)
    kind = GaussianMlpPolicy if stochastic else DeterministicMlpPolicy
    # A wider space than the model's actions, so that some are cut off.
    observation_space = spaces.Box(-9, 9, (len(model.coordinates.fixed),))
    action_space = spaces.Box(-1.5, 1.5, (len(model.action_range[0]),))
    policy = kind(observation_space, action_space, lambda _: 1e-3, net_arch=[10], activation_fn=th.nn.Tanh).double()
    with th.no_grad():
        policy.network[-1].weight.mul_(size)
    return policy


def bundle_for(
    model: DynamicsModel, stochastic: bool = False, ends_with_values: bool = True, costs_by: Costs = BOTH_COSTS
) -> Bundle:
    generator = th.Generator().manual_seed(1)
    m = 10
    starts = model.nodes.states[th.randperm(len(model.nodes), generator=generator)[:m]] * 0.9
    noise = 0.02 * th.randn(N_STEPS, m, model.coordinates.dim, generator=generator, dtype=th.float64)
    drawn = th.randn(N_STEPS, m, len(model.action_range[0]), generator=generator, dtype=th.float64)
    values = th.randn(len(model.nodes), generator=generator, dtype=th.float64)
    return Bundle(
        starts,
        N_STEPS,
        GAMMA,
        noise,
        drawn if stochastic else None,
        values if ends_with_values else None,
        costs_by,
    )


def traced(model: DynamicsModel, act, bundle: Bundle) -> Trajectories:
    """The same trajectories with autograd looking on: the model's own maps, one step after the other, in torch."""
    d = model.coordinates.dim
    states = bundle.starts
    earlier = model.past_at_rest(states) if bundle.earlier is None else bundle.earlier
    visited, tape = [states], []
    for t in range(bundle.n_steps):
        seen = model.coordinates.decode(states)
        nearest = model.nodes.locate(states.detach())
        applied = model.clip(act(seen, t))
        change = model.nodes.evaluate(states, th.cat([model.features(applied), earlier], dim=1), nearest)
        tape.append((seen, applied, earlier, nearest, change[:, d:]))
        moved = model.bounds.hold(states + change[:, :d] + bundle.noise[t])
        earlier = th.cat([applied, moved - states, earlier], dim=1)[:, : earlier.shape[1]]
        states = moved
        visited.append(states)
    observations, *others = (th.stack(column) for column in zip(*tape, strict=True))
    path = Path(observations, th.stack(visited), *others)
    return weigh(model, path, bundle.gamma, bundle.node_values, bundle.costs_by)


def traced_returns(model: DynamicsModel, policy, bundle: Bundle) -> Trajectories:
    def act(observations, t):
        drawn = None if bundle.action_noise is None else bundle.action_noise[t][:, None]
        actions = policy.sample_actions(observations, drawn)[:, 0]
        if bundle.friction is None:
            return actions
        lost, size = 1.0 - bundle.friction.effect, bundle.friction.size
        return actions - lost * size * (actions / size).tanh()

    return traced(model, act, bundle)


def check_against_autograd(model, policy, bundle, tolerance=1e-8):
    trajectories = gradient_along_trajectories(model, policy, bundle)
    returns = traced_returns(model, policy, bundle).returns
    th.testing.assert_close(trajectories.returns, returns.detach(), rtol=1e-10, atol=1e-10)
    expected = th.autograd.grad(returns.mean(), list(policy.parameters()), allow_unused=True)
    found = th.cat([-parameter.grad.reshape(-1) for parameter in policy.parameters()])
    wanted = th.cat([part.reshape(-1) for part in expected])
    assert float(wanted.norm()) > 1e-3
    assert float((found - wanted).norm() / wanted.norm()) <= tolerance
    return trajectories


@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
@pytest.mark.parametrize("name", TRACEABLE)
def test_the_gradient_is_autograd_s(name, stochastic):
    model = model_of(name)
    policy = policy_for(model, stochastic, size=6.0)
    trajectories = check_against_autograd(model, policy, bundle_for(model, stochastic))
    # Both kinds of actions were there: as asked for, and cut off.
    assert 0.02 < float(trajectories.asked_for.double().mean()) < 1.0


@pytest.mark.parametrize(
    "costs_by", [Costs(), Costs(change=1.0), Costs(distance=1.0)], ids=["no costs", "changes", "distance"]
)
@pytest.mark.parametrize("ends_with_values", [False, True])
@pytest.mark.parametrize("name", ["angle, local reward", "one earlier action, one map"])
def test_whatever_follows_the_last_step_and_whatever_steps_cost(name, ends_with_values, costs_by):
    model = model_of(name)
    check_against_autograd(model, policy_for(model), bundle_for(model, False, ends_with_values, costs_by))


@pytest.mark.parametrize("name", ["angle, local reward", "two earlier actions of two"])
def test_actions_that_friction_takes_a_part_of(name):
    model = model_of(name)
    friction = Friction(th.linspace(0.5, 1.2, 10, dtype=th.float64)[:, None], 0.2 * model.action_range[1])
    bundle = bundle_for(model)
    with_friction = check_against_autograd(model, policy_for(model), replace(bundle, friction=friction))
    without = check_against_autograd(model, policy_for(model), bundle)
    assert float((with_friction.applied - without.applied).abs().amax()) > 0.01


def test_small_actions_lose_a_share_and_large_ones_a_little():
    friction = Friction(th.tensor([[0.5]], dtype=th.float64), th.tensor([2.0], dtype=th.float64))
    left = friction.left_of(np.array([[1e-4], [-1e-4], [100.0]]))
    np.testing.assert_allclose(left[:, 0], [0.5e-4, -0.5e-4, 99.0], rtol=1e-6)


def test_trajectories_that_leave_all_bounds():
    """Held at the edge, where nothing more can be lost: no derivative goes through there."""
    model = model_of("ends, quadratic reward")
    bundle = bundle_for(model)
    bundle = replace(bundle, starts=0.9 * model.bounds.high.expand(10, -1), noise=0.03 + bundle.noise)
    trajectories = check_against_autograd(model, policy_for(model, size=0.3), bundle)
    assert not bool(trajectories.kept.all())
    assert float(trajectories.survival[-1].max()) < 0.5


def test_one_step():
    model = model_of("limits")
    bundle = bundle_for(model)
    check_against_autograd(model, policy_for(model), replace(bundle, n_steps=1, noise=bundle.noise[:1]))


def test_the_sweep_takes_any_slopes_of_a_policy():
    """∂Ĵ/∂a itself, with a policy of two actions whose slopes are known."""
    model = model_of("two earlier actions of two")
    bundle = bundle_for(model)
    gain = 0.4 * th.randn(2, 2, generator=th.Generator().manual_seed(0), dtype=th.float64)
    pushes = th.zeros(N_STEPS, 10, 2, dtype=th.float64, requires_grad=True)

    def act(observations, t):
        return observations @ gain.T + pushes[t]

    (expected,) = th.autograd.grad(traced(model, act, bundle).returns.sum(), pushes)
    with th.no_grad():
        path = step_through(model, lambda seen, t: seen @ gain.numpy().T, bundle.starts, N_STEPS, bundle.noise)
        trajectories = weigh(model, path, GAMMA, bundle.node_values, BOTH_COSTS)
        found = sweep_back(model, trajectories, gain.expand(N_STEPS, 10, 2, 2), GAMMA)
    assert float((found - expected).norm() / expected.norm()) <= 1e-8


@pytest.mark.parametrize("name", ["given reward", "angle, local reward"])
def test_the_gradient_is_the_slope_of_the_return(name):
    """By central differences in the policy's parameters: a formula may be anything, autograd cannot look into it."""
    model = model_of(name)
    policy, bundle = policy_for(model, size=1.0), bundle_for(model)
    gradient_along_trajectories(model, policy, bundle)
    parameters = list(policy.parameters())
    found = th.cat([-parameter.grad.reshape(-1) for parameter in parameters])
    start = th.nn.utils.parameters_to_vector(parameters).detach().clone()
    generator = th.Generator().manual_seed(0)
    for _ in range(4):
        direction = th.randn(len(start), generator=generator, dtype=th.float64)
        step, sides = 1e-5, []
        for sign in (1.0, -1.0):
            th.nn.utils.vector_to_parameters(start + sign * step * direction, parameters)
            with th.no_grad():
                sides.append(float(traced_returns(model, policy, bundle).returns.mean()))
        th.nn.utils.vector_to_parameters(start, parameters)
        expected = (sides[0] - sides[1]) / (2.0 * step)
        assert float(found @ direction) == pytest.approx(expected, rel=2e-4, abs=1e-6)


@pytest.mark.parametrize("stochastic", [False, True], ids=["D", "S"])
def test_a_network_in_float32_gets_nearly_the_same(stochastic):
    model = model_of("angle, local reward")
    bundle, found = bundle_for(model, stochastic), []
    for kind in (th.float64, th.float32):
        policy = policy_for(model, stochastic).to(kind)
        gradient_along_trajectories(model, policy, bundle)
        found.append(th.cat([parameter.grad.reshape(-1).double() for parameter in policy.parameters()]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-3


@pytest.mark.parametrize("kind", [DeterministicLinearPolicy, GaussianLinearPolicy])
def test_linear_policies_too(kind):
    model = model_of("one map")
    policy = kind(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)), lambda _: 1e-3, initial_gain=[[-0.4, -0.3]]).double()
    check_against_autograd(model, policy, bundle_for(model, policy.is_stochastic))


def test_the_return_is_what_its_parts_say():
    """Ĵ = Σ γᵗ S_t (r_t − c_t + γ e_t w) + γᴴ S_H V̂, term by term."""
    model = model_of("ends, quadratic reward")
    bundle = bundle_for(model)
    with th.no_grad():
        found = traced_returns(model, policy_for(model), bundle)
    unknown, goes_on = (part.view(N_STEPS, -1) for part in (found.crossing.unknown, found.crossing.goes_on))
    middle = (model.bounds.low + model.bounds.high) / 2.0
    for i in range(len(bundle.starts)):
        total, going = 0.0, 1.0
        for t in range(N_STEPS):
            change = 0.0 if t == 0 else float(found.applied[t, i, 0] - found.applied[t - 1, i, 0]) / 2.0
            away = 2.0 * (found.states[t + 1, i] - middle) / (model.bounds.high - model.bounds.low)
            earned = float(found.rewards[t, i])
            earned -= max(earned, 0.0) * min(0.2 * float(away.square().mean()), 1.0) + 0.3 * change**2
            total += GAMMA**t * going * (earned + GAMMA * float(unknown[t, i]) * model.worst_value(GAMMA))
            going *= float(goes_on[t, i])
        at_the_end = float(found.end_value.weights.mean(bundle.node_values)[i])
        assert float(found.returns[i]) == pytest.approx(total + GAMMA**N_STEPS * going * at_the_end, rel=1e-10)
        assert float(found.survival[-1, i]) == pytest.approx(going, rel=1e-10)


def test_trajectories_are_the_system_s_own():
    model = DynamicsModel.fit(record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle), n_nodes=1500)

    def brake(states):
        return -2.0 * np.sin(states[:, :1]) - states[:, 1:]

    def act(observations, t):
        return (-2.0 * observations[:, 1] - observations[:, 2])[:, None]

    start = np.array([[0.3, 0.0], [3.0, 0.5], [-3.0, -1.0]])
    found = step_through(model, act, model.coordinates.encode(th.tensor(on_circle(start))), 30)
    expected = np.stack([on_circle(states) for states in truth(pendulum, brake, start, 30)])
    np.testing.assert_allclose(model.coordinates.decode(found.states).numpy(), expected, atol=0.02)


def test_earlier_steps_are_remembered_the_last_one_first():
    model = model_of("two earlier actions of two")
    found = step_through(model, lambda o, t: np.full((len(o), 2), 0.1 * (t + 1)), model.nodes.states[:3], 5)
    changes = found.states[1:] - found.states[:-1]
    actions = 0.1 * th.arange(1, 6, dtype=th.float64)[:, None, None].expand(5, 3, 2)
    for t in (2, 3, 4):
        expected = th.cat([actions[t - 1], changes[t - 1], actions[t - 2], changes[t - 2]], dim=1)
        th.testing.assert_close(found.earlier[t], expected, rtol=1e-12, atol=1e-12)
    # Before the first, there is what it began with.
    th.testing.assert_close(found.earlier[1][:, 4:], found.earlier[0][:, :4], rtol=0, atol=0)
    th.testing.assert_close(found.earlier[0], model.past_at_rest(found.states[0]), rtol=0, atol=0)


def test_before_a_system_moves_nobody_acts_and_nothing_changes():
    model = DynamicsModel.fit(record(linear, linear_reward, delay=1, n_episodes=20), n_nodes=N_NODES)
    past = Stepper(model).begin(np.zeros((3, 2))).earlier
    assert past.shape == (3, 3)
    np.testing.assert_array_equal(past[:, 0], 0.0)
    np.testing.assert_allclose(past[:, 1:], 0.0, atol=1e-2)


def test_trajectories_can_begin_in_the_middle_of_an_episode():
    model = model_of("earlier action, angle")
    bundle = bundle_for(model)
    earlier = 0.1 * th.randn(10, 3, generator=th.Generator().manual_seed(3), dtype=th.float64)
    moving = check_against_autograd(model, policy_for(model), replace(bundle, earlier=earlier))
    th.testing.assert_close(moving.earlier[0], earlier, rtol=0, atol=0)


def test_noise_is_what_predictions_missed():
    data = record(linear, linear_reward, noise=0.05, n_episodes=20)
    model = DynamicsModel.fit(data, n_nodes=50)
    drawn = draw_noise(model, 30, 40, th.Generator().manual_seed(0))
    assert drawn.shape == (30, 40, 2)
    th.testing.assert_close(drawn.flatten(0, 1).std(dim=0), th.full((2,), 0.05).double(), rtol=0.2, atol=0)
    again = draw_noise(model, 30, 40, th.Generator().manual_seed(0))
    th.testing.assert_close(drawn, again, rtol=0, atol=0)


def test_a_policy_that_blew_up_is_told():
    model = model_of("one map")
    policy = policy_for(model)
    with th.no_grad():
        policy.network[0].weight.fill_(th.nan)
    with pytest.raises(SolverError, match="learning_rate"):
        gradient_along_trajectories(model, policy, bundle_for(model, ends_with_values=False))
