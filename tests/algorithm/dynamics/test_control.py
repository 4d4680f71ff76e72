"""What actions do, where a controller chose them: told by other states than those that it holds the system in."""

import math
from functools import cache

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import on_circle, pendulum, prepared, record
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.data.control import share_under_control
from sb3_nopg.dynamics.regression import AffineRegression, Form, LocalAffineRegression, Samples, spread_of

_STEP_S, _PUSH = 0.05, 6.0


def pushed(angle: float, speed: float, action: float) -> tuple[float, float]:
    """A pole on a cart: a push turns it one way when it stands, the other way when it hangs, and not at all in between."""
    speed = 0.99 * speed + _STEP_S * (6.0 * math.sin(angle) + _PUSH * math.cos(angle) * action)
    return angle + _STEP_S * speed, speed


@cache
def held_up(noise: float = 0.0, shake: float = 0.02) -> TransitionDataset:
    """Half of it a signal that swings a hanging pole, half a controller that holds it up; speeds are seen late."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(12):
        hangs = episode < 6
        angle, speed = (math.pi + 0.1 * rng.normal(), 0.0) if hangs else (rng.uniform(-0.4, 0.4), 0.0)
        seen = np.array([math.cos(angle), math.sin(angle), speed])
        for number in range(120):
            time_s = _STEP_S * number
            action = math.sin(2.0 * math.pi * (0.3 + 0.16 * time_s) * time_s)
            if not hangs:
                action = float(np.clip(-3.0 * math.atan2(seen[1], seen[0]) - seen[2] + shake * rng.normal(), -1.0, 1.0))
            angle, speed = np.array(pushed(angle, speed, action)) + noise * rng.normal(size=2)
            after = np.array([math.cos(angle), math.sin(angle), (speed + seen[2]) / 2.0])
            rows.append((seen, [action], math.cos(angle), after, False, episode))
            seen = after
    states, actions, rewards, after_each, ends, episodes = (np.array(column) for column in zip(*rows, strict=True))
    space = spaces.Box(-1.0, 1.0, (1,), np.float64)
    return TransitionDataset(states, actions, rewards, after_each, ends, episode_ids=episodes, action_space=space)


def effect(model: DynamicsModel, degrees: float) -> float:
    """Of a push, on the speed that is seen after it: half of what it is."""
    angle = math.radians(degrees)
    states = np.tile([math.cos(angle), math.sin(angle), 0.0], (2, 1))
    after, _ = model.predict(states, np.array([[0.5], [-0.5]]))
    return float(after[0, 2] - after[1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_pole_that_hangs_tells_what_a_push_does_to_one_that_is_held_up(noise):
    model = DynamicsModel.fit(held_up(noise), n_nodes=1500)
    assert all(kernel.form.turning for kernel in model.choices.kernels)
    assert "one formula" in model.describe()
    for degrees in (0.0, 20.0, 90.0, 180.0):
        assert effect(model, degrees) == pytest.approx(_STEP_S * _PUSH * math.cos(math.radians(degrees)) / 2.0, abs=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("chosen_anew")
def test_without_the_formula_it_has_no_idea(monkeypatch):
    monkeypatch.setattr("sb3_nopg.dynamics.choices._UNDER_CONTROL", 1.0)
    model = DynamicsModel.fit(held_up(), n_nodes=1500)
    assert not any(kernel.form.turning for kernel in model.choices.kernels)
    assert effect(model, 0.0) < 0.3 * _STEP_S * _PUSH / 2.0


@pytest.mark.slow
def test_where_actions_are_free_maps_are_local():
    data = record(pendulum, start=(3.0, 2.0), n_episodes=40, observe=on_circle)
    assert not any(kernel.form.turning for kernel in DynamicsModel.fit(data, n_nodes=500).choices.kernels)


def test_who_asks_for_one_affine_model_gets_it():
    model = DynamicsModel.fit(held_up(), bandwidth=math.inf, n_nodes=300)
    assert model.choices.is_affine
    assert not any(kernel.form.turning for kernel in model.choices.kernels)


def test_the_share_under_control_falls_with_every_shake_of_the_hand():
    shares = []
    for shake in (0.0, 0.1, 0.3, 1.0):
        known = prepared(held_up(shake=shake))
        points = known.coordinates.embed(known.states, spread_of(known.states)).numpy()
        shares.append(share_under_control(known.dataset, points))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    # Half of the data is the signal, which is the same every time.
    assert 0.5 < shares[-1] < 0.7


def turning() -> tuple[Samples, th.Tensor]:
    """Of an angle and a straight coordinate: 2 + y + cos x (3 y − u) + sin x (1 + u / 2)."""
    angle, straight, pushes = np.random.default_rng(0).uniform(size=(3, 400, 1))
    angle, straight = 6.0 * angle - 3.0, 4.0 * straight + 1.0
    some = np.column_stack([np.cos(angle), np.sin(angle), straight])
    data = TransitionDataset(some, pushes, np.zeros(400), some, np.zeros(400, dtype=bool))
    coordinates = prepared(data).coordinates
    states, pushes, straight = coordinates.encode(th.from_numpy(some)), th.from_numpy(pushes), th.from_numpy(straight)
    # From the data's mean, which is the angle's zero.
    bent = states[:, coordinates.bent]
    turned = bent.cos() * (3.0 * straight - pushes) + bent.sin() * (1.0 + pushes / 2.0)
    return Samples(coordinates, states, pushes, 2.0 + straight + turned), bent


def test_a_turning_formula_is_found_and_its_tangents_are_its_derivatives():
    samples, bent = turning()
    assert samples.coordinates.bent.any()
    regression = AffineRegression(samples, 1e-12, turning=True)
    th.testing.assert_close(regression.predict(samples.states, samples.inputs), samples.targets, rtol=0.0, atol=1e-6)
    maps = regression.maps_at(samples.states)
    th.testing.assert_close(maps.action_slope[:, 0], bent.sin() / 2.0 - bent.cos(), rtol=0.0, atol=1e-6)
    for number in range(2):
        step = th.zeros(2, dtype=th.float64)
        step[number] = 1e-5
        none = th.zeros_like(samples.inputs)
        ahead, behind = (regression.predict(samples.states + sign * step, none) for sign in (1.0, -1.0))
        th.testing.assert_close(maps.state_slope[:, 0, number], (ahead - behind)[:, 0] / 2e-5, rtol=0.0, atol=1e-6)
    th.testing.assert_close(maps.value, regression.predict(samples.states, th.zeros_like(samples.inputs)))


def test_a_neighbourhood_leaves_what_actions_do_to_the_formula():
    samples, _ = turning()
    local = LocalAffineRegression(samples, 0.3, Form(turning=True))
    th.testing.assert_close(local.maps_at(samples.states).action_slope, local.whole.maps_at(samples.states).action_slope)
