"""What a step earns: a user's formula exactly, a quadratic function where that predicts best, the nodes' maps otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch as th

from helpers.systems import cart, linear, linear_reward, on_circle, pendulum, pendulum_reward, record
from sb3_nopg import DynamicsModel, InputError
from sb3_nopg.bellman.on_nodes import NodeEquation
from sb3_nopg.dynamics.affine import Samples
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.rewards import GivenReward, QuadraticReward, given_reward, recorded_rewards
from sb3_nopg.dynamics.trajectories import step_through, weigh
from sb3_nopg.prediction.rollouts import roll_out

EXPRESSION = "cos(2 * s2[0]) - 0.1 * a[0]**2 + 0.2 * s[1] * s2[1]"


def formula(states, actions, next_states):
    return np.cos(2.0 * next_states[:, 0]) - 0.1 * actions[:, 0] ** 2 + 0.2 * states[:, 1] * next_states[:, 1]


def points(n: int = 30, d: int = 2, seed: int = 0) -> list[th.Tensor]:
    """States, actions, next states."""
    generator = th.Generator().manual_seed(seed)
    return [th.rand(n, k, generator=generator, dtype=th.float64) - 0.5 for k in (d, 1, d)]


@pytest.mark.slow
@pytest.mark.parametrize("reward", [EXPRESSION, formula], ids=["expression", "function"])
def test_a_given_reward_is_used_exactly(reward):
    # The data say something else, which does not count.
    data = record(cart, start=(0.8, 0.8))
    model = DynamicsModel.fit(data, n_nodes=60, reward=reward, n_earlier_steps=0)
    assert isinstance(model.reward, GivenReward)
    assert model.choices.reward.kernel is None
    earned = formula(data.observations, data.actions, data.next_observations)
    assert model.reward_range == pytest.approx((earned.min(), earned.max()))
    # At any state,
    states, actions, after = points()
    np.testing.assert_array_equal(model.reward(states, actions, after).numpy(), formula(*map(np.asarray, points())))
    # at the nodes,
    equation = NodeEquation(model, model.nodes.states[:3], 0.9)
    landing = equation.land(th.full((len(model.nodes), 1), 0.4, dtype=th.float64))
    expected = formula(model.nodes.states.numpy(), landing.applied.numpy(), landing.next_states.numpy())
    np.testing.assert_allclose(landing.reward.value.numpy(), expected, rtol=1e-12)
    # and along trajectories, both kinds.
    path = weigh(model, step_through(model, lambda o, t: -o[:, :1], model.nodes.states[:4], 6), 0.9)
    for t in range(6):
        expected = formula(path.states[t].numpy(), path.applied[t].numpy(), path.states[t + 1].numpy())
        np.testing.assert_allclose(path.rewards[t].numpy(), expected, rtol=1e-12)
    (found,) = roll_out(model, [lambda o: -o[:, :1]], 0.5 * data.observations[:4], 6)
    for t in range(6):
        expected = formula(found.states[t], found.actions[t], found.states[t + 1])
        np.testing.assert_allclose(found.rewards[t], expected, rtol=1e-9)


@pytest.mark.slow
def test_a_given_reward_on_a_circle_sees_observations():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    model = DynamicsModel.fit(data, n_nodes=60, reward="s2[0] - 0.01 * s[2]**2")
    states = model.nodes.states[:20]
    seen = model.coordinates.decode(states)
    found = model.reward(states, th.zeros(20, 1, dtype=th.float64), states)
    th.testing.assert_close(found, seen[:, 0] - 0.01 * seen[:, 2] ** 2)


def test_slopes_of_a_given_reward():
    """By differences of a formula that autograd can differentiate."""
    angle = np.random.default_rng(0).uniform(-3, 3, size=50)
    seen = np.column_stack([np.cos(angle), np.sin(angle), np.linspace(-1, 1, 50)])
    coordinates = Coordinates.of(th.tensor(seen))
    reward = given_reward("s2[0] * s[2] - a**2 + sin(s[1])", coordinates, seen, np.linspace(-1, 1, 50)[:, None])
    states, actions, after = (part.requires_grad_(True) for part in points())
    before, then = coordinates.decode(states), coordinates.decode(after)
    value = then[:, 0] * before[:, 2] - actions[:, 0] ** 2 + th.sin(before[:, 1])
    expected = th.autograd.grad(value.sum(), (states, actions, after))
    found = reward.with_slopes(*(part.detach() for part in (states, actions, after)))
    th.testing.assert_close(found.value, value.detach())
    for one, other in zip((found.of_state, found.of_action, found.of_next_state), expected, strict=True):
        th.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_slopes_at_the_edge_of_where_a_formula_has_a_value():
    """To the side where it has one, and none where it has none on either."""
    data = record(linear, linear_reward)
    coordinates = Coordinates.of(th.tensor(data.observations), ())
    reward = given_reward("2 * sqrt(s[0]) + 0 * arccos(1 + abs(s[1]))", coordinates, data.observations, data.actions)
    states, action = th.tensor([[0.0, 0.0], [0.25, 0.0]], dtype=th.float64), th.zeros(2, 1, dtype=th.float64)
    with np.errstate(invalid="ignore"):
        found = reward.with_slopes(states, action, states)
    np.testing.assert_allclose(found.value, [0.0, 1.0])
    assert float(found.of_state[0, 0]) > 100.0
    assert float(found.of_state[1, 0]) == pytest.approx(2.0, rel=1e-6)
    np.testing.assert_array_equal(found.of_state[:, 1], 0.0)


@pytest.mark.slow
def test_a_quadratic_reward_is_found_to_be_one():
    data = record(linear, linear_reward)
    model = DynamicsModel.fit(data, n_nodes=60)
    assert isinstance(model.reward, QuadraticReward)
    states, actions, after = points()
    expected = linear_reward(states.numpy(), actions.numpy(), after.numpy())
    low, high = model.reward_range
    # Some lie beyond the recorded ones, which an exact model goes on to.
    assert not bool(((expected >= low) & (expected <= high)).all())
    np.testing.assert_allclose(model.reward(states, actions, after).numpy(), expected, atol=1e-5)
    disturbed = DynamicsModel.fit(record(linear, linear_reward, noise=0.01), n_nodes=60, n_earlier_steps=0)
    low, high = disturbed.reward_range
    found = disturbed.reward(states, actions, after).numpy()
    np.testing.assert_allclose(found, np.clip(expected, low, high), atol=1e-5)


def test_slopes_of_a_quadratic_reward():
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(80, 2)), rng.normal(size=(80, 1))
    targets = 1.0 - states[:, :1] ** 2 + 0.3 * states[:, 1:] * actions - 0.2 * actions**2
    coordinates = Coordinates.of(th.tensor(states))
    reward = QuadraticReward.fit(Samples(coordinates, *(th.tensor(part) for part in (states, actions, targets))), 1)
    # Some beyond the range of the data, where nothing more is lost or won.
    x, a, after = (4.0 * part.detach() for part in points(60))
    x, a = x.requires_grad_(True), a.requires_grad_(True)
    value = reward(x, a, after)
    assert 0 < int(((value == reward.low) | (value == reward.high)).sum()) < 60
    expected = th.autograd.grad(value.sum(), (x, a))
    found = reward.with_slopes(x.detach(), a.detach(), after)
    th.testing.assert_close(found.value, value.detach())
    th.testing.assert_close(found.of_state, expected[0], rtol=1e-9, atol=1e-12)
    th.testing.assert_close(found.of_action, expected[1], rtol=1e-9, atol=1e-12)


def hanging_samples(reward, reach: float = 2.6, target: float = 0.0, n: int = 200) -> tuple[Samples, Coordinates]:
    """Of a pole that hangs most of the time and was never upright; angles in the coordinates begin where it hangs."""
    rng = np.random.default_rng(0)
    angle = np.pi + reach * np.tanh(rng.normal(size=n))
    states, actions = np.column_stack([angle, rng.normal(size=n)]), rng.uniform(-1.0, 1.0, (n, 1))
    coordinates = Coordinates.of(th.tensor(on_circle(states)))
    targets = reward(states, actions)[:, None]
    return Samples(
        coordinates, coordinates.encode(th.tensor(on_circle(states))), th.tensor(actions), th.tensor(targets)
    ), coordinates


@pytest.mark.parametrize("target", [0.0, 0.4])
def test_the_square_of_an_angle_is_measured_from_where_the_reward_is_best(target):
    def reward(states, actions):
        away = np.angle(np.exp(1j * (states[:, 0] - target)))
        return 1.5 - away**2 - 0.1 * states[:, 1] ** 2 - 0.05 * actions[:, 0] ** 2

    samples, coordinates = hanging_samples(reward)
    found = QuadraticReward.fit(samples, 1, exact=True)
    rng = np.random.default_rng(1)
    # Anywhere, the target among them, and after some turns too.
    states = np.column_stack([np.append(rng.uniform(-np.pi, np.pi, 50), target), np.append(rng.normal(size=50), 0.0)])
    actions = np.append(rng.uniform(-1.0, 1.0, 50), 0.0)[:, None]
    x, a = coordinates.encode(th.tensor(on_circle(states))), th.tensor(actions)
    np.testing.assert_allclose(found(x, a, x).numpy(), reward(states, actions), atol=1e-5)
    turned = x + th.tensor([0.0, 4.0 * np.pi], dtype=th.float64)
    np.testing.assert_allclose(found(turned, a, turned).numpy(), reward(states, actions), atol=1e-5)
    assert float(found(x, a, x)[-1]) == pytest.approx(1.5, abs=1e-5)
    x, a = x.requires_grad_(True), a.requires_grad_(True)
    expected = th.autograd.grad(found(x, a, x).sum(), (x, a))
    slopes = found.with_slopes(x.detach(), a.detach(), x.detach())
    th.testing.assert_close(slopes.of_state, expected[0], rtol=1e-9, atol=1e-12)
    th.testing.assert_close(slopes.of_action, expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("squared", [True, False])
def test_on_a_circle_a_square_is_taken_where_it_is_one(squared):
    def reward(states, actions, next_states):
        away = np.angle(np.exp(1j * states[:, 0]))
        return -(away**2) if squared else np.where(np.abs(away) < 1.0, 1.0, 0.0) + 0.1 * np.sin(3.0 * away)

    data = record(pendulum, reward, observe=on_circle, start=(np.pi, 2.0), n_episodes=20)
    model = DynamicsModel.fit(data, n_nodes=60)
    assert isinstance(model.reward, QuadraticReward) == squared
    if squared:
        assert model.choices.reward.unexplained < 1e-9
        upright = model.coordinates.encode(th.tensor([[1.0, 0.0, 0.0]], dtype=th.float64))
        assert float(model.reward(upright, th.zeros(1, 1, dtype=th.float64), upright)) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.slow
def test_a_reward_that_is_not_quadratic_comes_from_the_nodes(whole_sizes):
    def goal(states, actions, next_states):
        return np.exp(-20.0 * np.square(states - 0.5).sum(axis=1))

    data = record(linear, goal, n_episodes=20)
    model = DynamicsModel.fit(data, n_nodes=300)
    assert model.reward is None
    assert model.choices.reward.kernel.bandwidth < 1.0
    equation = NodeEquation(model, model.nodes.states[:3], 0.0)
    found = equation.land(th.zeros(len(model.nodes), 1, dtype=th.float64)).reward.value
    assert float(found.min()) >= data.rewards.min()
    assert float(found.max()) <= data.rewards.max()
    expected = goal(model.nodes.states.numpy(), None, None)
    assert np.corrcoef(found.numpy(), expected)[0, 1] > 0.8


# --- Bad input -------------------------------------------------------------------------------------------------------------


def raises(states, actions, next_states):
    raise RuntimeError("no reward today")


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("log(s[0])", "row"),
        ("1 / (s[0] - s[0])", "row"),
        ("s[7]", "s[7]"),
        ("speed**2", "speed"),
        ("s[0] +", "formula"),
        ("__import__('os')", "__import__"),
        (raises, "no reward today"),
        (lambda s, a, s2: s, "(240, 2)"),
        (lambda s, a, s2: 1.0, "240"),
        (lambda s, a, s2: np.full(len(s), np.nan), "row"),
        (lambda s, a, s2: ["much"] * len(s), "much"),
        (lambda s: s[:, 0], "fails"),
        (5, "5"),
    ],
)
def test_a_reward_that_fails_is_told(reward, told):
    data = record(linear, linear_reward)
    with pytest.raises(InputError) as caught:
        DynamicsModel.fit(data, reward=reward)
    assert caught.value.field in ("reward", "expression")
    assert told in str(caught.value)


def test_the_row_at_which_a_formula_fails_is_named():
    data = record(linear, linear_reward)
    observations = np.abs(data.observations)
    observations[17, 0] = -1.0
    with pytest.raises(InputError, match="row 17"):
        recorded_rewards("log(s[0])", observations, data.actions, observations)


def test_one_column_is_as_good_as_one_number_a_row():
    data = record(linear, linear_reward)
    found = recorded_rewards(lambda s, a, s2: s[:, :1], data.observations, data.actions, data.next_observations)
    np.testing.assert_array_equal(found, data.observations[:, 0])


@pytest.mark.slow
def test_rewards_of_the_data_do_not_matter_beside_a_formula():
    data = record(linear, linear_reward)
    other = replace(data, rewards=np.random.default_rng(0).normal(size=len(data)))
    one, two = (DynamicsModel.fit(part, n_nodes=60, reward="-s[0]**2") for part in (data, other))
    assert th.equal(one.nodes.fields[0].maps.value, two.nodes.fields[0].maps.value)
    assert one.reward_range == two.reward_range
    assert one.worst_value(0.9) == two.worst_value(0.9)
