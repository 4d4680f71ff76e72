"""Updates are counted as time steps, and the same seed gives the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th

from helpers.drift import STATES, DriftEnv, Recorder, both, environments, make, parameters_of
from sb3_nopg import NOPG, NOPGD, NOPGS


@pytest.mark.slow
@environments
def test_timesteps_are_policy_updates(transitions: str, env: Callable[[], Any] | None):
    model = make(env=env and env(), transitions=transitions)
    recorder = Recorder(lambda callback: (callback.num_timesteps, callback.model._n_updates))
    model.learn(3, callback=recorder)
    model.learn(2, callback=recorder, reset_num_timesteps=False)
    model.learn(1, callback=recorder)
    assert recorder.seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, 6)]
    assert model.num_timesteps == 1


@pytest.mark.slow
def test_continuing_is_the_same_as_not_stopping():
    in_one_go, in_two = make(NOPGS).learn(12), make(NOPGS).learn(5).learn(7, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters_of(in_two), parameters_of(in_one_go))


@pytest.mark.slow
@both
def test_zero_updates_change_nothing(transitions: str):
    model = make(transitions=transitions)
    before = parameters_of(model)
    assert model.learn(0) is model
    assert model.num_timesteps == 0
    np.testing.assert_array_equal(parameters_of(model), before)


random_settings = pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (NOPGD, {}),
        (NOPGS, {}),
        (NOPGS, {"n_next_state_samples": 3}),
        (NOPGS, {"resample_interval": 6}),
        (NOPGD, {"env": DriftEnv}),
        # Of a deterministic policy, test_course.py asks the same.
        (NOPGS, {"transitions": "model"}),
    ],
    ids=["D", "S", "S-next-states", "S-resampled", "D-env", "S-model"],
)


def trained_with_seed(algorithm: type[NOPG], seed: int, env: Callable[[], Any] | None = None, **settings: Any) -> NOPG:
    # Beyond a resampling.
    return make(algorithm, env=env and env(), seed=seed, **settings).learn(8)


@pytest.mark.slow
@random_settings
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(algorithm: type[NOPG], settings: dict[str, Any]):
    first, second, other = (trained_with_seed(algorithm, seed, **settings) for seed in (3, 3, 4))
    np.testing.assert_array_equal(parameters_of(first), parameters_of(second))
    assert first.estimated_return() == second.estimated_return()
    assert not np.allclose(parameters_of(first), parameters_of(other))


@pytest.mark.slow
@both
def test_other_random_numbers_drawn_meanwhile_change_nothing(transitions: str):
    first, second = (make(NOPGS, n_next_state_samples=2, transitions=transitions) for _ in range(2))
    first.learn(5)
    th.rand(17)
    np.random.random(17)  # noqa: NPY002
    second.learn(5)
    np.testing.assert_array_equal(parameters_of(first), parameters_of(second))


def test_set_random_seed_repeats_the_policy_s_draws():
    model = make(NOPGS)
    draws = []
    for seed in (7, 7, 8):
        model.set_random_seed(seed)
        draws.append(model.predict(STATES)[0])
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])
