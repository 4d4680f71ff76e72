"""What actions do, where a controller chose them: told by other states than those that it holds the system in."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.systems import on_circle, pendulum, prepared, record
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.data.control import share_under_control
from sb3_nopg.dynamics.affine import AffineRegression, Samples, spread_of
from sb3_nopg.dynamics.choices import _is_under_control
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.regression import Form, LocalAffineRegression

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


@pytest.mark.slow
@pytest.mark.usefixtures("chosen_anew")
def test_a_formula_has_to_predict_about_as_well(monkeypatch):
    monkeypatch.setattr("sb3_nopg.dynamics.choices._AS_GOOD_TURNING", 0.1)
    model = DynamicsModel.fit(held_up(0.01), n_nodes=1500)
    assert not any(kernel.form.turning for kernel in model.choices.kernels)


@pytest.mark.usefixtures("chosen_anew")
def test_what_one_affine_model_explains_needs_no_formula(monkeypatch):
    monkeypatch.setattr("sb3_nopg.dynamics.choices._AS_GOOD_TURNING", math.inf)
    data = record(
        pendulum, start=(3.0, 2.0), n_episodes=40, observe=on_circle, act=lambda state, random: np.tanh(-state[:, :1])
    )
    model = DynamicsModel.fit(data, n_nodes=300)
    assert share_of(data) > 0.9
    assert model.choices.explained


def test_without_episodes_nobody_knows_whether_somebody_was_in_control():
    known = prepared(held_up())
    assert _is_under_control(known)
    assert not _is_under_control(replace(known, labels=None))


def test_who_asks_for_one_affine_model_gets_it():
    model = DynamicsModel.fit(held_up(), bandwidth=math.inf, n_nodes=300)
    assert model.choices.is_affine
    assert not any(kernel.form.turning for kernel in model.choices.kernels)


def share_of(data: TransitionDataset) -> float:
    known = prepared(data)
    return share_under_control(data, known.coordinates.embed(known.states, spread_of(known.states)).numpy())


def test_the_share_under_control_falls_with_every_shake_of_the_hand():
    shares = [share_of(held_up(shake=shake)) for shake in (0.0, 0.1, 0.3, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    # Half of the data is the signal, which is the same every time.
    assert 0.5 < shares[-1] < 0.7


def test_actions_that_never_change_are_nobodys_control():
    data, rng = held_up(), np.random.default_rng(0)
    constant, drawn = np.full((len(data), 1), 0.1), rng.uniform(-1.0, 1.0, size=(len(data), 1))
    assert share_of(replace(data, actions=constant)) == 0.0
    both = share_of(replace(data, actions=np.hstack([constant, drawn]), action_space=None))
    assert both == pytest.approx(share_of(replace(data, actions=drawn)), abs=1e-9)


def test_the_order_of_episodes_does_not_matter():
    data, rng = held_up(), np.random.default_rng(0)
    free = [replace(data, actions=rng.uniform(-1.0, 1.0, size=(len(data), 1))) for _ in range(3)]
    shares = [share_of(TransitionDataset.merge(*parts)) for parts in ([data, *free], [*free, data])]
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


def samples_of(n_straight: int, n_bent: int, n_inputs: int, n_targets: int) -> Samples:
    """Of angles all around and straight coordinates; the targets are drawn."""
    rng, n = np.random.default_rng(0), 400
    angles = rng.uniform(-3.0, 3.0, size=(n, n_bent))
    waves = [wave(angles[:, number]) for number in range(n_bent) for wave in (np.cos, np.sin)]
    some = th.from_numpy(np.column_stack([rng.normal(5.0, 2.0, size=(n, n_straight)), *waves]))
    coordinates = Coordinates.of(some)
    assert int(coordinates.bent.sum()) == n_bent
    inputs, targets = rng.normal(2.0, 3.0, size=(n, n_inputs)), rng.normal(size=(n, n_targets))
    return Samples(coordinates, coordinates.encode(some), th.from_numpy(inputs), th.from_numpy(targets))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 2), (0, 1, 1, 1), (2, 2, 3, 4), (1, 3, 2, 1)])
def test_tangents_of_a_turning_formula_are_its_derivatives(sizes):
    samples = samples_of(*sizes)
    regression, states = AffineRegression(samples, 1e-4, turning=True), samples.states
    none, (n_straight, n_bent, n_inputs, _) = th.zeros_like(samples.inputs), sizes
    maps = regression.maps_at(states)
    for number in range(n_straight + n_bent):
        step = th.zeros(n_straight + n_bent, dtype=th.float64)
        step[number] = 1e-5
        ahead, behind = (regression.predict(states + sign * step, none) for sign in (1.0, -1.0))
        th.testing.assert_close(maps.state_slope[..., number], (ahead - behind) / 2e-5, rtol=0.0, atol=1e-6)
    for number in range(n_inputs):
        one = none.clone()
        one[:, number] = 1.0
        difference = regression.predict(states, one) - regression.predict(states, none)
        th.testing.assert_close(maps.action_slope[..., number], difference)
    th.testing.assert_close(maps.at_own_states(samples.inputs), regression.predict(states, samples.inputs))


def test_a_turning_formula_is_found():
    samples = samples_of(1, 1, 1, 1)
    straight, angle, pushes = samples.states[:, :1], samples.states[:, 1:], samples.inputs
    turned = angle.cos() * (3.0 * straight - pushes) + angle.sin() * (1.0 + pushes / 2.0)
    samples = replace(samples, targets=2.0 + straight + turned)
    regression = AffineRegression(samples, 1e-12, turning=True)
    th.testing.assert_close(regression.predict(samples.states, pushes), samples.targets, rtol=0.0, atol=1e-6)
    slopes = regression.maps_at(samples.states).action_slope[:, 0]
    th.testing.assert_close(slopes, angle.sin() / 2.0 - angle.cos(), rtol=0.0, atol=1e-6)


def test_a_neighbourhood_leaves_what_actions_do_to_the_formula():
    samples = samples_of(1, 1, 1, 1)
    # No formula with sines and cosines has this.
    beyond = samples.inputs * (samples.states[:, :1] - 5.0).square()
    samples = replace(samples, targets=beyond)
    for turning in (True, False):
        local = LocalAffineRegression(samples, 0.3, Form(turning=turning))
        by_all, here = (part.maps_at(samples.states).action_slope for part in (local.whole, local))
        assert bool((by_all - here).abs().max() > 1.0) != turning
        assert th.equal(by_all, here) == turning
