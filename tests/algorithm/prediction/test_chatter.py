"""How much an actuator moves: known signals, and ends of trajectories that are left out."""

import numpy as np
import pytest

from sb3_nopg.prediction.chatter import chatter_of

SPAN = np.array([4.0])


def of_signal(*signals: np.ndarray) -> np.ndarray:
    """Actions of trajectories, (T, m, 1)."""
    return np.stack(signals, axis=1)[..., None]


def test_who_alternates_is_fast_and_who_swings_slowly_is_not():
    steps = np.arange(200)
    alternating, slow = 0.5 * (-1.0) ** steps, np.sin(2 * np.pi * steps / 50)
    trembling, swinging = (chatter_of(of_signal(signal), SPAN) for signal in (alternating, slow))
    assert trembling.change == pytest.approx(0.25)
    assert trembling.fast == pytest.approx(1.0)
    assert swinging.change == pytest.approx(np.abs(np.diff(slow)).mean() / 4.0)
    assert swinging.fast < 1e-6
    assert "25 % of its range a step, 100 % of it" in trembling.text()


@pytest.mark.parametrize("n_steps", [200, 201])
def test_shares_are_those_of_the_variance(n_steps):
    steps = np.arange(n_steps)
    # Of equal variance.
    both = (-1.0) ** steps + np.sqrt(2.0) * np.sin(2 * np.pi * steps / 20)
    assert chatter_of(of_signal(both), SPAN).fast == pytest.approx(0.5, abs=0.01)


def test_white_noise_is_half_fast():
    noise = chatter_of(np.random.default_rng(0).normal(size=(1000, 4, 2)), np.array([1.0, 1.0]))
    assert noise.fast == pytest.approx(0.5, abs=0.05)


def test_what_follows_an_end_does_not_count():
    steps = np.arange(40)
    whole, short = np.sin(steps / 5.0), 0.5 * (-1.0) ** steps
    short[10:] = np.nan
    both, alone = chatter_of(of_signal(whole, short), SPAN), chatter_of(of_signal(short[:10]), SPAN)
    assert alone.change == pytest.approx(0.25)
    changes = np.concatenate([np.abs(np.diff(whole)), np.abs(np.diff(short[:10]))]) / 4.0
    assert both.change == pytest.approx(changes.mean())
    assert 0.0 < both.fast < alone.fast


@pytest.mark.parametrize("actions", [np.full((5, 2, 1), np.nan), np.ones((1, 2, 1)), np.ones((9, 2, 1))])
def test_nothing_that_moves_is_no_chatter(actions):
    found = chatter_of(actions, SPAN)
    assert (found.change, found.fast) == (0.0, 0.0)
    assert chatter_of(actions, np.zeros(1)) == found
